"""A flow of a month under the testing kit: its waits take no time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from duetime import Constant, Discard, Duetime, Flow, JobFailed, StepFailed

NOW = "2026-03-01T00:00Z"


async def test_a_month_of_sleeps_a_signal_a_retry_and_a_compensation_takes_no_time(
    app: Duetime,
) -> None:
    done: list[tuple[str, str]] = []

    async def note(what: str) -> None:
        done.append((what, f"{await app.now():%m-%dT%H:%M}"))

    async def charge(order_id: int) -> str:
        await note("charge")
        if len(done) < 3:
            raise ConnectionError("the bank does not answer")
        return f"payment-{order_id}"

    async def refund(payment: str) -> None:
        await note(f"refund {payment}")

    async def ship(order_id: int) -> None:
        await note("ship")
        raise ValueError("no such address")

    @app.flow(name="order", retry=Constant("6h", max_attempts=3), timeout="60d")
    async def order(flow: Flow, order_id: int) -> None:
        payment = await flow.step(charge, order_id)
        flow.on_failure(refund, payment)
        await flow.sleep("10d")
        if await flow.wait_for("address", timeout="7d", default=None) is None:
            await flow.step(note, "ask")
            await flow.wait_for("address")
        await flow.sleep("3d")
        await flow.step(ship, order_id)

    async with app.testing(now=NOW) as world:
        run = await order.using(key="order:7").start(7)
        began = time.perf_counter()
        await world.advance("1d")
        assert await run.status() == "sleeping"
        await world.advance("19d")
        assert await run.status() == "waiting"
        await run.signal("address", "Main Street 1")
        await world.advance("10d")
        took = time.perf_counter() - began

        assert world.now == datetime(2026, 3, 31, tzinfo=UTC)
        assert await run.status() == "failed"
        with pytest.raises(JobFailed, match="no such address"):
            await run.result()
        steps = [(step.name, str(step.state), step.attempt) for step in await run.steps()]

    assert done == [
        ("charge", "03-01T00:00"),
        ("charge", "03-01T06:00"),
        ("charge", "03-01T12:00"),
        ("ask", "03-18T12:00"),
        ("ship", "03-24T00:00"),
        ("ship", "03-24T06:00"),
        ("ship", "03-24T12:00"),
        ("refund payment-7", "03-24T12:00"),
    ]
    assert steps == [
        ("refund", "completed", 1),
        ("charge", "completed", 3),
        ("sleep", "completed", 1),
        ("address", "completed", 1),
        ("note", "completed", 1),
        ("address", "completed", 1),
        ("sleep", "completed", 1),
        ("ship", "failed", 3),
    ]
    assert took < 5, "half a second, if the machine is idle"


async def test_children_and_jobs_of_a_flow_are_found_and_run(app: Duetime) -> None:
    @app.task(name="render")
    async def render(page: int) -> int:
        return page * 10

    @app.flow(name="chapter")
    async def chapter(flow: Flow, page: int) -> int:
        await flow.sleep("1d")
        return await flow.step(render, page, on="gpu")

    @app.flow(name="book")
    async def book(flow: Flow) -> list[int]:
        return [await flow.child(chapter, 1), await flow.step(render, 2, on="gpu")]

    async with app.testing(now=NOW) as world:
        run = await book.start()
        await world.run_next()
        await world.assert_enqueued(chapter, args={"page": 1}, count=1)
        await world.drain()
        await world.assert_not_enqueued(render)
        await world.advance("2d")
        rendered = [ran.at.day for ran in world.completed if ran.task == "render"]

        assert rendered == [2, 2]
        assert await run.result() == [10, 20]


async def test_branches_in_a_task_group_sleep_and_go_on(app: Duetime) -> None:
    done: list[int] = []

    async def book(place: int) -> None:
        done.append(place)

    @app.flow(name="trip")
    async def trip(flow: Flow) -> str:
        async def branch(place: int) -> None:
            await flow.sleep("1h")
            await flow.step(book, place)

        async with asyncio.TaskGroup() as group:
            group.create_task(branch(1))
            group.create_task(branch(2))
        return "booked"

    async with app.testing(now=NOW) as world:
        run = await trip.start()
        await world.drain()
        await world.advance("1h")

        assert await run.result() == "booked"
    assert sorted(done) == [1, 2]


async def test_a_parent_is_notified_that_its_child_was_cancelled(app: Duetime) -> None:
    @app.flow(name="chapter")
    async def chapter(flow: Flow) -> None:
        await flow.sleep("1h")

    @app.flow(name="book")
    async def book(flow: Flow) -> str:
        try:
            await flow.child(chapter)
        except StepFailed:
            return "without it"
        return "complete"

    async with app.testing(now=NOW) as world:
        for _ in range(3):
            run = await book.start()
            await world.drain()
            [child] = await app.flows.list(flow="chapter", state="sleeping")
            await app.flows.cancel(child.id)
            await world.drain()

            assert await run.status() == "completed"
            assert await run.result() == "without it"


async def test_compensations_of_a_graph_run_in_reverse_order(app: Duetime) -> None:
    undone: list[str] = []
    graph = app.graph("order")

    @graph.step
    async def charge() -> int:
        await asyncio.sleep(0.02)  # What follows takes less.
        return 1

    @graph.on_failure(charge)
    async def refund(charge: int) -> None:
        undone.append("refund")

    @graph.step
    async def ship(charge: int) -> int:
        return 2

    @graph.on_failure(ship)
    async def recall(ship: int) -> None:
        undone.append("recall")

    @graph.step
    async def confirm(ship: int) -> None:
        raise Discard("no address")

    async with app.testing(now=NOW) as world:
        run = await graph.start()
        await world.drain()
        finished = {step.finished_at for step in await run.steps()}

    assert undone == ["recall", "refund"]
    assert finished == {world.now}


async def test_rerun_does_again_what_came_after_a_step_in_the_same_moment(app: Duetime) -> None:
    calls: list[str] = []

    async def charge() -> None:
        await asyncio.sleep(0.02)  # What follows takes less.
        calls.append("charge")

    async def ship() -> None:
        calls.append("ship")

    async def confirm() -> None:
        calls.append("confirm")
        raise Discard("no address")

    @app.flow(name="order")
    async def order(flow: Flow) -> None:
        await flow.step(charge)
        await flow.step(ship)
        await flow.wait_for("paid")
        await flow.step(confirm)

    async with app.testing(now=NOW) as world:
        run = await order.start()
        await world.drain()
        await run.signal("paid")
        await world.drain()
        await run.rerun(from_step="ship")
        kept = [step.name for step in await run.steps()]
        await world.drain()
        await run.signal("paid")
        await world.drain()

    assert kept == ["charge"]
    assert calls == ["charge", "ship", "confirm", "ship", "confirm"]
