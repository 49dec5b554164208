"""A function and a graph of ten steps, with a map, a sleep and a signal. Their effects are in the
ledger."""

from __future__ import annotations

import asyncio
import time

from duetime import Constant, Duetime, Flow, FlowTask, Graph
from tests import ledger

ITEMS = [f"item{number}" for number in range(4)]
FLOW_STEPS = ["one", "two", *ITEMS, "three", "four", "five", "six"]
GRAPH_STEPS = ["one", "two", *ITEMS, "three", "four", "left", "right", "join"]
SECONDS = 0.01
RETRY = Constant("0s", max_attempts=200)


async def effect(run: int, step: str) -> str:
    """What a step does, takes a moment: so that it is killed before its effect, and between that
    and its record."""
    ledger.write("began", run, step)
    await asyncio.sleep(SECONDS / 2)
    ledger.write("effect", run, step)
    await asyncio.sleep(SECONDS / 2)
    return step


def register_flow(app: Duetime) -> FlowTask[[int], list[str]]:
    """The function in this application."""

    async def item(given: tuple[int, str]) -> str:
        return await effect(*given)

    @app.flow(name="ten_steps", retry=RETRY)
    async def ten_steps(flow: Flow, n: int) -> list[str]:
        done: list[str] = []

        def recorded(*steps: str) -> None:
            for step in steps:
                ledger.write("recorded", n, step)
            done.extend(steps)

        recorded(await flow.step(effect, n, "one"))
        recorded(await flow.step(effect, n, "two"))
        recorded(*await flow.map(item, [(n, name) for name in ITEMS], concurrency=2))
        await flow.sleep("50ms")
        recorded(await flow.step(effect, n, "three"))
        assert await flow.wait_for("go") == n
        recorded(await flow.step(effect, n, "four"))
        recorded(*await flow.gather(flow.step(effect, n, "five"), flow.step(effect, n, "six")))
        return done

    return ten_steps


def register_graph(app: Duetime) -> Graph:
    """The graph in this application. That a step begins shows that those before it are recorded."""
    graph = app.graph("ten_step_graph", retry=RETRY)

    async def work(run: int, step: str, *after: str) -> str:
        for name in after:
            ledger.write("recorded", run, name)
        return await effect(run, step)

    @graph.step
    async def one(n: int) -> str:
        return await work(n, "one")

    @graph.step
    async def two(n: int, one: str) -> str:
        return await work(n, "two", one)

    @graph.map(over="items", after=[two])
    async def item(item: str, n: int) -> str:
        return await work(n, item, "two")

    pause = graph.sleep("pause", "50ms", after=[item])
    graph.signal("go")

    @graph.step(after=[pause])
    async def three(n: int, item: list[str]) -> str:
        return await work(n, "three", *item)

    @graph.step(after=[two])
    async def four(n: int, go: int) -> str:
        assert go == n
        return await work(n, "four", "two")

    @graph.step
    async def left(n: int, three: str, four: str) -> str:
        return await work(n, "left", three, four)

    @graph.step
    async def right(n: int, three: str, four: str) -> str:
        return await work(n, "right", three, four)

    @graph.step
    async def join(n: int, left: str, right: str) -> str:
        return await work(n, "join", left, right)

    return graph


BRANCHES = 100


def register_fan_in(app: Duetime) -> Graph:
    """A graph whose branches all end at one moment, `at`, wherever they run."""
    graph = app.graph("fan_in", retry=RETRY)

    async def branch(at: float) -> None:
        await asyncio.sleep(at - time.time())

    branches = [graph.step(name=f"branch{number}")(branch) for number in range(BRANCHES)]

    @graph.step(after=branches)
    async def join(n: int) -> str:
        return await effect(n, "join")

    return graph
