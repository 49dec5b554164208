"""What it costs to watch: jobs are worked off beside open tabs of the dashboard and scrapes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench.cpu import cpu_seconds
from bench.environment import Environment, execute, stop_worker
from bench.measures import drain
from bench.processes import Child
from bench.reading import Reading, medians, percentile


class Drained(NamedTuple):
    """How fast jobs were worked off, and what it cost."""

    rate: float
    cpu: float
    """Seconds of the worker, the service and the server. Browsers are elsewhere."""


def measure_scraped(environment: Environment) -> dict[str, Reading]:
    """With metrics that are scraped every second, beside none."""

    def drain_with(metrics: str) -> Drained:
        database = _emptied(environment)
        with Child("worker", database=database, metrics=metrics) as worker:
            worker.hear()
            return _drain(environment, worker, [])

    return {
        "drain_scraped": _compare(
            environment, lambda: drain_with("scraped"), lambda: drain_with("off")
        )
    }


def measure_tabs(environment: Environment) -> dict[str, Reading]:
    """With ten open tabs of a dashboard that is scraped every second, beside none."""
    waits: list[float] = []

    def alone() -> Drained:
        with Child("worker", database=_emptied(environment)) as worker:
            worker.hear()
            return _drain(environment, worker, [])

    def watched() -> Drained:
        database = _emptied(environment)
        with Child("service", database=database) as service:
            port = service.hear()["port"]
            with Child("worker", database=database) as worker, _tabs(port, waits):
                worker.hear()
                return _drain(environment, worker, [service.pid])

    return {"dashboard_tabs": _compare(environment, watched, alone, waits)}


def measure_serve(environment: Environment) -> dict[str, Reading]:
    """The same with worker and dashboard in one process, beside nobody who looks."""
    waits: list[float] = []

    def serve(*, watched: bool) -> Drained:
        with Child("serving_worker", database=_emptied(environment)) as worker:
            port = worker.hear()["port"]
            if not watched:
                return _drain(environment, worker, [])
            with _tabs(port, waits):
                return _drain(environment, worker, [])

    return {
        "dashboard_serve": _compare(
            environment, lambda: serve(watched=True), lambda: serve(watched=False), waits
        )
    }


@contextmanager
def _tabs(port: int, waits: list[float]) -> Iterator[None]:
    with Child("tabs", port=port) as tabs:
        tabs.hear()
        yield
        tabs.tell("stop")
        waits.extend(tabs.hear()["waits"])


def _emptied(environment: Environment) -> str:
    """Return the URL of a database without jobs. Call it before anything is connected: TRUNCATE
    and a statement that reads the same tables in another order wait for each other."""
    database = environment.database("plain")
    execute(database, drain.EMPTY_DUETIME)
    return database


def _drain(environment: Environment, worker: Child, others: list[int]) -> Drained:
    """Let a ready worker work off what is stored first; `others`: processes that cost, too."""
    database, jobs = environment.database("plain"), environment.scale.drain_jobs
    before = drain.load(database, jobs, empty=False)
    pids = [environment.server.pid, worker.pid, *others]
    began = cpu_seconds(pids)
    drain.work_until_ended([worker], jobs)
    cpu = cpu_seconds(pids) - began
    reports = [stop_worker(worker)]
    drain.check_each_ran(database, jobs, reports, before)
    return Drained(drain.rate(reports, jobs), cpu)


def _compare(
    environment: Environment,
    watched: Callable[[], Drained],
    alone: Callable[[], Drained],
    waits: list[float] | None = None,
) -> Reading:
    found: list[tuple[Drained, Drained]] = [
        (watched(), alone()) for _ in range(environment.scale.rounds)
    ]
    cpu = statistics.median(one.cpu / other.cpu for one, other in found)
    note = f"{cpu:.2f} of its CPU time"
    if waits:
        note += f"; first byte of a page: p50 {percentile(waits, 0.5) * 1000:.0f} ms"
    return medians([one.rate for one, _ in found], [other.rate for _, other in found], note)
