"""Whether a worker stops, how fast and why; and how long its last database calls may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from duetime.errors import DatabaseCorrupted, DatabaseUnreachable

LAST_CALLS_SECONDS = 3.0
"""How long, beyond the grace, a stop waits for the database to take what is given back."""


class Stopping:
    """Can be asked for repeatedly. `damaged` is called once if the database turns out to be."""

    def __init__(self, damaged: Callable[[DatabaseCorrupted], None]) -> None:
        self._damaged = damaged
        self.asked = asyncio.Event()
        self.now = False
        """Without the grace time."""
        self.damage: DatabaseCorrupted | None = None
        self._calls_end: float | None = None
        """Until when the database may answer."""
        self._calls: set[asyncio.Timeout] = set()

    def __bool__(self) -> bool:
        return self.asked.is_set()

    def ask(self, *, now: bool = False) -> None:
        self.now = self.now or now
        self.asked.set()
        if now and self._calls_end is not None:
            end = asyncio.get_running_loop().time() + LAST_CALLS_SECONDS
            self._calls_end = min(self._calls_end, end)
            for limit in self._calls:
                limit.reschedule(self._calls_end)

    def is_damage(self, error: BaseException) -> bool:
        """Whether an error means that the database is damaged. If it is, the worker stops."""
        if not isinstance(error, DatabaseCorrupted):
            return False
        if self.damage is None:
            self.damage = error
            self._damaged(error)
        return True

    def begin(self, grace: float) -> None:
        """The worker begins to stop, and has so many seconds."""
        self._calls_end = asyncio.get_running_loop().time() + grace + LAST_CALLS_SECONDS

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """A database that does not answer must not hold up a stop beyond its time."""
        try:
            async with asyncio.timeout_at(self._calls_end) as limit:
                self._calls.add(limit)
                try:
                    yield
                finally:
                    self._calls.discard(limit)
        except TimeoutError as error:
            raise DatabaseUnreachable("The database did not answer in time.") from error
