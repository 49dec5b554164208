"""Whether a worker is to stop, how fast and why; and how long its last database calls may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from duetime.errors import DatabaseCorrupted, DatabaseUnreachable

LAST_CALLS_SECONDS = 3.0
"""How long a stop waits for the database after the grace time."""


class Stopping:
    """`corrupted` is called once if the database turns out to be corrupted."""

    def __init__(self, corrupted: Callable[[DatabaseCorrupted], None]) -> None:
        self._corrupted = corrupted
        self.requested = asyncio.Event()
        self.now = False
        """Without the grace time."""
        self.corruption: DatabaseCorrupted | None = None
        self._calls_end: float | None = None
        """Until when the database may answer."""
        self._calls: set[asyncio.Timeout] = set()

    def request(self, *, now: bool = False) -> None:
        """Can be called repeatedly; once it was called with `now`, the grace time is over."""
        self.now = self.now or now
        self.requested.set()
        if now and self._calls_end is not None:
            end = asyncio.get_running_loop().time() + LAST_CALLS_SECONDS
            self._calls_end = min(self._calls_end, end)
            for limit in self._calls:
                limit.reschedule(self._calls_end)

    def on_corruption(self, error: BaseException) -> bool:
        """Stop the worker if the error means that the database is corrupted. Returns whether."""
        if not isinstance(error, DatabaseCorrupted):
            return False
        if self.corruption is None:
            self.corruption = error
            self._corrupted(error)
        return True

    def begin(self, grace: float) -> None:
        """The worker starts to stop and has `grace` seconds."""
        self._calls_end = asyncio.get_running_loop().time() + grace + LAST_CALLS_SECONDS

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Limit calls inside the block: a database that does not answer must not delay a stop."""
        try:
            async with asyncio.timeout_at(self._calls_end) as limit:
                self._calls.add(limit)
                try:
                    yield
                finally:
                    self._calls.discard(limit)
        except TimeoutError as error:
            raise DatabaseUnreachable("The database did not answer in time.") from error
