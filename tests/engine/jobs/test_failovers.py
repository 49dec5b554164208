"""A server that accepts no writes any more, as the old primary after a failover."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import LiteralString

import psycopg
import pytest

from duetime import Constant, Context, Duetime
from duetime.errors import JobFailed, TransientError
from tests.servers import PostgresServer
from tests.waiting import until_true

SESSIONS: LiteralString = (
    "select pid from pg_stat_activity where datname = 'shop' and application_name = 'duetime'"
)


def run(server: PostgresServer, *statements: LiteralString) -> list[int]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return [row[0] for row in cursor.fetchall()]


def demote(server: PostgresServer) -> None:
    """Make every open session of the database read-only for ever. New ones are writable: they stand
    for those to the new primary."""
    run(
        server,
        "alter database shop set default_transaction_read_only = off",
        "alter system set default_transaction_read_only = on",
        "select pg_reload_conf()::int",
    )


async def test_every_session_of_a_worker_leaves_a_server_that_accepts_no_writes(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.storage.postgres.listener._STAY_SECONDS", 0.0)
    own_postgres.create_database("shop")
    app = Duetime(own_postgres.dsn("shop"), migrate=True, lease="6s")

    @app.task(retry=Constant("0s", max_attempts=3), retry_on=ConnectionError)
    async def note(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("insert into note values (1)")

    async def notes() -> None:
        handles = [await note.enqueue() for _ in range(12)]
        await asyncio.gather(*(handle.result("30s") for handle in handles))

    async with app.worker(concurrency=4):
        with psycopg.connect(own_postgres.dsn("shop"), autocommit=True) as connection:
            connection.execute("create table note (n integer)")
        await notes()
        sessions = set(run(own_postgres, SESSIONS))
        demote(own_postgres)
        # What meets a read-only session first is refused, and changes nothing: this, or the worker.
        with suppress(TransientError):
            await notes()
        await notes()

        assert sessions
        await until_true(lambda: not sessions & set(run(own_postgres, SESSIONS)))
        assert not await app.jobs.list(state="dead")
    await app.close()


async def test_a_handler_on_a_demoted_server_is_retried_whatever_the_task_lists(
    pg_url: str,
) -> None:
    app = Duetime(pg_url, pool_size=1)
    attempts = []

    @app.task
    async def demote_session(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("set default_transaction_read_only = on")

    @app.task(retry=Constant("0s", max_attempts=2), retry_on=ConnectionError)
    async def note(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        async with ctx.transaction() as connection:
            await connection.execute("create table note (n integer)")

    async with app.worker():
        await (await demote_session.enqueue()).result("30s")
        await (await note.enqueue()).result("30s")

    assert attempts == [1, 2]
    await app.close()


async def test_a_transaction_that_a_handler_made_read_only_fails_as_its_own_error(
    pg_url: str,
) -> None:
    app = Duetime(pg_url)

    @app.task(max_attempts=1)
    async def note(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("set transaction read only")
            await connection.execute("create table note (n integer)")

    async with app.worker():
        handle = await note.enqueue()
        with pytest.raises(JobFailed):
            await handle.result("30s")

    assert (await handle.get()).error_code == "ReadOnlySqlTransaction"
    await app.close()
