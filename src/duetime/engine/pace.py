"""A worker's pace: when it claims again, how far ahead, and how long it sleeps in between."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import datetime, timedelta
from random import uniform

from duetime.settings import Settings
from duetime.storage.store import LEAD, Sleeper
from duetime.telemetry.events import Events

_NAPS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
_BUSY_SECONDS = 0.05
"""A worker that is notified twice within this time stays awake, so producers need not wake it."""
_BUSY_NAP_SECONDS = 0.005
_PUT_OFF_SECONDS = 0.01
"""A worker that was woken waits so long for the jobs that it claimed before it polls."""
_STAGGER_SECONDS = 0.002


class Pace:
    """Decides after each claim when the next one is made, and sleeps until then."""

    sleeper: Sleeper
    lead = LEAD.total_seconds()
    """An idle worker claims jobs that fall due within this time and starts them to the millisecond:
    the round trips are over by then."""

    def __init__(self, worker: str, settings: Settings, events: Events) -> None:
        self._worker = worker
        self._queues = settings.queues
        self._poll_seconds = settings.poll.total_seconds()
        self._events = events
        self.clock = DatabaseClock()
        self.rank = 0
        """How many live workers are older than this one."""
        self.fleet = 1
        """How many workers work on its queues."""
        self.restart()

    def restart(self) -> None:
        """Claim at once: nothing is known about what is due."""
        self.should_claim = True
        self.look_ahead = False
        """The next claim also reads when the next job falls due."""
        self.backlog = False
        """The last claim came back full: more is due than the worker can take."""
        self.claim_early = False
        """Nothing is due: the next claim takes jobs that fall due within `lead`."""
        self.should_poll = False
        """Nothing was due for a while: check that this is still so."""
        self._last_wake = 0.0
        self._wake_at = 0.0
        self._wakes_to_poll = False
        """It sleeps until the safety poll, and not for a job."""
        self._naps = 0

    async def after_claim(
        self, next_run_at: datetime | None, *, claimed: bool, looked_ahead: bool, early: bool
    ) -> None:
        """Decide when to claim again. `next_run_at`: the earliest due time in the lanes."""
        sleeper = self.sleeper
        if self.backlog:
            self._naps = 0
            self.look_ahead = False
            if sleeper.asleep:
                await sleeper.wake_up()
            return
        if not looked_ahead:
            # Everything that was due is claimed. Before sleeping, read what falls due next.
            if sleeper.asleep:
                self.look_ahead = True
                if claimed:
                    # It would delay the steps of a flow that runs alone.
                    await sleeper.sleep(_PUT_OFF_SECONDS)
            elif claimed:
                # Busy: stay awake, so that producers need not wake us.
                await asyncio.sleep(_BUSY_NAP_SECONDS)
            elif await sleeper.fall_asleep(self._queues):
                self.look_ahead = True
                self._naps = 0
            else:
                await self._nap()
            return
        if claimed:
            self._naps = 0
        wait = self._seconds_until(next_run_at)
        soon = wait <= self.lead
        if soon and not early and sleeper.asleep:
            self.claim_early = True
            return
        if wait <= 0.0 or not sleeper.asleep:
            # A job fell due since, or another worker is claiming it, or the listener was lost.
            self.look_ahead = sleeper.asleep
            await self._nap()
            return
        self._naps = 0
        self.should_claim = False
        self.look_ahead = False
        self._plan_sleep(wait)

    def after_poll(self, next_run_at: datetime | None) -> None:
        """Sleep on, unless a job is due, or about to be."""
        self.should_poll = False
        wait = self._seconds_until(next_run_at)
        if wait <= self.lead:
            self.should_claim = self.claim_early = True
        else:
            self._plan_sleep(wait)

    def _seconds_until(self, next_run_at: datetime | None) -> float:
        return math.inf if next_run_at is None else self.clock.seconds_until(next_run_at)

    def _plan_sleep(self, wait: float) -> None:
        """Sleep until a job is due, or until the safety poll. `wait`: how long until it is due."""
        soon = wait <= self.lead
        if wait > 0.005:
            # Sleeping workers must not all wake up for one job.
            wait += min(self.rank, 5 if soon else 20) * _STAGGER_SECONDS
            if not soon:
                wait -= self.lead
            elif wait > 0.8 * self.lead:
                # This claim was a moment too early, since our clock is an estimate. Try again,
                # still ahead of time.
                wait -= self.lead / 2
        # Workers that were woken together must not keep polling together.
        poll = self._poll_seconds * uniform(0.7, 1.0)
        self._wakes_to_poll = wait > poll
        self._wake_at = time.monotonic() + min(wait, poll)

    def _wake_for(self, run_at: datetime, now: float) -> None:
        """Sleep no longer than until a job is due that was enqueued meanwhile. No read is needed:
        what else falls due before, it knows."""
        planned, wakes_to_poll = self._wake_at, self._wakes_to_poll
        wait = self._seconds_until(run_at)
        if wait <= self.lead:
            self._wake_at, self._wakes_to_poll = now, False
            return
        self._plan_sleep(wait)
        if self._wake_at > planned:
            self._wake_at, self._wakes_to_poll = planned, wakes_to_poll

    async def sleep(self) -> None:
        """Sleep until a job is due, an enqueue notifies us, or a job finishes here."""
        if self.should_claim:
            # All runners are busy: a job must finish before the next claim.
            await self.sleeper.sleep(1.0)
            return
        reason = await self.sleeper.sleep(max(0.0, self._wake_at - time.monotonic()))
        now = time.monotonic()
        if (run_at := self.sleeper.announced()) is not None:
            self._wake_for(run_at, now)
        if reason in ("interrupted", "announced") and now < self._wake_at:
            return
        self._events.woken(self._worker, reason)
        if reason == "timed out" and self._wakes_to_poll and self.sleeper.asleep:
            self.should_poll = True
            return
        self.should_claim = True
        self.claim_early = reason in ("timed out", "announced") and self.sleeper.asleep
        if reason == "notified":
            if now - self._last_wake < _BUSY_SECONDS:
                await self.sleeper.wake_up()
            self._last_wake = now

    async def _nap(self) -> None:
        self._naps += 1
        # In a large fleet another worker is claiming it: let those before us finish.
        patience = 1.0 + min(self.rank, 20) / 2
        await asyncio.sleep(_NAPS[min(self._naps, len(_NAPS)) - 1] * patience)


class DatabaseClock:
    """Estimates the database's clock from its last answer and this process's monotonic clock.

    Good enough to decide how long to sleep. Which jobs are due, the database decides.
    """

    def __init__(self) -> None:
        self._moment: datetime | None = None
        self._at = 0.0

    def set(self, moment: datetime, *, sent: float, received: float) -> None:
        """The database read `moment` between the monotonic times `sent` and `received`."""
        self._moment = moment
        self._at = (sent + received) / 2

    def seconds_until(self, moment: datetime) -> float:
        """How long until the database's clock shows `moment`; 0 if that is past or unknown."""
        if self._moment is None:
            return 0.0
        passed = time.monotonic() - self._at
        return max(0.0, (moment - self._moment).total_seconds() - passed)

    def now(self) -> datetime | None:
        if self._moment is None:
            return None
        return self._moment + timedelta(seconds=time.monotonic() - self._at)
