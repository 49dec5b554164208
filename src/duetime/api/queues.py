"""`app.queues`: see, pause and limit them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetime.domain.duration import Duration
from duetime.domain.jobs.job import check_name, check_queue, check_sought, check_text
from duetime.domain.jobs.queue import QueueInfo, make_limits
from duetime.errors import InvalidInput

if TYPE_CHECKING:
    from duetime.app import Duetime


class Queues:
    """`app.queues`."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def all(self) -> list[QueueInfo]:
        """Return every queue that has jobs, a worker, a pause or a limit."""
        return await (await self._app.store()).queues()

    async def get(self, queue: str) -> QueueInfo:
        """Return one queue."""
        check_sought(queue, what="queue")
        for info in await self.all():
            if info.name == queue:
                return info
        raise InvalidInput(f"There is no queue {queue!r}: no job, worker, pause or limit names it.")

    async def pause(self, queue: str, *, by: str = "unknown", reason: str = "") -> None:
        """Start no more jobs of this queue, on any worker, from the next claim on.

        What runs goes on. Pausing twice keeps the first time and the last reason.
        """
        check_queue(queue)
        check_text(reason, what="the reason")
        await (await self._app.store()).pause_queue(
            queue, by=check_name(by, what="actor (by=)"), reason=reason
        )

    async def resume(self, queue: str) -> None:
        """Let the queue go on; its workers are woken. Resuming twice changes nothing."""
        await (await self._app.store()).resume_queue(check_sought(queue, what="queue"))

    async def limit(
        self,
        queue: str,
        *,
        running: int | None = None,
        per_partition: int | None = None,
        rate: int | None = None,
        period: Duration | None = None,
    ) -> None:
        """Set the queue's limits, over all workers; what is left out is unlimited.

        `running`: jobs at once. `per_partition`: jobs at once with the same partition.
        `rate` and `period`: starts in any span of that length.
        """
        limits = make_limits(
            queue, running=running, per_partition=per_partition, rate=rate, period=period
        )
        await (await self._app.store()).limit_queue(queue, limits)
