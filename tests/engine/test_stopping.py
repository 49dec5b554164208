"""A worker that stops lets its database calls end: nothing is logged, no connection is lost."""

from __future__ import annotations

import asyncio
import logging

import psycopg
import pytest

from duetime import Duetime
from duetime.storage.postgres.store import PostgresStore
from tests.servers import PostgresServer
from tests.waiting import until


async def waits(url: str) -> bool:
    """Whether someone waits for a lock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
        )
        return bool(await cursor.fetchall())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.name}: {record.getMessage()}"
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


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
    worker = pg_app.make_worker(store)
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute(f"lock table duetime.{table} in access exclusive mode")
        running = asyncio.create_task(worker.run())
        await until(lambda: waits(pg_url))
        worker.stop()
        ended, _ = await asyncio.wait([running], timeout=0.3)
    await running

    assert (warnings(caplog), thrown_away(store)) == ([], 0)
    assert not ended


async def test_a_stop_does_not_wait_for_a_database_that_hangs(pg_app: Duetime, pg_url: str) -> None:
    worker = pg_app.make_worker(await pg_app.store(), grace="300ms")
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute("lock table duetime.parked in access exclusive mode")
        running = asyncio.create_task(worker.run())
        await until(lambda: waits(pg_url))
        worker.stop()
        async with asyncio.timeout(5):
            await running


async def test_a_stop_while_the_server_answers_slowly_costs_no_connection(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Cancelled again and again, the driver could not clear up after the first."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True, grace="5s")
    store = await app.store()
    worker = app.make_worker(store)
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
