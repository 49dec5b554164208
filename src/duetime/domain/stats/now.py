"""How everything stands at one moment: what waits, runs, is late, retried or dead."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from duetime.domain.count import Count


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands."""

    name: str
    waiting: Count
    """Jobs that wait, due or not, with those that wait for a retry. Parked ones do not count."""
    due: Count
    late: Count
    retrying: Count
    running: int
    parked: Count
    oldest_due_at: datetime | None
    """When the job fell due that has waited longest. None: none is due."""
    next_run_at: datetime | None
    """When the first job of those that wait is due; in the past, if it is due."""
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    workers: int
    """Live workers that serve it."""
    places: int
    """How many jobs these can run at once, with those of their other queues."""


class TaskStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of a task stand."""

    name: str
    due: Count
    running: int
    retrying: Count
    parked: Count
    dead: Count
    completed_last_hour: int
    workers: int
    """Live workers that know it."""


class NowStats(msgspec.Struct, frozen=True, kw_only=True):
    """How everything stands: what `app.stats.now()` returns."""

    at: datetime
    """The database's clock."""
    waiting: Count
    due: Count
    late: Count
    """Jobs that have been due for longer than `late_after`."""
    late_after: timedelta
    late_by: timedelta | None
    """How long the job that has waited longest has been due. None: none is due."""
    oldest_due_at: datetime | None
    next_run_at: datetime | None
    """When the first job of those that wait is due; in the past, if it is due."""
    retrying: Count
    next_retry_at: datetime | None
    running: int
    """Jobs that workers hold."""
    places: int
    """How many jobs the live workers can run at once."""
    parked: Count
    dead: Count
    dead_errors: int
    """Kinds of errors among the dead jobs: different tasks or error codes."""
    dead_since: datetime | None
    """When the first of the dead jobs that were counted died."""
    completed_last_hour: int
    completed_per_second: float
    """In the last hour, on average. Workers report every ten seconds."""
    workers: int
    """Live workers."""
    lost_workers: int
    """Workers whose lease has expired, and whose jobs are yet to be rescued."""
    queues: tuple[QueueStats, ...]
    """By name."""
    tasks: tuple[TaskStats, ...]
    """By name: tasks that live workers know, that have jobs due, running, retrying, parked or dead,
    or that had some in the last hour."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are of each noun: what `app.stats.totals()` returns."""

    jobs: Count
    """Jobs that have not finished."""
    schedules: Count
    reminders: Count
    """Reminders that are armed."""
    flows: Count
    """Runs of flows that have not ended."""
    queues: int
    workers: int
    """Live workers."""
    tables: int
    """Tracked tables."""
