"""A record or a suspension of a run, and whoever rescues the run, at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from duetime.domain.flows.flow import NewRecord, StepInfo, Suspension
from duetime.domain.jobs.job import ClaimedJob
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.connection import array
from duetime.storage.postgres.dialect import drive
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore, record_parameters
from duetime.storage.store import Statements
from tests.conformance.hand import Hand, enqueue
from tests.waiting import until, waits

each_write = pytest.mark.parametrize("write", ["one record", "two records", "suspension"])


@pytest.fixture
async def store(pg_url: str) -> AsyncIterator[PostgresStore]:
    upgrade(PostgresMigrator(pg_url))
    store = PostgresStore(pg_url)
    await store.open()
    yield store
    await store.close()


async def claim_run(store: PostgresStore) -> ClaimedJob:
    await enqueue(store)
    return await (await Hand.register(store, ["default"], timedelta(minutes=1), "w")).claim_one()


async def end_leases(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("update duetime.worker set lease_until = clock_timestamp()")


def statements_of(write: str, store: PostgresStore, job: ClaimedJob) -> Statements:
    flows = FlowStatements(store.dialect)
    if write == "suspension":
        pause = Suspension(run=job.id, token=job.token, started=1, finished=2, waits=[])
        return flows.suspend([pause])
    records = [
        NewRecord(
            run=job.id,
            token=job.token,
            seq=seq,
            kind="step",
            name="pay",
            state="completed",
            attempt=1,
            started=1,
            finished=2,
        )
        for seq in (1, 2)
    ]
    return record_one(store, records[0]) if write == "one record" else flows.record(records)


def record_one(store: PostgresStore, record: NewRecord) -> Statements:
    """As `record_step` does it."""
    rows = yield store._sql["flow_record_one"], record_parameters(record)
    return [len(rows) == 1]


ACCEPTED = {"one record": [True], "two records": [True, True], "suspension": ["suspended"]}
REFUSED = {"one record": [False], "two records": [False, False], "suspension": ["lost"]}


@each_write
async def test_a_rescuer_leaves_alone_a_run_that_is_being_written_to(
    store: PostgresStore, pg_url: str, write: str
) -> None:
    job = await claim_run(store)
    await end_leases(pg_url)
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        answer = await drive(connection, statements_of(write, store, job))
        async with asyncio.timeout(20):
            meanwhile = await store.rescue()
        await connection.commit()
    rescued = await store.rescue()

    assert answer == ACCEPTED[write]
    assert meanwhile == []
    assert len(rescued) == (0 if write == "suspension" else 1)


@each_write
async def test_a_write_to_a_run_waits_for_its_rescuer_and_is_refused(
    store: PostgresStore, pg_url: str, write: str
) -> None:
    job = await claim_run(store)
    await end_leases(pg_url)
    async with await psycopg.AsyncConnection.connect(pg_url) as rescuer:
        dead = await rescuer.execute(store._sql["lock_dead_claims"], {"sparing": 0})
        tokens = array(row[0] for row in await dead.fetchall())
        writing = asyncio.create_task(store.transact(statements_of(write, store, job)))
        await until(lambda: waits(pg_url))
        await rescuer.execute(store._sql["rescue"], {"tokens": tokens, "lead": timedelta()})
        await rescuer.commit()

    assert await writing == REFUSED[write]
    steps: list[StepInfo] = await store.transact(
        FlowStatements(store.dialect).steps(job.id), reads=True
    )
    found = await store.get(job.id)
    assert steps == []
    assert found is not None
    assert [attempt.outcome for attempt in found.history] == ["lost"]
