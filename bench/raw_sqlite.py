"""The ceiling on SQLite: WAL, synchronous=FULL, a transaction for each batch."""

from __future__ import annotations

import sqlite3
import time

import msgspec

from bench.child import Parent
from bench.payload import note_for
from bench.raw import noop

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
