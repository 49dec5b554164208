"""What is read once for all who ask within a short time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Keeps what `read` returned for some seconds. Those who ask meanwhile share one reading."""

    def __init__(self, read: Callable[[], Awaitable[T]], *, seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._until = 0.0
        self._reading: asyncio.Future[T] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it would be read again."""
        reading = self._reading
        return reading is None or (reading.done() and time.monotonic() >= self._until)

    async def get(self) -> T:
        if self.is_over:
            self._reading = asyncio.ensure_future(self._read())
            self._until = time.monotonic() + self._seconds
        assert self._reading is not None
        reading = self._reading
        try:
            # The first who asked may be cancelled; the others still want it.
            return await asyncio.shield(reading)
        except Exception:
            if self._reading is reading:
                self._reading = None
            raise


class Refreshes(Generic[T]):
    """What pages show when they refresh themselves: made once for all tabs that show the same.

    They are made one after another, so that they take turns with what the database and the process
    are there for, and never more than one connection.
    """

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[Hashable, Kept[T]] = {}
        self._turn = asyncio.Lock()
        self.spent = 0.0
        """How many seconds it took to make all of them so far."""

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        for old in [key for key, one in self._kept.items() if one.is_over]:
            del self._kept[old]
        kept = self._kept.setdefault(key, Kept(lambda: self._make(make), seconds=self._seconds))
        return await kept.get()

    async def _make(self, make: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            began = time.monotonic()
            try:
                return await make()
            finally:
                self.spent += time.monotonic() - began

    def clear(self) -> None:
        """Something has changed: make them again."""
        self._kept.clear()
