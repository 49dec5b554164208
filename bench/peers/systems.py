"""Which systems are compared, how each is started, and how much it is given to do."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.peers.installing import find_node, install, python_of, version_of

SIDES = Path(__file__).parent / "sides"


@dataclass(frozen=True)
class System:
    """One row of the comparison."""

    title: str
    side: str
    """The module or script in `sides` that runs it."""
    store: str
    """`postgresql`, `sqlite` or `redis`."""
    jobs: int
    """How many it is given to drain: about a second's work on two cores, so that all have time."""
    settings: str
    """What was chosen for throughput, in words."""
    environment: str | None = None
    """Its section of `versions.toml`; none is our own environment."""
    durable: bool = True

    @property
    def version(self) -> str:
        if self.environment is not None:
            return version_of(self.environment)
        return version("duetime") if self.side == "duetime" else "–"

    def command(self, role: str) -> list[str]:
        """Install it if necessary; return the command of a process in this role."""
        if self.environment is None:
            return [sys.executable, "-m", f"bench.peers.sides.{self.side}", role]
        home = install(self.environment)
        if not self.side.endswith(".mjs"):
            return [python_of(home), "-m", f"bench.peers.sides.{self.side}", role]
        # Node.js looks for packages beside the script.
        for script in SIDES.glob("*.mjs"):
            shutil.copy(script, home)
        return [find_node(), str(home / self.side), role]


SYSTEMS = {
    "raw": System(
        "raw SQL",
        "raw",
        "postgresql",
        60_000,
        "asyncpg; COPY; LISTEN; claims of 500, one delete for each; no retries, leases, history",
    ),
    "duetime": System("Duetime", "duetime", "postgresql", 60_000, "defaults"),
    "pgqueuer": System(
        "PgQueuer",
        "pgqueuer",
        "postgresql",
        20_000,
        "asyncpg; lists in one insert; batches of 100",
        environment="pgqueuer",
    ),
    "graphile_worker": System(
        "Graphile Worker",
        "graphile_worker.mjs",
        "postgresql",
        40_000,
        "addJobs; 24 at a time; local queue of 500; completions in batches; polls every 2 s",
        environment="graphile_worker",
    ),
    "pg_boss": System(
        "pg-boss",
        "pg_boss.mjs",
        "postgresql",
        20_000,
        "insert of many; LISTEN/NOTIFY; batches of 500, two at a time; polls every 0.5 s",
        environment="pg_boss",
    ),
    "procrastinate": System(
        "procrastinate",
        "procrastinate",
        "postgresql",
        600,
        "batch_defer; LISTEN/NOTIFY; 50 at a time; polls every 5 s",
        environment="procrastinate",
    ),
    "oban": System(
        "Oban (Python)",
        "oban",
        "postgresql",
        3_000,
        "enqueue_many of 1,000; LISTEN/NOTIFY; 100 at a time; stages every second",
        environment="oban",
    ),
    "dbos": System(
        "DBOS",
        "dbos",
        "postgresql",
        500,
        "enqueued in one transaction; the queue is polled every 0.1 s",
        environment="dbos",
    ),
    "apscheduler": System(
        "APScheduler 4",
        "apscheduler",
        "postgresql",
        300,
        "ten add_job at a time; asyncpg's event broker; 100 jobs at a time",
        environment="apscheduler_4",
    ),
    "celery": System(
        "Celery + Redis",
        "celery",
        "redis",
        1_500,
        "solo pool, 100 fetched ahead; Redis on a Unix socket, nothing on disk",
        environment="celery",
        durable=False,
    ),
    "raw_sqlite": System(
        "raw SQL, SQLite",
        "raw_sqlite",
        "sqlite",
        60_000,
        "WAL, synchronous=FULL; claims of 500; polls every 20 ms",
    ),
    "duetime_sqlite": System("Duetime, SQLite", "duetime", "sqlite", 40_000, "defaults"),
    "huey": System(
        "huey, SQLite",
        "huey",
        "sqlite",
        2_000,
        "fsync on; four threads; polls every 10 ms, schedules every second",
        environment="huey",
    ),
}
