"""`app.workers`: the workers that run at the moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.api.handle import iterated
from duetime.domain.jobs.explain import WorkerFacts
from duetime.domain.page import DEFAULT_LIMIT, Id, Page, check_limit, make_page, read_cursor
from duetime.storage.store import WorkerInfo

if TYPE_CHECKING:
    from duetime.app import Duetime


class Workers:
    """`app.workers`: the live ones, and those whose jobs are still to be rescued."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[WorkerInfo]:
        """Return the workers, the oldest first. `after`: the `next` of the previous page."""
        position = read_cursor(after, order="workers", shape=tuple[Id])
        last = 0 if position is None else position[0]
        check_limit(limit)
        # There are few: a process each.
        found = [one for one in await (await self._app.store()).workers() if one.id > last]
        return make_page(found, limit=limit, order="workers", position=lambda one: (one.id,))

    iterate = iterated(list)

    async def _facts(self) -> Sequence[WorkerFacts]:
        """Return what explanations need to know of all workers."""
        return [
            WorkerFacts(
                one.name, one.queues, one.tasks, one.lease_until, one.running, one.concurrency
            )
            for one in await (await self._app.store()).workers()
        ]
