"""Jobs that wait are worked off: from the first claim to the last finish committed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bench import duetime_side, raw
from bench.environment import Environment, execute, stop_worker
from bench.processes import ANSWER_SECONDS, Child, children
from bench.reading import Reading, Wrong, alternate, alternate_briefly, best, medians

DRIVERS = ("psycopg", "asyncpg")
EMPTY_DUETIME = "truncate duetime.job, duetime.due, duetime.claim, duetime.attempt"
_HISTORY = """
select count(*), count(distinct a.job_id),
    count(*) filter (where a.attempt = 1 and a.outcome = 'completed')
from duetime.attempt as a join duetime.job as j on j.id = a.job_id and j.task = 'noop'
"""


def measure_one(environment: Environment) -> dict[str, Reading]:
    return {"drain_1": _beside_raw(environment, processes=1)}


def measure_two(environment: Environment) -> dict[str, Reading]:
    return {"drain_2": _beside_raw(environment, processes=2)}


def measure_eight(environment: Environment) -> dict[str, Reading]:
    """Eight processes on the same queue, beside two: on two cores they cannot be faster."""
    jobs = environment.scale.drain_jobs
    database = environment.database("plain")
    found = alternate_briefly(
        environment.scale,
        eight=lambda: drain_duetime(database, jobs, processes=8),
        two=lambda: drain_duetime(database, jobs, processes=2),
    )
    return {"drain_8": medians(found["eight"], found["two"])}


def measure_future(environment: Environment) -> dict[str, Reading]:
    """With a million jobs that are not due, beside none."""
    scale = environment.scale
    plain, crowded = environment.database("plain"), environment.crowded()
    found = alternate(
        scale,
        crowded=lambda: drain_duetime(crowded, scale.drain_jobs, empty=False),
        plain=lambda: drain_duetime(plain, scale.drain_jobs),
    )
    return {"drain_future_1m": medians(found["crowded"], found["plain"])}


def _beside_raw(environment: Environment, *, processes: int) -> Reading:
    jobs = environment.scale.drain_jobs
    database = environment.database("plain")
    found = alternate(
        environment.scale,
        duetime=lambda: drain_duetime(database, jobs, processes=processes),
        psycopg=lambda: drain_raw(database, jobs, processes=processes, driver="psycopg"),
        asyncpg=lambda: drain_raw(database, jobs, processes=processes, driver="asyncpg"),
    )
    driver = best(found, *DRIVERS)
    return medians(found["duetime"], found[driver], f"raw with {driver}, the faster driver")


def drain_duetime(database: str, jobs: int, *, processes: int = 1, empty: bool = True) -> float:
    """Return jobs/s; raise `Wrong` unless each job ran and completed exactly once."""
    before = load(database, jobs, empty=empty)
    with children(processes, "worker", database=database) as workers:
        reports = work_off(workers, jobs)
    check_each_ran(database, jobs, reports, before)
    return rate(reports, jobs)


def load(database: str, jobs: int, *, empty: bool = True) -> Sequence[int]:
    """Store jobs that are due; return what the history held before, for `check_each_ran`."""
    execute(database, *([EMPTY_DUETIME] if empty else []), "checkpoint")
    [before] = execute(database, _HISTORY)
    duetime_side.load(database, jobs)
    execute(database, "analyze duetime.job, duetime.due")
    found: Sequence[int] = before
    return found


def check_each_ran(
    database: str, jobs: int, reports: Sequence[dict[str, Any]], before: Sequence[int]
) -> None:
    """Raise `Wrong` unless each job ran and completed exactly once."""
    [after] = execute(database, _HISTORY)
    runs = sum(report["runs"] for report in reports)
    grown = {now - then for now, then in zip(after, before, strict=True)}
    if runs != jobs or grown != {jobs}:
        raise Wrong(f"{jobs} jobs ran {runs} times; the history grew by {sorted(grown)}")


def drain_raw(database: str, jobs: int, *, processes: int, driver: str) -> float:
    execute(database, "truncate raw_job", "checkpoint")
    raw.load(database, jobs)
    execute(database, "analyze raw_job")
    with children(processes, "raw_drain", dsn=database, driver=driver) as workers:
        for worker in workers:
            worker.tell("go")
        reports = [worker.hear() for worker in workers]
    count = sum(report["count"] for report in reports)
    if count != jobs:
        raise Wrong(f"the raw loop handled {count} of {jobs} jobs")
    return rate(reports, jobs)


def work_off(workers: Sequence[Child], jobs: int) -> list[dict[str, Any]]:
    """Let ready workers work until all jobs have ended; return what each reports."""
    work_until_ended(workers, jobs)
    return [stop_worker(worker) for worker in workers]


def work_until_ended(workers: Sequence[Child], jobs: int) -> None:
    """Let ready workers work until all jobs have ended."""
    for worker in workers:
        worker.tell("go")
    for worker in workers:
        worker.hear()
    ended = [0] * len(workers)
    deadline = time.monotonic() + ANSWER_SECONDS
    while sum(ended) < jobs:
        if time.monotonic() > deadline:
            raise Wrong(f"only {sum(ended)} of {jobs} jobs ended in {ANSWER_SECONDS:g} s")
        time.sleep(0.05)
        for number, worker in enumerate(workers):
            for said in worker.heard():
                ended[number] = said.get("ended", ended[number])


def rate(reports: Sequence[dict[str, Any]], jobs: int) -> float:
    first = min(report["first"] for report in reports if report["first"] is not None)
    last = max(report["last"] for report in reports if report["last"] is not None)
    return float(jobs / (last - first))
