"""What a job, a tick and a reminder cost: bytes of WAL, commits, CPU of the server and the worker.

`docs/scaling.md` calculates with it. It hardly depends on how busy the machine is.

Each starts right after a checkpoint, so that full-page images of a short run count: a long run has
fewer of them, and writes less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from bench import duetime_side, raw
from bench.cpu import cpu_seconds
from bench.duetime_side import Bench
from bench.environment import Environment, execute
from bench.measures.drain import EMPTY_DUETIME, work_off
from bench.processes import children
from bench.reading import Reading
from tests.servers import PostgresServer

_TICKING_SECONDS = 10
_STATE = """
select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8,
    (select xact_commit from pg_stat_database where datname = current_database())
"""


@dataclass
class Cost:
    """Of all that was done; `each` divides it."""

    wal: float = 0.0
    commits: float = 0.0
    server_cpu: float = 0.0
    worker_cpu: float = 0.0

    def note(self, count: int) -> str:
        return (
            f"{self.commits / count:.3f} commits, {self.server_cpu / count * 1e6:.0f} µs of the "
            f"server's CPU, {self.worker_cpu / count * 1e6:.0f} µs of the worker's"
        )


def measure(environment: Environment) -> dict[str, Reading]:
    database = environment.database("costs")
    server = environment.server
    jobs = environment.scale.drain_jobs
    by_hand = _by_hand(server, database, jobs)
    enqueued, worked = _jobs(server, database, jobs)
    ticked, ticks = _ticks(server, database, environment.scale.schedules)
    armed, sent, reminders = _reminders(server, database, environment.scale.drain_jobs // 10)
    environment.drop("costs")
    raw_job = by_hand.wal / jobs
    return {
        "job_enqueue_wal": Reading(enqueued.wal / jobs, raw_job, note=enqueued.note(jobs)),
        "job_run_wal": Reading(worked.wal / jobs, raw_job, note=worked.note(jobs)),
        "tick_wal": Reading(ticked.wal / ticks, raw_job, note=ticked.note(ticks)),
        "reminder_arm_wal": Reading(armed.wal / reminders, raw_job, note=armed.note(reminders)),
        "reminder_send_wal": Reading(sent.wal / reminders, raw_job, note=sent.note(reminders)),
    }


def _by_hand(server: PostgresServer, database: str, jobs: int) -> Cost:
    """Insert, update, delete: enqueue and drain in one figure."""
    cost = Cost()
    with _counted(server, database, cost):
        raw.load(database, jobs)
        with children(1, "raw_drain", dsn=database, driver="psycopg") as [worker]:
            worker.tell("go")
            worker.hear()
    return cost


def _jobs(server: PostgresServer, database: str, jobs: int) -> tuple[Cost, Cost]:
    enqueued, worked = Cost(), Cost()
    with _counted(server, database, enqueued):
        duetime_side.load(database, jobs)
    with (
        _counted(server, database, worked),
        children(1, "worker", database=database) as workers,
    ):
        [report] = work_off(workers, jobs)
    worked.worker_cpu = report["cpu"]
    return enqueued, worked


def _ticks(server: PostgresServer, database: str, schedules: int) -> tuple[Cost, int]:
    """Schedules that tick every second."""
    execute(database, EMPTY_DUETIME)
    duetime_side.put_schedules(database, schedules, "* * * * * *")
    cost = Cost()
    with (
        _counted(server, database, cost),
        children(1, "worker", database=database) as workers,
    ):
        [report] = work_off(workers, schedules * _TICKING_SECONDS)
    cost.worker_cpu = report["cpu"]
    execute(database, "delete from duetime.schedule")
    return cost, len(report["ticks"])


def _reminders(server: PostgresServer, database: str, count: int) -> tuple[Cost, Cost, int]:
    """Subjects with one rule each: put, then sent by a handler."""
    execute(database, EMPTY_DUETIME)
    armed, sent = Cost(), Cost()

    async def put() -> None:
        app = Bench(database).app
        due = await app.now() + timedelta(hours=1)
        rule = {"rule": "-1h", "past": "send_now"}
        for start in range(0, count, 1000):
            await app.subjects.put_many(
                [
                    app.subjects.define(f"subject:{number}", due=due, remind=[rule])
                    for number in range(start, min(start + 1000, count))
                ]
            )
        await app.close()

    with _counted(server, database, armed):
        asyncio.run(put())
    with (
        _counted(server, database, sent),
        children(1, "worker", database=database) as workers,
    ):
        [report] = work_off(workers, count)
    sent.worker_cpu = report["cpu"]
    return armed, sent, count


@contextmanager
def _counted(server: PostgresServer, database: str, cost: Cost) -> Iterator[None]:
    execute(database, "checkpoint")
    [(wal, commits)] = execute(database, _STATE)
    cpu = cpu_seconds([server.pid])
    yield
    # Sessions report their commits when they end, or within a second.
    execute(database, "select pg_sleep(1.1)")
    cost.server_cpu = cpu_seconds([server.pid]) - cpu
    [(wal_after, commits_after)] = execute(database, _STATE)
    cost.wal, cost.commits = wal_after - wal, commits_after - commits
