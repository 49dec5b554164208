"""The ceiling for flows: inserts of steps by hand, without a worker, a fence or a result."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import psycopg

from bench.child import Parent

SCHEMA = """
create table raw_step (
    run_id      bigint not null,
    seq         integer not null,
    name        text not null,
    output      json not null,
    finished_at timestamptz not null default clock_timestamp(),
    primary key (run_id, seq)
);
"""
INSERT = "insert into raw_step (run_id, seq, name, output) values ($1, $2, 'add', $3)"
INSERT_MANY = """
insert into raw_step (run_id, seq, name, output)
select run_id, $2, 'add', $3 from unnest($1::bigint[]) as run_id
"""
PAUSE_SECONDS = 0.06
"""Between flows that run alone: all is idle again. A worker that is woken sooner stays awake."""


def create(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)


# Roles: see `bench.child`


async def insert_each(
    parent: Parent, *, dsn: str, flows: int, steps: int, connections: int
) -> None:
    """Each step is one committed insert; every connection runs one flow after another."""
    pool = [await asyncpg.connect(dsn) for _ in range(connections)]
    inserts = [await connection.prepare(INSERT) for connection in pool]

    async def run_flows(insert: Any, runs: range) -> None:
        for run_id in runs:
            await _run(insert, run_id, steps)

    await _say_seconds(
        parent,
        *(
            run_flows(insert, range(first, flows, connections))
            for first, insert in enumerate(inserts)
        ),
    )
    for connection in pool:
        await connection.close()


async def insert_gathered(
    parent: Parent, *, dsn: str, flows: int, steps: int, in_flight: int
) -> None:
    """One committed statement inserts the same step of all flows in flight, on one connection."""
    connection = await asyncpg.connect(dsn)
    insert = await connection.prepare(INSERT_MANY)

    async def run_flows() -> None:
        for first in range(0, flows, in_flight):
            runs = list(range(first, min(first + in_flight, flows)))
            for seq in range(1, steps + 1):
                await insert.fetch(runs, seq, str(seq))

    await _say_seconds(parent, run_flows())
    await connection.close()


async def run_alone(parent: Parent, *, dsn: str, flows: int, steps: int) -> None:
    """One flow after another on one connection; say the milliseconds of each."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("truncate raw_step")
    insert = await connection.prepare(INSERT)
    await _run(insert, -1, steps)
    parent.say("ready")
    await parent.heard()
    took = []
    for run_id in range(flows):
        await asyncio.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        await _run(insert, run_id, steps)
        took.append((time.perf_counter() - began) * 1e3)
    parent.say(took)
    await connection.close()


async def _run(insert: Any, run_id: int, steps: int) -> None:
    for seq in range(1, steps + 1):
        await insert.fetch(run_id, seq, str(seq))


async def _say_seconds(parent: Parent, *work: Any) -> None:
    parent.say("ready")
    await parent.heard()
    began = time.perf_counter()
    await asyncio.gather(*work)
    parent.say({"seconds": time.perf_counter() - began})
