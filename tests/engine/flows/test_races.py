"""A run and whoever signals, cancels, retries or undoes it act at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from duetime import CallNext, Context, Discard, Duetime, Flow, FlowRun, JobFailed, JobState
from duetime.api.requeueing import rerun_steps, retry_run
from duetime.errors import FlowEnded, FlowNotFound, InvalidInput
from duetime.flows.follower import FlowFollower, clean_up
from duetime.storage.flows.graphs import GraphStatements
from tests.conftest import Backend, query
from tests.waiting import until, until_true


@pytest.fixture
def no_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that is lost stays lost."""

    async def repair(self: FlowFollower) -> float:
        return 60.0

    monkeypatch.setattr(FlowFollower, "repair", repair)


@pytest.mark.usefixtures("no_repair")
async def test_no_signal_is_lost_while_runs_suspend(app: Duetime) -> None:
    """Each run takes five signals, which are sent while it suspends, runs and is resumed."""

    @app.flow(name="collects")
    async def collects(flow: Flow) -> list[int]:
        return [await flow.wait_for("item") for _ in range(5)]

    chance = random.Random(1)

    async def send(run: FlowRun[Any]) -> None:
        for number in range(5):
            await asyncio.sleep(chance.uniform(0.0, 0.05))
            await run.signal("item", number)

    async with app.worker(concurrency=20, poll="60s"), app.worker(concurrency=20, poll="60s"):
        runs = [await collects.start() for _ in range(60)]
        await asyncio.gather(*(send(run) for run in runs))
        results = [await run.result("30s") for run in runs]

    assert results == [[0, 1, 2, 3, 4]] * 60


@pytest.mark.usefixtures("no_repair")
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_signal_in_an_open_transaction_holds_up_nobody_else(
    pg_app: Duetime, pg_url: str, end: str
) -> None:
    @pg_app.flow(name="asks")
    async def asks(flow: Flow) -> Any:
        return await flow.wait_for("go")

    @pg_app.flow(name="sleeps")
    async def sleeps(flow: Flow) -> str:
        await flow.sleep("10ms")
        return "slept"

    run = await asks.start()
    async with await psycopg.AsyncConnection.connect(pg_url) as caller:
        await run.signal("go", "first", tx=caller)
        async with pg_app.worker(poll="60s"):
            # It cannot suspend before the caller's transaction has ended; others can.
            others = [await sleeps.start() for _ in range(5)]
            assert [await other.result("20s") for other in others] == ["slept"] * 5
            assert await run.status() == "running"
            await (caller.commit() if end == "commit" else caller.rollback())
            if end == "rollback":
                await until(lambda: _has_status(run, "waiting"))
                await run.signal("go", "second")
            assert await run.result("20s") == ("first" if end == "commit" else "second")


@pytest.mark.usefixtures("no_repair")
@pytest.mark.parametrize("how", ["steps of a graph", "jobs of a function"])
async def test_a_signal_in_an_open_transaction_holds_up_no_run_whose_steps_end_with_its_own(
    pg_app: Duetime, pg_url: str, how: str
) -> None:
    """More runs are signalled than the pool has connections."""
    graph = pg_app.graph("pair")
    begun: list[int] = []
    go = asyncio.Event()

    async def wait(number: int) -> int:
        begun.append(number)
        await go.wait()
        return number

    @graph.step
    async def first(number: int) -> int:
        return await wait(number)

    @graph.step
    async def last(first: int) -> int:
        return first

    @pg_app.task(name="job")
    async def job(number: int) -> int:
        return await wait(number)

    @pg_app.flow(name="has_a_job")
    async def has_a_job(flow: Flow, number: int) -> dict[str, int]:
        return {"last": await flow.step(job, number, on="default")}

    start = graph.start if how == "steps of a graph" else has_a_job.start
    async with pg_app.worker(poll="60s"):
        runs = [await start(number=number) for number in range(12)]
        await until_true(lambda: len(begun) == 12)
        await until(lambda: _are_suspended(pg_app, runs))
        async with await psycopg.AsyncConnection.connect(pg_url) as caller:
            for run in runs[:6]:
                await run.signal("ignored", tx=caller)
            go.set()
            others = [await run.result("20s") for run in runs[6:]]
            are_open = [not (await run.status()).finished for run in runs[:6]]
            await caller.commit()
        signalled = [await run.result("20s") for run in runs[:6]]

    assert others == [{"last": number} for number in range(6, 12)]
    assert all(are_open)
    assert signalled == [{"last": number} for number in range(6)]
    assert sorted(begun) == list(range(12))


