"""`/api/v1/queues`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.jobs.queue import QueueInfo
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, NamePath, Reason, Span
from duetime.web.api.routing import Routes, page_of

Most = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class PauseQueueBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Reason = ""


class LimitBody(msgspec.Struct, forbid_unknown_fields=True):
    """A queue's limits, which apply across all workers. A limit that is left out is removed."""

    running: Most | None = None
    """Jobs at once."""
    per_partition: Most | None = None
    """Jobs at once with the same partition."""
    rate: Most | None = None
    """Starts in any span of `period`."""
    period: Span | None = None


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="queues")

    @routes.get("/queues", answer=page_of(QueueInfo))
    async def list_queues(limit: Limit = DEFAULT_LIMIT, after: After = None) -> Page[QueueInfo]:
        """List the queues that have jobs, a worker, a pause or a limit, by name."""
        return await app.queues.list(limit=limit, after=after)

    @routes.get("/queues/{queue}", answer=QueueInfo, problems=[404])
    async def get_queue(queue: NamePath) -> QueueInfo:
        """Show a queue."""
        return await app.queues.get(queue)

    @routes.get("/queues/{queue}/explain", answer=Explanation, problems=[404])
    async def explain_queue(queue: NamePath) -> Explanation:
        """Explain why jobs of a queue do or do not start."""
        return await app.queues.explain(queue)

    @routes.get("/queues/{queue}/audit", answer=page_of(AuditEvent))
    async def audit_queue(
        queue: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who paused, resumed or limited a queue, newest first."""
        return await app.queues.audit(queue, limit=limit, after=after)

    @routes.post(
        "/queues/{queue}/pause", body=PauseQueueBody, example={"reason": "The mail server is down"}
    )
    async def pause_queue(queue: NamePath, body: Any, visitor: Visitor) -> None:
        """Start no more jobs of a queue, on any worker. Running jobs continue."""
        await app.queues.pause(queue, reason=body.reason, by=visitor.name)

    @routes.post("/queues/{queue}/resume")
    async def resume_queue(queue: NamePath, visitor: Visitor) -> None:
        """Start jobs of a queue again, at once."""
        await app.queues.resume(queue, by=visitor.name)

    @routes.post(
        "/queues/{queue}/limit",
        body=LimitBody,
        example={"running": 10, "rate": 100, "period": "1m"},
    )
    async def limit_queue(queue: NamePath, body: Any, visitor: Visitor) -> None:
        """Set the limits of a queue. A limit that is left out is removed."""
        await app.queues.limit(
            queue,
            running=body.running,
            per_partition=body.per_partition,
            rate=body.rate,
            period=body.period,
            by=visitor.name,
        )

    return routes
