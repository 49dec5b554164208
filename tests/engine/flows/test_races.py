"""A run and whoever signals it act at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from duetime import Duetime, Flow, FlowRun, JobState
from duetime.errors import FlowEnded
from duetime.flows.follower import FlowFollower
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
