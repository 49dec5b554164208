"""What people and deployments do to runs: pause, cancel, reschedule, requeue, stop, restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from duetime import Constant, Discard, Duetime, Flow, FlowRun, JobFailed, JobHandle
from duetime.errors import IllegalTransition, InvalidInput, KeyConflict
from tests import effects
from tests.conftest import Backend
from tests.waiting import until

ONCE = Constant("1ms", max_attempts=1)


async def test_a_worker_that_stops_during_a_step_gives_the_run_back(app: Duetime) -> None:
    """What was recorded does not run again; the interrupted step does."""
    calls: list[str] = []
    slow = True

    async def pay() -> str:
        calls.append("pay")
        return "paid"

    async def ship() -> str:
        calls.append("ship")
        if slow:
            await asyncio.sleep(60)
        return "shipped"

    @app.flow(name="order")
    async def order(flow: Flow) -> list[str]:
        return [await flow.step(pay), await flow.step(ship)]

    run = await order.start()
    async with app.worker(grace="50ms"):
        await until(lambda: _has(calls, "ship"))
    assert (await app.jobs.get(run.id)).state == "pending"
    slow = False
    async with app.worker():
        assert await run.result() == ["paid", "shipped"]

    assert calls == ["pay", "ship", "ship"]
    assert [str(one.outcome) for one in (await app.jobs.get(run.id)).history] == ["completed"]


async def test_a_step_that_ends_while_its_worker_stops_is_recorded(app: Duetime) -> None:
    calls: list[str] = []

    async def pay() -> None:
        calls.append("pay")
        await asyncio.sleep(0.3)
        calls.append("paid")

    @app.flow(name="order")
    async def order(flow: Flow) -> str:
        await flow.step(pay)
        await flow.sleep("1ms")
        return "done"

    run = await order.start()
    async with app.worker(grace="20s"):
        await until(lambda: _has(calls, "pay"))
    async with app.worker():
        assert await run.result() == "done"

    assert calls == ["pay", "paid"]


async def test_a_run_waits_while_its_queue_is_paused(app: Duetime) -> None:
    @app.flow(name="asks", queue="orders")
    async def asks(flow: Flow) -> Any:
        return await flow.wait_for("go")

    async with app.worker(queues=["orders"]):
        run = await asks.start()
        await until(lambda: _is_asleep(run))
        await app.queues.pause("orders", by="ann", reason="stock taking")
        await run.signal("go", 1)
        await asyncio.sleep(0.2)
        assert (await app.jobs.get(run.id)).state == "pending"
        await app.queues.resume("orders", by="ann")
        assert await run.result() == 1


async def test_sleeping_runs_take_no_place_of_a_limited_queue(app: Duetime) -> None:
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    @app.flow(name="limited", queue="narrow")
    async def limited(flow: Flow) -> None:
        await flow.step(work)
        await flow.wait_for("go")
        await flow.step(work)

    await app.queues.limit("narrow", running=2)
    async with app.worker(queues=["narrow"]):
        runs = [await limited.start() for _ in range(6)]
        for run in runs:
            await until(lambda run=run: _is_asleep(run))  # type: ignore[misc]
        for run in runs:
            await run.signal("go")
        for run in runs:
            await run.result()

    assert most <= 2


async def test_a_thousand_sleeping_runs_are_resumed_by_another_worker(app: Duetime) -> None:
    @app.flow(name="sleeps")
    async def sleeps(flow: Flow, number: int) -> int:
        await flow.wait_for("go")
        return number

    jobs = [sleeps.using().job(number) for number in range(1_000)]
    started = await app.enqueue_many(jobs)
    runs = [app.flows[handle.id] for handle in started]

    async def all_asleep() -> bool:
        return not await app.jobs.list(state="running", limit=1) and await _is_asleep(runs[-1])

    async with app.worker(concurrency=100):
        await until(all_asleep)
    assert {str(await run.status()) for run in runs[::100]} == {"waiting"}
    async with app.worker(concurrency=100):
        [worker] = await app.workers.list()
        assert worker.running == 0
        for run in runs[::50]:
            await run.signal("go")
        assert [await run.result() for run in runs[::50]] == list(range(0, 1_000, 50))


async def test_a_run_is_parked_until_a_worker_knows_its_flow(app: Duetime) -> None:
    @app.flow(name="known")
    async def known(flow: Flow) -> Any:
        return await flow.wait_for("go")

    definition = app.tasks["known"]
    run = await known.start()
    async with app.worker():
        await until(lambda: _is_asleep(run))
    del app.tasks["known"]
    async with app.worker():
        await run.signal("go", 1)
        await until(lambda: _has_status(run, "parked"))
    app.tasks["known"] = definition
    async with app.worker():
        assert await run.result() == 1


async def test_a_signal_to_a_parked_run_is_kept(app: Duetime) -> None:
    @app.flow(name="known")
    async def known(flow: Flow) -> Any:
        return [await flow.wait_for("go") for _ in range(2)]

    definition = app.tasks.pop("known")
    run = await known.start()
    async with app.worker():
        await until(lambda: _has_status(run, "parked"))
        await run.signal("go", 1)
        await run.signal("go", 2)
    app.tasks["known"] = definition
    async with app.worker():
        assert await run.result() == [1, 2]


async def test_a_suspended_run_is_cancelled_as_its_job_is(app: Duetime) -> None:
    @app.flow(name="asks")
    async def asks(flow: Flow) -> Any:
        return await flow.wait_for("go")

    async with app.worker():
        run = await asks.start()
        await until(lambda: _is_asleep(run))
        await app.jobs.cancel(run.id)
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()


async def test_a_sleep_does_not_end_early_because_the_job_was_moved(
    app: Duetime, backend: Backend
) -> None:
    """A run that is woken early checks what it waits for, and sleeps on."""

    @app.flow(name="sleeps")
    async def sleeps(flow: Flow) -> str:
        await flow.sleep("1h")
        return "slept"

    async with app.worker():
        run = await sleeps.start()
        await until(lambda: _is_asleep(run))
        before = await run.get()
        due, now = ("duetime.due", "now()") if backend.is_postgres else ("duetime_due", "0")
        effects.run(backend.url, f"update {due} set run_at = {now}")
        await until(lambda: _has_attempts(app, run, 2))
        await until(lambda: _is_asleep(run))

    assert (await run.get()).run_at == before.run_at


async def test_a_requeued_run_goes_on_from_its_place(app: Duetime) -> None:
    calls: list[str] = []
    broken = True

    async def pay() -> str:
        calls.append("pay")
        return "paid"

    @app.flow(name="order", retry=ONCE)
    async def order(flow: Flow) -> str:
        paid = await flow.step(pay)
        if broken:
            raise ValueError("a mistake in the flow")
        return paid

    async with app.worker():
        run = await order.start()
        with pytest.raises(JobFailed, match="a mistake in the flow"):
            await run.result()
        broken = False
        await app.jobs.requeue(run.id)
        assert await run.result() == "paid"

    assert calls == ["pay"]


async def _has(calls: list[str], name: str) -> bool:
    return name in calls


async def _has_status(run: FlowRun[Any], status: str) -> bool:
    return str(await run.status()) == status


async def _has_attempts(app: Duetime, run: FlowRun[Any] | JobHandle[Any], count: int) -> bool:
    return len((await app.jobs.get(run.id)).history) >= count


async def _is_asleep(run: FlowRun[Any]) -> bool:
    return await run.status() in ("sleeping", "waiting")


async def test_a_requeued_run_makes_the_failed_call_again(app: Duetime) -> None:
    """As `retry` does: what failed is recorded, and would fail again without being called."""
    calls: list[str] = []

    async def pay() -> str:
        calls.append("pay")
        if len(calls) == 1:
            raise Discard("no money")
        return "paid"

    @app.flow(name="order", retry=ONCE)
    async def order(flow: Flow) -> str:
        return await flow.step(pay)

    async with app.worker():
        run = await order.start()
        with pytest.raises(JobFailed, match="no money"):
            await run.result()
        await app.jobs.requeue(run.id)
        assert await run.result() == "paid"

    assert calls == ["pay", "pay"]


async def test_a_run_that_was_undone_is_not_requeued(app: Duetime) -> None:
    """Neither alone nor with others: what it did would be done again beside what is left of it."""
    effects: list[str] = []

    @app.flow(name="order", retry=ONCE)
    async def order(flow: Flow) -> None:
        await flow.step(effects.append, "charge")
        flow.on_failure(effects.append, "refund")
        raise ValueError("a mistake in the flow")

    @app.task(name="other", retry=ONCE)
    async def other() -> None:
        raise ValueError("broken")

    async with app.worker():
        run, job = await order.start(), await other.enqueue()
        with pytest.raises(JobFailed):
            await run.result()
        with pytest.raises(JobFailed):
            await job.result()
        with pytest.raises(InvalidInput, match=r"compensations run or have run.*--from-step"):
            await app.jobs.requeue(run.id)
        many = await app.jobs.requeue_many()
        await until(lambda: _has_attempts(app, job, 2))
        action = await app.jobs.requeue_all(state="dead")
        progress = await action.result()

    assert many.jobs == [job.id]
    assert (progress.done, progress.skipped) == (1, 1)
    assert effects == ["charge", "refund"]


async def test_the_job_of_a_step_is_not_requeued_by_itself(app: Duetime) -> None:
    graph = app.graph("onboard")

    @graph.step(retry=ONCE)
    async def greet() -> None:
        raise ValueError("nobody there")

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed):
            await run.result()
        [step] = [job for job in await app.jobs.list(state="dead") if job.id != run.id]
        with pytest.raises(InvalidInput, match=f"duetime flows retry {run.id}"):
            await app.jobs.requeue(step.id)
        many = await app.jobs.requeue_many()

    assert many.jobs == [run.id]


@pytest.mark.parametrize("how", ["requeue", "retry", "rerun"])
async def test_a_child_is_not_retried_by_itself(app: Duetime, how: str) -> None:
    """Its parent has recorded that it failed."""
    fixed = False

    async def work() -> str:
        if not fixed:
            raise ValueError("broken")
        return "done"

    @app.flow(name="child", retry=ONCE)
    async def child(flow: Flow) -> str:
        return await flow.step(work)

    @app.flow(name="parent", retry=ONCE)
    async def parent(flow: Flow) -> str:
        return await flow.child(child)

    async with app.worker():
        run = await parent.start()
        with pytest.raises(JobFailed, match="broken"):
            await run.result()
        [step] = await run.steps()
        assert step.job_id is not None
        again: dict[str, Callable[[int], Awaitable[object]]] = {
            "requeue": app.jobs.requeue,
            "retry": app.flows.retry,
            "rerun": partial(app.flows.rerun, from_step="work"),
        }
        with pytest.raises(InvalidInput, match=f"duetime flows retry {run.id}"):
            await again[how](step.job_id)
        fixed = True
        await run.retry()
        assert await run.result() == "done"


@pytest.mark.parametrize("how", ["many", "all", "transaction"])
async def test_a_run_of_a_graph_whose_key_is_taken_keeps_its_record(app: Duetime, how: str) -> None:
    """It is not requeued, since another run holds the key, so nothing of it may change."""
    graph = app.graph("order")
    graph.signal("go")

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund(charge: int) -> None: ...

    @graph.step
    async def ship(charge: int, go: None) -> None:
        raise Discard("no address")

    async with app.worker():
        run = await graph.using(key="k").start()
        await run.signal("go")
        with pytest.raises(JobFailed, match="no address"):
            await run.result()
        before = await run.steps()
        other = await graph.using(key="k").start()
        assert other.id != run.id

        if how == "many":
            requeued = await app.jobs.requeue_many(state="dead", task="order")
            assert (requeued.jobs, requeued.conflicts) == ([], {run.id: other.id})
        elif how == "all":
            action = await app.jobs.requeue_all(state="dead", task="order")
            assert (await action.result()).done == 0
        else:
            async with (await app.store()).transaction() as tx:
                with pytest.raises(KeyConflict):
                    await app.jobs.requeue(run.id, tx=tx)

    assert await run.steps() == before
    assert await run.status() == "failed"


@pytest.mark.parametrize("waits", ["sleep", "signal"])
async def test_a_run_that_has_begun_is_not_replaced(app: Duetime, waits: str) -> None:
    effects: list[str] = []

    @app.flow(name="order")
    async def order(flow: Flow, number: int) -> int:
        await flow.step(effects.append, f"charge {number}")
        if waits == "sleep":
            await flow.sleep("300ms")
        else:
            await flow.wait_for("go", timeout="300ms", default=None)
        await flow.step(effects.append, f"ship {number}")
        return number

    async with app.worker():
        first = await order.using(key="k").start(number=1)
        await until(lambda: _is_asleep(first))
        second = await order.using(key="k", on_conflict="replace").start(number=2)
        results = [await first.result(), await second.result()]
        later = await order.using(key="k", delay="1h").start(number=3)
        changed = await order.using(key="k", on_conflict="replace").start(number=4)
        assert await changed.result() == 4

    assert results == [1, 2]
    assert later.id == changed.id
    assert sorted(effects) == ["charge 1", "charge 2", "charge 4", "ship 1", "ship 2", "ship 4"]


async def test_a_graph_that_has_begun_is_not_replaced(app: Duetime) -> None:
    seen: list[int] = []
    graph = app.graph("onboard")

    @graph.step
    async def first(number: int) -> int:
        seen.append(number)
        return number

    graph.signal("go", after=["first"])

    @graph.step(after=["go"])
    async def second(number: int) -> None:
        seen.append(number)

    async with app.worker():
        run = await graph.using(key="k").start(number=1)
        await until(lambda: _is_asleep(run))
        other = await graph.using(key="k", on_conflict="replace").start(number=2)
        for one in (run, other):
            await one.signal("go")
            await one.result()

    assert sorted(seen) == [1, 1, 2, 2]


async def test_a_run_that_waits_is_not_rescheduled(app: Duetime) -> None:
    """Its job is due when its wait ends: later, it would miss its time-out."""

    @app.flow(name="order")
    async def order(flow: Flow) -> Any:
        return await flow.wait_for("go", timeout="1h", default="late")

    async with app.worker():
        run = await order.start()
        await until(lambda: _is_asleep(run))
        waits = await app.jobs.get(run.id)
        at = await app.now() + timedelta(hours=5)
        with pytest.raises(InvalidInput, match="has begun"):
            await app.jobs.reschedule(run.id, at)
        action = await app.jobs.reschedule_all(at, task="order")
        progress = await action.result()
        assert (await app.jobs.get(run.id)).run_at == waits.run_at
        await run.signal("go", "in time")
        assert await run.result() == "in time"

    assert (progress.done, progress.skipped) == (0, 1)


async def test_a_run_that_has_not_failed_is_not_requeued(app: Duetime) -> None:
    """Nor is anything of it reset."""
    graph = app.graph("onboard")

    @graph.step
    async def greet() -> str:
        return "hello"

    graph.signal("go", after=["greet"])

    async with app.worker():
        run = await graph.start()
        await until(lambda: _is_asleep(run))
        with pytest.raises(IllegalTransition, match="pending"):
            await app.jobs.requeue(run.id)
        await run.signal("go")
        await run.result()
        before = await run.steps()
        with pytest.raises(IllegalTransition, match="completed"):
            await app.jobs.requeue(run.id)

    assert await run.steps() == before
