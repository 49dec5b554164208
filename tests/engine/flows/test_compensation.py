"""What a flow did is undone if it fails or is cancelled; and a failed run can be retried."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from duetime import (
    CallNext,
    Constant,
    Context,
    Discard,
    Duetime,
    Flow,
    FlowRun,
    FlowTask,
    Graph,
    JobFailed,
    JobState,
    StepFailed,
    current_step,
)
from duetime.domain.flows.flow import NewRecord
from duetime.errors import (
    DatabaseUnreachable,
    FlowTimeout,
    IllegalTransition,
    InvalidInput,
    SignalTimeout,
)
from duetime.flows.recorder import Recorder
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.store import Statements
from tests.conftest import Backend
from tests.waiting import until, until_true

ONCE = Constant("10ms", max_attempts=1)
TWICE = Constant("10ms", max_attempts=2)


async def test_compensations_run_in_reverse_order_before_result_raises(app: Duetime) -> None:
    done: list[str] = []
    keys: set[str] = set()

    async def book(what: str) -> str:
        done.append(f"book {what}")
        keys.add(current_step().key)
        return f"{what}-1"

    async def cancel(booking: str) -> None:
        done.append(f"cancel {booking}")
        keys.add(current_step().key)

    async def fail() -> None:
        raise ValueError("no seats")

    @app.flow(name="trip", retry=ONCE)
    async def trip(flow: Flow) -> None:
        hotel = await flow.step(book, "hotel")
        flow.on_failure(cancel, hotel)
        await flow.sleep("10ms")
        car = await flow.step(book, "car")
        flow.on_failure(cancel, car)
        await flow.step(fail)

    async with app.worker():
        run = await trip.start()
        with pytest.raises(JobFailed, match="no seats"):
            await run.result()
        assert done == ["book hotel", "book car", "cancel car-1", "cancel hotel-1"]
        assert len(keys) == 4

    steps = {step.seq: step for step in await run.steps()}
    assert [(steps[seq].name, steps[seq].state) for seq in (-1, -2)] == [
        ("cancel", "completed")
    ] * 2
    started = [steps[seq].started_at for seq in (3, -2, -1)]
    assert None not in started
    assert started == sorted(started, key=str)
    assert await run.status() == "failed"


async def test_a_run_that_succeeds_undoes_nothing(app: Duetime) -> None:
    async def undo() -> None:
        raise AssertionError

    async def work() -> int:
        return 1

    @app.flow(name="good")
    async def good(flow: Flow) -> int:
        flow.on_failure(undo)
        number = await flow.step(work)
        await flow.sleep("10ms")
        return number

    async with app.worker():
        run = await good.start()
        assert await run.result() == 1

    assert [(step.seq, str(step.state)) for step in await run.steps()] == [
        (-1, "skipped"), (1, "completed"), (2, "completed"),
    ]  # fmt: skip


async def test_a_run_that_succeeds_without_a_pause_leaves_no_compensation_registered(
    app: Duetime,
) -> None:
    """A worker would look at all of these again and again, to find a run that is to be undone."""

    async def undo() -> None:
        raise AssertionError

    async def work() -> int:
        return 1

    @app.flow(name="good")
    async def good(flow: Flow) -> int:
        flow.on_failure(undo)
        number = await flow.step(work)
        flow.on_failure(undo)
        return number

    async with app.worker():
        run = await good.start()
        assert await run.result() == 1

    assert [(step.seq, str(step.state)) for step in await run.steps()] == [
        (-1, "skipped"), (1, "completed"),
    ]  # fmt: skip
    store = await app.store()
    assert not await store.transact(FlowStatements(store.dialect).check(), reads=True)


async def test_a_compensation_that_newer_code_does_not_register_is_skipped(app: Duetime) -> None:
    registers = True

    async def undo() -> None:
        raise AssertionError

    @app.flow(name="newer")
    async def newer(flow: Flow) -> None:
        if registers:
            flow.on_failure(undo)
        await flow.wait_for("go")

    async with app.worker():
        run = await newer.start()
        await until(lambda: _has_step(run, "go"))
        registers = False
        await run.signal("go")
        await run.result()

    assert [(step.seq, str(step.state)) for step in await run.steps()] == [
        (-1, "skipped"), (1, "completed"),
    ]  # fmt: skip


@pytest.mark.parametrize("state", ["suspended", "running"])
async def test_cancelling_a_run_stops_its_step_and_undoes_what_it_did(
    app: Duetime, state: str
) -> None:
    done: list[str] = []

    async def charge() -> int:
        done.append("charge")
        return 7

    async def refund(payment: int) -> None:
        done.append(f"refund {payment}")

    async def hang() -> None:
        done.append("hang")
        try:
            await asyncio.Event().wait()
        finally:
            done.append("stopped")

    @app.flow(name="cancelled")
    async def cancelled(flow: Flow) -> None:
        payment = await flow.step(charge)
        flow.on_failure(refund, payment)
        if state == "running":
            await flow.step(hang)
        await flow.wait_for("approved")

    async with app.worker():
        run = await cancelled.start()
        if state == "running":
            await until_true(lambda: "hang" in done)
        else:
            await until(lambda: _has_step(run, "approved"))
        await run.cancel(reason="changed my mind", by="ann")
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()

    assert done[0] == "charge"
    assert done[-1] == "refund 7"
    assert ("stopped" in done) == (state == "running")
    assert await run.status() == "cancelled"


async def test_cancelling_a_run_between_its_calls_undoes_what_it_did(app: Duetime) -> None:
    """The compensation was to be recorded with the next call, which is never made."""
    done: list[str] = []

    async def charge() -> int:
        return 7

    async def refund(payment: int) -> None:
        done.append(f"refund {payment}")

    @app.flow(name="between")
    async def between(flow: Flow) -> None:
        payment = await flow.step(charge)
        flow.on_failure(refund, payment)
        if not done:
            done.append("waits")
            await asyncio.Event().wait()
        await flow.wait_for("never")

    async with app.worker():
        run = await between.start()
        await until_true(lambda: done)
        await run.cancel()
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()

    assert done == ["waits", "refund 7"]
    assert await _ended(run) == "cancelled"


async def test_cancelling_a_run_while_it_records_a_step_undoes_the_step(app: Duetime) -> None:
    """The function returns from the step, and registers what undoes it, before it is cancelled."""
    charged: list[int] = []
    refunded: list[int] = []

    async def charge() -> int:
        run = current_step().run_id
        await app.flows.cancel(run)
        charged.append(run)
        return run

    @app.flow(name="racing")
    async def racing(flow: Flow) -> None:
        payment = await flow.step(charge)
        flow.on_failure(refunded.append, payment)
        await flow.wait_for("never")

    async with app.worker(concurrency=10):
        runs = [await racing.start() for _ in range(30)]
        for run in runs:
            with pytest.raises(JobFailed, match="cancelled"):
                await run.result()

    completed = [run.id for run in runs if await _has_completed(run, "charge")]
    assert sorted(refunded) == completed
    assert set(completed) <= set(charged)


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_a_run_that_ends_while_its_transaction_commits_undoes_it(
    app: Duetime, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It was committed, and the answer is on its way."""
    done: list[str] = []
    store = await app.store()
    transaction = store.transaction

    @contextlib.asynccontextmanager
    async def hangs_at_its_end(**how: Any) -> AsyncIterator[Any]:
        async with transaction(**how) as connection:
            yield connection
        done.append("committed")
        await asyncio.Event().wait()

    async def charge(connection: Any) -> int:
        return 7

    async def refund(payment: int) -> None:
        done.append(f"refund {payment}")

    @app.flow(name="committing", timeout="1h" if how == "cancelled" else "200ms")
    async def committing(flow: Flow) -> None:
        payment = await flow.transaction(charge)
        flow.on_failure(refund, payment)
        await flow.wait_for("never")

    monkeypatch.setattr(store, "transaction", hangs_at_its_end)
    async with app.worker():
        run = await committing.start()
        await until_true(lambda: done)
        if how == "cancelled":
            await run.cancel()
        with pytest.raises(JobFailed, match=r"cancelled|timeout"):
            await run.result()

    assert done == ["committed", "refund 7"]
    assert await _has_completed(run, "charge")


