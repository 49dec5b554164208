"""The least that a Python process which waits for PostgreSQL costs."""

from __future__ import annotations

import psycopg

from bench.child import Parent


async def idle(parent: Parent, *, dsn: str) -> None:
    """Listen; nothing ever comes. Poll every second, in case a notification was lost."""
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await connection.execute("listen raw_job")
    parent.say("ready")
    while True:
        async for _ in connection.notifies(timeout=1.0):
            pass
        await connection.execute("select from pg_class limit 1")
