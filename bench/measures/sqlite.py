"""The embedded backend beside the sqlite3 module by hand; every round with a file of its own."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench import duetime_side, flow_side, raw_sqlite
from bench.environment import Environment
from bench.measures.bulk import time_child
from bench.measures.drain import rate, work_off
from bench.measures.flows import IN_FLIGHT, STEPS, run_alone, say_gathered
from bench.processes import Child, children
from bench.reading import Reading, Wrong, alternate, medians

_HISTORY = """
select count(*), count(distinct job_id),
    count(*) filter (where attempt = 1 and outcome = 'completed')
from duetime_attempt
"""
_RECORDED = "select count(*) from duetime_flow_step where state = 'completed'"


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


def measure_flows(environment: Environment) -> dict[str, Reading]:
    """Steps per second with 200 flows in flight."""
    scale = environment.scale
    flows = scale.sqlite_flows
    found = alternate(
        scale,
        duetime=lambda: _run_flows(environment, flows),
        each=lambda: _insert_steps(environment, flows, in_flight=1),
        gathered=lambda: _insert_steps(environment, flows, in_flight=IN_FLIGHT),
    )
    note = say_gathered(found["gathered"])
    return {"sqlite_flow_steps": medians(found["duetime"], found["each"], note)}


def measure_idle_flow(environment: Environment) -> dict[str, Reading]:
    """Milliseconds from the start of a flow to its result, on an idle worker."""
    scale = environment.scale
    with _file(environment) as ours, _file(environment) as by_hand:
        raw_sqlite.create(by_hand)
        database = f"sqlite:///{ours}"
        found = alternate(
            scale,
            duetime=lambda: run_alone("flow", database=database, flows=scale.idle_flows),
            raw=lambda: run_alone("sqlite_flow", path=by_hand, flows=scale.idle_flows),
        )
    return {"sqlite_flow_idle_ms": medians(found["duetime"], found["raw"])}


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


def _run_flows(environment: Environment, flows: int) -> float:
    with _file(environment) as path:
        database = f"sqlite:///{path}"
        flow_side.load(database, flows, steps=STEPS)
        with children(1, "flow_worker", database=database, concurrency=IN_FLIGHT) as workers:
            [report] = work_off(workers, flows)
        with closing(sqlite3.connect(path)) as connection:
            [recorded] = connection.execute(_RECORDED).fetchone()
        if report["runs"] != flows or recorded != flows * STEPS:
            raise Wrong(f"{flows} flows ran {report['runs']} times; {recorded} steps are recorded")
        return rate([report], flows) * STEPS


def _insert_steps(environment: Environment, flows: int, *, in_flight: int) -> float:
    with _file(environment) as path:
        raw_sqlite.create(path)
        given = {"path": path, "flows": flows, "steps": STEPS, "in_flight": in_flight}
        return flows * STEPS / time_child("sqlite_flows", **given)


@contextmanager
def _file(environment: Environment) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=environment.directory) as directory:
        yield str(Path(directory) / "jobs.db")
