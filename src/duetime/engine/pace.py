"""A worker's pace: when it looks for jobs again, and how far ahead."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

from duetime.engine.clock import DatabaseClock
from duetime.engine.options import WorkerOptions
from duetime.storage.store import LEAD, Sleeper
from duetime.telemetry.events import Events

_NAPS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
_BUSY_SECONDS = 0.05
"""Woken twice within this time: stay awake, so that producers need not wake us."""
_BUSY_NAP_SECONDS = 0.005
_STAGGER_SECONDS = 0.002


class Pace:
    """Decides after each look when the next one is, and sleeps until then."""

    sleeper: Sleeper
    lead = LEAD.total_seconds()
    """An idle worker claims what falls due so soon, and starts it to the millisecond: the round
    trips are behind it by then."""

    def __init__(
        self, worker: str, options: WorkerOptions, events: Events, clock: DatabaseClock
    ) -> None:
        self._worker = worker
        self._options = options
        self._events = events
        self._clock = clock
        self.rank = 0
        """How many live workers are older than this one."""
        self.restart()

    def restart(self) -> None:
        """Look at once; nothing is known of what comes."""
        self.look = True
        self.look_ahead = False
        """The next look also asks when the next job falls due."""
        self.more = False
        """The last claim came back full: there is more than the worker can take."""
        self.early = False
        """Nothing is due: claim what falls due within milliseconds, and hold it until then."""
        self._last_wake = 0.0
        self._wake_at = 0.0
        self._naps = 0

    async def after_look(
        self, next_run_at: datetime | None, *, claimed: bool, looked_ahead: bool, early: bool
    ) -> None:
        """Decide when to look again. `next_run_at`: the earliest due time in the lanes."""
        sleeper = self.sleeper
        if self.more:
            self._naps = 0
            self.look_ahead = False
            if sleeper.asleep:
                await sleeper.wake_up()
            return
        if not looked_ahead:
            # All that was due is claimed. Look once more, with an eye on what comes next.
            if sleeper.asleep:
                self.look_ahead = True
            elif claimed:
                # Busy: stay awake, so that producers need not wake us.
                await asyncio.sleep(_BUSY_NAP_SECONDS)
            elif await sleeper.fall_asleep(self._options.queues):
                self.look_ahead = True
                self._naps = 0
            else:
                await self._nap()
            return
        wait = self._options.poll.total_seconds()
        if next_run_at is not None:
            wait = min(wait, self._clock.seconds_until(next_run_at))
        if claimed:
            self._naps = 0
        soon = next_run_at is not None and wait <= self.lead
        if soon and not early and sleeper.asleep:
            self.early = True
            return
        if wait <= 0.0 or not sleeper.asleep:
            # It fell due since; or another worker is claiming it, or the listener was lost.
            self.look_ahead = sleeper.asleep
            await self._nap()
            return
        self._naps = 0
        self.look = False
        self.look_ahead = False
        if next_run_at is not None and wait > 0.005:
            # Many sleepers do not stampede for one job.
            wait += min(self.rank, 5 if soon else 20) * _STAGGER_SECONDS
            if not soon:
                wait -= self.lead
            elif wait > 0.8 * self.lead:
                # We came a moment too soon: our clock is an estimate. Once more, still ahead.
                wait -= self.lead / 2
        self._wake_at = time.monotonic() + wait

    async def rest(self) -> None:
        """Sleep until due, notified, or something ends here."""
        if self.look:
            # No room: a job must end before we look again.
            await self.sleeper.sleep(1.0)
            return
        reason = await self.sleeper.sleep(max(0.0, self._wake_at - time.monotonic()))
        now = time.monotonic()
        if reason == "interrupted" and now < self._wake_at:
            return
        self.look = True
        self.early = reason == "timed out" and self.sleeper.asleep
        self._events.woken(self._worker, reason)
        if reason == "notified":
            if now - self._last_wake < _BUSY_SECONDS:
                await self.sleeper.wake_up()
            self._last_wake = now

    async def _nap(self) -> None:
        self._naps += 1
        await asyncio.sleep(_NAPS[min(self._naps, len(_NAPS)) - 1])
