"""How much is measured: enough to trust, or just enough to see that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The size of every measure. Rounds alternate between Duetime and its baseline."""

    fsync: bool
    """Whether the server keeps what it has committed; if not, it lives in memory."""
    rounds: int
    drain_jobs: int
    bulk_jobs: int
    enqueue_seconds: float
    pickups: int
    timer_rounds: int
    timers: int
    timer_seconds: float
    future_jobs: int
    schedules: int
    schedule_warm_up_seconds: float
    schedule_seconds: float
    peers: bool
    """Whether other libraries are installed, to stand beside ours."""
    peer_seconds: float
    subjects: int
    armed_reminders: int
    fire_schedules: int
    fire_rounds: int
    fire_every: int
    """Seconds from one round to the next."""
    fleet_processes: int
    fleet_workers: int
    """In each process."""
    many_processes: int
    idle_processes: int
    crowd: int
    """Jobs that wait for a later day, or have finished, in the largest database."""
    memory_rounds: int
    """How often a worker works off as many jobs as in the first round."""
    pinned_jobs: int
    flows: int
    graphs: int
    idle_flows: int
    """Run alone, one after another."""
    fan_out: int
    finished_flows: int
    sleeping_flows: int
    watch_seconds: float
    """How long an idle worker beside them is watched."""
    sqlite_jobs: int
    sqlite_flows: int
    idle_settle_seconds: float
    """How long a worker rests after its start: connections that it needed then are closed, and what
    its first round of pruning did is reported by its session, which takes ten seconds of rest."""
    idle_seconds: float


FULL = Scale(
    fsync=True,
    rounds=3,
    drain_jobs=100_000,
    bulk_jobs=100_000,
    enqueue_seconds=1.2,
    pickups=100,
    timer_rounds=2,
    timers=250,
    timer_seconds=3.0,
    future_jobs=1_000_000,
    schedules=200,
    schedule_warm_up_seconds=3.0,
    schedule_seconds=5.0,
    peers=True,
    peer_seconds=5.0,
    subjects=100_000,
    armed_reminders=10_000_000,
    fire_schedules=1000,
    fire_rounds=3,
    fire_every=4,
    fleet_processes=5,
    fleet_workers=10,
    many_processes=50,
    idle_processes=100,
    crowd=10_000_000,
    memory_rounds=10,
    pinned_jobs=30_000,
    flows=1_500,
    graphs=200,
    idle_flows=20,
    fan_out=10_000,
    finished_flows=100_000,
    sleeping_flows=100_000,
    watch_seconds=10.0,
    sqlite_jobs=60_000,
    sqlite_flows=2_000,
    idle_settle_seconds=25.0,
    idle_seconds=3.0,
)
QUICK = Scale(
    fsync=False,
    rounds=1,
    drain_jobs=3_000,
    bulk_jobs=5_000,
    enqueue_seconds=0.5,
    pickups=10,
    timer_rounds=1,
    timers=30,
    timer_seconds=1.0,
    future_jobs=20_000,
    schedules=20,
    schedule_warm_up_seconds=1.0,
    schedule_seconds=2.0,
    peers=False,
    peer_seconds=1.0,
    subjects=500,
    armed_reminders=30_000,
    fire_schedules=100,
    fire_rounds=1,
    fire_every=4,
    fleet_processes=2,
    fleet_workers=5,
    many_processes=3,
    idle_processes=3,
    crowd=20_000,
    memory_rounds=2,
    pinned_jobs=1_000,
    flows=200,
    graphs=50,
    idle_flows=3,
    fan_out=500,
    finished_flows=400,
    sleeping_flows=200,
    watch_seconds=1.0,
    sqlite_jobs=3_000,
    sqlite_flows=100,
    idle_settle_seconds=0.5,
    idle_seconds=0.5,
)
