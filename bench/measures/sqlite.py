"""The embedded backend beside the sqlite3 module by hand; every round with a file of its own."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench import duetime_side, raw_sqlite
from bench.environment import Environment
from bench.measures.bulk import time_child
from bench.measures.drain import rate, work_off
from bench.processes import Child, children
from bench.reading import Reading, Wrong, alternate, medians

_HISTORY = """
select count(*), count(distinct job_id),
    count(*) filter (where attempt = 1 and outcome = 'completed')
from duetime_attempt
"""


def measure_drain(environment: Environment) -> dict[str, Reading]:
    jobs = environment.scale.sqlite_jobs
    found = alternate(
        environment.scale,
        duetime=lambda: _drain_duetime(environment, jobs),
        raw=lambda: _drain_raw(environment, jobs),
    )
    return {"sqlite_drain": medians(found["duetime"], found["raw"])}


def measure_bulk(environment: Environment) -> dict[str, Reading]:
    jobs = environment.scale.sqlite_jobs
    found = alternate(
        environment.scale,
        duetime=lambda: _bulk_duetime(environment, jobs),
        raw=lambda: _bulk_raw(environment, jobs),
    )
    return {"sqlite_bulk_enqueue": medians(found["duetime"], found["raw"])}


def _drain_duetime(environment: Environment, jobs: int) -> float:
    with _file(environment) as path:
        database = f"sqlite:///{path}"
        duetime_side.load(database, jobs)
        with children(1, "worker", database=database) as workers:
            [report] = work_off(workers, jobs)
        with closing(sqlite3.connect(path)) as connection:
            history = connection.execute(_HISTORY).fetchone()
        if report["runs"] != jobs or set(history) != {jobs}:
            raise Wrong(f"{jobs} jobs ran {report['runs']} times; the history has {history}")
        return rate([report], jobs)


def _drain_raw(environment: Environment, jobs: int) -> float:
    with _file(environment) as path:
        raw_sqlite.create(path)
        raw_sqlite.load(path, jobs)
        with Child("sqlite_drain", path=path) as worker:
            worker.hear()
            worker.tell("go")
            report = worker.hear()
        if report["count"] != jobs:
            raise Wrong(f"the raw loop handled {report['count']} of {jobs} jobs")
        return rate([report], jobs)


def _bulk_duetime(environment: Environment, jobs: int) -> float:
    with _file(environment) as path:
        return jobs / time_child("bulk", database=f"sqlite:///{path}", jobs=jobs)


def _bulk_raw(environment: Environment, jobs: int) -> float:
    with _file(environment) as path:
        raw_sqlite.create(path)
        return jobs / time_child("sqlite_bulk", path=path, jobs=jobs)


@contextmanager
def _file(environment: Environment) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=environment.directory) as directory:
        yield str(Path(directory) / "jobs.db")
