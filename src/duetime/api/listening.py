"""`app.listen()`: sync code that waits until a queue has something to do."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec

from duetime.domain.duration import Duration, parse_duration
from duetime.errors import DuetimeError
from duetime.storage.store import Sleeper

if TYPE_CHECKING:
    from duetime.app import Duetime

_NOBODY = 0
"""No worker has this id."""
_PATIENCE = 0.02
"""How long to wait before trying again to listen, while an enqueue is under way."""


class WakeUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a listener received."""

    queue: str
    reason: Literal["notified", "reconnected"]
    """`notified`: something was enqueued in the queue, for now or for later. `reconnected`: the
    connection was lost meanwhile, so that something may have been missed."""


class Listening:
    """Waits for wake-ups of one queue, in sync code: `with app.listen() as events: …`.

    On PostgreSQL it has a connection of its own, which is not taken from the pool and reconnects
    by itself. On SQLite writes of other processes are noticed.
    """

    def __init__(self, app: Duetime, queue: str) -> None:
        self._app = app
        self._queue = queue
        self._sleeper: Sleeper | None = None

    def __enter__(self) -> Listening:
        self._app.sync(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sleeper is not None:
            self._app.sync(self._sleeper.close())
            self._sleeper = None

    def wait(self, timeout: Duration = "30s") -> WakeUp | None:
        """Return the next wake-up, or None after `timeout`. Those since the last call count, too.

        A wake-up is a hint: read the queue, and expect that there may be nothing. A job for later
        wakes when it is enqueued, not when it is due, and only if that is within ten minutes.
        """
        if self._sleeper is None:
            raise DuetimeError("Listen first: `with app.listen() as events: events.wait()`.")
        span = parse_duration(timeout, name="timeout")
        return self._app.sync(self._wait(self._sleeper, span))

    async def _open(self) -> None:
        store = await self._app.store()
        self._sleeper = await store.sleeper(_NOBODY)
        await self._sleeper.fall_asleep([self._queue])

    async def _wait(self, sleeper: Sleeper, span: timedelta) -> WakeUp | None:
        end = time.monotonic() + span.total_seconds()
        if not sleeper.asleep:
            # An enqueue was under way and does not wake us. When it is not any more, it may be
            # there to be read.
            done = await self._fall_asleep(sleeper, end)
            return WakeUp(queue=self._queue, reason="notified") if done else None
        while True:
            reason = await sleeper.sleep(max(0.0, end - time.monotonic()))
            if reason in ("notified", "announced"):
                return WakeUp(queue=self._queue, reason="notified")
            if reason == "reconnected":
                # A caller that reads the queue now misses nothing that comes after.
                await sleeper.fall_asleep([self._queue])
                return WakeUp(queue=self._queue, reason="reconnected")
            if time.monotonic() >= end:
                return None

    async def _fall_asleep(self, sleeper: Sleeper, end: float) -> bool:
        """From now on every enqueue is reported, also between two calls of `wait`. False: a
        transaction that enqueues is still open."""
        while not await sleeper.fall_asleep([self._queue]):
            if (left := end - time.monotonic()) <= 0:
                return False
            await asyncio.sleep(min(_PATIENCE, left))
        return True
