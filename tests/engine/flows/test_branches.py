"""Branches of a flow: coroutines that make several calls each, side by side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Constant, Discard, Duetime, Flow, FlowRun, JobFailed
from tests.waiting import until, until_true

Gather = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize("way", ["flow.gather", "asyncio.gather"])
async def test_a_branch_keeps_its_results_whoever_is_faster(app: Duetime, way: str) -> None:
    """Live, the second branch is the faster one; in a replay, both return at once."""
    calls: list[str] = []
    seen: list[Any] = []
    second_is_ahead = asyncio.Event()

    async def pay(order: int) -> int:
        calls.append(f"pay {order}")
        if order == 1:
            await second_is_ahead.wait()
        return order

    async def ship(order: int) -> int:
        calls.append(f"ship {order}")
        second_is_ahead.set()
        return order * 10

    @app.flow(name="orders")
    async def orders(flow: Flow) -> Any:
        async def process(order: int) -> list[int]:
            paid = await flow.step(pay, order)
            shipped = await flow.step(ship, order)
            return [paid, shipped]

        gather: Gather = flow.gather if way == "flow.gather" else asyncio.gather
        done = await gather(process(1), process(2))
        seen.append([*done])
        await flow.sleep("20ms")
        return seen[0]

    async with app.worker():
        run = await orders.start()
        await run.result()

    assert seen == [[[1, 10], [2, 20]]] * 2
    assert sorted(calls) == ["pay 1", "pay 2", "ship 1", "ship 2"]


@pytest.mark.parametrize("way", ["as_completed", "wait", "TaskGroup"])
async def test_calls_that_other_tasks_await_end_in_the_same_order_in_every_replay(
    app: Duetime, way: str
) -> None:
    """What the function does next depends on which of them ends first."""
    seen: list[list[str]] = []
    second_has_ended = asyncio.Event()

    async def work(name: str) -> str:
        if name == "first":
            await second_has_ended.wait()
        return name

    async def handle(name: str) -> str:
        second_has_ended.set()
        return f"{name} is handled"

    @app.flow(name="races")
    async def races(flow: Flow) -> list[str]:
        handled: list[str] = []

        async def handle_when_done(call: Awaitable[str]) -> None:
            name = await call
            handled.append(f"{name}: {await flow.step(handle, name)}")

        tasks = [asyncio.ensure_future(flow.step(work, name)) for name in ("first", "second")]
        match way:
            case "as_completed":
                for task in asyncio.as_completed(tasks):
                    await handle_when_done(task)
            case "wait":
                left = set(tasks)
                while left:
                    done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    assert len(done) == 1
                    await handle_when_done(done.pop())
            case _:
                async with asyncio.TaskGroup() as group:
                    for task in tasks:
                        group.create_task(handle_when_done(task))
        seen.append(handled)
        await flow.sleep("10ms")
        return handled

    async with app.worker():
        run = await races.start()
        await run.result()

    assert seen == [["second: second is handled", "first: first is handled"]] * 2


async def test_branches_of_branches_start_though_another_one_sleeps(app: Duetime) -> None:
    done: list[int] = []

    async def note(number: int) -> None:
        done.append(number)

    @app.flow(name="deep")
    async def deep(flow: Flow) -> None:
        async def down(level: int) -> None:
            if level:
                await flow.gather(down(level - 1), flow.step(note, level))
            await flow.step(note, -level)

        await flow.gather(flow.sleep("1h"), down(8))

    async with app.worker():
        run = await deep.start()
        await until(lambda: _is_asleep(run))

    assert sorted(done) == sorted([0, *range(1, 9), *range(-8, 0)])


async def test_a_branch_goes_on_while_another_one_waits(app: Duetime) -> None:
    @app.flow(name="two")
    async def two(flow: Flow) -> Any:
        async def ask(name: str, count: int) -> list[Any]:
            return [await flow.wait_for(name) for _ in range(count)]

        return await flow.gather(ask("a", 2), ask("b", 3))

    async with app.worker():
        run = await two.start()
        for name, data in [("b", 1), ("b", 2), ("a", 1), ("b", 3), ("a", 2)]:
            await until(lambda: _is_asleep(run))
            await run.signal(name, data)
        assert await run.result() == [[1, 2], [1, 2, 3]]


async def test_a_task_group_that_waits_goes_on_though_another_branch_has_failed(
    app: Duetime,
) -> None:
    async def fail() -> None:
        raise Discard("no seats")

    @app.flow(name="grouped")
    async def grouped(flow: Flow) -> None:
        async def wait() -> None:
            await flow.wait_for("go")

        async def wait_in_group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(wait())

        await flow.gather(flow.step(fail), wait_in_group())

    async with app.worker():
        run = await grouped.start()
        await until(lambda: _is_asleep(run))
        await run.signal("go")
        with pytest.raises(JobFailed, match="no seats"):
            await run.result()

    assert [(step.name, str(step.state)) for step in await run.steps() if step.seq] == [
        ("fail", "failed"), ("go", "completed"),
    ]  # fmt: skip


@pytest.mark.parametrize("fails_first", [True, False])
async def test_a_step_that_is_cut_off_at_once_is_not_begun_in_a_replay(
    app: Duetime, fails_first: bool
) -> None:
    """Nothing is recorded of either branch."""
    done: list[str] = []

    async def hang() -> None:
        done.append("hang")
        await asyncio.Event().wait()

    @app.flow(name="cut_off")
    async def cut_off(flow: Flow) -> str:
        async def work() -> None:
            await flow.step(hang)

        async def fail() -> None:
            raise ValueError("no seats")

        await flow.sleep("10ms")
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                for branch in (fail, work) if fails_first else (work, fail):
                    tasks.create_task(branch())
        for _ in range(3):
            await flow.sleep("10ms")
        return "done"

    async with app.worker():
        run = await cut_off.start()
        assert await run.result() == "done"

    assert done == []


@pytest.mark.parametrize("fails_first", [True, False])
@pytest.mark.parametrize("error", ["of a step", "of the function"])
async def test_a_branch_that_was_cut_off_gets_as_far_in_every_replay(
    app: Duetime, fails_first: bool, error: str
) -> None:
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    async def hang() -> None:
        done.append("hang")
        await asyncio.Event().wait()

    async def check() -> None:
        await until_true(lambda: "hang" in done)
        if error == "of a step":
            raise Discard("no seats")

    @app.flow(name="cut_off", retry=Constant("1ms", max_attempts=1))
    async def cut_off(flow: Flow) -> str:
        async def work() -> None:
            await flow.gather(flow.step(note, "one"), flow.step(note, "two"))
            await flow.step(note, "three")
            await flow.step(hang)

        async def fail() -> None:
            await flow.step(check)
            raise ValueError("no seats")

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                for branch in (fail, work) if fails_first else (work, fail):
                    tasks.create_task(branch())
        for _ in range(3):
            await flow.sleep("10ms")
        return "done"

    async with app.worker():
        run = await cut_off.start()
        assert await run.result() == "done"

    assert sorted(done) == ["hang", "one", "three", "two"]


@pytest.mark.parametrize("depth", [1, 4])
async def test_an_error_ends_nested_task_groups_though_another_branch_waits(
    app: Duetime, depth: int
) -> None:
    async def fail() -> None:
        raise Discard("no seats")

    @app.flow(name="nested")
    async def nested(flow: Flow) -> str:
        async def fail_below(level: int) -> None:
            if not level:
                await flow.step(fail)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail_below(level - 1))

        async def wait() -> None:
            await flow.wait_for("never")

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(wait())
                tasks.create_task(fail_below(depth))
        await flow.sleep("10ms")
        return "done"

    async with app.worker():
        run = await nested.start()
        assert await run.result() == "done"


async def test_a_run_is_not_woken_for_a_branch_that_was_cut_off(app: Duetime) -> None:
    """The retry of its step was due, so that the run was resumed over and over."""
    activations = 0
    failing: list[str] = []

    async def fail() -> None:
        failing.append("fail")
        raise ConnectionError

    async def fail_for_good() -> None:
        await until_true(lambda: failing)
        raise Discard("no seats")

    @app.flow(name="cut_off", retry=Constant("1100ms", max_attempts=9))
    async def cut_off(flow: Flow) -> Any:
        nonlocal activations
        activations += 1

        async def retry() -> None:
            await flow.step(fail)

        async def give_up() -> None:
            await flow.step(fail_for_good)

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(give_up())
                tasks.create_task(retry())
        await flow.sleep("2s")
        return await flow.wait_for("go")

    async with app.worker():
        run = await cut_off.start()
        await until(lambda: _waits_for(run, "go"))
        await run.signal("go", 5)
        assert await run.result() == 5

    assert activations == 3


async def test_a_signal_does_not_shorten_the_pause_before_a_function_is_tried_again(
    app: Duetime,
) -> None:
    started: list[datetime] = []
    signals: list[Any] = []

    @app.flow(name="pauses", retry=Constant("1500ms", max_attempts=2))
    async def pauses(flow: Flow) -> None:
        started.append(datetime.now(UTC))

        async def listen() -> None:
            signals.append(await flow.wait_for("go"))

        async def check() -> None:
            await flow.now()
            if len(started) < 2:
                raise ValueError("not yet")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(listen())
            tasks.create_task(check())

    async with app.worker():
        run = await pauses.start()
        await until(lambda: _is_asleep(run))
        await run.signal("go", 5)
        await run.result()

    assert len(started) == 2
    assert started[1] - started[0] > timedelta(seconds=1.4)
    assert signals == [5]


async def test_a_call_in_a_task_group_that_changed_is_recognised(app: Duetime) -> None:
    async def one() -> None: ...
    async def two() -> None: ...

    steps = [one, two]

    @app.flow(name="changed")
    async def changed(flow: Flow) -> str:
        async def work() -> None:
            await flow.step(steps[0])
            await flow.wait_for("go")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
        return "done"

    async with app.worker():
        run = await changed.start()
        await until(lambda: _is_asleep(run))
        steps.reverse()
        await run.signal("go")
        with pytest.raises(JobFailed, match="as step 'one', but now the code calls step 'two'"):
            await run.result()
        steps.reverse()
        await run.retry()
        assert await run.result() == "done"


async def test_a_changed_branch_is_recognised(app: Duetime) -> None:
    async def one() -> None: ...
    async def two() -> None: ...

    steps = [one, two]

    @app.flow(name="changed")
    async def changed(flow: Flow) -> None:
        async def branch() -> None:
            for step in steps:
                await flow.step(step)

        await flow.gather(branch(), flow.wait_for("go"))

    async with app.worker():
        shortened = await changed.start()
        other = await changed.start()
        await until(lambda: _is_asleep(shortened))
        await until(lambda: _is_asleep(other))
        steps.reverse()
        await other.signal("go")
        with pytest.raises(JobFailed, match="as step 'one', but now the code calls step 'two'"):
            await other.result()
        steps[:] = [one]
        await shortened.signal("go")
        with pytest.raises(JobFailed, match="as step 'two', but now the flow returned"):
            await shortened.result()


@pytest.mark.parametrize("where", ["before branches", "at the end of a branch"])
async def test_a_version_followed_by_branches_lets_old_runs_go_on(app: Duetime, where: str) -> None:
    """The calls that came after it have numbers of their branches."""
    old = True
    done: list[str] = []

    async def work(what: str) -> str:
        done.append(what)
        return what

    @app.flow(name="followed")
    async def followed(flow: Flow) -> list[str]:
        async def check() -> None:
            if not old and await flow.version("check"):
                await flow.step(work, "checked")

        async def branch(what: str) -> str:
            found = await flow.step(work, what)
            if where != "before branches":
                await check()
            elif what == "a":
                await flow.wait_for("go")
            return found

        if where == "before branches":
            await check()
        found = [*await flow.gather(branch("a"), branch("b"))]
        if where != "before branches":
            await flow.wait_for("go")
        return found

    async def waits() -> bool:
        return await before.status() == "waiting"

    async with app.worker():
        before = await followed.start()
        await until(waits)
        old = False
        await before.signal("go")
        assert await before.result() == ["a", "b"]
        assert "checked" not in done
        after = await followed.start()
        await after.signal("go")
        assert await after.result() == ["a", "b"]

    assert done.count("checked") == (1 if where == "before branches" else 2)


async def test_a_version_in_a_branch_lets_old_runs_go_on(app: Duetime) -> None:
    old = True

    async def work() -> str:
        return "work"

    async def check() -> str:
        return "check"

    @app.flow(name="versioned")
    async def versioned(flow: Flow) -> Any:
        async def branch() -> list[str]:
            done = []
            if not old and await flow.version("check"):
                done.append(await flow.step(check))
            return [*done, await flow.step(work)]

        return (await flow.gather(branch(), branch(), flow.wait_for("go")))[:2]

    async with app.worker():
        before = await versioned.start()
        await until(lambda: _is_asleep(before))
        old = False
        after = await versioned.start()
        await until(lambda: _is_asleep(after))
        await before.signal("go")
        await after.signal("go")
        assert await before.result() == [["work"]] * 2
        assert await after.result() == [["check", "work"]] * 2


async def _waits_for(run: FlowRun[Any], name: str) -> bool:
    return name in [step.name for step in await run.steps()] and await _is_asleep(run)


async def _is_asleep(run: FlowRun[Any]) -> bool:
    return await run.status() in ("sleeping", "waiting")
