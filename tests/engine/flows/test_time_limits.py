"""The time limit of a run counts from its first start, and from the next one after a retry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duetime import Duetime, Flow, FlowRun, FlowTask, Graph
from duetime.flows.follower import FlowFollower
from tests.waiting import until

NOW = "2026-03-08T08:00Z"


def declare(app: Duetime, kind: str) -> FlowTask[[], Any] | Graph:
    """A run that does a step, then waits for `go`, for two hours at most in all."""

    async def begin() -> None:
        pass

    if kind == "graph":
        graph = app.graph("patient", timeout="2h")
        graph.step(begin)
        graph.signal("go", after=["begin"])
        return graph

    @app.flow(name="patient", timeout="2h")
    async def patient(flow: Flow) -> Any:
        await flow.step(begin)
        return await flow.wait_for("go")

    return patient


@pytest.mark.parametrize("kind", ["function", "graph"])
async def test_a_retried_run_has_its_whole_limit_again(app: Duetime, kind: str) -> None:
    patient = declare(app, kind)
    async with app.testing(now=NOW) as world:
        run = await patient.start()
        await world.advance("119m")
        assert await run.status() == "waiting"
        await world.advance("2m")
        assert (await run.get()).error_code == "flow_timeout"
        await world.advance("1d")

        await run.retry()

        await world.advance("119m")
        assert await run.status() == "waiting"
        await world.advance("2m")
        assert await run.status() == "failed"
        await run.retry()
        await world.advance("119m")
        await run.signal("go")
        await world.advance("1s")
        assert await run.status() == "completed"


async def test_the_limit_of_a_retried_graph_does_not_count_from_a_step_that_began_after_its_end(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of the run was cancelled directly, and no worker has cleaned up after it yet."""

    async def repair(self: FlowFollower) -> float:
        return 60.0

    monkeypatch.setattr(FlowFollower, "repair", repair)
    graph = app.graph("patient", timeout="2h")

    @graph.step(queue="other")
    async def begin() -> None: ...

    graph.signal("go", after=["begin"])
    async with app.worker(queues=["default", "other"]):
        await app.queues.pause("other")
        run = await graph.start()
        await until(lambda: has_step(run, "running"))
        await app.jobs.cancel(run.id)
        await app.queues.resume("other")
        await until(lambda: has_step(run, "completed"))
        await run.retry()
        await until(lambda: has_step(run, "waiting"))

    late = (await run.steps())[0].started_at
    began = await app._flow_recorder.began_at(run.id)
    assert late is not None
    assert began is not None
    assert began > late


@pytest.mark.parametrize("kind", ["function", "graph"])
async def test_the_limit_of_a_run_for_later_counts_from_its_start(app: Duetime, kind: str) -> None:
    patient = declare(app, kind)
    async with app.testing(now=NOW) as world:
        run = await patient.using(delay="1d").start()
        await world.advance("1d")
        await world.advance("119m")

        assert await run.status() == "waiting"
        await world.advance("2m")
        assert (await run.get()).error_code == "flow_timeout"


async def test_the_limit_of_a_scheduled_run_counts_from_its_tick(app: Duetime) -> None:
    async with app.testing(now=NOW) as world:
        await app.schedules.put("daily", declare(app, "function"), "0 9 * * *", tz="UTC")
        await world.advance("26h")

        [run] = await app.flows.list(state="waiting")
        await world.advance("90m")
        assert (await app.flows.get(run.id)).error_code == "flow_timeout"


async def test_a_run_that_was_given_back_has_only_the_rest_of_its_limit(app: Duetime) -> None:
    calls: list[str] = []

    async def begin() -> None:
        calls.append("begin")

    async def go_on() -> None:
        calls.append("go on")
        await asyncio.Event().wait()

    @app.flow(name="slow", timeout="1h")
    async def slow(flow: Flow) -> None:
        await flow.step(begin)
        await flow.step(go_on)

    run = await slow.start()
    async with app.worker(grace="50ms"):
        await until(lambda: has(calls, "go on"))
    [began] = [step.started_at for step in await run.steps()]

    assert not (await app.jobs.get(run.id)).history
    assert await app._flow_recorder.began_at(run.id) == began


async def has_step(run: FlowRun[Any], state: str) -> bool:
    return any(step.state == state for step in await run.steps())


async def has(calls: list[str], call: str) -> bool:
    return call in calls
