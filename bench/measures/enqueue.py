"""Durable enqueues.

Of sixteen producers, one enqueue after another, beside a worker that drains: four processes with
four connections each call the SQL function `duetime.enqueue_many`; every enqueue is a commit of its
own. The baseline is the same with wake-up off, in the producers and in the worker: what it costs to
wake who sleeps.

Of one process that calls the Python API: one job after another, 200 callers at a time (a web
server), and a hundred jobs in a call. The baseline inserts the same rows into the same tables by
one prepared statement.
"""

from __future__ import annotations

from bench.environment import Environment, duetime_worker, execute
from bench.measures.drain import EMPTY_DUETIME
from bench.processes import Child, children
from bench.reading import Reading, alternate, medians

PROCESSES = 4
CONNECTIONS = 4
CALLERS = 200
RAW_CONNECTIONS = 16
HUNDRED = 100


def measure(environment: Environment) -> dict[str, Reading]:
    seconds = environment.scale.enqueue_seconds
    database = environment.database("plain")
    found = alternate(
        environment.scale,
        on=lambda: _enqueue(database, seconds, notify=True),
        off=lambda: _enqueue(database, seconds, notify=False),
    )
    return {"enqueue_16": medians(found["on"], found["off"])}


def _enqueue(database: str, seconds: float, *, notify: bool) -> float:
    execute(database, EMPTY_DUETIME, "checkpoint")
    with (
        duetime_worker(database, notify=notify),
        children(
            PROCESSES,
            "enqueuer",
            database=database,
            connections=CONNECTIONS,
            seconds=seconds,
            notify=notify,
        ) as producers,
    ):
        for producer in producers:
            producer.tell("go")
        reports = [producer.hear() for producer in producers]
    return float(sum(report["count"] / report["seconds"] for report in reports))


def measure_single(environment: Environment) -> dict[str, Reading]:
    return {"enqueue_single": _measure_calls(environment, callers=1, connections=1, jobs=1)}


def measure_concurrent(environment: Environment) -> dict[str, Reading]:
    reading = _measure_calls(environment, callers=CALLERS, connections=RAW_CONNECTIONS, jobs=1)
    return {"enqueue_concurrent": reading}


def measure_hundreds(environment: Environment) -> dict[str, Reading]:
    return {"enqueue_hundreds": _measure_calls(environment, callers=1, connections=1, jobs=HUNDRED)}


def _measure_calls(
    environment: Environment, *, callers: int, connections: int, jobs: int
) -> Reading:
    seconds = environment.scale.enqueue_seconds
    database = environment.database("plain")
    found = alternate(
        environment.scale,
        ours=lambda: _call("calls", database, seconds, callers=callers, jobs=jobs),
        raw=lambda: _call("raw_calls", database, seconds, callers=connections, jobs=jobs),
    )
    return medians(found["ours"], found["raw"])


def _call(role: str, database: str, seconds: float, *, callers: int, jobs: int) -> float:
    execute(database, EMPTY_DUETIME, "checkpoint")
    with Child(role, database=database, callers=callers, jobs=jobs, seconds=seconds) as caller:
        caller.hear()
        caller.tell("go")
        report = caller.hear()
    return float(report["count"] * jobs / report["seconds"])
