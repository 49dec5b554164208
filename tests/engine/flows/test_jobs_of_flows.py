"""Flows that start jobs and other flows, and wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duetime import Constant, Duetime, Flow, FlowRun, JobFailed, JobState, StepFailed
from duetime.errors import InvalidInput
from tests.waiting import until

SOON = Constant("10ms", max_attempts=2)


async def test_a_child_runs_and_its_result_comes_back(app: Duetime) -> None:
    @app.flow(name="invoice")
    async def invoice(flow: Flow, order_id: int) -> list[int]:
        await flow.sleep("20ms")
        return [order_id]

    @app.flow(name="order")
    async def order(flow: Flow, order_id: int) -> list[int]:
        one = await flow.child(invoice, order_id)
        two, three = await flow.gather(
            flow.child(invoice, order_id=2), flow.child(invoice, order_id=3)
        )
        return [*one, *two, *three]

    async with app.worker():
        run = await order.start(order_id=1)
        assert await run.result() == [1, 2, 3]

    steps = await run.steps()
    assert [(step.kind, step.name, step.state) for step in steps] == [
        ("child", "invoice", "completed")
    ] * 3
    assert len({step.job_id for step in steps}) == 3


async def test_a_step_on_a_queue_runs_as_a_job_there(app: Duetime) -> None:
    queues: list[str] = []

    @app.task(name="render")
    async def render(page: int) -> str:
        return f"page {page}"

    @app.flow(name="book")
    async def book(flow: Flow) -> list[str]:
        first = await flow.step(render, 1, on="gpu")
        rest = await flow.map(render, [2, 3, 4], on="gpu")
        return [first, *rest, *await flow.map(render, [], on="gpu")]

    async with app.worker(queues=["default", "gpu"]):
        run = await book.start()
        assert await run.result() == ["page 1", "page 2", "page 3", "page 4"]

    for step in await run.steps():
        assert step.job_id is not None
        queues.append((await app.jobs.get(step.job_id)).queue)
    assert queues == ["gpu"] * 4


async def test_a_flow_on_a_queue_runs_as_a_child_there(app: Duetime) -> None:
    @app.flow(name="page")
    async def render(flow: Flow, page: int) -> str:
        await flow.sleep("10ms")
        return f"page {page}"

    @app.flow(name="book")
    async def book(flow: Flow) -> list[str]:
        first = await flow.step(render, 1, on="gpu")
        return [first, *await flow.map(render, [2, 3], on="gpu")]

    async with app.worker(queues=["default", "gpu"]):
        run = await book.start()
        assert await run.result() == ["page 1", "page 2", "page 3"]

    for step in await run.steps():
        assert (step.kind, step.name) == ("child", "page")
        assert step.job_id is not None
        assert (await app.jobs.get(step.job_id)).queue == "gpu"


async def test_the_run_is_not_held_while_its_jobs_run(app: Duetime) -> None:
    @app.task(name="slow")
    async def slow() -> int:
        return 1

    @app.flow(name="waits")
    async def waits(flow: Flow) -> int:
        return await flow.step(slow, on="elsewhere")

    async with app.worker():
        run = await waits.start()
        await until(lambda: _waits_for(run, "slow"))
        [worker] = await app.workers.list()
        assert worker.running == 0
        async with app.worker(queues=["elsewhere"]):
            assert await run.result() == 1


async def test_a_failed_child_raises_in_its_parent(app: Duetime) -> None:
    @app.flow(name="bad", retry=SOON)
    async def bad(flow: Flow) -> None:
        raise ValueError("broken")

    @app.task(name="bad_task", retry=SOON)
    async def bad_task() -> None:
        raise ValueError("also broken")

    @app.flow(name="parent")
    async def parent(flow: Flow) -> list[str | None]:
        errors: list[str | None] = []
        for which in ("child", "task"):
            try:
                await (flow.child(bad) if which == "child" else flow.step(bad_task, on="default"))
            except StepFailed as error:
                errors.append(f"{error.step}: {error.error}")
        return errors

    async with app.worker():
        run = await parent.start()
        assert await run.result() == ["bad: broken", "bad_task: also broken"]


async def test_a_run_that_fails_cancels_the_jobs_that_it_waits_for(app: Duetime) -> None:
    @app.task(name="endless")
    async def endless() -> None:
        await asyncio.Event().wait()

    @app.task(name="never")
    async def never() -> None: ...

    async def fail() -> None:
        raise ValueError("broken")

    @app.flow(name="cancelled_children")
    async def both(flow: Flow) -> None:
        await flow.gather(
            flow.step(endless, on="default"), flow.step(never, on="nobody"), flow.wait_for("go")
        )

    async with app.worker():
        run = await both.start()
        await until(lambda: _waits_for(run, "endless"))
        jobs = [step.job_id for step in await run.steps() if step.job_id]
        await until(lambda: _is(app, jobs[0], JobState.RUNNING))
        await run.cancel(reason="enough")
        await until(lambda: _is(app, jobs[0], JobState.CANCELLED))
        await until(lambda: _is(app, jobs[1], JobState.CANCELLED))
        assert await run.status() == "cancelled"


async def test_a_retried_run_starts_a_child_again_that_was_cancelled_with_it(app: Duetime) -> None:
    @app.flow(name="child")
    async def child(flow: Flow) -> Any:
        return await flow.wait_for("go")

    @app.flow(name="parent")
    async def parent(flow: Flow) -> Any:
        return await flow.child(child)

    async with app.worker():
        run = await parent.start()
        await until(lambda: _waits_for(run, "child"))
        [first] = await run.steps()
        await until(lambda: _is_asleep(app, first.job_id))
    # There is no worker that would repair it.
    await run.cancel()
    [cancelled] = await run.steps()
    await run.retry()
    async with app.worker():
        await until(lambda: _waits_for(run, "child"))
        [second] = await run.steps()
        assert second.job_id is not None
        await app.flows.signal(second.job_id, "go", 5)
        assert await run.result() == 5

    assert cancelled.state == "failed"
    assert second.job_id != first.job_id


async def test_only_tasks_and_flows_can_be_jobs(app: Duetime) -> None:
    async def plain() -> None: ...

    @app.task(name="a_task")
    async def a_task() -> None: ...

    @app.flow(name="wrong", retry=Constant("1ms", max_attempts=1))
    async def wrong(flow: Flow, which: int) -> None:
        if which:
            await flow.step(plain, on="default")
        else:
            await flow.child(a_task)  # type: ignore[arg-type]

    async with app.worker():
        with pytest.raises(JobFailed, match="child\\(\\) takes a flow"):
            await (await wrong.start(0)).result()
        with pytest.raises(JobFailed, match="needs a task or a flow"):
            await (await wrong.start(1)).result()
    with pytest.raises(InvalidInput, match="reserved"):
        a_task.using(key="flow:1:1")


async def _waits_for(run: FlowRun[Any], name: str) -> bool:
    waits = [step for step in await run.steps() if step.name == name and step.state == "waiting"]
    return bool(waits) and await run.status() == "waiting"


async def _is(app: Duetime, job_id: int, state: JobState) -> bool:
    return (await app.jobs.get(job_id)).state == state


async def _is_asleep(app: Duetime, run_id: int | None) -> bool:
    assert run_id is not None
    return await app.flows.status(run_id) == "waiting"
