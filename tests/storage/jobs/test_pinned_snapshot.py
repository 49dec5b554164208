"""What a claim reads while another transaction holds its snapshot, so that nothing is vacuumed.

Counted in entries of the index: every dead one that a claim passes is one of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from duetime.domain.jobs.job import NewJob
from duetime.engine.lanes import Lanes
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore

JOBS, BATCH = 5_000, 250
_READ = b"select idx_tup_read from pg_stat_user_indexes where indexrelname = 'due_pkey'"


@pytest.fixture
async def store(pg_url: str) -> AsyncIterator[PostgresStore]:
    upgrade(PostgresMigrator(pg_url))
    store = PostgresStore(pg_url, pool_size=1)
    await store.open()
    yield store
    await store.close()


async def test_claims_pass_no_dead_rows_of_jobs_that_were_enqueued_together(
    store: PostgresStore, pg_url: str
) -> None:
    """They have the same due time: a floor that is a time alone would be none."""
    await store.enqueue([NewJob(task="noop") for _ in range(JOBS)])
    worker = await store.register_worker(
        name="w", queues=["default"], tasks={}, concurrency=9, lease=timedelta(minutes=10)
    )
    lanes = Lanes(("default",))
    lanes._floors_end = float("inf")
    claimed = 0
    with (
        psycopg.connect(pg_url) as snapshot,
        psycopg.connect(pg_url, autocommit=True) as watcher,
    ):
        snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        snapshot.execute("select txid_current()")
        before = _count(watcher)
        while claimed < JOBS:
            answer = await store.exchange(worker, lanes=lanes.in_turn(), want=BATCH)
            assert len(answer.claimed) == BATCH
            lanes.raise_floors(answer.claimed)
            claimed += BATCH
        async with store._connection() as connection:
            await connection.execute("select pg_stat_force_next_flush()")
        read = _count(watcher) - before

    assert JOBS <= read < 1.2 * JOBS


def _count(watcher: psycopg.Connection) -> int:
    row = watcher.execute(_READ).fetchone()
    assert row is not None
    return int(row[0])
