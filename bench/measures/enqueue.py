"""Sixteen producers, one durable enqueue after another, beside a worker that drains.

Four processes with four connections each call the SQL function `duetime.enqueue_many`; every
enqueue is a commit of its own. The baseline is the same with wake-up off, in the producers and in
the worker: what it costs to wake who sleeps.
"""

from __future__ import annotations

from bench.environment import Environment, duetime_worker, execute
from bench.measures.drain import EMPTY_DUETIME
from bench.processes import children
from bench.reading import Reading, alternate, medians

PROCESSES = 4
CONNECTIONS = 4


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
