"""A flow as a function: what it did is recorded, and it goes on after waits and crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from duetime import (
    Constant,
    Discard,
    Duetime,
    Flow,
    FlowRun,
    JobFailed,
    Retry,
    SignalTimeout,
    StepFailed,
)
from duetime.errors import FlowEnded, FlowNotFound, InvalidInput
from tests.waiting import until

SOON = Constant("10ms", max_attempts=3)


@dataclass
class Payment:
    order: int
    at: datetime


async def test_steps_return_what_their_annotations_say_also_when_replayed(app: Duetime) -> None:
    seen: list[Any] = []

    async def charge(order: int) -> Payment:
        return Payment(order, datetime(2026, 3, 8, tzinfo=UTC))

    def ship(order: int) -> tuple[int, str]:
        return order, "sent"

    @app.flow(name="order")
    async def order(flow: Flow, order_id: int) -> Payment:
        payment = await flow.step(charge, order_id)
        parcel = await flow.step(ship, order=order_id)
        seen.append((payment, parcel))
        await flow.sleep("50ms")
        return payment

    async with app.worker():
        run = await order.start(order_id=7)
        result = await run.result()

    assert result == Payment(7, datetime(2026, 3, 8, tzinfo=UTC))
    assert seen == [(result, (7, "sent"))] * 2


async def test_a_recorded_step_never_runs_again(app: Duetime) -> None:
    calls: list[str] = []

    async def note(what: str) -> str:
        calls.append(what)
        return what

    @app.flow(name="waits")
    async def waits(flow: Flow) -> list[str]:
        one = await flow.step(note, "one")
        await flow.sleep("30ms")
        two = await flow.step(note, "two")
        await flow.sleep("30ms")
        return [one, two]

    async with app.worker():
        assert await (await waits.start()).result() == ["one", "two"]

    assert calls == ["one", "two"]


async def test_a_sleeping_run_holds_no_worker(app: Duetime) -> None:
    @app.flow(name="sleeps")
    async def sleeps(flow: Flow) -> None:
        await flow.sleep("1h")

    run = await sleeps.start()
    async with app.worker():
        await _until_steps(run, [("sleep", "waiting")])
        await until(lambda: _is_suspended(run))
        [worker] = await app.workers.list()
        assert worker.running == 0

    job = await run.get()
    assert job.run_at is not None
    assert 3590 < (job.run_at - await app.now()).total_seconds() <= 3600


async def test_a_signal_resumes_the_run_that_waits_for_it(app: Duetime) -> None:
    @app.flow(name="asks")
    async def asks(flow: Flow) -> Any:
        return await flow.wait_for("approved")

    async with app.worker():
        run = await asks.start()
        await _until_steps(run, [("approved", "waiting")])
        assert await run.signal("approved", {"by": "ann"})
        assert await run.result() == {"by": "ann"}


async def test_signals_that_come_early_are_kept_and_taken_in_order(app: Duetime) -> None:
    @app.flow(name="collects")
    async def collects(flow: Flow) -> list[Any]:
        return [await flow.wait_for("item") for _ in range(3)]

    run = await collects.start()
    assert await run.signal("item", 1)
    assert await run.signal("item", 2, key="two")
    assert not await run.signal("item", "again", key="two")
    async with app.worker():
        await _until_steps(run, [("item", "completed")] * 2 + [("item", "waiting")])
        await run.signal("item", 3)
        assert await run.result() == [1, 2, 3]


async def test_a_wait_that_times_out_returns_its_default(app: Duetime) -> None:
    @app.flow(name="impatient")
    async def impatient(flow: Flow) -> list[Any]:
        first = await flow.wait_for("approved", timeout="40ms", default=False)
        await flow.sleep("20ms")
        try:
            await flow.wait_for("approved", timeout="40ms")
        except SignalTimeout as error:
            return [first, error.name]
        return [first]

    async with app.worker():
        assert await (await impatient.start()).result() == [False, "approved"]


async def test_a_signal_to_a_plain_job_is_refused(app: Duetime) -> None:
    @app.task
    async def plain() -> None: ...

    job = await plain.enqueue()

    with pytest.raises(FlowNotFound, match=f"no run {job.id} of a flow"):
        await app.flows.signal(job.id, "approved")


async def test_a_signal_to_no_run_or_an_ended_one_is_refused(app: Duetime) -> None:
    @app.flow(name="ends")
    async def ends(flow: Flow) -> None: ...

    with pytest.raises(FlowNotFound, match="no run 99"):
        await app.flows.signal(99, "approved")
    async with app.worker():
        run = await ends.start()
        await run.result()
        with pytest.raises(FlowEnded, match="has ended \\(completed\\)"):
            await run.signal("approved")


async def test_a_signal_that_is_sent_again_after_the_run_changes_nothing(app: Duetime) -> None:
    @app.flow(name="waits_once")
    async def waits_once(flow: Flow) -> Any:
        return await flow.wait_for("approved")

    async with app.worker():
        run = await waits_once.start()
        assert await run.signal("approved", 1, key="click-7")
        assert await run.result() == 1
        assert not await run.signal("approved", 2, key="click-7")
        with pytest.raises(FlowEnded):
            await run.signal("approved", 2, key="click-8")


async def test_branches_run_side_by_side_and_wait_together(app: Duetime) -> None:
    order: list[str] = []
    both = asyncio.Event()

    async def first() -> str:
        await both.wait()
        order.append("first")
        return "a"

    async def second() -> str:
        both.set()
        order.append("second")
        return "b"

    @app.flow(name="branches")
    async def branches(flow: Flow) -> Any:
        a, b = await flow.gather(flow.step(first), flow.step(second))
        _, approved = await flow.gather(flow.sleep("1s"), flow.wait_for("go"))
        return [a, b, approved]

    async with app.worker():
        run = await branches.start()
        await _until_steps(
            run,
            [
                ("first", "completed"),
                ("second", "completed"),
                ("sleep", "waiting"),
                ("go", "waiting"),
            ],
        )
        await run.signal("go", 1)
        assert await run.result() == ["a", "b", 1]

    assert order == ["second", "first"]


async def test_map_returns_results_in_order_and_bounds_its_concurrency(app: Duetime) -> None:
    running = most = 0

    async def double(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        return number * 2

    @app.flow(name="maps")
    async def maps(flow: Flow) -> int:
        doubled = await flow.map(double, range(50), concurrency=7)
        assert doubled == [n * 2 for n in range(50)]
        return len(await flow.map(double, []))

    async with app.worker():
        run = await maps.start()
        assert await run.result() == 0

    assert most == 7
    assert len(await run.steps()) == 50


async def test_a_failed_step_is_retried_and_others_are_not(app: Duetime) -> None:
    calls: list[str] = []

    async def good() -> None:
        calls.append("good")

    async def bad() -> str:
        calls.append("bad")
        if calls.count("bad") < 3:
            raise ValueError("not yet")
        return "at last"

    @app.flow(name="retries", retry=Constant("1.01s", max_attempts=3))
    async def retries(flow: Flow) -> str:
        await flow.step(good)
        return await flow.step(bad)

    async with app.worker():
        run = await retries.start()
        assert await run.result() == "at last"

    assert calls == ["good", "bad", "bad", "bad"]
    [_, step] = await run.steps()
    assert (step.state, step.attempt) == ("completed", 3)


async def test_a_step_whose_attempts_are_used_up_fails_the_run_unless_caught(app: Duetime) -> None:
    calls = 0

    async def bad() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("broken")

    @app.flow(name="fails", retry=SOON)
    async def fails(flow: Flow) -> None:
        await flow.step(bad)

    @app.flow(name="copes", retry=SOON)
    async def copes(flow: Flow) -> str:
        try:
            await flow.step(bad)
        except StepFailed as error:
            failed = f"{error.step}: {error.error_code}: {error.error}"
        await flow.sleep("20ms")
        return failed

    async with app.worker():
        run = await fails.start()
        with pytest.raises(JobFailed, match="Step 'bad' failed: broken"):
            await run.result()
        assert calls == 3
        assert await (await copes.start()).result() == "bad: ValueError: broken"
        assert calls == 6

    assert await run.status() == "failed"
    [step] = await run.steps()
    assert (step.state, step.attempt, step.error) == ("failed", 3, "broken")


async def test_outcomes_in_a_step_decide_on_its_retry(app: Duetime) -> None:
    calls: list[str] = []

    async def later() -> int:
        calls.append("later")
        if len(calls) < 5:
            raise Retry("busy", after="1ms")
        return len(calls)

    async def never() -> None:
        calls.append("never")
        raise Discard("wrong address")

    @app.flow(name="outcomes", retry=Constant("1h", max_attempts=9))
    async def outcomes(flow: Flow) -> int:
        number = await flow.step(later)
        try:
            await flow.step(never)
        except StepFailed:
            return number
        return 0

    async with app.worker():
        assert await (await outcomes.start()).result() == 5

    assert calls == ["later"] * 5 + ["never"]


async def test_an_error_of_the_function_itself_is_retried_from_its_place(app: Duetime) -> None:
    calls: list[str] = []

    async def note() -> None:
        calls.append("step")

    @app.flow(name="stumbles", retry=SOON)
    async def stumbles(flow: Flow) -> str:
        await flow.step(note)
        calls.append("function")
        if calls.count("function") < 3:
            raise ValueError("stumbled")
        return "done"

    @app.flow(name="falls", retry=SOON)
    async def falls(flow: Flow) -> None:
        raise ValueError("fell")

    async with app.worker():
        assert await (await stumbles.start()).result() == "done"
        with pytest.raises(JobFailed, match="fell"):
            await (await falls.start()).result()

    assert calls == ["step", "function", "function", "function"]


async def test_the_traceback_of_a_failed_run_begins_in_its_function(app: Duetime) -> None:
    @app.flow(name="raises", retry=Constant("1ms", max_attempts=1))
    async def raises(flow: Flow) -> None:
        raise ValueError("here")

    async with app.worker():
        run = await raises.start()
        with pytest.raises(JobFailed):
            await run.result()

    traceback = (await app.jobs.get(run.id)).history[-1].traceback
    assert traceback is not None
    assert "in raises" in traceback
    assert "execution.py" not in traceback


async def test_now_random_and_uuid_are_the_same_in_every_replay(app: Duetime) -> None:
    seen: list[tuple[datetime, float, UUID]] = []

    @app.flow(name="recorded")
    async def recorded(flow: Flow) -> None:
        seen.append((await flow.now(), await flow.random(), await flow.uuid()))
        await flow.sleep("20ms")

    async with app.worker():
        await (await recorded.start()).result()
        await (await recorded.start()).result()

    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert abs((seen[0][0] - await app.now()).total_seconds()) < 60


async def test_code_that_changed_is_recognised_and_the_run_keeps_its_place(app: Duetime) -> None:
    async def one() -> int:
        return 1

    async def two() -> int:
        return 2

    steps = [one, two]

    @app.flow(name="changes")
    async def changes(flow: Flow) -> int:
        numbers = [await flow.step(step) for step in steps]
        await flow.wait_for("go")
        return sum(numbers)

    async with app.worker():
        run = await changes.start()
        await _until_steps(run, [("one", "completed"), ("two", "completed"), ("go", "waiting")])
        steps.reverse()
        await run.signal("go")
        with pytest.raises(JobFailed, match="as step 'one', but now the code calls step 'two'"):
            await run.result()
        assert await run.status() == "failed"


async def test_a_flow_that_returns_before_its_records_has_changed(app: Duetime) -> None:
    async def one() -> int:
        return 1

    short = False

    @app.flow(name="shortened")
    async def shortened(flow: Flow) -> None:
        if short:
            return
        await flow.step(one)
        await flow.wait_for("go")

    async with app.worker():
        run = await shortened.start()
        await _until_steps(run, [("one", "completed"), ("go", "waiting")])
        short = True
        await run.signal("go")
        with pytest.raises(JobFailed, match="as step 'one', but now the flow returned"):
            await run.result()


async def test_a_version_lets_old_runs_go_on_with_old_code(app: Duetime) -> None:
    old = True

    async def one() -> str:
        return "one"

    async def checked() -> str:
        return "checked"

    @app.flow(name="versioned")
    async def versioned(flow: Flow) -> list[str]:
        done = []
        if not old and await flow.version("check"):
            done.append(await flow.step(checked))
        done.append(await flow.step(one))
        await flow.wait_for("go")
        return done

    async with app.worker():
        before = await versioned.start()
        await _until_steps(before, [("one", "completed"), ("go", "waiting")])
        old = False
        after = await versioned.start()
        await _until_steps(
            after,
            [
                ("check", "completed"),
                ("checked", "completed"),
                ("one", "completed"),
                ("go", "waiting"),
            ],
        )
        await before.signal("go")
        await after.signal("go")
        assert await before.result() == ["one"]
        assert await after.result() == ["checked", "one"]


async def test_a_key_starts_one_run(app: Duetime) -> None:
    @app.flow(name="keyed")
    async def keyed(flow: Flow, number: int) -> int:
        return number

    first = await keyed.using(key="order:7").start(number=1)
    second = await keyed.using(key="order:7").start(number=2)

    assert first.created
    assert not second.created
    assert first.id == second.id


async def test_mistakes_are_refused_where_they_are_made(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match="must be an async function"):

        @app.flow  # type: ignore[arg-type]
        def plain(flow: Flow) -> None: ...

    with pytest.raises(InvalidInput, match="needs a parameter annotated as Flow"):

        @app.flow  # type: ignore[arg-type]
        async def without(order: int) -> None: ...

    async def big() -> str:
        return "x" * 100_000

    @app.flow(name="big", retry=SOON)
    async def returns_much(flow: Flow) -> None:
        await flow.step(big)

    async with app.worker():
        with pytest.raises(JobFailed, match="output of step 'big' has 100,002 bytes"):
            await (await returns_much.start()).result()


async def test_flows_run_by_hundreds_side_by_side(app: Duetime) -> None:
    async def work(number: int) -> int:
        return number

    @app.flow(name="many")
    async def many(flow: Flow, number: int) -> int:
        return sum([await flow.step(work, number) for _ in range(5)])

    async with app.worker(concurrency=50):
        runs = [await many.start(number) for number in range(200)]
        assert [await run.result() for run in runs] == [number * 5 for number in range(200)]


async def _until_steps(run: FlowRun[Any], wanted: list[tuple[str, str]]) -> None:
    async def recorded() -> bool:
        return [(step.name, str(step.state)) for step in await run.steps()] == wanted

    await until(recorded)
    if wanted[-1][1] == "waiting":
        await until(lambda: _is_suspended(run))


async def _is_suspended(run: FlowRun[Any]) -> bool:
    return await run.status() in ("sleeping", "waiting", "retrying")


async def test_a_record_that_the_database_refuses_fails_its_own_run_only(app: Duetime) -> None:
    together = asyncio.Event()

    async def meet(number: int) -> int:
        if number == 19:
            together.set()
        await together.wait()
        return number

    @app.flow(name="meets", retry=Constant("1ms", max_attempts=1))
    async def meets(flow: Flow, number: int) -> int:
        # A name that PostgreSQL does not store; SQLite stores it.
        name = "bad\x00name" if number == 7 else "meet"

        async def step() -> int:
            return await meet(number)

        step.__name__ = name
        return await flow.step(step)

    async with app.worker(concurrency=20):
        runs = [await meets.start(number) for number in range(20)]
        for number, run in enumerate(runs):
            if number == 7 and not app.settings.database.startswith("sqlite"):
                with pytest.raises(JobFailed):
                    await run.result()
            else:
                assert await run.result() == number
