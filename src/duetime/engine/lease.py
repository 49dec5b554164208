"""A worker's lease, renewed on a thread and a connection of its own.

So a busy event loop or a slow query cannot stop the renewal. If the lease cannot be renewed, the
worker is fenced before another worker may take its jobs. If the event loop is blocked for too long,
the lease is not renewed any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from duetime.engine.services import OUTAGE_SECONDS
from duetime.engine.stacks import stack_of_thread
from duetime.errors import DatabaseCorrupted, StorageError
from duetime.storage.store import Beat, Heart
from duetime.telemetry.events import LogThrottle, log_event

log = logging.getLogger("duetime.heartbeat")

_JOIN_SECONDS = 2.0
"""How long a stop waits for a beat in progress."""
_REPORT_SECONDS = 2.0
"""A blocked event loop is reported after this time, and again each time that doubles."""


class Lease:
    """The lease as the worker's event loop sees it. Once it is lost, `lost(reason)` is called and
    `fenced` holds the reason until the worker registers again."""

    heartbeat: Heartbeat

    def __init__(self, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self.worker_id = 0
        self.fenced: str | None = None

    def holds(self) -> bool:
        """Whether jobs may start. If the lease has run out, the worker is fenced."""
        if self.fenced is None and self.heartbeat.seconds_left <= 0:
            self.fence("the lease ran out")
        return self.fenced is None

    def fence(self, reason: str) -> None:
        """Treat the lease as lost: other workers may take our jobs now."""
        if self.fenced is None:
            self.fenced = reason
            self._lost(reason)


class Heartbeat:
    """Calls `renewed` after each renewal, and `lost(reason)` once if the lease is lost."""

    def __init__(
        self,
        heart: Heart,
        worker_id: int,
        *,
        lease: timedelta,
        since: float,
        every: timedelta,
        renewed: Callable[[Beat], None],
        lost: Callable[[str], None],
        watch: LoopWatch | None = None,
        corrupted: Callable[[DatabaseCorrupted], object] = lambda error: None,
    ) -> None:
        self._heart = heart
        self._worker_id = worker_id
        self._lease = lease
        self._every = every.total_seconds()
        self._renewed = renewed
        self._lost = lost
        self._watch = watch
        self._corrupted = corrupted
        # Counted from before the registration, so never later than the database counts it.
        self._lease_ends = since + lease.total_seconds()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duetime-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stop_soon()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=_JOIN_SECONDS)

    def stop_soon(self) -> None:
        """Stop after a beat in progress, which may hang for seconds."""
        self._stop.set()

    @property
    def is_beating(self) -> bool:
        return self._thread.is_alive() and not self._stop.is_set()

    @property
    def seconds_left(self) -> float:
        return self._lease_ends - time.monotonic()

    def _run(self) -> None:
        failures = 0
        throttle = LogThrottle()
        beat_at = time.monotonic()
        while not self._stop.wait(self._wait_until(beat_at)):
            sent = time.monotonic()
            if self._watch is not None and self._watch.check():
                # No handler makes progress, so other workers shall have the jobs.
                if self.seconds_left <= 0:
                    self._end("the event loop was blocked")
                    return
                beat_at = max(beat_at, sent + self._watch.tick)
                continue
            if sent < beat_at:
                continue
            try:
                lag = timedelta(seconds=0.0 if self._watch is None else self._watch.take_lag())
                beat = self._heart.beat(self._worker_id, self._lease, lag)
            except DatabaseCorrupted as error:
                self._heart.close()
                self._corrupted(error)
                return
            except Exception as error:  # noqa: BLE001
                if self._stop.is_set():
                    break
                failures += 1
                if throttle.passes():
                    log_event(
                        log,
                        logging.WARNING,
                        "heartbeat_failed",
                        "The heartbeat failed %(failures)s times in a row: %(error)s",
                        error=str(error) or repr(error),
                        failures=failures,
                        exc_info=None if isinstance(error, StorageError) else error,
                    )
                if self.seconds_left <= self._every / 4:
                    self._end("the lease could not be renewed in time")
                    return
                wait = min(OUTAGE_SECONDS, self._every, max(self.seconds_left / 4, 0.05))
                beat_at = time.monotonic() + wait
                continue
            failures = 0
            throttle = LogThrottle()
            if self._stop.is_set():
                break
            if not beat.alive:
                self._end("the lease had run out")
                return
            self._lease_ends = sent + self._lease.total_seconds()
            self._renewed(beat)
            beat_at = time.monotonic() + self._every
        self._heart.close()

    def _wait_until(self, beat_at: float) -> float:
        wait = max(0.0, beat_at - time.monotonic())
        return wait if self._watch is None else min(wait, self._watch.tick)

    def _end(self, reason: str) -> None:
        self._heart.close()
        self._lost(reason)


class LoopWatch:
    """Detects a blocked event loop. Created on the event loop, which calls `pulse` regularly;
    another thread calls `check` every `tick` seconds.

    `blocked(seconds, stack, given_up)` is called while the loop is blocked, and `freed(seconds)`
    once it runs again.
    """

    def __init__(
        self,
        *,
        limit: float,
        pulse_every: float,
        blocked: Callable[[float, str, bool], None],
        freed: Callable[[float], None],
    ) -> None:
        self.limit = limit
        self.tick = max(2.5 * pulse_every, min(1.0, limit / 4))
        self._blocked = blocked
        self._freed = freed
        self._loop_thread = threading.get_ident()
        self._pulses = self._seen = 0
        self._checked = time.monotonic()
        self._seconds = 0.0
        self._late = 0.0
        self._report_at = self._first_report

    @property
    def _first_report(self) -> float:
        return min(_REPORT_SECONDS, self.limit)

    @property
    def is_blocked(self) -> bool:
        """Whether the loop has been blocked for longer than the limit, as last checked."""
        return self._seconds >= self.limit

    def pulse(self, late: float = 0.0) -> None:
        """The loop runs. `late`: by how much it was behind."""
        self._pulses += 1
        self._late = max(self._late, late)

    def take_lag(self) -> float:
        """By how many seconds the loop was behind, at most, since this was called last; while it
        is blocked, for how long."""
        late, self._late = self._late, 0.0
        return max(late, self._seconds)

    def check(self) -> bool:
        """Return whether the loop has been blocked for longer than the limit."""
        now = time.monotonic()
        # While the machine is suspended, this thread stops too: that time does not count.
        elapsed, self._checked = min(now - self._checked, 2 * self.tick), now
        if self._pulses != self._seen:
            self._seen = self._pulses
            if self._report_at > self._first_report:
                self._freed(self._seconds)
            self._seconds, self._report_at = 0.0, self._first_report
            return False
        before, self._seconds = self._seconds, self._seconds + elapsed
        given_up = self._seconds >= self.limit
        if self._seconds >= self._report_at or (given_up and before < self.limit):
            self._report_at = 2 * max(self._seconds, self._first_report)
            self._blocked(self._seconds, stack_of_thread(self._loop_thread), given_up)
        return given_up