@pytest.mark.usefixtures("no_repair")
async def test_a_signal_in_an_open_transaction_holds_up_no_graph_that_starts(
    pg_app: Duetime, pg_url: str
) -> None:
    graph = pg_app.graph("short")

    @graph.step
    async def only(number: int) -> int:
        return number

    signalled = [await graph.start(number=number) for number in range(6)]
    async with await psycopg.AsyncConnection.connect(pg_url) as caller, pg_app.worker(poll="60s"):
        for run in signalled:
            await run.signal("ignored", tx=caller)
        other = await graph.start(number=6)
        assert await other.result("20s") == {"only": 6}
        assert {str(await run.status()) for run in signalled} == {"running"}
        await caller.commit()
        results = [await run.result("20s") for run in signalled]

    assert results == [{"only": number} for number in range(6)]


async def test_a_signal_by_a_sender_that_cannot_see_the_wait_arrives_in_seconds(
    pg_app: Duetime, pg_url: str
) -> None:
    """Its transaction is REPEATABLE READ and began before the run did."""

    @pg_app.flow(name="asks")
    async def asks(flow: Flow) -> Any:
        return await flow.wait_for("go")

    run = await asks.start()
    async with await psycopg.AsyncConnection.connect(pg_url) as caller:
        await caller.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        await caller.execute("select count(*) from duetime.due")
        async with pg_app.worker(poll="60s"):
            await until(lambda: _is_waiting(run))
            await run.signal("go", "late", tx=caller)
            await caller.commit()

            assert await run.result("20s") == "late"


async def test_a_signal_and_its_time_out_race_and_one_wins(app: Duetime, backend: Backend) -> None:
    seen: dict[int, list[Any]] = {}

    @app.flow(name="impatient")
    async def impatient(flow: Flow) -> Any:
        answer = await flow.wait_for("go", timeout="100ms", default="late")
        seen.setdefault(flow.id, []).append(answer)
        await flow.sleep("10ms")
        seen[flow.id].append(answer)
        return answer

    async def start_and_send(after: float) -> FlowRun[Any]:
        run = await impatient.start()
        await asyncio.sleep(after)
        with suppress(FlowEnded):
            await run.signal("go", "in time")
        return run

    async with app.worker(concurrency=20):
        runs = await asyncio.gather(*(start_and_send(0.005 * number) for number in range(40)))
        answers = [await run.result() for run in runs]

    taken = {run for run, seq in _signals(backend) if seq is not None}
    in_time = {run.id for run, answer in zip(runs, answers, strict=True) if answer == "in time"}
    assert in_time == taken
    assert all(len(set(one)) == 1 for one in seen.values())
    assert len(taken) > 0


async def test_two_workers_share_runs_and_repeat_no_step(app: Duetime) -> None:
    calls: list[tuple[int, int]] = []

    async def note(run: int, number: int) -> None:
        calls.append((run, number))

    @app.flow(name="shared")
    async def shared(flow: Flow, run: int) -> None:
        for number in range(4):
            await flow.step(note, run, number)
            await flow.sleep("5ms")

    async with app.worker(), app.worker():
        runs = [await shared.start(number) for number in range(30)]
        for run in runs:
            await run.result()

    assert sorted(calls) == [(run, number) for run in range(30) for number in range(4)]


def _signals(backend: Backend) -> list[tuple[Any, ...]]:
    return query(backend, "select run_id, seq from duetime.flow_signal")


async def _are_suspended(app: Duetime, runs: Sequence[FlowRun[Any]]) -> bool:
    jobs = [await app.jobs.get(run.id) for run in runs]
    return all(job.state is JobState.PENDING for job in jobs)


async def _has_status(run: FlowRun[Any], status: str) -> bool:
    return str(await run.status()) == status


async def _is_waiting(run: FlowRun[Any]) -> bool:
    return await _has_status(run, "waiting") and bool(await run.steps())


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("limit", ["1s", "1h"])
@pytest.mark.parametrize("maps", [False, True])
async def test_a_run_that_ended_while_its_jobs_ran_starts_them_again_when_retried(
    app: Duetime, at_once: bool, limit: str, maps: bool
) -> None:
    """They were cancelled with it, or are about to be."""
    mended = asyncio.Event()
    starts = 0

    @app.task(name="slow")
    async def slow(item: int) -> int:
        nonlocal starts
        starts += 1
        if item:
            await mended.wait()
        return item

    @app.flow(name="order", timeout=limit)
    async def order(flow: Flow) -> Any:
        if maps:
            return await flow.map(slow, [0, 1], on="jobs")
        return await flow.step(slow, 1, on="jobs")

    async with app.worker(queues=["default", "jobs"]):
        run = await order.start()
        await until_true(lambda: starts == 1 + maps)
        if limit == "1h":
            await run.cancel()
        with pytest.raises(JobFailed):
            await run.result()
        if not at_once:
            await until(lambda: all_have_ended(app))
        mended.set()
        await run.retry()

        assert await run.result() == ([0, 1] if maps else 1)

    # A job that was not cancelled yet is waited for.
    assert starts in ((1 + maps, 2 + maps) if at_once else (2 + maps,))


