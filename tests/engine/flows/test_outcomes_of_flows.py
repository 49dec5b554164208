"""What steps and flows may return and raise: the same outcomes as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duetime import (
    Cancel,
    Completed,
    Constant,
    Custom,
    Discard,
    Duetime,
    Flow,
    JobFailed,
    Retry,
    Snooze,
    StepFailed,
    current_step,
)
from duetime.domain.flows.flow import StepState
from duetime.domain.jobs.job import JobState
from duetime.domain.jobs.outcome import Outcome

SOON = Constant("10ms", max_attempts=3)


@pytest.mark.parametrize("raises", [False, True])
async def test_a_step_completes_with_its_result(app: Duetime, raises: bool) -> None:
    async def price(order: int) -> Any:
        if raises:
            raise Completed(order)
        return Completed(order)

    @app.flow
    async def order(flow: Flow) -> Any:
        first = await flow.step(price, 5)
        await flow.sleep("10ms")
        return [first, *await flow.map(price, [6, 7])]

    async with app.worker():
        assert await (await order.start()).result() == [5, 6, 7]


@pytest.mark.parametrize("raises", [False, True])
async def test_a_flow_completes_with_its_result(app: Duetime, raises: bool) -> None:
    undone: list[int] = []

    @app.flow
    async def order(flow: Flow) -> Any:
        flow.on_failure(undone.append, 1)
        await flow.step(asyncio.sleep, 0)
        if raises:
            raise Completed(5)
        return Completed(5)

    async with app.worker():
        run = await order.start()
        assert await run.result() == 5

    assert undone == []


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("after", [None, "1ms"])
async def test_retries_of_a_flow_end(app: Duetime, raises: bool, after: str | None) -> None:
    """Each is an attempt of the flow, and not one of its job, which has thousands."""
    calls: list[int] = []

    @app.flow(retry=SOON)
    async def order(flow: Flow) -> Any:
        calls.append(1)
        if raises:
            raise Retry("not yet", after=after)
        return Retry("not yet", after=after)

    async with app.worker():
        run = await order.start()
        with pytest.raises(JobFailed, match="not yet") as failed:
            await run.result()

    assert failed.value.state is JobState.DEAD
    assert len(calls) == 3


async def test_a_flow_that_snoozes_uses_up_no_attempt(app: Duetime) -> None:
    calls: list[int] = []

    @app.flow(retry=SOON)
    async def order(flow: Flow) -> int:
        calls.append(1)
        if len(calls) <= 5:
            raise Snooze("1ms")
        return len(calls)

    async with app.worker():
        assert await (await order.start()).result() == 6


@pytest.mark.parametrize("way", ["step", "transaction", "compensation"])
async def test_a_step_that_snoozes_uses_up_no_attempt(app: Duetime, way: str) -> None:
    attempts: list[int] = []

    async def wait(_: Any) -> None:
        attempts.append(current_step().attempt)
        if len(attempts) <= 5:
            raise Snooze("1ms")

    @app.flow(retry=SOON)
    async def order(flow: Flow) -> None:
        if way == "step":
            await flow.step(wait, None)
        elif way == "transaction":
            await flow.transaction(wait)
        else:
            flow.on_failure(wait, None)
            await flow.step(asyncio.sleep, 0)
        raise Discard("enough")

    async with app.worker():
        run = await order.start()
        with pytest.raises(JobFailed, match="enough"):
            await run.result()
        [step] = [step for step in await run.steps() if step.name == "wait"]

    assert attempts == [1] * 6
    assert (step.state, step.attempt) == (StepState.COMPLETED, 1)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Cancel("not wanted"), JobState.CANCELLED), (Discard("broken"), JobState.DEAD)],
)
async def test_a_flow_that_returns_an_outcome_ends_with_it(
    app: Duetime, outcome: Outcome, state: JobState
) -> None:
    undone: list[int] = []

    @app.flow(retry=SOON)
    async def order(flow: Flow) -> Any:
        flow.on_failure(undone.append, 1)
        await flow.step(asyncio.sleep, 0)
        return outcome

    async with app.worker():
        run = await order.start()
        with pytest.raises(JobFailed) as failed:
            await run.result()

    assert failed.value.state is state


async def test_a_cancellation_that_nobody_requested_is_an_error_like_any_other(
    app: Duetime,
) -> None:
    calls: list[str] = []

    async def cancelled(where: str) -> None:
        calls.append(where)
        raise asyncio.CancelledError

    @app.flow(retry=SOON)
    async def handled(flow: Flow) -> str:
        try:
            await flow.step(cancelled, "step")
        except StepFailed as error:
            return str(error.error_code)
        return "no error"

    @app.flow(retry=SOON)
    async def unhandled(flow: Flow) -> None:
        flow.on_failure(calls.append, "undone")
        await flow.step(asyncio.sleep, 0)
        await cancelled("flow")

    async with app.worker():
        run = await handled.start()
        result = await run.result()
        with pytest.raises(JobFailed, match="CancelledError"):
            await (await unhandled.start()).result()

    assert result == "CancelledError"
    # To be undone, it is replayed once more.
    assert calls == ["step"] * 3 + ["flow"] * 3 + ["flow", "undone"]


def find_nothing() -> None:
    raise StopIteration


async def test_a_step_that_raises_stop_iteration_fails_like_a_task_that_does(
    app: Duetime,
) -> None:
    task = app.task(retry=SOON, name="task")(find_nothing)
    graph = app.graph("graph", retry=SOON)
    graph.step(find_nothing)

    @app.flow(retry=SOON)
    async def flow(flow: Flow) -> None:
        await flow.step(find_nothing)

    @app.flow(retry=SOON)
    async def mapped(flow: Flow) -> None:
        await flow.map(lambda _: next(iter(())), [1, 2])

    async with app.worker():
        failures = []
        for job in (await task.enqueue(), *[await one.start() for one in (graph, flow, mapped)]):
            with pytest.raises(JobFailed, match="StopIteration") as failed:
                await job.result("20s")
            failures.append(failed.value.error)

    assert failures[0] is not None
    assert all(failures[0] in str(error) for error in failures)


async def step_exits(flow: Flow, leave: Callable[..., Any]) -> Any:
    await flow.step(leave, 1)


async def map_exits(flow: Flow, leave: Callable[..., Any]) -> Any:
    await flow.map(leave, [1, 2])


async def gather_exits(flow: Flow, leave: Callable[..., Any]) -> Any:
    await flow.gather(flow.step(leave, 1), flow.step(leave, 2))


async def branch_exits(flow: Flow, leave: Callable[..., Any]) -> Any:
    async def branch() -> Any:
        await flow.step(asyncio.sleep, 0)
        return leave(1)

    await flow.gather(branch(), branch())


async def transaction_exits(flow: Flow, leave: Callable[..., Any]) -> Any:
    await flow.transaction(leave)


async def flow_exits(flow: Flow, leave: Callable[..., Any]) -> Any:
    leave(1)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize(
    "body", [step_exits, map_exits, gather_exits, branch_exits, transaction_exits, flow_exits]
)
async def test_a_flow_that_exits_fails_and_the_worker_continues(
    app: Duetime, body: Callable[..., Any], error: type[BaseException]
) -> None:
    undone: list[str] = []

    def leave(_: Any) -> None:
        raise error("goodbye")

    def undo_and_leave(what: str) -> None:
        undone.append(what)
        raise error("goodbye")

    @app.flow(retry=SOON)
    async def exits(flow: Flow) -> Any:
        flow.on_failure(undone.append, "first")
        flow.on_failure(undo_and_leave, "second")
        await body(flow, leave)

    @app.flow
    async def plain(flow: Flow) -> str:
        return await flow.step(str, 5)

    async with app.worker():
        run = await exits.start()
        with pytest.raises(JobFailed, match="goodbye") as failed:
            await run.result("20s")
        steps = [step.state for step in await run.steps() if step.name == "leave"]
        assert await (await plain.start()).result("20s") == "5"

    assert failed.value.state is JobState.DEAD
    assert undone == ["second", "first"]
    assert set(steps) <= {StepState.FAILED}


class Surrogate(Exception):
    code = "\ud800\x00" * 300


class ManyDigits(Exception):
    code = 10**5_000


@pytest.mark.parametrize("error", [Surrogate, ManyDigits])
async def test_a_step_fails_with_its_own_error_whatever_the_code_of_that_is(
    app: Duetime, error: type[Exception]
) -> None:
    @app.task(name="task", retry=SOON)
    async def fail() -> None:
        raise error("no stock")

    @app.flow(retry=SOON)
    async def step(flow: Flow) -> None:
        await flow.step(fail.definition.function)

    @app.flow(retry=SOON)
    async def itself(flow: Flow) -> None:
        await fail.definition.function()

    async with app.worker():
        codes: list[str | None] = []
        run = await step.start()
        for job in (await fail.enqueue(), await itself.start(), run):
            with pytest.raises(JobFailed, match="no stock") as failed:
                await job.result()
            codes.append(failed.value.error_code)
        [failure] = await run.steps()

    expected = "ManyDigits" if error is ManyDigits else "\\ud800\\0"
    assert [str(code)[: len(expected)] for code in codes[:2]] == [expected, expected]
    assert codes[2:] == ["step_failed"]
    assert (failure.error_code, failure.attempt) == (codes[0], 3)


async def test_a_failed_retry_policy_does_not_hide_the_error_of_a_step(app: Duetime) -> None:
    def divide(attempt: int, error: BaseException | None) -> float:
        return 1 / 0

    broken = Custom(divide, max_attempts=3)
    undone: list[str] = []

    def undo() -> None:
        undone.append("undo")
        raise ValueError("cannot undo")

    async def fail(_: Any) -> None:
        raise ValueError("no stock")

    @app.flow(retry=broken)
    async def step(flow: Flow) -> None:
        flow.on_failure(undone.append, "first")
        flow.on_failure(undo)
        await flow.step(fail, 1)

    @app.flow(retry=broken)
    async def transaction(flow: Flow) -> None:
        await flow.transaction(fail)

    @app.flow(retry=broken)
    async def itself(flow: Flow) -> None:
        await fail(1)

    async with app.worker():
        for flow in (step, transaction, itself):
            run = await flow.start()
            expected = "no stock; and its retry policy failed: ZeroDivisionError: division by zero"
            with pytest.raises(JobFailed, match=expected) as failed:
                await run.result()
            steps = await run.steps()
            if flow is itself:
                assert failed.value.error_code == "ValueError"
            else:
                [code] = [step.error_code for step in steps if step.name == "fail"]
                assert code == "ValueError"

    assert undone == ["undo", "first"]
