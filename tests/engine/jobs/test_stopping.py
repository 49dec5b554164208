"""A worker that stops lets its database calls end: nothing is logged, no connection is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from duetime import Context, Duetime, JobState
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.store import Beat, Exchange, PollResult
from tests.conftest import Backend, query
from tests.log_events import event_of
from tests.servers import PostgresServer
from tests.waiting import until, until_true, waits


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.name}: {event_of(record)}"
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


on_two = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)


def thrown_away(store: object) -> int:
    assert isinstance(store, PostgresStore)
    assert store._pool is not None
    return store._pool.get_stats().get("returns_bad", 0)


@pytest.mark.parametrize(
    "table", ["parked", "schedule", "subject"], ids=["housekeeping", "planner", "pruner"]
)
async def test_a_stopping_worker_lets_the_round_of_a_service_end(
    pg_app: Duetime, pg_url: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await pg_app.store()
    worker = pg_app._make_worker(store)
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute(f"lock table duetime.{table} in access exclusive mode")
        running = asyncio.create_task(worker.run())
        await until(lambda: waits(pg_url))
        worker.stop()
        ended, _ = await asyncio.wait([running], timeout=0.3)
    await running

    assert (warnings(caplog), thrown_away(store)) == ([], 0)
    assert not ended


@on_two
async def test_a_stop_lets_a_handler_end_within_the_grace(app: Duetime) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await release.wait()
        return "whole"

    worker = app._make_worker(await app.store(), grace="60s")
    running = asyncio.create_task(worker.run())
    handle = await slow.enqueue()
    await begun.wait()
    worker.stop()
    # Longer than a stop waits for what was told to end now.
    stopped, _ = await asyncio.wait([running], timeout=0.5)
    release.set()
    await running

    assert not stopped
    assert await handle.result("1s") == "whole"
    assert len((await app.jobs.get(handle.id)).history) == 1


@on_two
async def test_a_job_that_is_cancelled_while_its_worker_stops_ends_at_once(app: Duetime) -> None:
    begun = asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        await asyncio.sleep(60)

    # Heartbeats, which report cancelled jobs too, come only after the test has given up.
    worker = app._make_worker(await app.store(), grace="60s", lease="90s", heartbeat="30s")
    running = asyncio.create_task(worker.run())
    handle = await slow.enqueue()
    await begun.wait()
    worker.stop()
    await asyncio.wait([running], timeout=0.2)
    await handle.cancel(by="ann")
    async with asyncio.timeout(20):
        await running

    assert (await handle.get()).state is JobState.CANCELLED


async def test_a_stop_does_not_wait_for_a_database_that_hangs(pg_app: Duetime, pg_url: str) -> None:
    worker = pg_app._make_worker(await pg_app.store(), grace="300ms")
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute("lock table duetime.parked in access exclusive mode")
        running = asyncio.create_task(worker.run())
        await until(lambda: waits(pg_url))
        worker.stop()
        async with asyncio.timeout(20):
            await running


async def test_a_stop_while_the_server_answers_slowly_costs_no_connection(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Cancelled again and again, the driver could not clear up after the first."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True, grace="5s")
    store = await app.store()
    worker = app._make_worker(store)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("lock table duetime.parked in access exclusive mode")
        running = asyncio.create_task(worker.run())
        await until(lambda: waits(url))
        with own_postgres.paused():
            worker.stop()
            await asyncio.wait([running], timeout=0.5)
    await running
    bad = thrown_away(store)
    await app.close()

    assert (warnings(caplog), bad) == ([], 0)


@on_two
async def test_a_worker_that_is_cancelled_during_a_claim_gives_it_back(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim was made; nobody took its answer."""

    @app.task(max_attempts=1)
    async def note() -> None: ...

    store = await app.store()
    exchange = store.exchange
    claimed = asyncio.Event()

    async def unanswered(*args: Any, **options: Any) -> Exchange:
        answer = await exchange(*args, **options)
        if answer.claimed:
            claimed.set()
            await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(store, "exchange", unanswered)
    [handle] = await app.enqueue_many([note.job()])
    running = asyncio.create_task(app._make_worker(store).run())
    await claimed.wait()
    running.cancel()
    await asyncio.wait([running])
    job = await app.jobs.get(handle.id)

    assert (job.state, job.attempts) == (JobState.PENDING, 0)
    assert await app.workers.list() == []


@on_two
async def test_a_worker_that_gave_back_the_last_of_a_claim_is_gone(app: Duetime) -> None:
    """The others of the claim had ended: nothing is held, and nobody must wait for its lease."""
    ended = asyncio.Event()

    @app.task
    async def quick() -> None:
        ended.set()

    @app.task
    async def slow() -> None:
        await asyncio.Event().wait()

    await app.enqueue_many([quick.job(), slow.job()])
    async with app.worker() as worker:
        await ended.wait()
        await until_true(
            lambda: len(worker.loop.holdings) == 1 and not worker.loop.holdings.finished
        )
        worker.stop(now=True)

    assert await app.workers.list() == []


@on_two
async def test_a_lease_that_runs_out_while_the_worker_stops_ends_its_handlers(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat hangs: another worker may have the job before the grace is over."""
    hangs, free = threading.Event(), threading.Event()
    began, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    store = await app.store()
    heart = store.heart()

    class Stuck:
        def beat(self, worker_id: int, lease: timedelta, lag: timedelta) -> Beat:
            if hangs.is_set():
                free.wait()
            return heart.beat(worker_id, lease, lag)

        def close(self) -> None:
            heart.close()

    monkeypatch.setattr(store, "heart", Stuck)
    await slow.enqueue()
    async with app.worker(grace="20s", lease="1s", heartbeat="100ms") as worker:
        await began.wait()
        hangs.set()
        worker.stop()
        async with asyncio.timeout(15):
            await stopped.wait()
        free.set()


@on_two
async def test_a_worker_that_is_cancelled_while_it_stops_leaves_its_jobs_to_others(
    app: Duetime,
) -> None:
    """Nobody waits for its handlers any more, so nothing may keep its lease."""
    began: list[int] = []

    @app.task
    async def slow(ctx: Context) -> None:
        began.append(ctx.attempt)
        if len(began) == 1:
            await asyncio.Event().wait()

    worker = app._make_worker(await app.store(), lease="1s", heartbeat="200ms")
    running = asyncio.create_task(worker.run())
    handle = await slow.enqueue()
    await until_true(lambda: began)
    worker.stop()
    await asyncio.wait([running], timeout=0.2)
    running.cancel()
    await asyncio.wait([running])
    async with app.worker():
        await handle.result("30s")

    assert len(began) == 2


@on_two
async def test_a_worker_that_is_fenced_claims_no_quarantined_job(
    app: Duetime, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would only be lost once more, and that counts."""

    @app.task
    async def note() -> None: ...

    store = await app.store()
    worker = app._make_worker(store)
    poll = store.poll
    fenced: list[str] = []

    async def late(*args: Any, **options: Any) -> tuple[PollResult, list[Any]]:
        if not fenced:
            fenced.append("the lease ran out")
            worker.lease.fence(fenced[0])
        return await poll(*args, **options)

    monkeypatch.setattr(store, "poll", late)
    handle = await note.enqueue()
    query(backend, "update duetime.due set priority = 10")
    running = asyncio.create_task(worker.run())
    await handle.result("30s")
    worker.stop()
    await running

    assert (await handle.get()).attempts == 1
