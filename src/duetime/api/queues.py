"""`app.queues`: inspect, pause and limit queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duetime.api.handle import Handle, bound, iterated
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_actor, check_queue, check_sought, check_text
from duetime.domain.count import check_count_to
from duetime.domain.duration import Duration
from duetime.domain.jobs.explain_queue import explain_queue
from duetime.domain.jobs.facets import MOST_COUNTED
from duetime.domain.jobs.queue import QueueInfo, make_limits
from duetime.domain.page import DEFAULT_LIMIT, Page, check_limit, make_page, read_cursor
from duetime.domain.reasons import Explanation
from duetime.errors import QueueNotFound
from duetime.storage.jobs.queues import QueueStatements
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime


class Queues:
    """`app.queues`. `app.queues["mail"]` is one of them."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, queue: str) -> QueueHandle:
        return QueueHandle(self, check_sought(queue, what="queue"))

    async def get(self, queue: str, *, count_to: int | None = None) -> QueueInfo:
        """Return one queue; raise `QueueNotFound` if no job, worker, pause or limit names it.

        `count_to`: count at most this many waiting jobs of each priority, so that the call is fast
        even with millions of them. By default all are counted. See `QueueInfo.counted_all`.
        """
        check_sought(queue, what="queue")
        most = None if count_to is None else check_count_to(count_to, most=MOST_COUNTED)
        found = await (await self._app.store()).queues(only=queue, count_to=most)
        if not found:
            raise QueueNotFound(queue)
        return found[0]

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[QueueInfo]:
        """Return the queues that have jobs, a worker, a pause or a limit, by name.

        `after`: the `next` of the previous page.
        """
        position = read_cursor(after, order="queues", shape=tuple[str])
        found = await (await self._app.store()).queues(
            after=None if position is None else position[0], limit=check_limit(limit) + 1
        )
        return make_page(found, limit=limit, order="queues", position=lambda queue: (queue.name,))

    iterate = iterated(list)

    async def pause(
        self, queue: str, *, reason: str = "", by: str = "unknown", tx: Any = None
    ) -> None:
        """Start no more jobs of this queue, on any worker, from the next claim on.

        Running jobs continue. Pausing twice keeps the first time and the last reason.
        """
        check_queue(queue)
        check_text(reason, what="The reason")
        actor = check_actor(by)
        await self._change(lambda s: s.pause(queue, by=actor, reason=reason), tx)

    async def resume(self, queue: str, *, by: str = "unknown", tx: Any = None) -> None:
        """Start jobs of the queue again, at once. Resuming twice has no further effect."""
        check_sought(queue, what="queue")
        actor = check_actor(by)
        await self._change(lambda s: s.resume(queue, by=actor), tx)

    async def limit(
        self,
        queue: str,
        *,
        running: int | None = None,
        per_partition: int | None = None,
        rate: int | None = None,
        period: Duration | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> None:
        """Set the queue's limits, which apply across all workers. A limit left out is removed.

        `running`: jobs at once. `per_partition`: jobs at once with the same partition.
        `rate` and `period`: starts in any span of that length.
        """
        limits = make_limits(
            queue, running=running, per_partition=per_partition, rate=rate, period=period
        )
        actor = check_actor(by)
        await self._change(lambda s: s.limit(queue, limits, by=actor), tx)

    async def explain(self, queue: str) -> Explanation:
        """Explain why jobs of the queue do or do not start.

        Raises `QueueNotFound`.
        """
        info = await self.get(queue, count_to=MOST_COUNTED)
        workers = await self._app.workers._facts()
        return explain_queue(info, workers=workers, now=await self._app.now())

    async def audit(
        self, queue: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who paused, resumed or limited the queue, newest first."""
        entity = f"queue:{check_sought(queue, what='queue')}"
        return await self._app.audit.list(entity=entity, limit=limit, after=after)

    async def _change(self, make: Callable[[QueueStatements], Statements], tx: Any) -> None:
        await self._app._perform(lambda dialect: make(QueueStatements(dialect)), tx)


class QueueHandle(Handle[Queues, str]):
    """One queue, by its name."""

    @property
    def name(self) -> str:
        return self._ref

    get = bound(Queues.get)
    pause = bound(Queues.pause)
    resume = bound(Queues.resume)
    limit = bound(Queues.limit)
    explain = bound(Queues.explain)
    audit = bound(Queues.audit)
