"""Whether the event loop still turns, as seen from another thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from duetime.engine.stacks import stack_of_thread

_REPORT_SECONDS = 2.0
"""Blocked for so long is worth a line; the next ones come after twice the time each."""


class LoopWatch:
    """Made, and `pulse`d, on the event loop; `check`ed every `tick` seconds on another thread.

    `blocked(seconds, stack, given_up)` is called for a loop that does not turn, and
    `freed(seconds)` once it turns again.
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
        self._report_at = self._first_report

    @property
    def _first_report(self) -> float:
        return min(_REPORT_SECONDS, self.limit)

    def pulse(self) -> None:
        self._pulses += 1

    def check(self) -> bool:
        """Return whether the loop has been blocked for longer than the limit."""
        now = time.monotonic()
        # A machine that was suspended stopped this thread, too: that time does not count.
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
