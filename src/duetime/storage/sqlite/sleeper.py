"""Sleep without missing an enqueue: woken by this process's stores, and by changes of the file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from duetime.storage.sqlite.shared import Shared, call_soon


class SqliteSleeper:
    """Lives on its worker's event loop; the threads of stores wake it.

    An enqueue commits, then checks who sleeps; a worker announces that it sleeps, then checks
    once more for jobs. Whichever comes first, one of them sees the other.
    """

    def __init__(self, shared: Shared, worker_id: int) -> None:
        self.worker_id = worker_id
        self.queues: frozenset[str] = frozenset()
        """On which it sleeps; none if it is awake."""
        self.until = float("inf")
        """When it will wake by itself, as `time.monotonic` counts."""
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._reason: str | None = None
        self._cancelled: list[int] = []
        self._on_signal: frozenset[int] = frozenset()
        shared.add_sleeper(self)

    @property
    def asleep(self) -> bool:
        return bool(self.queues)

    async def fall_asleep(self, queues: Sequence[str]) -> bool:
        self.queues = frozenset(queues)
        return True

    async def sleep(self, seconds: float) -> str:
        if not self._woken.is_set() and seconds > 0:
            self.until = time.monotonic() + seconds
            timer = self._loop.call_later(seconds, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()
                self.until = float("inf")
        reason, self._reason = self._reason, None
        self._woken.clear()
        return reason or "timed out"

    async def wake_up(self) -> None:
        self.queues = frozenset()

    def interrupt(self) -> None:
        self._wake_for(self._reason or "interrupted")

    async def cancelled_jobs(self) -> list[int]:
        jobs, self._cancelled = self._cancelled, []
        return jobs

    async def close(self) -> None:
        self._shared.remove_sleeper(self)

    # From the threads of stores

    def awaits(self, queue: str) -> bool:
        return queue in self.queues

    def wake(self) -> None:
        call_soon(self._loop, self._wake_for, "notified")

    def notify_cancelled(self, jobs: Iterable[int]) -> None:
        new = tuple(jobs)
        self._on_signal |= set(new)
        call_soon(self._loop, self._on_cancelled, new)

    def sync_cancelled(self, jobs: Iterable[int]) -> None:
        """These are cancelled, as the database says: tell those that are new."""
        cancelled = frozenset(jobs)
        new, self._on_signal = cancelled - self._on_signal, cancelled
        if new:
            self.notify_cancelled(sorted(new))

    def _on_cancelled(self, jobs: tuple[int, ...]) -> None:
        self._cancelled += jobs
        self._wake_for("cancelled")

    def _wake_for(self, reason: str) -> None:
        self._reason = reason
        self._woken.set()
