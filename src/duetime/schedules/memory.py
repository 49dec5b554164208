"""Schedules in memory: never stored, fired by every process, and still one run for each tick.

Each process enqueues the next tick of each schedule, due at its time, under the tick's key. The
key is the same everywhere, so the first one enqueues it and the others find it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from duetime.domain.jobs.job import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    NewJob,
)
from duetime.domain.keys import run_key
from duetime.storage.schedules.rows import NewSchedule
from duetime.storage.store import Store

_HOLD = timedelta(hours=1)
"""How long a key is held once its run completed: no process is later than that."""
_LATEST_START = timedelta(minutes=1)
"""How late a tick starts at most, unless its schedule says otherwise. Its job is enqueued ahead and
would run whenever a worker comes back."""
_MAX_SLEEP = timedelta(minutes=1)
_MOMENT = timedelta(milliseconds=5)


class MemorySchedules:
    """Keeps the next tick of each schedule enqueued. A tick that passes while no process runs is
    lost, without a record."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.schedules: Sequence[NewSchedule] = ()
        self._armed: dict[str, datetime] = {}

    async def arm(self) -> float:
        """Enqueue what comes next; return the seconds until there is more to do."""
        if not self.schedules:
            return 1.0
        now = await self._store.now()
        upcoming = {schedule.name: _next(schedule, now) for schedule in self.schedules}
        armed = {name: tick for name, tick in upcoming.items() if tick is not None}
        jobs = [
            _job(schedule, armed[schedule.name])
            for schedule in self.schedules
            if armed.get(schedule.name) != self._armed.get(schedule.name) and schedule.name in armed
        ]
        if jobs:
            await self._store.enqueue(jobs)
        self._armed = armed
        first = min(armed.values(), default=now + _MAX_SLEEP)
        return (min(first - now, _MAX_SLEEP) + _MOMENT).total_seconds()


def _next(schedule: NewSchedule, now: datetime) -> datetime | None:
    return next(schedule.timetable.runs(now), None)


def _job(schedule: NewSchedule, tick: datetime) -> NewJob:
    run_at = schedule.timetable.run_at(schedule.name, tick)
    expires = schedule.policy.expires or _LATEST_START
    return NewJob(
        task=schedule.target,
        args=schedule.args,
        queue=schedule.queue or DEFAULT_QUEUE,
        priority=DEFAULT_PRIORITY if schedule.priority is None else schedule.priority,
        run_at=run_at,
        key=run_key(schedule.name, tick),
        hold=_HOLD,
        max_attempts=schedule.max_attempts or DEFAULT_MAX_ATTEMPTS,
        timeout=schedule.timeout,
        expires_at=run_at + expires,
        flow=schedule.kind == "flow",
    )
