"""Who may write next, among the threads and event loops of this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable

from duetime.errors import DatabaseUnreachable
from duetime.storage.sqlite.shared import call_soon


class Turn:
    """A lock that is given in the order in which it was asked for.

    SQLite's own lock makes those who wait sleep and try again, in no order: beside a busy writer
    one of them may starve. So in one process the turn comes first, then SQLite's lock. It may be
    released by another thread than the one that took it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[Callable[[], bool]] = deque()
        """Each tells one who waits that it is its turn; False: that one is gone."""

    def take(self, seconds: float) -> None:
        """Wait for the turn, in a thread."""
        mine = threading.Lock()
        mine.acquire()

        def give() -> bool:
            mine.release()
            return True

        if not self._queue(give) and not mine.acquire(timeout=seconds) and self._leave(give):
            raise _too_long(seconds)

    async def take_async(self, seconds: float) -> None:
        """Wait for the turn, on an event loop, without a thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def give() -> bool:
            return call_soon(loop, _resolve, future)

        if self._queue(give):
            return
        try:
            async with asyncio.timeout(seconds):
                await future
        except BaseException as error:
            if not self._leave(give):
                # It was given just now.
                self.release()
            if isinstance(error, TimeoutError):
                raise _too_long(seconds) from None
            raise

    def release(self) -> None:
        with self._guard:
            while self._waiting:
                if self._waiting.popleft()():
                    return
            self._held = False

    def _queue(self, give: Callable[[], bool]) -> bool:
        """Return True if it is our turn at once."""
        with self._guard:
            if self._held:
                self._waiting.append(give)
                return False
            self._held = True
            return True

    def _leave(self, give: Callable[[], bool]) -> bool:
        """Wait no longer. False: too late, it is our turn."""
        with self._guard:
            if give not in self._waiting:
                return False
            self._waiting.remove(give)
            return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _too_long(seconds: float) -> DatabaseUnreachable:
    return DatabaseUnreachable(
        f"A transaction of this process has held SQLite's write lock for more than {seconds:g} s. "
        "Commit it sooner, and avoid waiting for other things inside it."
    )


_ALL: dict[str, Turn] = {}
_ALL_LOCK = threading.Lock()


def turn_of(path: str) -> Turn:
    """Return the turn of this file, in this process; made on first use."""
    with _ALL_LOCK:
        return _ALL.setdefault(path, Turn())


def _after_fork() -> None:
    """In a forked process: a lock may be held by a thread that is not there."""
    globals()["_ALL_LOCK"] = threading.Lock()
    _ALL.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
