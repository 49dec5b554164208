"""What operations cost, in numbers that are the same on a slow or busy machine: instructions of our
Python code, steps of SQLite, and what PostgreSQL committed, logged and read."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest

import duetime
from duetime.storage.sqlite.connection import connect
from tests.counting import is_alone
from tests.waiting import until_true

Costs = dict[str, float]
"""By what was counted."""
Meter = Callable[[Costs], AbstractAsyncContextManager[None]]
"""Counts what is done within its block."""

_OURS = str(Path(duetime.__file__).parent)
_STEPS = 10
"""SQLite reports its steps in tens, since a report takes longer than a step."""
_USED = """
select (select xact_commit from pg_stat_database where datname = current_database()),
    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
    (select sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))
     from pg_statio_user_tables)::bigint
"""


@contextmanager
def python_counted(costs: Costs) -> Iterator[None]:
    """Count the instructions that Python executes of our package: on this thread, and on those that
    are started within the block."""
    # By thread: two of them cannot add to one number safely.
    executed = Counter[int]()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            executed[threading.get_ident()] += 1
        elif event == "call":
            if not frame.f_code.co_filename.startswith(_OURS):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)
        costs["python"] = executed.total()


@asynccontextmanager
async def sqlite_counted(monkeypatch: pytest.MonkeyPatch, costs: Costs) -> AsyncIterator[None]:
    """Count the steps that SQLite takes for stores that are opened within the block."""
    reports: list[None] = []

    def connect_counted(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_progress_handler(partial(reports.append, None), _STEPS)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr("duetime.storage.sqlite.thread.connect", connect_counted)
        yield
    costs["steps"] = len(reports) * _STEPS


@asynccontextmanager
async def postgres_counted(watcher: psycopg.Connection[Any], costs: Costs) -> AsyncIterator[None]:
    """Count what a server commits, logs (in bytes) and reads (in buffers). It serves nobody else,
    and the block closes its sessions."""
    before = await _used(watcher)
    yield
    after = await _used(watcher)
    for name, now, then in zip(("commits", "wal", "buffers"), after, before, strict=True):
        costs[name] = now - then


async def _used(watcher: psycopg.Connection[Any]) -> tuple[int, ...]:
    # Sessions report what they have read when they end.
    await until_true(partial(is_alone, watcher))
    row = watcher.execute(_USED).fetchone()
    assert row is not None
    return tuple(map(int, row))