async def all_have_ended(app: Duetime) -> bool:
    return all(job.state.finished for job in await app.jobs.list())


async def test_the_job_that_undoes_a_run_does_nothing_once_the_run_was_rerun(
    app: Duetime,
) -> None:
    done: list[str] = []
    fails = True

    async def charge() -> None:
        done.append("charge")

    async def refund() -> None:
        done.append("refund")

    async def ship() -> None:
        if fails:
            # So that the job that undoes the run waits.
            await app.queues.pause("default")
            raise Discard("no address")

    @app.flow(name="order")
    async def order(flow: Flow) -> None:
        await flow.step(charge)
        flow.on_failure(refund)
        await flow.step(ship)
        await flow.wait_for("go")

    async with app.worker():
        run = await order.start()
        [undo] = await until(lambda: app.jobs.list(key=f"flow-undo:{run.id}"))
        await app.jobs.cancel(undo.id)
        await app.queues.resume("default")
        fails = False
        await run.rerun(from_step="charge")
        await until(lambda: is_in(run, "waiting"))
        await app.jobs.requeue(undo.id)
        await app.jobs.result(undo.id)
        await run.signal("go")
        await run.result()

    assert done == ["charge", "charge"]


async def test_a_run_is_not_rerun_while_a_job_that_undoes_it_is_open(app: Duetime) -> None:
    """It is seen under the lock that whoever enqueues that job takes."""

    async def charge() -> None: ...

    async def ship() -> None:
        await app.queues.pause("default")
        raise Discard("no address")

    @app.flow(name="order")
    async def order(flow: Flow) -> None:
        await flow.step(charge)
        flow.on_failure(charge)
        await flow.step(ship)

    async with app.worker():
        run = await order.start()
        await until(lambda: app.jobs.list(key=f"flow-undo:{run.id}"))
        store = await app.store()

        with pytest.raises(InvalidInput, match="are running"):
            await store.transact(rerun_steps(store.dialect, run.id, "charge", by="ann"))
        assert await run.status() == "compensating"


async def test_retry_of_a_run_that_was_pruned_meanwhile_says_so(app: Duetime) -> None:
    store = await app.store()

    with pytest.raises(FlowNotFound):
        await store.transact(retry_run(store.dialect, 7, by="ann"))


async def test_compensations_of_a_graph_are_not_cancelled_with_its_jobs(app: Duetime) -> None:
    """Neither by who cleans up after the run, nor by who repairs what a crash left undone."""
    done: list[str] = []
    go_on = asyncio.Event()
    graph = app.graph("order")

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund() -> None:
        done.append("refund")
        await go_on.wait()
        done.append("refunded")

    graph.signal("go")

    async with app.worker():
        run = await graph.start()
        await until(lambda: _has_completed(run, "charge"))
        await app.jobs.cancel(run.id)
        await until_true(lambda: done)
        store = await app.store()
        await clean_up(store, [run.id])
        steps = await store.transact(GraphStatements(store.dialect).job_steps(0), reads=True)
        go_on.set()
        with pytest.raises(JobFailed):
            await run.result()

    assert done == ["refund", "refunded"]
    [(_, has_ended, is_orphan)] = steps
    assert not has_ended
    assert not is_orphan


async def _has_completed(run: FlowRun[Any], name: str) -> bool:
    return any(step.name == name and step.state == "completed" for step in await run.steps())


