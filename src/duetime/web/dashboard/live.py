"""Live updates: notifies open pages of changes, and they fetch themselves again.

One loop per service reads, while any page listens. What it reads is cheap: it does not grow with
the number of pages or of jobs. What the pages cost does, so they are notified less often the
longer they take: all of them together get a small share of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from duetime.errors import DuetimeError
from duetime.web.dashboard.kept import Refreshes
from duetime.web.problems import Refused

if TYPE_CHECKING:
    from duetime.app import Duetime

MOST_PLACES = 50
"""How many streams a visitor can have open at once, so that none can use up the service."""
_EVERY_SECONDS = 1.0
_AT_LEAST_EVERY_SECONDS = 10.0
"""Relative times grow old even if nothing changes: after this time pages refresh anyway."""
_LONGEST_PAUSE = 15.0
_SHARE = 0.02
"""The share of the time that all pages together may take to refresh. While workers use every core,
pages take longer, and are notified less often."""


class Live:
    """The pages that listen, and the loop that notifies them."""

    def __init__(self, app: Duetime, refreshes: Refreshes[Any]) -> None:
        self._app = app
        self._refreshes = refreshes
        self._listeners: set[asyncio.Event] = set()
        self._places: Counter[str] = Counter()
        self._loop: asyncio.Task[None] | None = None
        self._mark: Any = None
        self._jobs: list[Any] = []

    @contextmanager
    def place(self, visitor: str) -> Iterator[None]:
        """Hold one of the visitor's places among those who listen, or refuse."""
        if self._places[visitor] >= MOST_PLACES:
            raise Refused(
                429,
                "too_many_streams",
                f"{visitor} has {MOST_PLACES} pages with live updates open. Close some.",
                headers={"retry-after": "30"},
            )
        self._places[visitor] += 1
        try:
            yield
        finally:
            self._places[visitor] -= 1
            if not self._places[visitor]:
                del self._places[visitor]

    async def changes(self) -> AsyncGenerator[None]:
        """Yield whenever something may have changed."""
        changed = asyncio.Event()
        self._listeners.add(changed)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._watch(), name="duetime-live")
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            self._listeners.discard(changed)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()

    async def _watch(self) -> None:
        notified_at = 0.0
        while self._listeners:
            try:
                changed = await self._has_changed()
            except DuetimeError:
                changed = True  # The pages say so when they are fetched.
            began = time.monotonic()
            if changed or began >= notified_at + _AT_LEAST_EVERY_SECONDS:
                notified_at = began
                self._refreshes.clear()
                for listener in self._listeners:
                    listener.set()
            await self._pause(began, self._refreshes.spent)

    async def _pause(self, began: float, spent: float) -> None:
        """Sleep until pages may refresh again: longer, the longer they have taken since."""
        pause = _EVERY_SECONDS
        while (left := began + pause - time.monotonic()) > 0:
            await asyncio.sleep(left)
            pause = pause_after(self._refreshes.spent - spent)

    async def _has_changed(self) -> bool:
        """Whether anything has since the last call. The mark may be some seconds late, so that the
        newest jobs are read, too, unless it has changed."""
        mark, self._mark = self._mark, await self._app.stats.change_mark()
        if mark != self._mark:
            return True
        newest = await self._app.jobs.list(limit=20)
        jobs, self._jobs = self._jobs, [(job.id, job.state, job.attempts) for job in newest]
        return jobs != self._jobs


def pause_after(spent: float) -> float:
    """How long to wait before pages refresh again, if the last refresh took `spent` seconds.

    >>> pause_after(0.01), pause_after(0.1), pause_after(30.0)
    (1.0, 5.0, 15.0)
    """
    return min(max(_EVERY_SECONDS, spent / _SHARE), _LONGEST_PAUSE)
