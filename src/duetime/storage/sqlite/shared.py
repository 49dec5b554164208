"""What all the stores of one file share in this process: the clock, who sleeps, who waits."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from random import sample
from typing import Protocol


class Asleep(Protocol):
    """A worker's sleeper, as seen from the threads of stores."""

    worker_id: int
    queues: frozenset[str]
    until: float

    def awaits(self, queue: str) -> bool: ...

    def wake(self) -> None:
        """May be called from any thread."""

    def notify_cancelled(self, jobs: Iterable[int]) -> None:
        """May be called from any thread."""

    def sync_cancelled(self, jobs: Iterable[int]) -> None:
        """As `notify_cancelled`, with all cancelled jobs: only new ones are notified."""


class Shared:
    """One for each database in this process. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._driven_us: int | None = None
        self.sleepers: tuple[Asleep, ...] = ()
        self._waiting: dict[int, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    # The clock

    def now_us(self) -> int:
        driven = self._driven_us
        return time.time_ns() // 1000 if driven is None else driven

    def drive_clock(self, us: int | None) -> None:
        self._driven_us = us

    # Sleepers

    def add_sleeper(self, sleeper: Asleep) -> None:
        with self._lock:
            self.sleepers = (*self.sleepers, sleeper)

    def remove_sleeper(self, sleeper: Asleep) -> None:
        with self._lock:
            self.sleepers = tuple(other for other in self.sleepers if other is not sleeper)

    def wake(self, queues: Iterable[str]) -> None:
        # In no fixed order: else the first would get every single job.
        for sleeper in sample(self.sleepers, len(self.sleepers)):
            if any(sleeper.awaits(queue) for queue in queues):
                sleeper.wake()

    def notify_cancelled(self, worker_id: int, job_id: int) -> None:
        for sleeper in self.sleepers:
            if sleeper.worker_id == worker_id:
                sleeper.notify_cancelled([job_id])

    # Who waits for a job's end

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


def call_soon(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> bool:
    """Call back on a loop from any thread. False: the loop is closed, nobody is there."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


_ALL: dict[tuple[str, str], Shared] = {}
_ALL_LOCK = threading.Lock()


def shared_of(path: str, prefix: str) -> Shared:
    """Return what the stores of this database share; made on first use."""
    with _ALL_LOCK:
        return _ALL.setdefault((path, prefix), Shared())


def _after_fork() -> None:
    """In a forked process: a lock may be held by a thread that is not there."""
    globals()["_ALL_LOCK"] = threading.Lock()
    _ALL.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