@pytest.mark.parametrize("waits", [True, False])
async def test_a_run_whose_time_is_up_while_it_records_a_step_undoes_the_step(
    app: Duetime, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Also if the function returns without waiting for anything more."""
    done: list[str] = []
    record = app._flow_recorder.record

    async def hangs_once(ctx: Any, records: Any, **how: Any) -> None:
        await record(ctx, records, **how)
        if not done:
            done.append("recorded")
            await asyncio.Event().wait()

    async def charge() -> int:
        return 7

    async def refund(payment: int) -> None:
        done.append(f"refund {payment}")

    @app.flow(name="late", timeout="200ms")
    async def late(flow: Flow) -> None:
        payment = await flow.step(charge)
        flow.on_failure(refund, payment)
        if waits:
            await flow.wait_for("never")

    monkeypatch.setattr(app._flow_recorder, "record", hangs_once)
    async with app.worker():
        run = await late.start()
        with pytest.raises(JobFailed, match="did not finish within its timeout"):
            await run.result()

    assert done == ["recorded", "refund 7"]
    assert await run.status() == "failed"


@pytest.mark.parametrize("how", ["late", "task group", "handled"])
async def test_a_compensation_is_kept_if_its_write_is_cancelled(
    app: Duetime, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The database refuses it until the time of the run is up, or another task has failed."""
    done: list[str] = []
    write = app._flow_recorder._write

    async def refuse_compensations(groups: Any) -> Any:
        records = [record for group in groups for record in group]
        if any(one.state == "registered" for one in records) and "failed" not in done:
            done.append("refused")
            raise DatabaseUnreachable("an outage")
        return await write(groups)

    async def charge() -> int:
        return 7

    async def refund(payment: int) -> None:
        done.append(f"refund {payment}")

    async def fail() -> None:
        await until_true(lambda: "refused" in done)
        if how == "late":
            await asyncio.Event().wait()
        raise Discard("no seats")

    @app.flow(name="refused", timeout="300ms" if how == "late" else "1h")
    async def refused(flow: Flow) -> None:
        async def order() -> None:
            payment = await flow.step(charge)
            flow.on_failure(refund, payment)
            await flow.step(fail)

        async def fails() -> None:
            try:
                await flow.step(fail)
            finally:
                done.append("failed")

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(order())
                tasks.create_task(fails())
        except* StepFailed:
            if how != "handled":
                raise
        await flow.wait_for("never")

    monkeypatch.setattr(app._flow_recorder, "_write", refuse_compensations)
    async with app.worker():
        run = await refused.start()
        if how == "handled":
            await until(lambda: _has_step(run, "never"))
            await app.jobs.cancel(run.id)
        else:
            with pytest.raises(JobFailed, match=r"timeout|TaskGroup"):
                await run.result()
        await until_true(lambda: "refund 7" in done)


def register_trip(
    app: Duetime, done: list[str], *, dies: bool, timeout: str | None = None
) -> FlowTask[[], None]:
    async def book(what: str) -> str:
        return what

    async def cancel(what: str) -> None:
        done.append(f"cancel {what}")

    @app.flow(name="trip", timeout=timeout)
    async def trip(flow: Flow) -> None:
        hotel = await flow.step(book, "hotel")
        if timeout is None:
            flow.on_failure(cancel, hotel)
        car = await flow.step(book, "car")
        flow.on_failure(cancel, car)
        if dies:
            os._exit(9)
        await flow.wait_for("never")

    return trip


def run_and_die(url: str, timeout: str | None = None) -> None:
    async def main() -> None:
        app = Duetime(url, lease="1s", heartbeat="200ms")
        register_trip(app, [], dies=True, timeout=timeout)
        async with app.worker():
            await asyncio.Event().wait()

    asyncio.run(main())


@pytest.mark.parametrize("rescued", ["before", "after"])
async def test_a_run_whose_worker_died_after_a_step_is_undone_when_it_is_cancelled(
    app: Duetime, backend: Backend, rescued: str
) -> None:
    """The last compensation was to be stored with the next call. A stored one brings it along."""
    done: list[str] = []
    run = await register_trip(app, done, dies=False).start()
    victim = multiprocessing.get_context("spawn").Process(target=run_and_die, args=(backend.url,))
    victim.start()
    await asyncio.to_thread(victim.join, 60)
    assert victim.exitcode == 9

    async def is_free() -> bool:
        return (await app.jobs.get(run.id)).state is not JobState.RUNNING

    if rescued == "before":
        other = Duetime(backend.url, rescue_every="100ms")
        async with other.worker():
            await until(is_free)
        await other.close()
    await run.cancel()
    async with app.worker():
        await until_true(lambda: len(done) == 2)

    assert done == ["cancel car", "cancel hotel"]
    assert await until(lambda: _ended(run)) == "cancelled"


async def test_a_run_whose_worker_died_is_undone_though_its_time_is_up_when_it_is_resumed(
    app: Duetime, backend: Backend
) -> None:
    """Its only compensation was to be stored with the next call."""
    done: list[str] = []
    run = await register_trip(app, done, dies=False, timeout="3s").start()
    victim = multiprocessing.get_context("spawn").Process(
        target=run_and_die, args=(backend.url, "3s")
    )
    victim.start()
    await asyncio.to_thread(victim.join, 60)
    assert victim.exitcode == 9

    async def is_late() -> bool:
        began = [step.started_at for step in await run.steps() if step.name == "book"]
        assert began[0] is not None
        return datetime.now(UTC) > began[0] + timedelta(seconds=3)

    await until(is_late)
    async with app.worker():
        with pytest.raises(JobFailed, match="did not finish within its timeout"):
            await run.result()

    assert done == ["cancel car"]
    assert [step.name for step in await run.steps() if step.seq > 0] == ["book", "book"]


def register_order(app: Duetime, done: list[str]) -> Graph:
    graph = app.graph("order")

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund(charge: int) -> None:
        done.append(f"refund {charge}")

    return graph


def end_and_die(url: str) -> None:
    async def main() -> None:
        app = Duetime(url, lease="1s", heartbeat="200ms")
        register_order(app, [])

        @app.middleware
        async def die(ctx: Context, call_next: CallNext) -> object:
            result = await call_next()
            if ctx.job.task == "order" and result is not None:
                os._exit(9)
            return result

        async with app.worker():
            await asyncio.Event().wait()

    asyncio.run(main())


async def test_a_graph_whose_worker_died_at_its_end_is_undone_when_it_is_cancelled(
    app: Duetime, backend: Backend
) -> None:
    """It has recorded that nothing is to be undone, and its job has not ended."""
    done: list[str] = []
    run = await register_order(app, done).start()
    victim = multiprocessing.get_context("spawn").Process(target=end_and_die, args=(backend.url,))
    victim.start()
    await asyncio.to_thread(victim.join, 60)
    assert victim.exitcode == 9
    await run.cancel()
    async with app.worker():
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()

    assert done == ["refund 7"]
    assert await run.status() == "cancelled"


async def test_a_run_cancelled_while_it_ends_is_undone_or_completes(app: Duetime) -> None:
    """Its compensations are not skipped, unless it completes."""
    chance = random.Random(1)

    async def charge() -> None: ...

    async def refund() -> None: ...

    @app.flow(name="ending")
    async def ending(flow: Flow) -> None:
        await flow.step(charge)
        flow.on_failure(refund)
        await flow.wait_for("go", timeout="10ms", default=0)

    async def cancel(run: FlowRun[None]) -> tuple[str, str]:
        await until(lambda: _has_recorded(run, "go"))
        await asyncio.sleep(chance.uniform(0.0, 0.05))
        with contextlib.suppress(IllegalTransition):
            await run.cancel()
        with contextlib.suppress(JobFailed):
            await run.result()
        ended = await until(lambda: _ended(run))
        [state] = [str(step.state) for step in await run.steps() if step.seq < 0]
        return ended, state

    async with app.worker(concurrency=20):
        seen: set[tuple[str, str]] = set()
        for _ in range(5):
            runs = [await ending.start() for _ in range(20)]
            seen |= set(await asyncio.gather(*(cancel(run) for run in runs)))

    assert seen <= {("completed", "skipped"), ("cancelled", "completed")}


async def test_a_function_that_suppresses_its_cancellation_is_cancelled_where_it_waits(
    app: Duetime,
) -> None:
    done: list[str] = []

    async def hang() -> None:
        done.append("hang")
        await asyncio.Event().wait()

    async def refund() -> None:
        done.append("refund")

    @app.flow(name="suppresses")
    async def suppresses(flow: Flow) -> None:
        flow.on_failure(refund)
        with contextlib.suppress(asyncio.CancelledError):
            await flow.step(hang)
        # It did nothing more that could be undone.
        flow.on_failure(done.append, "too late")
        await flow.wait_for("never")

    async with app.worker():
        run = await suppresses.start()
        await until_true(lambda: done)
        await run.cancel()
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result("5s")

    assert done == ["hang", "refund"]
    assert await _ended(run) == "cancelled"


@pytest.mark.parametrize("maps", [False, True])
async def test_a_job_that_is_cancelled_with_its_run_has_not_failed_when_the_run_is_undone(
    app: Duetime, maps: bool
) -> None:
    """The run never received the error, so it did not register what it registers then."""
    done: list[str] = []

    @app.task(name="ship")
    async def ship(parcel: int) -> None:
        done.append("ship")
        await asyncio.Event().wait()

    @app.flow(name="order")
    async def order(flow: Flow) -> None:
        flow.on_failure(done.append, "refund")
        try:
            if maps:
                await flow.map(ship, [1], on="jobs")
            else:
                await flow.step(ship, 1, on="jobs")
        except StepFailed:
            flow.on_failure(done.append, "apologise")
            raise

    async with app.worker(queues=["default", "jobs"]):
        run = await order.start()
        await until_true(lambda: "ship" in done)
        await until(lambda: _has_step(run, "ship"))
        # The job that undoes the run waits until it is recorded how the other one ended.
        await app.queues.pause("default")
        await run.cancel()
        await until(lambda: _has_failed(run, "ship"))
        await app.queues.resume("default")
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()

    assert done == ["ship", "refund"]


async def test_a_run_that_is_cancelled_as_a_job_is_undone_too(app: Duetime) -> None:
    done: list[str] = []

    async def refund() -> None:
        done.append("refund")

    @app.flow(name="as_job")
    async def as_job(flow: Flow) -> None:
        flow.on_failure(refund)
        await flow.wait_for("approved")

    async with app.worker():
        run = await as_job.start()
        await until(lambda: _has_step(run, "approved"))
        await app.jobs.cancel(run.id)
        await until_true(lambda: done == ["refund"])


async def test_a_compensation_is_retried_and_one_that_fails_does_not_stop_the_others(
    app: Duetime,
) -> None:
    done: list[str] = []

    async def flaky() -> None:
        done.append("flaky")
        if done.count("flaky") == 1:
            raise ValueError("not yet")

    async def broken() -> None:
        done.append("broken")
        raise ValueError("never")

    @app.flow(name="undoes", retry=TWICE)
    async def undoes(flow: Flow) -> None:
        flow.on_failure(flaky)
        flow.on_failure(broken)
        raise ValueError("failed")

    async with app.worker():
        run = await undoes.start()
        with pytest.raises(JobFailed, match="failed"):
            await run.result()

    assert done == ["broken", "broken", "flaky", "flaky"]
    states = {step.seq: str(step.state) for step in await run.steps()}
    assert (states[-1], states[-2]) == ("completed", "failed")


async def test_retry_goes_on_from_the_failed_step(app: Duetime) -> None:
    done: list[str] = []
    fixed = False

    async def good() -> str:
        done.append("good")
        return "kept"

    async def bad() -> str:
        done.append("bad")
        if not fixed:
            raise ValueError("broken")
        return "mended"

    @app.flow(name="mended", retry=ONCE)
    async def mended(flow: Flow) -> list[str]:
        return [await flow.step(good), await flow.step(bad)]

    async with app.worker():
        run = await mended.start()
        with pytest.raises(JobFailed):
            await run.result()
        fixed = True
        await run.retry(by="ann")
        assert await run.result() == ["kept", "mended"]
        with pytest.raises(IllegalTransition):
            await run.retry()

    assert done == ["good", "bad", "bad"]


async def test_rerun_does_steps_again_from_one_of_them(app: Duetime) -> None:
    done: list[str] = []

    async def one() -> None:
        done.append("one")

    async def two() -> None:
        done.append("two")

    async def three() -> None:
        done.append("three")
        if done.count("three") == 1:
            raise ValueError("broken")

    async def undo() -> None:
        done.append("undo")

    @app.flow(name="again", retry=ONCE)
    async def again(flow: Flow) -> None:
        await flow.step(one)
        flow.on_failure(undo)
        await flow.step(two)
        await flow.step(three)

    async with app.worker():
        run = await again.start()
        with pytest.raises(JobFailed):
            await run.result()
        with pytest.raises(InvalidInput, match="compensations run or have run: undo"):
            await run.retry()
        with pytest.raises(
            InvalidInput, match=r"has no step 'four'\. It has recorded: 1 one, 2 two"
        ):
            await run.rerun(from_step="four")
        await run.rerun(from_step="two")
        await run.result()

    assert done == ["one", "two", "three", "undo", "two", "three"]


async def test_a_run_that_fails_again_is_undone_again(app: Duetime) -> None:
    done: list[str] = []

    async def book() -> None:
        done.append("book")

    async def undo() -> None:
        done.append("undo")

    async def fail() -> None:
        raise ValueError("broken")

    @app.flow(name="twice", retry=ONCE)
    async def twice(flow: Flow) -> None:
        await flow.step(book)
        flow.on_failure(undo)
        await flow.step(fail)

    async with app.worker():
        run = await twice.start()
        with pytest.raises(JobFailed):
            await run.result()
        await run.rerun(from_step="book")
        with pytest.raises(JobFailed):
            await run.result()

    assert done == ["book", "undo", "book", "undo"]


async def test_retry_makes_all_failed_calls_again_but_those_that_were_handled(
    app: Duetime,
) -> None:
    done: list[str] = []
    fixed = False

    async def may_fail(what: str) -> str:
        done.append(what)
        if not fixed:
            raise ValueError(what)
        return what

    @app.flow(name="partly", retry=ONCE)
    async def partly(flow: Flow) -> list[str]:
        with contextlib.suppress(StepFailed):
            await flow.step(may_fail, "handled")
        return list(await flow.gather(flow.step(may_fail, "one"), flow.step(may_fail, "other")))

    async with app.worker():
        run = await partly.start()
        with pytest.raises(JobFailed):
            await run.result()
        fixed = True
        await run.retry()
        assert await run.result() == ["one", "other"]

    assert done == ["handled", "one", "other", "one", "other"]


@pytest.mark.parametrize("how", ["except", "cause", "finally", "branches", "sibling"])
async def test_retry_makes_the_failed_call_again_if_others_came_after_it(
    app: Duetime, how: str
) -> None:
    done: list[str] = []
    fixed = False

    async def charge() -> str:
        done.append("charge")
        if not fixed:
            raise ValueError("no money")
        return "paid"

    async def work(what: str) -> str:
        done.append(what)
        return what

    @app.flow(name="handled", retry=ONCE)
    async def handled(flow: Flow) -> list[str]:
        async def slow() -> str:
            await flow.step(work, "first")
            await until_true(lambda: "charge" in done)
            return await flow.step(work, "second")

        async def notify(whom: str) -> None:
            await flow.step(work, whom)

        if how == "sibling":
            return [*await flow.gather(flow.step(charge), slow()), await flow.step(work, "ship")]
        try:
            paid = await flow.step(charge)
        except StepFailed as error:
            if how == "branches":
                await flow.gather(notify("ann"), notify("bob"))
            elif how != "finally":
                await notify("ann")
            if how == "cause":
                raise RuntimeError("not paid") from error
            raise
        finally:
            if how == "finally":
                await notify("ann")
        return [paid, await flow.step(work, "ship")]

    async with app.worker():
        run = await handled.start()
        with pytest.raises(JobFailed, match="no money"):
            await run.result()
        before = [*done]
        fixed = True
        await run.retry()
        result = await run.result()

    assert result == (["paid", "second", "ship"] if how == "sibling" else ["paid", "ship"])
    again = {"finally": ["charge", "ann", "ship"]}.get(how, ["charge", "ship"])
    assert done[len(before) :] == again


async def test_retry_makes_all_calls_again_that_failed_side_by_side(app: Duetime) -> None:
    done: list[str] = []
    fixed = False

    async def book(what: str) -> str:
        done.append(what)
        if not fixed and what != "hotel":
            raise ValueError(what)
        return what

    @app.flow(name="side_by_side", retry=ONCE)
    async def side_by_side(flow: Flow) -> list[str]:
        with contextlib.suppress(StepFailed):
            await flow.step(book, "insurance")
        try:
            return [*await flow.gather(*(flow.step(book, what) for what in trip))]
        except StepFailed:
            await flow.step(done.append, "sorry")
            raise

    trip = ["flight", "hotel", "car"]
    async with app.worker():
        run = await side_by_side.start()
        with pytest.raises(JobFailed, match="flight"):
            await run.result()
        assert sorted(done) == ["car", "flight", "hotel", "insurance", "sorry"]
        fixed = True
        await run.retry()
        assert await run.result() == trip

    assert sorted(done[5:]) == ["car", "flight"]


async def test_retry_makes_all_jobs_of_a_map_again_that_failed(app: Duetime) -> None:
    done: list[int] = []
    fixed = False

    @app.task(name="double", retry=ONCE)
    async def double(number: int) -> int:
        done.append(number)
        if not fixed and number != 2:
            raise ValueError(number)
        return 2 * number

    @app.flow(name="mapped", retry=ONCE)
    async def mapped(flow: Flow) -> list[int]:
        return await flow.map(double, [1, 2, 3], on="default")

    async with app.worker():
        run = await mapped.start()
        with pytest.raises(JobFailed):
            await run.result()
        fixed = True
        await run.retry()
        assert await run.result() == [2, 4, 6]

    assert sorted(done) == [1, 1, 2, 3, 3]


@pytest.mark.parametrize("how", ["raised", "reported"])
async def test_retry_waits_again_for_a_signal_that_did_not_arrive_in_time(
    app: Duetime, how: str
) -> None:
    done: list[str] = []

    @app.flow(name="waits_briefly", retry=ONCE)
    async def waits_briefly(flow: Flow) -> Any:
        try:
            return await flow.wait_for("paid", timeout=timeout)
        except SignalTimeout:
            if how == "reported":
                await flow.step(done.append, "sorry")
            raise

    timeout = "10ms"
    async with app.worker():
        run = await waits_briefly.start()
        with pytest.raises(JobFailed, match="'paid' did not arrive in time"):
            await run.result()
        timeout = "1h"
        await run.retry()
        await until(partial(_has_step, run, "paid"))
        await run.signal("paid", 5)
        assert await run.result() == 5


async def test_a_run_whose_code_changed_can_be_retried_with_its_compensations(
    app: Duetime,
) -> None:
    names = ["one", "two"]

    async def one() -> None: ...

    async def two() -> None: ...

    async def undo() -> None:
        raise AssertionError

    @app.flow(name="changed")
    async def changed(flow: Flow) -> str:
        flow.on_failure(undo)
        await flow.step(one if names[0] == "one" else two)
        await flow.wait_for("go")
        return "done"

    async with app.worker():
        run = await changed.start()
        await until(lambda: _has_step(run, "go"))
        names.reverse()
        await run.signal("go")
        with pytest.raises(JobFailed, match="has changed"):
            await run.result(timeout="1s")
        names.reverse()
        await run.retry()
        assert await run.result() == "done"


async def test_a_flow_has_a_timeout_in_all(app: Duetime) -> None:
    done: list[str] = []

    async def slow() -> None:
        await asyncio.Event().wait()

    async def undo() -> None:
        done.append("undo")

    @app.flow(name="late", timeout="200ms")
    async def late(flow: Flow, *, waits: bool) -> None:
        flow.on_failure(undo)
        if waits:
            await flow.wait_for("never")
        await flow.step(slow)

    async with app.worker():
        for waits in (True, False):
            with pytest.raises(
                JobFailed, match=r"did not finish within its timeout of 0\.2 s"
            ) as raised:
                await (await late.start(waits=waits)).result()
            assert raised.value.error_code == FlowTimeout.code

    assert done == ["undo", "undo"]


async def test_a_transaction_commits_its_writes_and_its_record_together(app: Duetime) -> None:
    attempts = 0

    async def store_key(connection: Any, task: str) -> str:
        nonlocal attempts
        attempts += 1
        sql = "insert into {} (name, paused_at) values ('{}', {})"
        table, now = ("duetime_queue", "1") if _is_sqlite(app) else ("duetime.queue", "now()")
        done = connection.execute(sql.format(table, f"q{attempts}", now))
        if not _is_sqlite(app):
            await done
        if attempts == 1:
            raise ValueError("rolled back")
        return task

    @app.flow(name="commits", retry=TWICE)
    async def commits(flow: Flow) -> str:
        stored = await flow.transaction(store_key, "mail")
        await flow.sleep("10ms")
        return stored

    async with app.worker():
        run = await commits.start()
        assert await run.result() == "mail"

    assert attempts == 2
    assert [queue.name for queue in await app.queues.list() if queue.paused_at] == ["q2"]


async def test_cancelling_a_run_in_a_transaction_undoes_what_it_did(pg_app: Duetime) -> None:
    """On PostgreSQL alone: on SQLite the open transaction keeps the cancel waiting."""
    done: list[str] = []

    async def refund() -> None:
        done.append("refund")

    async def hang(connection: Any) -> None:
        done.append("hang")
        await asyncio.Event().wait()

    @pg_app.flow(name="hangs")
    async def hangs(flow: Flow) -> None:
        flow.on_failure(refund)
        await flow.transaction(hang)

    async with pg_app.worker():
        run = await hangs.start()
        await until_true(lambda: done == ["hang"])
        await run.cancel()
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()
        await until_true(lambda: done == ["hang", "refund"], seconds=10)


async def test_signals_reach_all_runs_of_a_correlation(app: Duetime) -> None:
    @app.flow(name="waits_for_order")
    async def waits_for_order(flow: Flow, order: str) -> Any:
        return await flow.wait_for("paid", correlation=order)

    async with app.worker():
        runs = [await waits_for_order.start(order) for order in ("a", "a", "b")]
        for run in runs:
            await until(partial(_has_step, run, "paid"))
        assert await app.flows.signal_all("paid", 5, correlation="a") == [runs[0].id, runs[1].id]
        assert [await run.result() for run in runs[:2]] == [5, 5]
        assert await runs[2].status() == "waiting"


@pytest.mark.parametrize("ends", ["before", "in between"])
async def test_signals_reach_the_other_runs_of_a_correlation_if_one_has_ended(
    app: Duetime, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.flow(name="waits_for_order")
    async def waits_for_order(flow: Flow) -> Any:
        return await flow.wait_for("paid", correlation="a")

    async with app.worker():
        runs = [await waits_for_order.start() for _ in range(2)]
        for run in runs:
            await until(partial(_has_step, run, "paid"))
        await runs[0].cancel()
        if ends == "in between":
            found = [run.id for run in runs]

            def waiting_for(self: FlowStatements, name: str, correlation: str) -> Statements:
                yield from self.check()
                return found

            monkeypatch.setattr(FlowStatements, "waiting_for", waiting_for)

        assert await app.flows.signal_all("paid", 5, correlation="a") == [runs[1].id]
        assert await runs[1].result() == 5


def _is_sqlite(app: Duetime) -> bool:
    return app.settings.database.startswith("sqlite")


async def _has_step(run: Any, name: str) -> bool:
    return any(step.name == name for step in await run.steps()) and (
        await run.status() in ("sleeping", "waiting")
    )


async def _ended(run: Any) -> str:
    """The state in which a run has ended, once its compensations have; else nothing."""
    state = await run.status()
    return str(state) if state.finished else ""


async def _has_recorded(run: Any, name: str) -> bool:
    return any(step.name == name for step in await run.steps())


async def _has_completed(run: Any, name: str) -> bool:
    return any(step.name == name and step.state == "completed" for step in await run.steps())


async def _has_failed(run: Any, name: str) -> bool:
    return any(step.name == name and step.state == "failed" for step in await run.steps())


async def test_branches_register_compensations_of_their_own(app: Duetime) -> None:
    done: list[str] = []

    async def book(what: str) -> str:
        # The second time, the other branch is the first to come to its compensation.
        await asyncio.sleep(0.03 if what == "car" else 0.0)
        return what

    async def cancel(what: str) -> None:
        done.append(f"cancel {what}")

    async def fail() -> None:
        raise ValueError("broken")

    @app.flow(name="branching", retry=ONCE)
    async def branching(flow: Flow) -> None:
        async def booking(what: str) -> None:
            booked = await flow.step(book, what)
            flow.on_failure(cancel, booked)
            await flow.sleep("10ms")

        await flow.gather(booking("car"), booking("hotel"))
        await flow.step(fail)

    async with app.worker():
        run = await branching.start()
        with pytest.raises(JobFailed, match="broken"):
            await run.result()

    assert sorted(done) == ["cancel car", "cancel hotel"]
    steps = [(step.name, str(step.state)) for step in await run.steps() if step.seq < 0]
    assert steps == [("cancel", "completed")] * 2


async def test_a_child_that_waits_is_undone_with_its_parent(app: Duetime) -> None:
    """However deep it is, and before what the parent did. Not later, when a repair finds it."""
    undone: list[str] = []

    @app.flow(name="inner")
    async def inner(flow: Flow) -> None:
        flow.on_failure(undone.append, "inner")
        await flow.sleep("1h")

    @app.flow(name="middle")
    async def middle(flow: Flow) -> None:
        flow.on_failure(undone.append, "middle")
        await flow.child(inner)

    @app.flow(name="outer")
    async def outer(flow: Flow) -> None:
        flow.on_failure(undone.append, "outer")
        await flow.child(middle)

    async def waits() -> bool:
        return [str(run.state) for run in await app.flows.list(flow="inner")] == ["sleeping"]

    async with app.worker(concurrency=1):
        run = await outer.start()
        await until(waits)
        await run.cancel()
        await until_true(lambda: len(undone) == 3)

    assert undone == ["inner", "middle", "outer"]


async def test_a_run_that_fails_in_a_task_group_is_retried_and_then_undone(app: Duetime) -> None:
    done: list[str] = []

    async def charge() -> int:
        return 7

    async def refund(payment: int) -> None:
        done.append(f"refund {payment}")

    @app.flow(name="grouped", retry=TWICE)
    async def grouped(flow: Flow) -> None:
        async def order() -> None:
            payment = await flow.step(charge)
            flow.on_failure(refund, payment)
            done.append("order")
            raise ValueError("broken")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(order())

    async with app.worker():
        run = await grouped.start()
        with pytest.raises(JobFailed, match="TaskGroup"):
            await run.result()

    # Two attempts, and the replay that finds what is to be undone.
    assert done == ["order", "order", "order", "refund 7"]
    assert await _ended(run) == "failed"


async def test_retry_makes_the_calls_again_that_failed_in_a_task_group(app: Duetime) -> None:
    done: list[str] = []
    fixed = False

    async def book(what: str) -> str:
        done.append(what)
        await until_true(lambda: {"hotel", "flight", "car"} <= {*done})
        if what == "hotel" or fixed:
            return what
        if what == "car":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        raise ValueError(what)

    @app.flow(name="grouped", retry=ONCE)
    async def grouped(flow: Flow) -> list[str]:
        async def booking(what: str) -> str:
            return await flow.step(book, what)

        try:
            async with asyncio.TaskGroup() as tasks:
                booked = [tasks.create_task(booking(what)) for what in trip]
        except* StepFailed:
            await flow.step(done.append, "sorry")
            raise
        return [one.result() for one in booked]

    trip = ["hotel", "flight", "car"]
    async with app.worker():
        run = await grouped.start()
        with pytest.raises(JobFailed, match="TaskGroup"):
            await run.result()
        assert done == [*trip, "sorry"]
        fixed = True
        await run.retry()
        assert await run.result() == trip

    assert sorted(done[4:]) == ["car", "flight"]


@pytest.mark.parametrize("first", ["fails", "books"])
async def test_tasks_of_a_group_register_their_compensations_again_when_a_run_is_undone(
    app: Duetime, first: str
) -> None:
    """In the replay, the call that failed must not stop the other task before it gets there."""
    done: list[str] = []

    async def book(what: str) -> str:
        return what

    async def cancel(what: str) -> None:
        done.append(f"cancel {what}")

    async def fail() -> None:
        await until_true(lambda: "booked" in done)
        raise ValueError("no seats")

    @app.flow(name="grouped", retry=ONCE)
    async def grouped(flow: Flow) -> None:
        async def books() -> None:
            [hotel] = await flow.gather(flow.step(book, "hotel"))
            flow.on_failure(cancel, hotel)
            [car] = await flow.gather(flow.step(book, "car"))
            flow.on_failure(cancel, car)
            await flow.step(done.append, "booked")
            await flow.wait_for("never")

        async def fails() -> None:
            await flow.step(fail)

        async with asyncio.TaskGroup() as tasks:
            for one in (fails, books) if first == "fails" else (books, fails):
                tasks.create_task(one())

    async with app.worker():
        run = await grouped.start()
        with pytest.raises(JobFailed, match="TaskGroup"):
            await run.result("10s")

    assert done == ["booked", "cancel car", "cancel hotel"]


@pytest.mark.parametrize("ended", ["before", "after"])
async def test_a_branch_that_is_cut_off_while_it_records_a_step_undoes_the_step(
    app: Duetime, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ended`: the step, before or after that of the other branch."""
    done: list[str] = []
    is_written = asyncio.Event()
    record = Recorder.record

    async def record_slowly(
        self: Recorder, ctx: Context, records: list[NewRecord], **kwargs: Any
    ) -> None:
        name = records[-1].name
        if name == "check":
            await is_written.wait()
        await record(self, ctx, records, **kwargs)
        if name == "charge" and not is_written.is_set():
            is_written.set()
            await asyncio.Event().wait()

    async def charge() -> int:
        done.append("charge")
        if ended == "after":
            await until_true(lambda: "check" in done)
            await asyncio.sleep(0.01)
        return 7

    async def check() -> None:
        if ended == "before":
            await is_written.wait()
        done.append("check")

    async def refund(payment: int) -> None:
        done.append(f"refund {payment}")

    @app.flow(name="cut_off", retry=ONCE)
    async def cut_off(flow: Flow) -> None:
        async def pay() -> None:
            payment = await flow.step(charge)
            flow.on_failure(refund, payment)
            await flow.step(done.append, "paid")

        async def fail() -> None:
            await flow.step(check)
            raise ValueError("not in stock")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pay())
            tasks.create_task(fail())

    monkeypatch.setattr(Recorder, "record", record_slowly)
    async with app.worker():
        run = await cut_off.start()
        with pytest.raises(JobFailed, match="TaskGroup"):
            await run.result()

    assert done == ["charge", "check", "refund 7"]


@pytest.mark.parametrize("where", ["branch", "body"])
async def test_a_task_group_that_its_own_error_ended_is_undone(app: Duetime, where: str) -> None:
    """The step before the error has long returned when the replay comes to the other branch."""
    done: list[str] = []

    async def check() -> bool:
        await until_true(lambda: "booked" in done)
        return False

    async def book(what: str) -> str:
        return what

    async def cancel(what: str) -> None:
        done.append(f"cancel {what}")

    @app.flow(name="grouped", retry=ONCE)
    async def grouped(flow: Flow) -> None:
        async def check_stock() -> None:
            if not await flow.step(check):
                raise ValueError("not in stock")

        async def book_trip() -> None:
            [hotel] = await flow.gather(flow.step(book, "hotel"))
            flow.on_failure(cancel, hotel)
            await flow.step(done.append, "booked")
            await flow.wait_for("never")

        async with asyncio.TaskGroup() as tasks:
            if where == "branch":
                tasks.create_task(check_stock())
            tasks.create_task(book_trip())
            if where == "body":
                await check_stock()

    async with app.worker():
        run = await grouped.start()
        with pytest.raises(JobFailed, match="TaskGroup"):
            await run.result()

    assert done == ["booked", "cancel hotel"]
