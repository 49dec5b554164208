"""The ceiling for enqueues: a job's two rows by one prepared statement, in Duetime's own tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import msgspec

from bench.child import Parent
from bench.duetime_side import call_for
from bench.payload import note_for

INSERT = """
with made as (
    insert into duetime.job (task, queue, priority, args, max_attempts)
    values ('noop', 'default', 5, $1, 3) returning id
)
insert into duetime.due (queue, priority, run_at, job_id)
select 'default', 5, clock_timestamp(), id from made returning job_id
"""
INSERT_MANY = """
with made as (
    insert into duetime.job (task, queue, priority, args, max_attempts)
    select 'noop', 'default', 5, args, 3 from unnest($1::json[]) as args returning id
)
insert into duetime.due (queue, priority, run_at, job_id)
select 'default', 5, clock_timestamp(), id from made returning job_id
"""


# A role: see `bench.child`


async def insert_calls(
    parent: Parent, *, database: str, callers: int, jobs: int, seconds: float
) -> None:
    """Callers with a connection each, one committed statement after another."""
    pool = [await asyncpg.connect(database) for _ in range(callers)]
    note = note_for(0)

    def args() -> str:
        return msgspec.json.encode({"number": 0, "note": note}).decode()

    async def caller(connection: asyncpg.Connection) -> Callable[[], Awaitable[object]]:
        if jobs == 1:
            one = await connection.prepare(INSERT)
            return lambda: one.fetch(args())
        many = await connection.prepare(INSERT_MANY)
        return lambda: many.fetch([args() for _ in range(jobs)])

    await call_for(parent, [await caller(connection) for connection in pool], seconds)
    for connection in pool:
        await connection.close()
