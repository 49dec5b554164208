"""What the stores of one file share in this process: the clock, the turn to write, the workers that
sleep, and who waits for a job to finish."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import sample

from duetime.errors import DatabaseUnreachable


class Shared:
    """One for each database in this process. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._driven_us: int | None = None
        self.sleepers: tuple[SqliteSleeper, ...] = ()
        self._waiting: dict[int, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    # The clock

    def now_us(self) -> int:
        driven = self._driven_us
        return time.time_ns() // 1000 if driven is None else driven

    def drive_clock(self, us: int | None) -> None:
        self._driven_us = us

    # Sleepers

    def add_sleeper(self, sleeper: SqliteSleeper) -> None:
        with self._lock:
            self.sleepers = (*self.sleepers, sleeper)

    def remove_sleeper(self, sleeper: SqliteSleeper) -> None:
        with self._lock:
            self.sleepers = tuple(other for other in self.sleepers if other is not sleeper)

    def in_random_order(self) -> list[SqliteSleeper]:
        """The sleepers, to be woken: in a fixed order the first would get every single job."""
        return sample(self.sleepers, len(self.sleepers))

    def wake(self, queues: Iterable[str]) -> None:
        for sleeper in self.in_random_order():
            if any(sleeper.awaits(queue) for queue in queues):
                sleeper.wake()

    # Callers that wait for a job to finish

    @property
    def watched(self) -> list[int]:
        with self._lock:
            return list(self._waiting)

    @property
    def anyone(self) -> bool:
        """Whether anyone waits for changes."""
        return bool(self.sleepers or self._waiting)

    def watch(self, job_id: int, event: asyncio.Event) -> None:
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiting.setdefault(job_id, []).append(entry)

    def unwatch(self, job_id: int, event: asyncio.Event) -> None:
        with self._lock:
            left = [entry for entry in self._waiting.get(job_id, ()) if entry[1] is not event]
            if left:
                self._waiting[job_id] = left
            else:
                self._waiting.pop(job_id, None)

    def notify_finished(self, jobs: Iterable[int]) -> None:
        if not self._waiting:
            return
        with self._lock:
            waiters = [entry for job_id in jobs for entry in self._waiting.get(job_id, ())]
        for loop, event in waiters:
            call_soon(loop, event.set)


class SqliteSleeper:
    """Lives on its worker's event loop; the threads of stores wake it.

    An enqueue commits, then checks who sleeps; a worker announces that it sleeps, then checks
    once more for jobs. Whichever comes first, one of them sees the other.
    """

    listening = True

    def __init__(self, shared: Shared, worker_id: int, notified: Callable[[str], None]) -> None:
        self.worker_id = worker_id
        self._notified = notified
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

    def announced(self) -> None:
        """Who enqueues a job for later sees `until`, and wakes only those who would be too late."""

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
        call_soon(self._loop, self._on_wake)

    def sync_cancelled(self, jobs: Iterable[int]) -> None:
        """Takes all cancelled jobs of this worker, as read from the file; notifies new ones."""
        cancelled = frozenset(jobs)
        new, self._on_signal = cancelled - self._on_signal, cancelled
        if new:
            call_soon(self._loop, self._on_cancelled, tuple(sorted(new)))

    def _on_wake(self) -> None:
        self._notified("wake")
        self._wake_for("notified")

    def _on_cancelled(self, jobs: tuple[int, ...]) -> None:
        self._notified("cancel")
        self._cancelled += jobs
        self._wake_for("cancelled")

    def _wake_for(self, reason: str) -> None:
        if self._reason != "cancelled":
            self._reason = reason
        self._woken.set()


class Turn:
    """A lock that is granted in the order of the requests.

    SQLite's own lock makes those who wait sleep and try again, in no order: beside a busy writer
    one of them may starve. So in one process the turn comes first, then SQLite's lock. It may be
    released by another thread than the one that took it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[Callable[[], bool]] = deque()
        """Each grants the turn to one waiter; False: the waiter is gone."""

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


_SHARED: dict[tuple[str, str], Shared] = {}
_TURNS: dict[str, Turn] = {}
_LOCK = threading.Lock()


def shared_of(path: str, prefix: str) -> Shared:
    """Return what the stores of this database share; made on first use."""
    with _LOCK:
        return _SHARED.setdefault((path, prefix), Shared())


def turn_of(path: str) -> Turn:
    """Return the turn of this file; made on first use."""
    with _LOCK:
        return _TURNS.setdefault(path, Turn())


def _after_fork() -> None:
    """In a forked process: a lock may be held by a thread that is not there."""
    globals()["_LOCK"] = threading.Lock()
    _SHARED.clear()
    _TURNS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def call_soon(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> bool:
    """Call back on a loop from any thread. False: the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _too_long(seconds: float) -> DatabaseUnreachable:
    return DatabaseUnreachable(
        f"A transaction of this process has held SQLite's write lock for more than {seconds:g} s. "
        "Commit it sooner, and avoid waiting for other things inside it."
    )
