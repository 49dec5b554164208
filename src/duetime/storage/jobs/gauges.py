"""What metrics read of the whole database, for every backend: few statements, each of which reads
a bounded number of rows, however many jobs there are."""

from __future__ import annotations

import msgspec

from duetime.domain.alert import MISSED_CODES
from duetime.storage.store import Dialect, Statements

FEW = 1000
"""Up to so many jobs that wait are counted exactly; of more, a sample is."""
PROBES = 300
LANES = 200
MOST = 500
"""Dead and parked jobs and missed ticks are counted up to this."""
SCHEDULES = 10_000
"""Schedules are counted up to this."""


class Waiting(msgspec.Struct, frozen=True):
    """Jobs of one task that wait."""

    due: int
    later: int


class OldestDue(msgspec.Struct, frozen=True):
    """The first job of a queue."""

    age: float
    """For how many seconds it has been due; 0 if it is not."""
    paused: bool


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the whole database, as metrics show it."""

    waiting: dict[str | None, Waiting]
    """By task. None: tasks that no worker has registered."""
    estimated: bool
    """Whether `waiting` is an estimate from a sample."""
    oldest: dict[str, OldestDue]
    """By queue, of the first queues by name."""
    dead: int
    parked: int
    workers: int
    schedules: int
    """Those that run."""
    stopped_schedules: int
    """Those that are paused or broken."""
    missed_ticks: int
    """Found in the last hour."""
    dead_tuples: dict[str, int]
    """By table. Empty on SQLite."""


def read_gauges(dialect: Dialect) -> Statements:
    """Return the `Gauges`. Reads only."""
    [(counted, estimate)] = yield from dialect.run("gauge_sizes", {"few": FEW})
    estimated = counted > FEW
    if estimated:
        rows = yield from dialect.run("gauge_waiting_sample", {"probes": PROBES})
        scale = max(estimate, counted) / max(1, sum(row[1] + row[2] for row in rows))
    else:
        rows = yield from dialect.run("gauge_waiting", {})
        scale = 1
    waiting = {row[0]: Waiting(round(row[1] * scale), round(row[2] * scale)) for row in rows}
    lanes = yield from dialect.run("stats_lane_names", {"most": LANES})
    oldest = yield from dialect.run("gauge_oldest", [list(lane) for lane in lanes[:LANES]])
    [(dead,)] = yield from dialect.run("gauge_dead", {"most": MOST})
    limits = {"most": MOST, "schedules": SCHEDULES, "missed": list(MISSED_CODES)}
    [counts] = yield from dialect.run("gauge_counts", limits)
    parked, workers, schedules, active, missed = counts
    tuples = yield from dialect.run("gauge_dead_tuples", {})
    return Gauges(
        waiting=waiting,
        estimated=estimated,
        oldest={row[0]: OldestDue(row[1], bool(row[2])) for row in oldest},
        dead=dead,
        parked=parked,
        workers=workers,
        schedules=active,
        stopped_schedules=schedules - active,
        missed_ticks=missed,
        dead_tuples=dict(tuples),
    )
