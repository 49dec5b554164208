"""A run that is started beside an idle worker is held by it with the commit of its enqueue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import psycopg
import pytest

from duetime import Duetime, Flow
from duetime.domain.jobs.job import JobState, NewJob
from duetime.engine.worker import Worker
from duetime.errors import DatabaseUnreachable
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from tests.conformance.hand import Hand
from tests.waiting import until_true

EnqueueHeld = Callable[[NewJob, int], Awaitable[Any]]
JOB = NewJob(
    task="order",
    args=msgspec.Raw(b'{"id": 7, "note": "\xc3\xa4"}'),
    queue="shop",
    priority=3,
    partition="p",
    max_attempts=4,
    timeout=timedelta(seconds=90),
    trace={"traceparent": "00-1"},
    flow=True,
)


@pytest.fixture
async def store(pg_url: str) -> AsyncIterator[PostgresStore]:
    upgrade(PostgresMigrator(pg_url))
    store = PostgresStore(pg_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def hand(store: PostgresStore) -> Hand:
    return await Hand.register(store, ["shop"], timedelta(minutes=1), "w")


@pytest.fixture
async def app(pg_url: str) -> AsyncIterator[Duetime]:
    app = Duetime(pg_url)
    yield app
    await app.close()


@pytest.mark.parametrize(
    "expires",
    [
        {},
        {"expires_after": timedelta(hours=1)},
        {"expires_at": datetime(2900, 1, 1, tzinfo=UTC)},
    ],
)
async def test_it_is_what_a_claim_would_return(
    store: PostgresStore, hand: Hand, expires: dict[str, Any]
) -> None:
    job = msgspec.structs.replace(JOB, **expires)
    enqueued, held = await store.enqueue_held(job, hand.id)
    await store.enqueue([job])
    claimed = await hand.claim_one()

    assert held is not None
    assert held.id == enqueued.job_id < claimed.id
    assert held.token < claimed.token
    apart = {"id": 0, "token": 0, "run_at": claimed.run_at, "claimed_at": claimed.claimed_at}
    alike = msgspec.structs.replace(claimed, **apart, expires_at=held.expires_at)
    assert msgspec.structs.replace(held, **apart) == alike
    assert held.run_at == held.claimed_at
    assert held.is_unrecorded
    assert (held.expires_at is None) == (claimed.expires_at is None)
    assert await hand.finish(held) == frozenset()


@pytest.mark.parametrize(
    "reason",
    [
        "insert into duetime.queue (name, paused_at) values ('shop', now())",
        "insert into duetime.queue (name, running) values ('shop', 1)",
        "update duetime.worker set lease_until = clock_timestamp()",
        "delete from duetime.worker",
    ],
)
async def test_it_waits_in_due_if_the_worker_may_not_claim_it(
    store: PostgresStore, hand: Hand, pg_url: str, reason: str
) -> None:
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(reason.encode())
        enqueued, held = await store.enqueue_held(JOB, hand.id)
        due = connection.execute("select job_id, attempt from duetime.due").fetchall()
        claims = connection.execute("select from duetime.claim").fetchall()

    assert held is None
    assert due == [(enqueued.job_id, 0)]
    assert claims == []


async def start_idle(app: Duetime) -> None:
    """A worker that sleeps, in a process that knows its rights."""
    [(worker, _)] = app._running_workers
    store = cast("PostgresStore", await app.store())
    await store._may_copy()
    await until_true(lambda: not worker.loop.pace.should_claim)


async def test_a_worker_that_stops_meanwhile_gives_the_run_back(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_go_on = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @app.flow
    async def order(flow: Flow) -> None:
        ran.append(1)

    async with app.worker() as worker:
        await start_idle(app)
        slow_down(await app.store(), monkeypatch, began, may_go_on)
        starting = asyncio.create_task(order.start())
        await began.wait()
        assert isinstance(worker, Worker)
        worker.stop()
        asyncio.get_running_loop().call_later(0.1, may_go_on.set)
    run = await starting
    job = await app.jobs.get(run.id)

    assert job.state is JobState.PENDING
    assert (job.attempts, ran) == (0, [])


def slow_down(
    store: Any, monkeypatch: pytest.MonkeyPatch, began: asyncio.Event, may_go_on: asyncio.Event
) -> None:
    enqueue_held: EnqueueHeld = store.enqueue_held

    async def later(job: NewJob, worker_id: int) -> Any:
        answer = await enqueue_held(job, worker_id)
        began.set()
        await may_go_on.wait()
        return answer

    monkeypatch.setattr(store, "enqueue_held", later)


async def test_if_the_answer_is_lost_the_run_is_given_back_and_runs_once(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @app.flow
    async def order(flow: Flow) -> None:
        ran.append(flow.id)

    async with app.worker():
        await start_idle(app)
        store: Any = await app.store()
        enqueue_held: EnqueueHeld = store.enqueue_held

        async def lost(job: NewJob, worker_id: int) -> Any:
            monkeypatch.setattr(store, "enqueue_held", enqueue_held)
            await enqueue_held(job, worker_id)
            raise DatabaseUnreachable("the connection broke off")

        monkeypatch.setattr(store, "enqueue_held", lost)
        with pytest.raises(DatabaseUnreachable):
            await order.start()
        await until_true(lambda: ran != [])
        [found] = await app.jobs.list()
        assert await app.jobs.result(found.id) is None
    job = await app.jobs.get(found.id)

    assert ran == [found.id]
    assert [attempt.outcome for attempt in job.history] == ["completed"]


async def test_a_run_goes_to_any_worker_while_this_one_is_busy(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    release = asyncio.Event()

    @app.flow
    async def order(flow: Flow) -> None:
        await release.wait()

    async with app.worker():
        await start_idle(app)
        store: Any = await app.store()
        enqueue_held: EnqueueHeld = store.enqueue_held

        async def count(job: NewJob, worker_id: int) -> Any:
            held.append(1)
            return await enqueue_held(job, worker_id)

        monkeypatch.setattr(store, "enqueue_held", count)
        first = await order.start()
        second = await order.start()
        release.set()
        await first.result()
        await second.result()

    assert held == [1]
