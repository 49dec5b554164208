"""Sleep without missing an enqueue, and without a NOTIFY for each: wake only who sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from duetime.storage.postgres.connection import text_array
from duetime.storage.postgres.direct import DirectSession
from duetime.storage.postgres.listener import Listener


class PostgresSleeper:
    """Holds the `asleep` locks while its worker sleeps (see `duetime.wake` in the schema).

    Every role that may connect can send a NOTIFY with any payload. So a notification only makes
    the worker check; what it then does is read from the tables.
    """

    def __init__(
        self,
        schema: str,
        worker_id: int,
        *,
        read_cancelled: Callable[[], Awaitable[list[int]]],
        notified: Callable[[str], None],
        listen: Callable[[Sequence[str], Callable[[str, str], None]], Listener] | None,
        poll: float,
        claims: bool,
    ) -> None:
        self._wake = f"{schema}.wake"
        self._cancel = f"{schema}.cancel"
        self._fall_asleep = f"select {schema}.fall_asleep(%s::text[])"
        self._wake_up = f"select {schema}.wake_up(%s::text[])"
        self._worker_id = str(worker_id)
        self._listener = (
            listen([self._wake, self._cancel], self._on_notify) if listen is not None else None
        )
        self._claims = claims
        self._notified = notified
        self._poll = poll
        self._asleep_on: list[str] = []
        self._asleep = False
        self._woken = asyncio.Event()
        self._reason: str | None = None
        self._announced: datetime | None = None
        self._read_cancelled = read_cancelled
        self._cancel_announced = False
        self._queues: frozenset[str] = frozenset()

    @property
    def asleep(self) -> bool:
        return self._asleep

    @property
    def listening(self) -> bool:
        return self._listener is not None and self._listener.connected

    @property
    def session(self) -> DirectSession | None:
        """The session that listens, if it is free: who is woken there claims there. None: it must
        not claim, or cannot now."""
        listener = self._listener
        if not self._claims or listener is None or not listener.session.is_ready:
            return None
        return listener.session

    async def open(self) -> None:
        if self._listener is not None:
            await self._listener.open()

    async def fall_asleep(self, queues: Sequence[str]) -> bool:
        self._queues = frozenset(queues)
        rows = None
        if self._listener is not None and self._listener.connected:
            rows = await self._listener.execute(self._fall_asleep, [text_array(queues)])
        # Without a connection no notification arrives: `sleep` polls.
        self._asleep = rows is None or bool(rows[0][0])
        if rows is not None and self._asleep:
            self._asleep_on = list(queues)
        return self._asleep

    async def sleep(self, seconds: float) -> str:
        # Without a listener no notification arrives: check often.
        if not self.listening:
            seconds = min(seconds, self._poll)
        if not self._woken.is_set() and seconds > 0:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()
        reason, self._reason = self._reason, None
        self._woken.clear()
        return reason or "timed out"

    def announced(self) -> datetime | None:
        announced, self._announced = self._announced, None
        return announced

    async def wake_up(self) -> None:
        self._asleep = False
        queues, self._asleep_on = self._asleep_on, []
        if queues and self._listener is not None:
            await self._listener.execute(self._wake_up, [text_array(queues)])

    def interrupt(self) -> None:
        self._reason = self._reason or "interrupted"
        self._woken.set()

    async def cancelled_jobs(self) -> list[int]:
        if not self._cancel_announced:
            return []
        # Cleared first: a cancellation that is announced while we read counts again.
        self._cancel_announced = False
        try:
            return await self._read_cancelled()
        except BaseException:
            self._cancel_announced = True
            raise

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()

    def _on_notify(self, channel: str, payload: str) -> None:
        if channel == self._cancel:
            if payload == self._worker_id:
                self._notified("cancel")
                self._cancel_announced = True
                self._reason = "cancelled"
                self._woken.set()
        elif channel == self._wake:
            if payload in self._queues:
                self._notified("wake")
                self._reason = "notified"
                self._woken.set()
            elif (run_at := self._read_announcement(payload)) is not None:
                self._notified("wake")
                self._announced = min(self._announced or run_at, run_at)
                self._reason = self._reason or "announced"
                self._woken.set()
        else:
            # The locks were lost with the old session: take them again.
            self._asleep_on = []
            self._asleep = False
            self._reason = "reconnected"
            self._woken.set()

    def _read_announcement(self, payload: str) -> datetime | None:
        """When a job falls due that was enqueued for later, into a queue of ours."""
        seconds, _, queue = payload.partition(" ")
        if queue not in self._queues:
            return None
        try:
            return datetime.fromtimestamp(float(seconds), UTC)
        except (ValueError, OverflowError, OSError):
            return None
