"""The pool of connections: which it hands out, and what it does while the server is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from psycopg.pq import TransactionStatus

from duetime.errors import DatabaseUnreachable
from duetime.storage.postgres.pool import Connection, Pool
from tests.waiting import until_true


async def configure(connection: Connection) -> None: ...


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of all pauses: what they would grow to in minutes, they would in seconds."""
    monkeypatch.setattr("psycopg_pool.base.AttemptWithBackoff.INITIAL_DELAY", 0.1)
    monkeypatch.setattr("duetime.storage.postgres.pool._RECONNECT_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
async def test_the_pauses_between_attempts_to_connect_do_not_grow() -> None:
    """Pauses that double would need minutes for so many attempts."""
    attempts: list[int] = []

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(1)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = Pool(
        f"host=127.0.0.1 port={port} sslmode=disable gssencmode=disable",
        name="test",
        size=1,
        kwargs={},
        configure=configure,
    )
    await pool.open()
    await until_true(lambda: len(attempts) >= 12)
    with pytest.raises(DatabaseUnreachable):
        async with asyncio.timeout(20):
            await pool.take(30, fail_fast=True)
    await pool.close()
    server.close()


@pytest.fixture
async def pool(pg_url: str) -> AsyncIterator[Pool]:
    pool = Pool(pg_url, name="test", size=1, kwargs={"autocommit": True}, configure=configure)
    await pool.open()
    yield pool
    await pool.close()


async def test_the_connection_that_was_given_back_is_taken_again(pool: Pool) -> None:
    first = await pool.take(20)
    await pool.give_back(first)
    requests = pool.get_stats()["requests_num"]
    second = await pool.take(20)
    await pool.give_back(second)

    assert second is first
    assert pool.get_stats()["requests_num"] == requests, "psycopg's pool takes part of the time"


async def test_a_connection_goes_to_whoever_waits_for_it(pool: Pool) -> None:
    first = await pool.take(20)
    waiting = asyncio.create_task(pool.take(20))
    await until_true(lambda: pool.get_stats().get("requests_waiting"))
    await pool.give_back(first)
    second = await waiting
    await pool.give_back(second)

    assert second is first


@pytest.mark.parametrize("turns", range(8))
async def test_who_is_cancelled_as_a_connection_comes_does_not_go_on(
    pool: Pool, turns: int
) -> None:
    first = await pool.take(20)
    waiting = asyncio.create_task(pool.take(20))
    await until_true(lambda: pool.get_stats().get("requests_waiting"))
    giving = asyncio.create_task(pool.give_back(first))
    for _ in range(turns):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        await pool.give_back(await waiting)
    await giving

    await pool.give_back(await pool.take(20))


async def test_a_connection_in_a_transaction_is_not_kept(pool: Pool) -> None:
    first = await pool.take(20)
    await first.execute("begin")
    await pool.give_back(first)
    second = await pool.take(20)
    status = second.pgconn.transaction_status
    await pool.give_back(second)

    assert status == TransactionStatus.IDLE


async def test_a_pool_that_was_left_hands_out_none_of_its_old_connections(pool: Pool) -> None:
    first = await pool.take(20)
    await pool.give_back(first)
    pool.leave_server()
    second = await pool.take(20)
    await pool.give_back(second)

    assert second is not first
    assert first.closed
