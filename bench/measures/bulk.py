"""Many jobs in one call, from their arguments to committed, beside one COPY."""

from __future__ import annotations

from typing import Any

from bench.environment import Environment, execute
from bench.measures.drain import DRIVERS, EMPTY_DUETIME
from bench.processes import Child
from bench.reading import Reading, Wrong, alternate, best, medians


def measure(environment: Environment) -> dict[str, Reading]:
    jobs = environment.scale.bulk_jobs
    database = environment.database("plain")
    found = alternate(
        environment.scale,
        duetime=lambda: _bulk_duetime(database, jobs),
        psycopg=lambda: _bulk_raw(database, jobs, "psycopg"),
        asyncpg=lambda: _bulk_raw(database, jobs, "asyncpg"),
    )
    driver = best(found, *DRIVERS)
    note = f"raw with {driver}, the faster driver"
    return {"bulk_enqueue": medians(found["duetime"], found[driver], note)}


def _bulk_duetime(database: str, jobs: int) -> float:
    execute(database, EMPTY_DUETIME, "checkpoint")
    seconds = time_child("bulk", database=database, jobs=jobs)
    [(stored,)] = execute(
        database, "select count(*) from duetime.due join duetime.job on id = job_id"
    )
    if stored != jobs:
        raise Wrong(f"{stored} of {jobs} jobs were stored")
    return jobs / seconds


def _bulk_raw(database: str, jobs: int, driver: str) -> float:
    execute(database, "truncate raw_job", "checkpoint")
    return jobs / time_child("raw_bulk", dsn=database, jobs=jobs, driver=driver)


def time_child(role: str, **parameters: Any) -> float:
    """Let a process do its one thing; return the seconds that it took."""
    with Child(role, **parameters) as child:
        child.hear()
        child.tell("go")
        return float(child.hear()["seconds"])
