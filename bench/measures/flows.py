"""Flows whose steps do nothing: what it costs to record each, beside inserts by hand and DBOS.

A step of raw SQL is an insert: no worker claims the flow, no fence is checked, nobody awaits a
result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from bench import flow_side
from bench.environment import Environment, duetime_worker, execute
from bench.measures.bulk import time_child
from bench.measures.drain import EMPTY_DUETIME, drain_duetime, rate, work_off
from bench.peers.installing import PeerMissing
from bench.processes import Child, children
from bench.reading import Reading, Wrong, alternate, medians

STEPS = 10
IN_FLIGHT = 200
CONNECTIONS = 16
_EMPTY = EMPTY_DUETIME + ", duetime.flow_step, duetime.flow_run, raw_step"
_RECORDED = """
select count(*), count(*) filter (where state = 'completed'), count(distinct run_id)
from duetime.flow_step
"""
_ROWS_READ = """
select tup_returned + tup_fetched from pg_stat_database where datname = current_database()
"""
_SETTLE_SECONDS = 2.0
"""After its start a worker cleans up; a session reports what it has read about once a second."""


def measure(environment: Environment) -> dict[str, Reading]:
    """Steps per second with 200 flows in flight."""
    scale = environment.scale
    database = environment.database("flows")
    steps = scale.flows * STEPS
    raw = {"dsn": database, "flows": scale.flows, "steps": STEPS}
    found = alternate(
        scale,
        duetime=lambda: run_flows(database, scale.flows),
        each=lambda: steps / _time_raw("raw_flows", **raw, connections=CONNECTIONS),
        gathered=lambda: steps / _time_raw("raw_gathered", **raw, in_flight=IN_FLIGHT),
    )
    dbos = _beside_dbos(environment, lambda said: f"{said['steps_per_second']:,.0f}")
    note = f"{dbos}; {say_gathered(found['gathered'])}"
    return {"flow_steps": medians(found["duetime"], found["each"], note)}


def measure_idle(environment: Environment) -> dict[str, Reading]:
    """Milliseconds from the start of a flow to its result, on an idle worker."""
    scale = environment.scale
    database = environment.database("flows")
    execute(database, _EMPTY, "checkpoint")
    found = alternate(
        scale,
        duetime=lambda: run_alone("flow", database=database, flows=scale.idle_flows),
        raw=lambda: run_alone("raw_flow", dsn=database, flows=scale.idle_flows),
    )
    note = _beside_dbos(environment, lambda said: f"{statistics.median(said['idle_ms']):.1f} ms")
    return {"flow_idle_ms": medians(found["duetime"], found["raw"], note)}


def measure_graphs(environment: Environment) -> dict[str, Reading]:
    """Steps per second of many graphs of ten steps, each after another; and milliseconds from the
    start of one to its result, on an idle worker."""
    scale = environment.scale
    database = environment.database("flows")
    raw = {"dsn": database, "flows": scale.graphs, "steps": STEPS, "connections": CONNECTIONS}
    found = alternate(
        scale,
        steps=lambda: run_graphs(database, scale.graphs),
        inserts=lambda: scale.graphs * STEPS / _time_raw("raw_flows", **raw),
        alone=lambda: run_alone("flow", database=database, flows=scale.idle_flows, graph=True),
        raw=lambda: run_alone("raw_flow", dsn=database, flows=scale.idle_flows),
    )
    return {
        "graph_steps": medians(found["steps"], found["inserts"]),
        "graph_idle_ms": medians(found["alone"], found["raw"]),
    }


def measure_fan_out(environment: Environment) -> dict[str, Reading]:
    """Seconds of a flow that maps a step over 10,000 items, from its start to its result."""
    scale = environment.scale
    database = environment.database("flows")
    raw = {"dsn": database, "flows": scale.fan_out, "steps": 1, "in_flight": IN_FLIGHT}
    found = alternate(
        scale,
        duetime=lambda: _fan_out(database, scale.fan_out),
        raw=lambda: _time_raw("raw_gathered", **raw),
    )
    return {"flow_fan_out_s": medians(found["duetime"], found["raw"])}


def measure_history(environment: Environment) -> dict[str, Reading]:
    """Steps per second with 100,000 finished runs in the database, beside none."""
    scale = environment.scale
    plain, old = environment.database("flows"), environment.database("old_flows")
    run_flows(old, IN_FLIGHT)
    flow_side.multiply_runs(old, scale.finished_flows // IN_FLIGHT - 1)
    execute(old, "vacuum analyze")
    found = alternate(
        scale,
        old=lambda: run_flows(old, scale.flows, empty=False),
        plain=lambda: run_flows(plain, scale.flows),
    )
    environment.drop("old_flows")
    return {"flow_steps_history": medians(found["old"], found["plain"])}


def measure_sleeping(environment: Environment) -> dict[str, Reading]:
    """With 100,000 flows that sleep, beside none: the jobs that a worker drains, and the rows that
    an idle one reads in a second."""
    scale = environment.scale
    plain, crowded = environment.database("plain"), environment.database("sleeping_flows")
    flow_side.load_sleeping(crowded, scale.sleeping_flows)
    with children(1, "flow_worker", database=crowded, concurrency=IN_FLIGHT) as workers:
        work_off(workers, scale.sleeping_flows)
    execute(crowded, "vacuum analyze")
    found = alternate(
        scale,
        crowded=lambda: drain_duetime(crowded, scale.drain_jobs, empty=False),
        plain=lambda: drain_duetime(plain, scale.drain_jobs),
    )
    rows, rows_beside = (_rows_read(one, scale.watch_seconds) for one in (crowded, plain))
    environment.drop("sleeping_flows")
    return {
        "flow_sleeping_drain": medians(found["crowded"], found["plain"]),
        "flow_sleeping_rows": Reading(rows, rows_beside),
    }


def run_flows(database: str, flows: int, *, empty: bool = True) -> float:
    """Return steps/s; raise `Wrong` unless each step of each flow was recorded once."""
    execute(database, *([_EMPTY] if empty else []), "checkpoint")
    [before] = execute(database, _RECORDED)
    flow_side.load(database, flows, steps=STEPS)
    execute(database, "analyze duetime.job, duetime.due")
    with children(1, "flow_worker", database=database, concurrency=IN_FLIGHT) as workers:
        [report] = work_off(workers, flows)
    [after] = execute(database, _RECORDED)
    grown = [now - then for now, then in zip(after, before, strict=True)]
    if report["runs"] != flows or grown != [flows * STEPS, flows * STEPS, flows]:
        raise Wrong(f"{flows} flows ran {report['runs']} times; the records grew by {grown}")
    return rate([report], flows) * STEPS


def run_graphs(database: str, graphs: int) -> float:
    """Return steps/s; raise `Wrong` unless each step of each run completed, and ran once."""
    execute(database, _EMPTY, "checkpoint")
    flow_side.load_graphs(database, graphs)
    with children(1, "graph_worker", database=database, concurrency=IN_FLIGHT) as workers:
        [report] = work_off(workers, graphs)
    [(rows, completed, runs)] = execute(database, _RECORDED)
    # Every run has a row for its end.
    expected = (graphs * (STEPS + 1), graphs * (STEPS + 1), graphs)
    if report["runs"] != graphs * STEPS or (rows, completed, runs) != expected:
        raise Wrong(
            f"{graphs} graphs ran {report['runs']} steps; recorded: {rows}, {completed}, {runs}"
        )
    return rate([report], graphs) * STEPS


def run_alone(role: str, **parameters: Any) -> float:
    """Return the median of the milliseconds of flows that run one after another."""
    with Child(role, steps=STEPS, **parameters) as child:
        child.hear()
        child.tell("go")
        return float(statistics.median(child.hear()))


def say_gathered(rates: list[float]) -> str:
    return f"raw inserts gathered from {IN_FLIGHT} flows {statistics.median(rates):,.0f}"


def _time_raw(role: str, **parameters: Any) -> float:
    execute(parameters["dsn"], "truncate raw_step", "checkpoint")
    return time_child(role, **parameters)


def _fan_out(database: str, items: int) -> float:
    execute(database, _EMPTY, "checkpoint")
    return time_child("fan_out", database=database, items=items)


def _beside_dbos(environment: Environment, describe: Callable[[dict[str, Any]], str]) -> str:
    url = environment.bare_database("dbos")
    try:
        said = environment.peers.run_flows("dbos_flows.py", url, steps=STEPS, in_flight=IN_FLIGHT)
    except PeerMissing as error:
        return str(error)
    return f"DBOS {describe(said)}"


def _rows_read(database: str, seconds: float) -> float:
    execute(database, "vacuum analyze")
    with duetime_worker(database):
        time.sleep(_SETTLE_SECONDS)
        [(before,)] = execute(database, _ROWS_READ)
        time.sleep(seconds)
        [(after,)] = execute(database, _ROWS_READ)
    return float(after - before) / seconds
