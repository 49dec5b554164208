"""Keeps a worker's lease, on a thread and a connection of its own.

A busy event loop or a slow query cannot stop it; a lease that cannot be renewed fences the
worker before anyone else may take its jobs. A loop that is blocked for too long is not renewed for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from duetime.engine.loop_watch import LoopWatch
from duetime.engine.services import OUTAGE_SECONDS
from duetime.errors import DatabaseCorrupted, StorageError
from duetime.storage.store import Beat, Heart
from duetime.telemetry.events import log_event
from duetime.telemetry.outage import LogThrottle

log = logging.getLogger("duetime.heartbeat")

_JOIN_SECONDS = 2.0
"""How long a stop waits for a beat that is under way."""


class Heartbeat:
    """Calls `beaten` after each renewal, and `lost(reason)` once when the lease is gone."""

    def __init__(
        self,
        heart: Heart,
        worker_id: int,
        *,
        lease: timedelta,
        since: float,
        every: timedelta,
        beaten: Callable[[Beat], None],
        lost: Callable[[str], None],
        watch: LoopWatch | None = None,
        damaged: Callable[[DatabaseCorrupted], object] = lambda error: None,
    ) -> None:
        self._heart = heart
        self._worker_id = worker_id
        self._lease = lease
        self._every = every.total_seconds()
        self._beaten = beaten
        self._lost = lost
        self._watch = watch
        self._damaged = damaged
        # Counted from before it was asked for: never later than the database's own end.
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
        """Stop after the beat that is under way, which may hang for seconds."""
        self._stop.set()

    @property
    def seconds_left(self) -> float:
        return self._lease_ends - time.monotonic()

    def _run(self) -> None:
        failures = 0
        seldom = LogThrottle()
        beat_at = time.monotonic()
        while not self._stop.wait(self._wait_until(beat_at)):
            sent = time.monotonic()
            if self._watch is not None and self._watch.check():
                # Our handlers stand still, and so do those that only wait: others shall have them.
                if self.seconds_left <= 0:
                    self._end("the event loop was blocked")
                    return
                beat_at = max(beat_at, sent + self._watch.tick)
                continue
            if sent < beat_at:
                continue
            try:
                beat = self._heart.beat(self._worker_id, self._lease)
            except DatabaseCorrupted as error:
                self._heart.close()
                self._damaged(error)
                return
            except Exception as error:  # noqa: BLE001
                if self._stop.is_set():
                    break
                failures += 1
                if seldom.passes():
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
            seldom = LogThrottle()
            if self._stop.is_set():
                break
            if not beat.alive:
                self._end("the lease had run out")
                return
            self._lease_ends = sent + self._lease.total_seconds()
            self._beaten(beat)
            beat_at = time.monotonic() + self._every
        self._heart.close()

    def _wait_until(self, beat_at: float) -> float:
        wait = max(0.0, beat_at - time.monotonic())
        return wait if self._watch is None else min(wait, self._watch.tick)

    def _end(self, reason: str) -> None:
        self._heart.close()
        self._lost(reason)
