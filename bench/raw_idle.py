"""The least memory of a Python process that waits for PostgreSQL."""

from __future__ import annotations

import psycopg

from bench.child import Parent


async def idle(parent: Parent, *, dsn: str) -> None:
    """Listen; nothing ever comes."""
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await connection.execute("listen raw_job")
    parent.say("ready")
    async for _ in connection.notifies():
        pass
