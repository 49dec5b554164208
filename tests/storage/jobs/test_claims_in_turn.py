"""Claims of workers within a backlog: at most two at a time, and nobody waits for long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from duetime.domain.jobs.job import ClaimedJob, NewJob
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.store import Lane
from tests.storage.jobs.test_postgres_races import blocked
from tests.waiting import until

QUEUES = ("default", "mail")


@pytest.fixture(params=["pool", "listener"])
async def store(pg_url: str, request: pytest.FixtureRequest) -> AsyncIterator[PostgresStore]:
    """A claim goes over the pool, or over the session on which its worker listens."""
    upgrade(PostgresMigrator(pg_url))
    store = PostgresStore(pg_url)
    await store.open()
    if request.param == "listener":
        await store.sleeper(await register(store))
    yield store
    await store.close()


async def register(store: PostgresStore) -> int:
    return await store.register_worker(
        name="w", queues=QUEUES, tasks={}, concurrency=9, lease=timedelta(seconds=60)
    )


def lanes(*queues: str) -> list[Lane]:
    return [Lane(queue, 5, datetime(1970, 1, 1, tzinfo=UTC)) for queue in queues]


async def claim(
    store: PostgresStore, worker_id: int, *queues: str, in_turn: bool = True
) -> list[ClaimedJob]:
    given = lanes(*(queues or QUEUES))
    return (await store.exchange(worker_id, lanes=given, want=1, in_turn=in_turn)).claimed


@asynccontextmanager
async def turn(
    store: PostgresStore, url: str, worker_id: int
) -> AsyncIterator[psycopg.AsyncConnection]:
    """The turn of this worker's claims, until the transaction ends."""
    names = json.dumps([{"queue": queue} for queue in reversed(QUEUES)])
    async with await psycopg.AsyncConnection.connect(url) as connection:
        given = {"lanes": names, "worker": worker_id}
        await connection.execute(store._sql["claim_turn"], given)
        yield connection


async def test_a_claim_waits_for_its_turn_and_sees_what_was_committed_before(
    store: PostgresStore, pg_url: str
) -> None:
    [first, second] = await store.enqueue([NewJob(task="noop")] * 2)
    worker_id = await register(store)
    async with turn(store, pg_url, worker_id + 2) as other:
        await other.execute("delete from duetime.due where job_id = %s", [first.job_id])
        claiming = asyncio.create_task(claim(store, worker_id))
        await until(lambda: blocked(pg_url))
        await other.commit()
    [job] = await claiming

    assert job.id == second.job_id


async def test_it_waits_neither_for_every_second_worker_nor_for_other_queues(
    store: PostgresStore, pg_url: str
) -> None:
    await store.enqueue([NewJob(task="noop")] * 3)
    worker_id = await register(store)
    async with turn(store, pg_url, worker_id), asyncio.timeout(1.5):
        claimed = [
            *await claim(store, worker_id + 1),
            *await claim(store, worker_id, "default"),
            *await claim(store, worker_id, in_turn=False),
        ]

    # Nobody has registered the second one.
    assert len(claimed) == 2


async def test_a_turn_that_somebody_keeps_holds_up_a_claim_once(
    store: PostgresStore, pg_url: str
) -> None:
    await store.enqueue([NewJob(task="noop")] * 2)
    worker_id = await register(store)
    async with turn(store, pg_url, worker_id):
        began = time.monotonic()
        first = await claim(store, worker_id)
        waited = time.monotonic() - began
        second = await claim(store, worker_id)
        then = time.monotonic() - began - waited

    assert len(first) == len(second) == 1
    assert 1.9 < waited < 10.0
    assert then < 1.0
