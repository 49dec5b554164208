"""What ends an activation of a run is not an error that its function can handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from duetime import Constant, Discard, Duetime, Flow, FlowRun, JobFailed
from duetime.errors import DatabaseUnreachable, StepFailed
from duetime.flows.steps import gather
from tests.conftest import Backend
from tests.waiting import until, until_true


@pytest.mark.parametrize("waits_for", ["a job", "a sleep", "a retry"])
async def test_a_run_that_waits_does_not_complete_though_its_function_collects_errors(
    app: Duetime, waits_for: str
) -> None:
    """`return_exceptions` also collects what unwinds the function."""
    attempts: list[int] = []

    @app.task(name="render")
    async def render(page: int) -> int:
        return page

    async def flaky(page: int) -> int:
        attempts.append(page)
        if len(attempts) == 1:
            raise ConnectionError
        return page

    @app.flow(name="book", retry=Constant("1100ms", max_attempts=2))
    async def book(flow: Flow) -> list[str]:
        async def wait() -> int:
            match waits_for:
                case "a job":
                    return await flow.step(render, 2, on="default")
                case "a sleep":
                    await flow.sleep("10ms")
                    return 2
                case _:
                    return await flow.step(flaky, 2)

        return [
            str(page)
            for page in await asyncio.gather(flow.step(render, 1), wait(), return_exceptions=True)
        ]

    async with app.worker():
        run = await book.start()
        assert await run.result() == ["1", "2"]


async def test_a_run_that_waits_has_not_failed_though_its_function_raises_an_error(
    app: Duetime,
) -> None:
    began = 0

    @app.flow(name="waits", retry=Constant("1ms", max_attempts=1))
    async def waits(flow: Flow) -> Any:
        nonlocal began
        began += 1
        try:
            return await flow.wait_for("go")
        except BaseException as error:
            raise ValueError("it was closed") from error

    async with app.worker():
        run = await waits.start()
        await until(lambda: _is_waiting(run))
        await run.signal("go", 5)
        assert await run.result() == 5

    assert began == 2


@pytest.mark.parametrize("way", ["step", "transaction"])
async def test_an_outage_in_a_step_is_not_an_error_that_the_function_handles(
    app: Duetime, way: str
) -> None:
    """It would take another path than in the replay, in which the step succeeds."""
    calls: list[str] = []

    async def charge(*_: Any) -> str:
        calls.append("charge")
        if len(calls) == 1:
            raise DatabaseUnreachable("the server is restarting")
        return "charged"

    async def give_up() -> str:
        calls.append("give_up")
        return "given up"

    @app.flow(name="order")
    async def order(flow: Flow) -> str:
        try:
            done = await (flow.step if way == "step" else flow.transaction)(charge)
        except Exception:  # noqa: BLE001 - as users write it
            done = await flow.step(give_up)
        await flow.sleep("10ms")
        return str(done)

    async with app.worker():
        run = await order.start()
        assert await run.result() == "charged"

    assert calls == ["charge", "charge"]


async def test_an_outage_in_a_task_of_the_function_uses_up_none_of_its_attempts(
    app: Duetime,
) -> None:
    began = 0

    @app.flow(name="checks", retry=Constant("1ms", max_attempts=1))
    async def checks(flow: Flow) -> int:
        async def check() -> None:
            nonlocal began
            began += 1
            if began == 1:
                raise DatabaseUnreachable("the server is restarting")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(check())
        return began

    async with app.worker():
        run = await checks.start()
        assert await run.result() == 2


async def test_a_change_of_the_code_is_not_an_error_that_the_function_handles(
    app: Duetime,
) -> None:
    done: list[str] = []

    async def one() -> None:
        done.append("one")

    async def two() -> None:
        done.append("two")

    async def give_up() -> None:
        done.append("give_up")

    steps = [one, two]

    @app.flow(name="changed")
    async def changed(flow: Flow) -> str:
        try:
            await flow.step(steps[0])
        except Exception:  # noqa: BLE001 - as users write it
            await flow.step(give_up)
        await flow.wait_for("go")
        return "done"

    async with app.worker():
        run = await changed.start()
        await until(lambda: _is_waiting(run))
        steps.reverse()
        await run.signal("go")
        with pytest.raises(JobFailed, match="as step 'one', but now the code calls step 'two'"):
            await run.result()
        steps.reverse()
        await run.retry()
        assert await run.result() == "done"

    assert done == ["one"]


@pytest.mark.parametrize("ends", ["fails", "is tried again", "returns"])
async def test_a_step_that_its_function_leaves_behind_ends_before_the_run_goes_on(
    app: Duetime, ends: str
) -> None:
    """`asyncio.gather` raises the first error, and leaves the other calls running."""
    calls: list[str] = []
    began = 0

    async def slow() -> str:
        calls.append("slow")
        await asyncio.sleep(0.3)
        calls.append("slow is done")
        return "slow"

    async def fail() -> None:
        await until_true(lambda: "slow" in calls)
        raise Discard("no seats")

    @app.flow(name="leaves", retry=Constant("1ms", max_attempts=2))
    async def leaves(flow: Flow) -> str:
        nonlocal began
        began += 1
        try:
            await asyncio.gather(flow.step(slow), flow.step(fail))
        except StepFailed:
            if ends == "fails":
                raise
            if ends == "is tried again" and began == 1:
                raise ValueError("once more") from None
        return "returned"

    async with app.worker():
        run = await leaves.start()
        if ends == "fails":
            with pytest.raises(JobFailed, match="no seats"):
                await run.result()
        else:
            assert await run.result() == "returned"
        steps = {step.name: str(step.state) for step in await run.steps()}

    assert steps == {"slow": "completed", "fail": "failed"}
    assert calls == ["slow", "slow is done"]


@pytest.mark.parametrize("call", ["step", "sleep", "on_failure"])
async def test_a_step_that_makes_a_call_of_its_flow_fails_at_once(app: Duetime, call: str) -> None:
    """A replay would not make the call again; a wait would hold the worker for ever."""

    async def inner() -> None: ...

    @app.flow(name="nested")
    async def nested(flow: Flow) -> None:
        async def outer() -> None:
            match call:
                case "step":
                    await flow.step(inner)
                case "sleep":
                    await flow.sleep("10ms")
                case _:
                    flow.on_failure(inner)

        await flow.step(outer)

    async with app.worker():
        run = await nested.start()
        with pytest.raises(JobFailed, match="Step 'outer' failed: A step cannot make calls of its"):
            await run.result()

    [step] = await run.steps()
    assert (step.name, step.state, step.attempt) == ("outer", "failed", 1)


@pytest.mark.parametrize("ending", ["cleans up", "returns"])
async def test_a_flow_goes_on_where_it_was_when_its_worker_stopped(
    app: Duetime, ending: str
) -> None:
    """Its function is cancelled, and may handle that: nothing that it does then counts."""
    ran: list[str] = []

    async def work() -> str:
        ran.append("work")
        if len(ran) == 1:
            worker.stop(now=True)
            await asyncio.sleep(30)
        return "worked"

    async def clean_up() -> None:
        ran.append("clean up")

    @app.flow(name="job")
    async def job(flow: Flow) -> str:
        try:
            return await flow.step(work)
        except asyncio.CancelledError:
            if ending == "cleans up":
                raise
            return "stopped"
        finally:
            if ending == "cleans up":
                await flow.step(clean_up)

    async with app.worker() as worker:
        run = await job.start()
        await until_true(lambda: worker.stopping.requested.is_set())
    async with app.worker():
        assert await run.result() == "worked"

    assert ran == ["work", "work", "clean up"][: 3 if ending == "cleans up" else 2]


@pytest.fixture
async def short_app(backend: Backend) -> AsyncIterator[Duetime]:
    """What a worker loses is soon rescued."""
    app = Duetime(backend.url, lease="3s", heartbeat="500ms", rescue_every="100ms")
    yield app
    await app.close()


async def test_a_flow_that_was_lost_begins_no_step_after_its_worker_has_registered_again(
    short_app: Duetime,
) -> None:
    """The worker holds a lease then, but not this claim."""
    app = short_app
    ran: list[str] = []

    async def work() -> None:
        ran.append("work")
        if len(ran) == 1:
            worker.lease.fence("this test says so")
            await asyncio.sleep(30)

    async def clean_up() -> None:
        ran.append("clean up")

    @app.flow(name="job")
    async def job(flow: Flow) -> None:
        try:
            await flow.step(work)
        finally:
            await until_true(lambda: worker.lease.fenced is None)
            await flow.step(clean_up)

    async with app.worker() as worker:
        run = await job.start()
        await run.result()

    assert ran == ["work", "work", "clean up"]


async def test_a_step_is_not_retried_once_the_lease_has_run_out(short_app: Duetime) -> None:
    app = short_app
    attempts: list[float] = []

    async def flaky() -> None:
        attempts.append(worker.lease.heartbeat.seconds_left)
        if len(attempts) == 1:
            # As if the process had stood still.
            worker.lease.heartbeat._lease_ends = 0.0
        if len(attempts) < 3:
            raise ConnectionError

    @app.flow(name="retries", retry=Constant("0s", max_attempts=3))
    async def retries(flow: Flow) -> None:
        await flow.step(flaky)

    async with app.worker() as worker:
        run = await retries.start()
        await run.result()

    assert all(left > 0 for left in attempts)


async def test_calls_that_are_cancelled_before_they_begin_are_closed() -> None:
    """Else Python warns of coroutines that were never awaited, which fails this test."""

    async def call() -> None: ...

    gathering = asyncio.create_task(gather([call(), call()]))
    await asyncio.sleep(0)
    gathering.cancel()

    with pytest.raises(asyncio.CancelledError):
        await gathering


async def _is_waiting(run: FlowRun[Any]) -> bool:
    return await run.status() == "waiting"
