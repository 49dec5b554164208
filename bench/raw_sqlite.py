"""The ceiling on SQLite: WAL, synchronous=FULL, a transaction for each batch."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence

import msgspec

from bench.child import Parent
from bench.payload import note_for
from bench.raw import noop
from bench.raw_flows import PAUSE_SECONDS

SCHEMA = """
create table raw_job (
    id       integer primary key,
    queue    text not null,
    task     text not null,
    args     text not null,
    priority integer not null,
    run_at   integer not null,
    state    integer not null default 0,
    attempt  integer not null default 0
) strict;
create index raw_job_due on raw_job (queue, priority, run_at) where state = 0;
create table raw_step (
    run_id      integer not null,
    seq         integer not null,
    name        text not null,
    output      text not null,
    finished_at integer not null,
    primary key (run_id, seq)
) strict, without rowid;
"""
INSERT = (
    "insert into raw_job (queue, task, args, priority, run_at) values ('default', 'noop', ?, 5, ?)"
)
CLAIM = """
update raw_job set state = 1, attempt = attempt + 1
where id in (
    select id from raw_job
    where queue = 'default' and state = 0 and run_at <= ?
    order by priority, run_at
    limit 500
)
returning id, task, args
"""
INSERT_STEP = (
    "insert into raw_step (run_id, seq, name, output, finished_at) values (?, ?, 'add', ?, ?)"
)


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    return connection


def create(path: str) -> None:
    connection = connect(path)
    connection.executescript(SCHEMA)
    connection.close()


def load(path: str, jobs: int) -> None:
    connection = connect(path)
    _insert(connection, [note_for(number) for number in range(jobs)])
    connection.close()


async def drain(parent: Parent, *, path: str) -> None:
    """Claim, handle, delete, until nothing is left."""
    connection = connect(path)
    parent.say("ready")
    await parent.heard()
    count = 0
    first = time.time()
    while rows := _claim(connection):
        for row in rows:
            await noop(row[2])
        connection.execute("begin immediate")
        connection.executemany("delete from raw_job where id = ?", [(row[0],) for row in rows])
        connection.execute("commit")
        count += len(rows)
        last = time.time()
    parent.say({"first": first, "last": last if count else None, "count": count})
    connection.close()


async def poll(parent: Parent, *, path: str) -> None:
    """Look for jobs every 20 ms; say when each began."""
    connection = connect(path)
    parent.say("ready")
    told = asyncio.create_task(parent.heard())
    while not told.done():
        for _, _, args in _claim(connection):
            parent.say({"number": json.loads(args)["number"], "at": time.monotonic()})
        await asyncio.wait([told], timeout=0.02)
    connection.close()


async def insert_bulk(parent: Parent, *, path: str, jobs: int) -> None:
    """All jobs by one executemany, from arguments to committed."""
    connection = connect(path)
    notes = [note_for(number) for number in range(jobs)]
    parent.say("ready")
    await parent.heard()
    began = time.perf_counter()
    _insert(connection, notes)
    parent.say({"seconds": time.perf_counter() - began})
    connection.close()


async def insert_steps(
    parent: Parent, *, path: str, flows: int, steps: int, in_flight: int
) -> None:
    """One transaction inserts the same step of all flows in flight."""
    connection = connect(path)
    parent.say("ready")
    await parent.heard()
    began = time.perf_counter()
    for first in range(0, flows, in_flight):
        for seq in range(1, steps + 1):
            _insert_step(connection, range(first, min(first + in_flight, flows)), seq)
    parent.say({"seconds": time.perf_counter() - began})
    connection.close()


async def run_alone(parent: Parent, *, path: str, flows: int, steps: int) -> None:
    """One flow after another; say the milliseconds of each."""
    connection = connect(path)
    connection.execute("delete from raw_step")
    parent.say("ready")
    await parent.heard()
    took = []
    for run_id in range(flows):
        await asyncio.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        for seq in range(1, steps + 1):
            _insert_step(connection, [run_id], seq)
        took.append((time.perf_counter() - began) * 1e3)
    parent.say(took)
    connection.close()


def _insert_step(connection: sqlite3.Connection, runs: Sequence[int], seq: int) -> None:
    now = int(time.time() * 1e6)
    connection.execute("begin immediate")
    connection.executemany(INSERT_STEP, [(run_id, seq, str(seq), now) for run_id in runs])
    connection.execute("commit")


def _claim(connection: sqlite3.Connection) -> list[tuple[int, str, str]]:
    connection.execute("begin immediate")
    rows = connection.execute(CLAIM, (int(time.time() * 1e6),)).fetchall()
    connection.execute("commit")
    return rows


def _insert(connection: sqlite3.Connection, notes: list[str]) -> None:
    now = int(time.time() * 1e6)
    connection.execute("begin immediate")
    connection.executemany(
        INSERT,
        (
            (msgspec.json.encode({"number": number, "note": note}).decode(), now)
            for number, note in enumerate(notes)
        ),
    )
    connection.execute("commit")