async def test_a_step_of_a_graph_that_ends_while_the_run_is_cancelled_is_undone(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function has returned, and its record waits for others."""
    done: list[str] = []
    steps = app._graph_steps
    submit = steps._submit

    async def hangs_once(ended: Any) -> Any:
        if not done:
            done.append("charged")
            await asyncio.Event().wait()
        return await submit(ended)

    graph = app.graph("order")

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund(charge: int) -> None:
        done.append(f"refund {charge}")

    monkeypatch.setattr(steps, "_submit", hangs_once)
    async with app.worker():
        run = await graph.start()
        await until_true(lambda: done)
        await run.cancel()
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()

    assert done == ["charged", "refund 7"]
    assert await run.status() == "cancelled"


async def test_a_step_of_a_graph_that_is_cancelled_while_its_end_is_written_is_not_lost(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recorded once and undone. To record it again would say that the claim is lost."""
    done: list[str] = []
    outcomes: list[Any] = []
    steps = app._graph_steps
    write = steps._write

    async def write_after_cancellation(ended: Any, **how: Any) -> Any:
        if not done:
            done.append("charged")
            await until_true(lambda: ended[0].ctx.cancel_requested)
        return await write(ended, **how)

    @app.middleware
    async def watch(ctx: Context, call_next: CallNext) -> object:
        try:
            outcome = await call_next()
        except BaseException as error:
            outcome = error
            raise
        finally:
            if ctx.job.task == "order.charge":
                outcomes.append(outcome)
        return outcome

    graph = app.graph("order")

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund(charge: int) -> None:
        done.append(f"refund {charge}")

    monkeypatch.setattr(steps, "_write", write_after_cancellation)
    async with app.worker():
        run = await graph.start()
        await until_true(lambda: done)
        await run.cancel()
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()
        await until_true(lambda: outcomes)

    assert done == ["charged", "refund 7"]
    assert outcomes == [None]


@pytest.mark.parametrize("runs", ["step", "compensation"])
async def test_a_graph_is_not_retried_while_one_of_its_jobs_runs(app: Duetime, runs: str) -> None:
    """The job of the run was cancelled, which has ended at once."""
    done: list[str] = []
    go_on = asyncio.Event()
    graph = app.graph("order")

    async def hang(what: str) -> None:
        done.append(what)
        try:
            await go_on.wait()
        finally:
            await go_on.wait()

    @graph.step
    async def charge() -> int:
        return 7

    @graph.on_failure(charge)
    async def refund() -> None:
        if runs == "compensation":
            await hang("refund")

    @graph.step
    async def ship(charge: int) -> int:
        if runs == "step":
            await hang("ship")
        return charge

    graph.signal("go")

    async with app.worker():
        run = await graph.start()
        if runs == "step":
            await until_true(lambda: done)
        else:
            await until(lambda: _is_waiting(run))
        await app.jobs.cancel(run.id)
        await until_true(lambda: done)

        for again in (run.retry(), run.rerun(from_step="charge"), app.jobs.requeue(run.id)):
            with pytest.raises(InvalidInput, match="have not ended"):
                await again
        assert (await app.jobs.requeue_many(state="cancelled", task="order")).jobs == []
        go_on.set()
        await until(lambda: all_have_ended(app))
        await run.retry()
        await run.signal("go")
        assert await run.result() == {"ship": 7, "go": None}

    states = {step.name: str(step.state) for step in await run.steps()}
    assert states["refund"] == "skipped"


async def test_a_run_is_not_rerun_while_the_job_of_a_step_that_it_repeats_runs(
    app: Duetime,
) -> None:
    """The repeated step would take the result of that job, which has the arguments of before."""
    shipped: list[int] = []
    go_on = asyncio.Event()

    async def choose() -> int:
        return len(shipped) + 1

    @app.task(name="ship")
    async def ship(number: int) -> int:
        shipped.append(number)
        try:
            await go_on.wait()
        finally:
            await go_on.wait()
        return number

    @app.flow(name="order")
    async def order(flow: Flow) -> list[int]:
        number = await flow.step(choose)
        return [number, await flow.step(ship, number, on="jobs")]

    async with app.worker(queues=["default", "jobs"]):
        run = await order.start()
        await until_true(lambda: shipped)
        await run.cancel()
        with pytest.raises(JobFailed, match="cancelled"):
            await run.result()

        with pytest.raises(InvalidInput, match=r"'ship', which is to run again, has not ended"):
            await run.rerun(from_step="choose")
        go_on.set()
        await until(lambda: all_have_ended(app))
        await run.rerun(from_step="choose")
        assert await run.result() == [2, 2]

    assert shipped == [1, 2]


async def test_a_graph_that_has_just_ended_is_not_marked_as_cancelled(app: Duetime) -> None:
    graph = app.graph("short")

    @graph.step
    async def only() -> int:
        return 1

    async with app.worker():
        run = await graph.start()
        await run.result()
    store = await app.store()
    statements = GraphStatements(store.dialect)

    assert not await store.transact(statements.cancel(run.id, reason=None, actor="ann"))
    assert 0 not in [step.seq for step in await app.flows._records(run.id)]


async def is_in(run: FlowRun[Any], state: str) -> bool:
    return await run.status() == state
