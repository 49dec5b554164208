"""How much was done, how late and for how long, over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from duetime.domain.stats.histogram import percentile
from duetime.errors import InvalidInput

ALL_TASKS = ""
"""What is counted under this name is the sum of all tasks."""


class Resolution(NamedTuple):
    """Counts are kept for buckets of so many minutes, for so long."""

    minutes: int
    kept: timedelta


RESOLUTIONS = (
    Resolution(1, timedelta(hours=4)),
    Resolution(10, timedelta(days=3)),
    Resolution(60, timedelta(days=36)),
)
MAX_WINDOW = timedelta(days=35)
SAMPLE_WINDOWS = (timedelta(hours=2), timedelta(days=2), MAX_WINDOW)
"""A sampled attempt is kept for one of these spans: most for the first, some for longer."""
SAMPLE_SHARES = (24, 840)
"""One of so many is kept for the second span, and one of so many for the third."""


class BucketCounts(msgspec.Struct):
    """What was counted in one bucket of time."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    """Attempts, by their outcome."""
    lateness: Counter[int] = msgspec.field(default_factory=Counter)
    """Attempts, by the bucket of how late they started."""
    duration: Counter[int] = msgspec.field(default_factory=Counter)
    busy_us: int = 0
    """How long handlers ran, in all."""

    def add(self, other: BucketCounts) -> None:
        self.counts.update(other.counts)
        self.lateness.update(other.lateness)
        self.duration.update(other.duration)
        self.busy_us += other.busy_us


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was done in one bucket of time. Durations are in seconds, within 9 %."""

    at: datetime
    """When the bucket begins."""
    completed: int
    retried: int
    """Attempts that failed, and whose job runs again."""
    dead: int
    busy: float
    """How many handlers ran, on average."""
    lateness_p50: float | None
    """From the time at which a job was due to its start. None: none started."""
    lateness_p99: float | None
    duration_p50: float | None
    duration_p99: float | None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """What was done over a window of time: what `app.stats.series()` returns.

    Workers report every ten seconds, so that the last point lags behind.
    """

    since: datetime
    until: datetime
    bucket: timedelta
    task: str | None
    completed: int
    retried: int
    dead: int
    lateness_p50: float | None
    lateness_p99: float | None
    lateness_max: float | None
    lateness_max_at: datetime | None
    """When the bucket begins in which an attempt started latest."""
    duration_p50: float | None
    duration_p99: float | None
    duration_max: float | None
    points: tuple[SeriesPoint, ...]
    """One for each bucket, the oldest first, also if nothing was done."""


class AttemptSample(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of those that were picked at random."""

    job_id: int
    task: str
    outcome: str
    run_at: datetime
    """When it was due."""
    started_at: datetime
    finished_at: datetime

    @property
    def lateness(self) -> timedelta:
        return max(self.started_at - self.run_at, timedelta(0))

    @property
    def duration(self) -> timedelta:
        return self.finished_at - self.started_at


def check_window(window: timedelta) -> timedelta:
    """Return the window if it can be shown; raise `InvalidInput`."""
    if not timedelta(minutes=1) <= window <= MAX_WINDOW:
        raise InvalidInput(
            f"window must be 1m to {MAX_WINDOW.days}d, got {window.total_seconds():g} seconds."
        )
    return window


def resolution_of(window: timedelta) -> Resolution:
    """Return the finest resolution that reaches back so far."""
    return next(one for one in RESOLUTIONS if window < one.kept)


def sample_level(window: timedelta) -> int:
    """Return from which level on samples are kept for so long."""
    return next(level for level, kept in enumerate(SAMPLE_WINDOWS) if window <= kept)


def floor_to(moment: datetime, minutes: int) -> datetime:
    """Return when the bucket of a moment begins.

    >>> from datetime import UTC
    >>> str(floor_to(datetime(2026, 3, 8, 9, 47, 13, tzinfo=UTC), 10))
    '2026-03-08 09:40:00+00:00'
    """
    return moment.replace(
        minute=0 if minutes == 60 else moment.minute - moment.minute % minutes,
        second=0,
        microsecond=0,
    )


def buckets_between(since: datetime, until: datetime, minutes: int) -> Iterator[datetime]:
    """Yield the beginnings of all buckets, from that of `since` to that of `until`."""
    at, step = floor_to(since, minutes), timedelta(minutes=minutes)
    while at <= until:
        yield at
        at += step


def make_series(
    tallies: Mapping[datetime, BucketCounts],
    times: Sequence[datetime],
    *,
    until: datetime,
    minutes: int,
    task: str | None,
) -> Series:
    """Make a series of what was counted at `times`."""
    bucket = timedelta(minutes=minutes)
    total = BucketCounts()
    for tally in tallies.values():
        total.add(tally)
    latest = max(total.lateness, default=None)
    longest = max(total.duration, default=None)
    return Series(
        since=times[0],
        until=until,
        bucket=bucket,
        task=task,
        completed=total.counts["completed"],
        retried=total.counts["retried"],
        dead=total.counts["dead"],
        lateness_p50=percentile(total.lateness, 0.5),
        lateness_p99=percentile(total.lateness, 0.99),
        lateness_max=percentile(total.lateness, 1.0),
        lateness_max_at=next(
            (at for at in times if at in tallies and latest in tallies[at].lateness), None
        )
        if latest is not None
        else None,
        duration_p50=percentile(total.duration, 0.5),
        duration_p99=percentile(total.duration, 0.99),
        duration_max=None if longest is None else percentile(total.duration, 1.0),
        points=tuple(_make_point(at, tallies.get(at) or BucketCounts(), bucket) for at in times),
    )


def _make_point(at: datetime, tally: BucketCounts, bucket: timedelta) -> SeriesPoint:
    return SeriesPoint(
        at=at,
        completed=tally.counts["completed"],
        retried=tally.counts["retried"],
        dead=tally.counts["dead"],
        busy=round(tally.busy_us / 1e6 / bucket.total_seconds(), 3),
        lateness_p50=percentile(tally.lateness, 0.5),
        lateness_p99=percentile(tally.lateness, 0.99),
        duration_p50=percentile(tally.duration, 0.5),
        duration_p99=percentile(tally.duration, 0.99),
    )
