"""How much is measured: enough to trust, or just enough to see that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The size of every measure. Rounds alternate between Duetime and its baseline."""

    rounds: int
    drain_jobs: int
    bulk_jobs: int
    enqueue_seconds: float
    pickups: int
    timer_rounds: int
    timers: int
    timer_seconds: float
    future_jobs: int
    pinned_sequences: int
    pinned_jobs: int
    sqlite_jobs: int
    idle_seconds: float


FULL = Scale(
    rounds=3,
    drain_jobs=100_000,
    bulk_jobs=100_000,
    enqueue_seconds=4.0,
    pickups=250,
    timer_rounds=2,
    timers=250,
    timer_seconds=5.0,
    future_jobs=1_000_000,
    pinned_sequences=3,
    pinned_jobs=30_000,
    sqlite_jobs=100_000,
    idle_seconds=3.0,
)
QUICK = Scale(
    rounds=1,
    drain_jobs=5_000,
    bulk_jobs=5_000,
    enqueue_seconds=0.5,
    pickups=10,
    timer_rounds=1,
    timers=30,
    timer_seconds=1.0,
    future_jobs=20_000,
    pinned_sequences=1,
    pinned_jobs=2_000,
    sqlite_jobs=5_000,
    idle_seconds=0.5,
)
