"""Graphs run on every backend: joins, conditions, maps, waits, failures, and what undoes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from duetime import (
    Constant,
    Context,
    Duetime,
    Finish,
    Flow,
    FlowState,
    InvalidInput,
    JobFailed,
    JobState,
)
from tests.conftest import Backend
from tests.waiting import until

SOON = Constant("10ms", max_attempts=2)


class Payment(msgspec.Struct):
    id: int
    amount: int


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(
        backend.url, migrate=True, lease="20s", heartbeat="500ms", rescue_every="200ms", grace="5s"
    )
    yield app
    await app.close()


async def have_completed(app: Duetime, tasks: Mapping[str, int]) -> bool:
    """Whether so many jobs of each task have completed."""
    completed = [await app.jobs.list(task=task, state="completed") for task in tasks]
    return [len(page) for page in completed] == list(tasks.values())


async def test_outputs_and_arguments_are_passed_by_name(app: Duetime) -> None:
    graph = app.graph("onboard")

    @graph.step
    async def create(email: str) -> Payment:
        return Payment(len(email), 7)

    @graph.step
    def welcome(create: Payment, email: str, greeting: str = "Hello") -> str:
        return f"{greeting} {email}, you are {create.id}"

    async with app.worker():
        run = await graph.start(email="a@b")
        assert await run.result() == {"welcome": "Hello a@b, you are 3"}


async def test_a_join_runs_once_however_many_branches_end_at_the_same_time(app: Duetime) -> None:
    graph = app.graph("wide")
    branches = 30
    together = asyncio.Event()
    arrived = 0
    joined: list[int] = []

    async def branch(number: int) -> int:
        nonlocal arrived
        arrived += 1
        if arrived == branches * 3:
            together.set()
        await together.wait()
        return number

    steps = [
        graph.step(name=f"b{number}")(_returning(branch, number)) for number in range(branches)
    ]

    @graph.step(after=steps)
    async def join(run: int) -> int:
        joined.append(run)
        return run

    async with app.worker(concurrency=60), app.worker(concurrency=60):
        runs = [await graph.start(run=number) for number in range(3)]
        results = [await run.result() for run in runs]

    assert results == [{"join": number} for number in range(3)]
    assert sorted(joined) == [0, 1, 2]


def _returning(function: Any, number: int) -> Any:
    async def step() -> int:
        return await function(number)

    return step


async def test_steps_that_do_not_wait_for_each_other_run_side_by_side(app: Duetime) -> None:
    graph = app.graph("parallel")
    met = asyncio.Barrier(2)

    @graph.step
    async def left() -> None:
        await met.wait()

    @graph.step
    async def right() -> None:
        await met.wait()

    async with app.worker():
        assert await (await graph.start()).result() == {"left": None, "right": None}


async def test_a_false_condition_skips_a_step_and_what_needs_it(app: Duetime) -> None:
    graph = app.graph("branches")
    ran: list[str] = []

    @graph.step
    async def pay(amount: int) -> Payment:
        return Payment(1, amount)

    @graph.step(when=lambda pay: pay.amount > 100)
    async def review(pay: Payment) -> str:
        ran.append("review")
        return "ok"

    @graph.step
    async def file_review(review: str) -> str:
        ran.append("file_review")
        return review

    @graph.step(after=[file_review])
    async def after_review() -> None:
        ran.append("after_review")

    @graph.step
    async def close(pay: Payment, review: str | None, file_review: str = "none") -> str:
        ran.append("close")
        return f"{pay.amount} {review} {file_review}"

    async with app.worker():
        small = await graph.start(amount=5)
        assert await small.result() == {"after_review": None, "close": "5 None none"}
        assert ran == ["close"]
        large = await graph.start(amount=500)
        assert await large.result() == {"after_review": None, "close": "500 ok ok"}

    states = {step.name: step.state for step in await small.steps()}
    assert states["review"] == states["file_review"] == states["after_review"] == "skipped"
    assert sorted(ran[1:]) == ["after_review", "close", "file_review", "review"]


async def test_the_run_goes_on_without_an_optional_step_that_failed(app: Duetime) -> None:
    graph = app.graph("shaky", retry=SOON)
    attempts: list[int] = []

    @graph.step(optional=True)
    async def score(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        raise RuntimeError("no score")

    @graph.step
    async def decide(score: int | None) -> str:
        return "unknown" if score is None else "known"

    async with app.worker():
        run = await graph.start()
        assert await run.result() == {"decide": "unknown"}

    assert attempts == [1, 2]
    [failed] = [step for step in await run.steps() if step.name == "score"]
    assert (failed.state, failed.error) == ("failed", "no score")


async def test_a_map_yields_its_results_in_order(app: Duetime) -> None:
    graph = app.graph("labels")

    @graph.step
    async def load(count: int) -> list[Payment]:
        return [Payment(number, number * 10) for number in range(count)]

    @graph.map(over=load)
    async def label(item: Payment, prefix: str) -> str:
        await asyncio.sleep(0.001 * (item.id % 5))
        return f"{prefix}{item.amount}"

    @graph.step
    async def total(label: list[str]) -> int:
        return len(label)

    @graph.step
    async def show(label: list[str]) -> str:
        return " ".join(label)

    async with app.worker():
        many = await graph.start(count=25, prefix="#")
        none = await graph.start(count=0, prefix="#")

        expected = " ".join(f"#{number * 10}" for number in range(25))
        assert await many.result() == {"total": 25, "show": expected}
        assert await none.result() == {"total": 0, "show": ""}


async def test_a_map_may_go_over_an_argument_and_be_the_last_step(app: Duetime) -> None:
    graph = app.graph("double")

    @graph.map(over="numbers")
    def double(number: int) -> int:
        return 2 * number

    async with app.worker():
        assert await (await graph.start(numbers=[3, 1, 2])).result() == {"double": [6, 2, 4]}


async def test_an_item_that_fails_fails_the_run(app: Duetime) -> None:
    graph = app.graph("fragile", retry=SOON)

    @graph.map(over="numbers")
    async def invert(number: int) -> float:
        return 1 / number

    @graph.step
    async def total(invert: list[float]) -> float:
        return sum(invert)

    async with app.worker():
        run = await graph.start(numbers=[1, 0, 4])
        with pytest.raises(JobFailed, match=r"invert\[1\]: division by zero"):
            await run.result()

    states = {step.name: step.state for step in await run.steps()}
    assert states["total"] == "pending"


async def test_a_failed_item_of_an_optional_map_yields_none(app: Duetime) -> None:
    graph = app.graph("tolerant", retry=SOON)

    @graph.map(over="numbers", optional=True)
    async def invert(number: int) -> float:
        return 1 / number

    @graph.step
    async def collect(invert: list[float | None] | None) -> list[float | None]:
        return invert or []

    async with app.worker():
        run = await graph.start(numbers=[1, 0, 4])
        assert await run.result() == {"collect": [1.0, None, 0.25]}


async def test_a_sleep_holds_no_worker(app: Duetime) -> None:
    graph = app.graph("sleepy")

    @graph.step
    async def before() -> str:
        return "before"

    nap = graph.sleep("nap", "60ms", after=[before])

    @graph.step(after=[nap])
    async def later(before: str) -> str:
        return before

    async with app.worker(concurrency=1):
        runs = [await graph.start() for _ in range(5)]
        for run in runs:
            assert await run.result() == {"later": "before"}
            [slept] = [step for step in await run.steps() if step.name == "nap"]
            assert slept.started_at is not None
            assert slept.finished_at is not None
            assert (slept.finished_at - slept.started_at).total_seconds() >= 0.06


@pytest.mark.parametrize("nothing", [0, "0s", timedelta(0)])
async def test_a_graph_and_a_flow_may_sleep_for_no_time(
    app: Duetime, nothing: float | str | timedelta
) -> None:
    graph = app.graph("hasty")
    first = graph.sleep("first", nothing)

    @graph.step(after=[first])
    async def between() -> str:
        return "between"

    last = graph.sleep("last", nothing, after=[between])

    @graph.step(after=[last])
    async def later(between: str) -> str:
        return between

    @app.flow(name="hasty_flow")
    async def flow_of(flow: Flow) -> str:
        await flow.sleep(nothing)
        return "slept"

    with pytest.raises(InvalidInput, match="duration must not be negative, got -1"):
        graph.sleep("negative", -1)
    async with app.worker():
        run, other = await graph.start(), await flow_of.start()
        assert await run.result(timeout="5s") == {"later": "between"}
        assert await other.result(timeout="5s") == "slept"
        assert {step.state.value for step in await run.steps()} == {"completed"}


async def test_signals_are_waited_for(app: Duetime) -> None:
    graph = app.graph("approval")
    graph.signal("approved", timeout="1h", default=False)

    @graph.step(when=lambda approved: approved)
    async def ship(approved: dict[str, str]) -> str:
        return approved["by"]

    async with app.worker():
        early = await graph.start()
        await early.signal("approved", {"by": "ann"})
        late = await graph.start()
        await until(lambda: _is_waiting(late, "approved"))
        await late.signal("approved", {"by": "bob"})

        assert await early.result() == {"ship": "ann"}
        assert await late.result() == {"ship": "bob"}


async def _is_waiting(run: Any, name: str) -> bool:
    return any(step.name == name and step.state == "waiting" for step in await run.steps())


async def test_a_signal_that_does_not_arrive_yields_its_default(app: Duetime) -> None:
    graph = app.graph("impatient")
    graph.signal("approved", timeout="30ms", default=False)

    @graph.step
    async def answer(approved: bool) -> str:
        return "yes" if approved else "no"

    async with app.worker():
        assert await (await graph.start()).result() == {"answer": "no"}


async def test_a_signal_without_a_default_fails_the_run(app: Duetime) -> None:
    graph = app.graph("strict")
    graph.signal("approved", timeout="30ms")

    async with app.worker():
        with pytest.raises(JobFailed, match="'approved' did not arrive in time"):
            await (await graph.start()).result()


async def test_children_are_flows_of_their_own(app: Duetime) -> None:
    inner = app.graph("inner")

    @inner.step
    async def square(number: int) -> int:
        return number**2

    outer = app.graph("outer")

    @outer.step
    async def number(text: str) -> int:
        return int(text)

    outer.child("inner", inner)

    @outer.step
    async def show(inner: dict[str, int]) -> str:
        return str(inner["square"])

    async with app.worker():
        assert await (await outer.start(text="7")).result() == {"show": "49"}


async def test_a_child_that_fails_fails_the_run(app: Duetime) -> None:
    inner = app.graph("inner", retry=Constant("1ms", max_attempts=1))

    @inner.step
    async def explode() -> None:
        raise RuntimeError("boom")

    outer = app.graph("outer")
    outer.child("inner", inner)

    async with app.worker():
        with pytest.raises(JobFailed, match=r"Step 'inner' failed.*boom"):
            await (await outer.start()).result()


async def test_finish_completes_the_run_at_once(app: Duetime) -> None:
    graph = app.graph("early")
    stopped: list[str] = []
    started = asyncio.Event()

    @graph.step
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped.append("slow")
            raise

    @graph.step
    async def check() -> int | Finish:
        await started.wait()
        return Finish({"known": True})

    @graph.step
    async def never(check: int) -> None:
        stopped.append("never")

    @graph.on_failure(check)
    async def undo() -> None:
        stopped.append("undo")

    async with app.worker():
        assert await (await graph.start()).result() == {"known": True}

    assert stopped == ["slow"]


@pytest.mark.parametrize("way", ["finishes", "fails"])
async def test_no_map_is_shown_as_running_when_its_run_has_ended(app: Duetime, way: str) -> None:
    graph = app.graph("early", retry=Constant("10ms", max_attempts=1))
    started = asyncio.Event()

    @graph.map(over="items")
    async def slow(item: int) -> int:
        if item == 1:
            started.set()
            await asyncio.sleep(30)
        return item

    @graph.step
    async def check() -> int | Finish:
        await started.wait()
        if way == "fails":
            raise ValueError("no stock")
        return Finish({"known": True})

    async with app.worker():
        run = await graph.start(items=[0, 1])
        if way == "fails":
            with pytest.raises(JobFailed, match="no stock"):
                await run.result()
        else:
            assert await run.result() == {"known": True}
        states = {step.name: step.state for step in await run.steps()}

    assert states["slow"] == "pending"
    assert "running" not in states.values()


async def test_compensations_run_in_reverse_order_of_completion(app: Duetime) -> None:
    graph = app.graph("saga", retry=SOON)
    done: list[str] = []

    @graph.step
    async def charge(order: int) -> Payment:
        return Payment(order, 5)

    @graph.on_failure(charge)
    async def refund(charge: Payment, order: int) -> None:
        done.append(f"refund {charge.amount} of {order}")

    @graph.step
    async def reserve(charge: Payment) -> str:
        return "shelf 9"

    @graph.on_failure(reserve)
    def release(reserve: str) -> None:
        if len(done) == 0:
            done.append("failed once")
            raise RuntimeError("not yet")
        done.append(f"release {reserve}")

    @graph.step(after=[reserve])
    async def ship() -> None:
        raise RuntimeError("no van")

    @graph.on_failure(ship)
    async def recall() -> None:
        done.append("recall")

    async with app.worker():
        run = await graph.start(order=7)
        with pytest.raises(JobFailed, match="Step 'ship' failed: no van"):
            await run.result()

    assert done == ["failed once", "release shelf 9", "refund 5 of 7"]
    assert await run.status() == "failed"


@pytest.mark.parametrize("kind", ["step", "map", "empty map", "child"])
async def test_a_run_whose_job_is_cancelled_undoes_steps_of_every_kind(
    app: Duetime, kind: str
) -> None:
    graph = app.graph("saga")
    done: list[str] = []

    @app.flow(name="inner")
    async def inner(flow: Flow) -> int:
        return 7

    match kind:
        case "step":

            @graph.step(name="book")
            async def book_one() -> int:
                return 7

        case "child":
            graph.child("book", inner)
        case _:

            @graph.map(over="items", name="book")
            async def book_each(item: int) -> int:
                return item

    @graph.on_failure("book")
    async def release() -> None:
        done.append("release")

    graph.signal("go", after=["book"])
    items: dict[str, dict[str, Any]] = {"map": {"items": [1, 2]}, "empty map": {"items": []}}

    async def waits() -> bool:
        return any(step.name == "go" and step.state == "waiting" for step in await run.steps())

    async with app.worker():
        run = await graph.start(**items.get(kind, {}))
        await until(waits)
        await app.jobs.cancel(run.id)
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()

    assert done == ["release"]


async def test_a_compensation_that_fails_does_not_keep_the_others_from_running(
    app: Duetime,
) -> None:
    graph = app.graph("saga", retry=Constant("1ms", max_attempts=1))
    done: list[str] = []

    @graph.step
    async def one() -> None: ...

    @graph.on_failure(one)
    async def undo_one() -> None:
        done.append("one")

    @graph.step(after=[one])
    async def two() -> None: ...

    @graph.on_failure(two)
    async def undo_two() -> None:
        raise RuntimeError("cannot")

    @graph.step(after=[two])
    async def three() -> None:
        raise RuntimeError("boom")

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed, match="boom"):
            await run.result()

    assert done == ["one"]
    states = {step.name: step.state for step in await run.steps()}
    assert (states["undo_one"], states["undo_two"]) == ("completed", "failed")


async def test_a_failure_stops_the_steps_that_run(app: Duetime) -> None:
    graph = app.graph("stopping", retry=Constant("1ms", max_attempts=1))
    stopped: list[str] = []
    started = asyncio.Event()

    @graph.step
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped.append("slow")
            raise

    @graph.step
    async def fail() -> None:
        await started.wait()
        raise RuntimeError("boom")

    @graph.step(after=[slow])
    async def never() -> None:
        stopped.append("never")

    async with app.worker():
        with pytest.raises(JobFailed, match="boom"):
            await (await graph.start()).result()

    assert stopped == ["slow"]


async def test_a_run_times_out_with_its_waits(app: Duetime) -> None:
    graph = app.graph("slow", timeout="50ms")
    graph.signal("never")

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed, match="did not finish within its timeout"):
            await run.result()


async def test_a_step_commits_with_what_it_has_written(app: Duetime, backend: Backend) -> None:
    graph = app.graph("exact")

    @graph.step
    async def write(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await ctx.complete(41, tx=connection)
        return 41

    @graph.step
    async def read(write: int) -> int:
        return write + 1

    async with app.worker():
        assert await (await graph.start()).result() == {"read": 42}


async def test_an_output_that_cannot_be_stored_fails_its_step_at_once(app: Duetime) -> None:
    graph = app.graph("large")
    calls: list[int] = []

    @graph.step
    async def dump() -> str:
        calls.append(1)
        return "x" * 100_000

    async with app.worker():
        with pytest.raises(JobFailed, match="'dump' has 100,002 bytes of JSON, and the limit"):
            await (await graph.start()).result()

    assert calls == [1]


async def test_a_run_goes_on_by_the_graph_it_was_started_with(app: Duetime) -> None:
    old = app.graph("release")
    old.signal("go")

    @old.step(after=["go"])
    async def first() -> str:
        return "old first"

    @old.step
    async def last(first: str) -> str:
        return f"old last after {first}"

    async with app.worker():
        run = await old.start()
        await until(lambda: _is_waiting(run, "go"))

    new = Duetime(app.settings.database, heartbeat="500ms")
    changed = new.graph("release")
    changed.signal("go")

    @changed.step(name="first", after=["go"])
    async def new_first() -> str:
        return "new first"

    @changed.step
    async def between(first: str) -> str:
        return f"new between after {first}"

    @changed.step(name="last")
    async def new_last(first: str, between: str = "nothing") -> str:
        return f"new last after {first} and {between}"

    try:
        async with new.worker():
            await new.flows[run.id].signal("go")
            assert await new.flows[run.id].result() == {
                "last": "new last after new first and nothing"
            }
            again = await changed.start()
            await again.signal("go")
            assert await again.result() == {
                "last": "new last after new first and new between after new first"
            }
    finally:
        await new.close()


async def test_a_step_whose_code_is_gone_is_parked_by_name(app: Duetime) -> None:
    old = app.graph("release")
    old.signal("go")

    @old.step(after=["go"])
    async def removed() -> str:
        return "done"

    async with app.worker():
        run = await old.start()
        await until(lambda: _is_waiting(run, "go"))

    new = Duetime(app.settings.database, heartbeat="500ms")
    new.graph("release").signal("go")
    try:
        async with new.worker():
            await new.flows[run.id].signal("go")

            async def is_parked() -> bool:
                [step] = [one for one in await new.flows[run.id].steps() if one.name == "removed"]
                if step.job_id is None:
                    return False
                job = await new.jobs.get(step.job_id)
                return job.state is JobState.PARKED and "release.removed" in str(job.parked_reason)

            await until(is_parked)
    finally:
        await new.close()
    async with app.worker():
        assert await run.result() == {"removed": "done"}


async def test_starts_with_the_same_key_are_one_run(app: Duetime) -> None:
    graph = app.graph("keyed")

    @graph.step
    async def only(number: int) -> int:
        return number

    one = await graph.using(key="order:7").start(number=1)
    two = await graph.using(key="order:7").start(number=2)

    assert one.id == two.id
    assert (one.created, two.created) == (True, False)
    async with app.worker():
        assert await two.result() == {"only": 1}


async def test_cancel_stops_the_steps_that_run_and_starts_no_more(app: Duetime) -> None:
    graph = app.graph("cancelled")
    done: list[str] = []
    started = asyncio.Event()

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund(charge: int) -> None:
        done.append(f"refund {charge}")

    @graph.step(after=[charge])
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            done.append("stopped")
            raise

    @graph.step(after=[slow])
    async def never() -> None:
        done.append("never")

    graph.signal("approved", after=[charge])

    async with app.worker():
        run = await graph.start()
        await started.wait()
        await run.cancel(reason="called off", by="ann")
        with pytest.raises(JobFailed, match="called off"):
            await run.result()

    assert done == ["stopped", "refund 7"]
    assert await run.status() is FlowState.CANCELLED
    states = {step.name: step.state for step in await run.steps()}
    assert (states["never"], states["approved"]) == ("pending", "pending")


async def test_cancel_before_the_run_began_starts_nothing(app: Duetime) -> None:
    graph = app.graph("never")
    ran: list[str] = []

    @graph.step
    async def only() -> None:
        ran.append("only")

    run = await graph.start()
    await run.cancel()

    assert await run.status() is FlowState.CANCELLED
    async with app.worker():
        with pytest.raises(JobFailed):
            await run.result()
    assert ran == []


async def test_retry_goes_on_from_the_failed_step_and_keeps_what_succeeded(app: Duetime) -> None:
    graph = app.graph("mended", retry=Constant("1ms", max_attempts=1))
    calls: list[str] = []
    broken = True

    @graph.step
    async def load() -> list[int]:
        calls.append("load")
        return [1, 2, 3]

    @graph.map(over=load)
    async def double(item: int) -> int:
        calls.append(f"double {item}")
        if broken and item == 2:
            await until(lambda: have_completed(app, {"mended.double": 2, "mended.other": 1}))
            raise RuntimeError("broken")
        return 2 * item

    @graph.step
    async def other() -> str:
        calls.append("other")
        return "other"

    @graph.step
    async def total(double: list[int], other: str) -> int:
        calls.append("total")
        return sum(double)

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed, match="broken"):
            await run.result()
        broken = False
        before = calls.copy()
        await run.retry(by="ann")
        assert await run.result() == {"total": 12}

    again = calls[len(before) :]

    assert sorted(again) == ["double 2", "total"]


@pytest.mark.parametrize("from_step", ["load", "double"])
async def test_rerun_of_a_map_or_what_it_maps_over_runs_all_items_again(
    app: Duetime, from_step: str
) -> None:
    graph = app.graph("mapped_again", retry=Constant("1ms", max_attempts=1))
    loaded = [[1, 2], [3, 4, 5]]
    calls: list[int] = []

    @graph.step
    async def load() -> list[int]:
        return loaded.pop(0)

    @graph.map(over=load)
    async def double(item: int) -> int:
        calls.append(item)
        return 2 * item

    @graph.step
    async def total(double: list[int]) -> int:
        if len(calls) < 3:
            raise RuntimeError("broken")
        return sum(double)

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed, match="broken"):
            await run.result()
        await run.rerun(from_step=from_step)
        result = await run.result()

    assert sorted(calls) == ([1, 1, 2, 2] if from_step == "double" else [1, 2, 3, 4, 5])
    assert result == {"total": 6 if from_step == "double" else 24}


async def test_retry_does_again_what_was_undone(app: Duetime) -> None:
    graph = app.graph("undone", retry=Constant("1ms", max_attempts=1))
    calls: list[str] = []
    broken = True

    @graph.step
    async def reserve() -> str:
        calls.append("reserve")
        return "shelf"

    @graph.step
    async def charge(reserve: str) -> int:
        calls.append("charge")
        return 7

    @graph.on_failure(charge)
    async def refund() -> None:
        calls.append("refund")

    @graph.step
    async def ship(charge: int) -> str:
        calls.append("ship")
        if broken:
            raise RuntimeError("no van")
        return "shipped"

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed, match="no van"):
            await run.result()
        broken = False
        await run.retry()
        assert await run.result() == {"ship": "shipped"}

    assert calls == ["reserve", "charge", "ship", "refund", "charge", "ship"]


async def test_rerun_repeats_a_step_and_what_depends_on_it(app: Duetime) -> None:
    graph = app.graph("repeated", retry=Constant("1ms", max_attempts=1))
    calls: list[str] = []

    @graph.step
    async def one() -> int:
        calls.append("one")
        return 1

    @graph.step
    async def other() -> int:
        calls.append("other")
        return 1

    @graph.step
    async def two(one: int) -> int:
        calls.append("two")
        return one + 1

    @graph.step
    async def three(two: int, other: int) -> int:
        calls.append("three")
        if len(calls) < 5:
            raise RuntimeError("boom")
        return two + other

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed, match="boom"):
            await run.result()
        with pytest.raises(InvalidInput, match="has no step 'four'"):
            await run.rerun(from_step="four")
        await run.rerun(from_step="two")
        assert await run.result() == {"three": 3}

    assert sorted(calls[:4]) == ["one", "other", "three", "two"]
    assert calls[4:] == ["two", "three"]


async def test_a_step_that_lost_its_claim_records_nothing(app: Duetime) -> None:
    graph = app.graph("fenced")
    tokens: list[int] = []

    @graph.step
    async def write(ctx: Context) -> str:
        tokens.append(ctx.token)
        if len(tokens) == 1:
            await (await app.store()).release([ctx.job])
            return "lost"
        return "kept"

    @graph.step
    async def read(write: str) -> str:
        return write

    async with app.worker():
        run = await graph.start()
        assert await run.result() == {"read": "kept"}

    assert len(tokens) == 2


async def test_a_run_whose_job_was_cancelled_is_undone_all_the_same(app: Duetime) -> None:
    graph = app.graph("killed")
    done: list[str] = []

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund(charge: int) -> None:
        done.append(f"refund {charge}")

    graph.signal("approved", after=[charge])

    async def is_undone() -> bool:
        return bool(done)

    async with app.worker():
        run = await graph.start()
        await until(lambda: _is_waiting(run, "approved"))
        await app.jobs.cancel(run.id)
        await until(is_undone)

    assert done == ["refund 7"]


async def test_a_driven_clock_runs_a_graph_of_weeks_at_once(app: Duetime) -> None:
    graph = app.graph("patient", timeout="60d")

    @graph.step
    async def greet(name: str) -> str:
        return f"Hello {name}"

    graph.sleep("a_month", "30d", after=[greet])
    graph.signal("answer", after=["a_month"], timeout="7d", default="none")

    @graph.step
    async def note(greet: str, answer: str) -> str:
        return f"{greet}: {answer}"

    for name in ("Ann", "Bob"):
        async with app.testing(now="2026-03-08T00:00Z") as world:
            run = await graph.start(name=name)
            await world.advance("29d")
            assert (await run.status()).value == "sleeping"
            await world.advance("2d")
            assert (await run.status()).value == "waiting"
            await world.advance("7d")
            assert await run.result() == {"note": f"Hello {name}: none"}


async def test_a_step_of_a_run_whose_job_was_cancelled_starts_no_other(app: Duetime) -> None:
    graph = app.graph("orphaned")
    started, go = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @graph.step
    async def slow() -> None:
        started.set()
        await go.wait()

    @graph.step(after=[slow])
    async def never() -> None:
        ran.append("never")

    async def slow_has_ended() -> bool:
        [step] = [one for one in await run.steps() if one.name == "slow"]
        return step.finished_at is not None

    async with app.worker():
        run = await graph.start()
        await started.wait()
        await app.jobs.cancel(run.id)
        go.set()
        await until(slow_has_ended)
        [step] = [one for one in await run.steps() if one.name == "never"]

    assert (step.state, step.job_id) == ("pending", None)
    assert ran == []


async def test_the_attempts_of_a_step_are_counted_whatever_its_outcome(app: Duetime) -> None:
    graph = app.graph("counted", retry=SOON)
    calls = 0

    @graph.step
    async def second_time() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("not yet")

    @graph.step(after=[second_time])
    async def never() -> None:
        raise ValueError("never")

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed):
            await run.result()
        steps = {step.name: (str(step.state), step.attempt) for step in await run.steps()}

    assert steps == {"second_time": ("completed", 2), "never": ("failed", 2)}
