"""Duetime's flows as a user would write them, and their worker."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

import psycopg

from bench.child import Parent
from bench.duetime_side import Bench, Stopwatch, report_until_stopped
from bench.raw_flows import PAUSE_SECONDS
from duetime import Flow, Graph
from duetime.domain.jobs.job import AttemptOutcome, FinishedJob

_MULTIPLY = (
    """
    insert into duetime.job
    select (jsonb_populate_record(j, jsonb_build_object('id', j.id + n * %(last)s))).*
    from duetime.job as j cross join generate_series(1, %(times)s) as n order by n, j.id
    """,
    """
    insert into duetime.attempt
    select (jsonb_populate_record(a, jsonb_build_object('job_id', a.job_id + n * %(last)s))).*
    from duetime.attempt as a cross join generate_series(1, %(times)s) as n order by n, a.job_id
    """,
    """
    insert into duetime.flow_step (run_id, seq, kind, name, state, attempt, output, started_at,
                                   finished_at)
    select s.run_id + n * %(last)s, s.seq, s.kind, s.name, s.state, s.attempt, s.output,
           s.started_at, s.finished_at
    from duetime.flow_step as s cross join generate_series(1, %(times)s) as n
    order by n, s.run_id, s.seq
    """,
    "select setval(pg_get_serial_sequence('duetime.job', 'id'), max(id)) from duetime.job",
)


CHAIN = 10
"""The steps of the graph."""


async def add(number: int) -> int:
    return number + 1


class GraphStopwatch(Stopwatch):
    """Counts the runs of graphs that have ended. What a run does first and last is the same job."""

    def counts(self, ended: FinishedJob) -> bool:
        return ended.job.task == "chain" and ended.outcome is AttemptOutcome.COMPLETED


class FlowBench(Bench):
    """The measured app with its flows."""

    def __init__(self, database: str, **settings: Any) -> None:
        super().__init__(database, **settings)
        self.count = self.app.flow(name="count")(self._count)
        self.fan_out = self.app.flow(name="fan_out")(self._fan_out)
        self.sleep = self.app.flow(name="sleep")(self._sleep)
        self.chain = self._make_chain()

    async def _count(self, flow: Flow, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await flow.step(add, number)
        self.runs += 1
        return number

    async def _fan_out(self, flow: Flow, items: int) -> int:
        return sum(await flow.map(add, range(items)))

    async def _sleep(self, flow: Flow) -> None:
        await flow.sleep("30d")

    def _make_chain(self) -> Graph:
        """A graph of ten steps, one after another."""
        graph = self.app.graph("chain")
        before: list[Any] = []
        for number in range(CHAIN):
            before = [graph.step(name=f"step_{number}", after=before)(self._step)]
        return graph

    async def _step(self) -> int:
        self.runs += 1
        return self.runs


# Roles: see `bench.child`


async def work(parent: Parent, *, database: str, **settings: Any) -> None:
    """A worker. Says how many runs have ended; when told to stop, its times and its count."""
    logging.basicConfig(level=logging.WARNING)
    bench = FlowBench(database, **settings)
    await report_until_stopped(bench, parent)


async def work_on_graphs(parent: Parent, *, database: str, **settings: Any) -> None:
    """A worker that counts the runs of graphs that have ended."""
    logging.basicConfig(level=logging.WARNING)
    bench = FlowBench(database, **settings)
    bench.stopwatch = bench.app._events = GraphStopwatch()
    await report_until_stopped(bench, parent)


async def run_alone(
    parent: Parent, *, database: str, flows: int, steps: int, graph: bool = False
) -> None:
    """One flow after another, beside their worker; say the milliseconds of each."""
    bench = FlowBench(database)
    start = bench.chain.start if graph else partial(bench.count.start, steps=steps)
    async with bench.app.worker():
        await (await start()).result()
        parent.say("ready")
        await parent.heard()
        took = []
        for _ in range(flows):
            await asyncio.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            run = await start()
            await run.result()
            took.append((time.perf_counter() - began) * 1e3)
    parent.say(took)
    await bench.app.close()


async def map_many(parent: Parent, *, database: str, items: int) -> None:
    """One flow that maps a step over many items, beside its worker."""
    bench = FlowBench(database)
    async with bench.app.worker():
        await (await bench.fan_out.start(items=10)).result()
        parent.say("ready")
        await parent.heard()
        began = time.perf_counter()
        run = await bench.fan_out.start(items=items)
        total = await run.result()
        parent.say({"seconds": time.perf_counter() - began})
        assert total == items * (items + 1) // 2
    await bench.app.close()


# For the process that measures


def load(database: str, flows: int, *, steps: int) -> None:
    """Start flows that wait for a worker."""

    async def start() -> None:
        bench = FlowBench(database)
        await bench.app.enqueue_many(bench.count.job(steps=steps) for _ in range(flows))
        await bench.app.close()

    asyncio.run(start())


def load_graphs(database: str, runs: int) -> None:
    """Start runs of a graph that wait for a worker."""

    async def start() -> None:
        bench = FlowBench(database)
        await bench.app.enqueue_many(bench.chain.job() for _ in range(runs))
        await bench.app.close()

    asyncio.run(start())


def load_sleeping(database: str, flows: int) -> None:
    """Start flows that sleep for a month as soon as a worker runs them."""

    async def start() -> None:
        bench = FlowBench(database)
        await bench.app.enqueue_many(bench.sleep.job() for _ in range(flows))
        await bench.app.close()

    asyncio.run(start())


def multiply_runs(database: str, times: int) -> None:
    """Store every run with its history and its steps so many times more."""
    with psycopg.connect(database, autocommit=True) as connection:
        last = connection.execute("select max(id) from duetime.job").fetchone()
        assert last is not None
        for statement in _MULTIPLY:
            connection.execute(statement, {"last": last[0], "times": times})
