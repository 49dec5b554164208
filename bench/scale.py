"""How much is measured: enough to trust, or just enough to see that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The size of every measure. Rounds alternate between Duetime and its baseline.

    On a slow or busy machine a measure that has lost its patience ends after the fewest rounds.
    """

    rounds: int
    fewest_rounds: int
    patience_seconds: float
    drain_jobs: int
    bulk_jobs: int
    enqueue_seconds: float
    pickups: int
    timer_rounds: int
    timers: int
    timer_seconds: float
    future_jobs: int
    pinned_jobs: int
    sqlite_jobs: int
    idle_seconds: float


FULL = Scale(
    rounds=5,
    fewest_rounds=3,
    patience_seconds=30.0,
    drain_jobs=60_000,
    bulk_jobs=100_000,
    enqueue_seconds=3.0,
    pickups=200,
    timer_rounds=2,
    timers=250,
    timer_seconds=5.0,
    future_jobs=1_000_000,
    pinned_jobs=30_000,
    sqlite_jobs=60_000,
    idle_seconds=3.0,
)
QUICK = Scale(
    rounds=1,
    fewest_rounds=1,
    patience_seconds=0.0,
    drain_jobs=3_000,
    bulk_jobs=5_000,
    enqueue_seconds=0.5,
    pickups=10,
    timer_rounds=1,
    timers=30,
    timer_seconds=1.0,
    future_jobs=20_000,
    pinned_jobs=1_000,
    sqlite_jobs=3_000,
    idle_seconds=0.5,
)
