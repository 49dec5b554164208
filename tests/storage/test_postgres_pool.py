"""The pool of connections, before a server that is away."""

from __future__ import annotations

import asyncio

import pytest

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
