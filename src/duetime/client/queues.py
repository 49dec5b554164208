"""`client.queues`."""

from __future__ import annotations

from duetime.api.handle import Handle, bound, iterated
from duetime.client.connection import Connection
from duetime.domain.audit import AuditEvent
from duetime.domain.duration import Duration
from duetime.domain.jobs.queue import QueueInfo
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation


class Queues:
    """`client.queues`: the verbs of `app.queues`. `client.queues["mail"]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, queue: str) -> QueueHandle:
        return QueueHandle(self, queue)

    async def get(self, queue: str) -> QueueInfo:
        """Return one queue; raise `QueueNotFound` if no job, worker, pause or limit names it."""
        return await self._connection.call("GET /queues/{queue}", QueueInfo, queue=queue)

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[QueueInfo]:
        """Return the queues that have jobs, a worker, a pause or a limit, by name."""
        query = {"limit": limit, "after": after}
        return await self._connection.page("GET /queues", QueueInfo, query=query)

    iterate = iterated(list)

    async def pause(self, queue: str, *, reason: str = "") -> None:
        """Start no more jobs of this queue, on any worker. Running jobs go on."""
        await self._connection.call(
            "POST /queues/{queue}/pause", body={"reason": reason}, queue=queue
        )

    async def resume(self, queue: str) -> None:
        """Start jobs of the queue again, at once."""
        await self._connection.call("POST /queues/{queue}/resume", queue=queue)

    async def limit(
        self,
        queue: str,
        *,
        running: int | None = None,
        per_partition: int | None = None,
        rate: int | None = None,
        period: Duration | None = None,
    ) -> None:
        """Set the queue's limits, which apply across all workers. A limit left out is removed."""
        body = {"running": running, "per_partition": per_partition, "rate": rate, "period": period}
        await self._connection.call("POST /queues/{queue}/limit", body=body, queue=queue)

    async def explain(self, queue: str) -> Explanation:
        """Explain why jobs of the queue do or do not start."""
        return await self._connection.call("GET /queues/{queue}/explain", Explanation, queue=queue)

    async def audit(
        self, queue: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who paused, resumed or limited the queue, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /queues/{queue}/audit", AuditEvent, query=query, queue=queue
        )


class QueueHandle(Handle[Queues, str]):
    """One queue of the service, by its name."""

    get = bound(Queues.get)
    pause = bound(Queues.pause)
    resume = bound(Queues.resume)
    limit = bound(Queues.limit)
    explain = bound(Queues.explain)
    audit = bound(Queues.audit)
