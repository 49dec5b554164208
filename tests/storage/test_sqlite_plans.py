"""No statement on SQLite reads a table that grows from its beginning to its end.

SQLite decides alone which of two tables is the outer loop. Once it took `schedule_tick` instead
of the list of what had changed, and each tick took longer than the one before.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from duetime.settings import load_settings
from duetime.storage.migrations import upgrade
from duetime.storage.sqlite.connection import DEFAULT_PREFIX, with_prefix
from duetime.storage.statements import load_statements
from duetime.wiring import make_migrator

STATEMENTS = load_statements("duetime.storage.sqlite", partial(with_prefix, prefix=DEFAULT_PREFIX))
PLAIN = sorted(name for name, text in STATEMENTS.items() if "{" not in text.replace("'{}'", ""))
"""The others are made for each tracked table."""
GROWING = {
    "api_token",
    "attempt",
    "audit",
    "delivery",
    "digest",
    "due",
    "flow_run",
    "flow_signal",
    "flow_step",
    "idempotency",
    "job",
    "job_key",
    "recipient",
    "recipient_use",
    "reminder",
    "schedule",
    "schedule_tick",
    "scope",
    "session",
    "subject",
}
"""The others have a row for each worker, queue, claim or tracked table."""
WHOLE = {
    "audit_prune": "in the order of an index, until the first that is young",
    "gauge_counts": "counts the schedules",
    "gauge_sizes": "counts what waits",
    "gauge_waiting": "if few wait",
    "prune_keys": "once in an hour",
    "queues": "counts what waits",
    "reminder_find": "what people ask for",
    "schedule_find": "what people ask for",
    "schedule_follow": "once, when a schedule is renamed",
    "scope_find": "what people ask for",
    "search_names": "up to a limit",
    "session_prune": "a few for each account",
    "stats_lane_names": "the first row of an index",
    "stats_totals": "counts up to a limit",
    "subject_list": "what people ask for",
    "token_latest": "what people ask for",
    "token_list": "what people ask for",
    "token_prune": "tokens are few",
}
WALKS = {
    "gauge_dead": "the newest first, up to a limit",
    "schedule_delete": "all of it goes",
    "schedule_history": "what people ask for, the newest first, until a page is full",
    "stats_dead": "the newest first, up to a limit",
    "flow_troubled_ids": "what people ask for: runs that failed are few",
    "schedule_success": "the newest first, until one that succeeded",
}
_TABLE = re.compile(rf"\b{DEFAULT_PREFIX}(\w+)(?:\s+as)?\s+(\w+)")
_SCAN = re.compile(r"SCAN (\w+)(?! VIRTUAL)(?: USING (?:COVERING )?INDEX (\w+))?")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("plans") / "jobs.db"
    upgrade(make_migrator(load_settings({"database": f"sqlite:///{path}"})))
    with closing(sqlite3.connect(path)) as connection:
        yield connection


@pytest.mark.parametrize("name", PLAIN)
def test_nothing_that_grows_is_read_whole(connection: sqlite3.Connection, name: str) -> None:
    text = STATEMENTS[name]
    found = _scanned(connection, text)
    assert bool(found) == (name in WHOLE), f"{name} reads {found or 'nothing'} from end to end"


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in WALKS])
def test_neither_how_jobs_ended_nor_a_ledger_is_walked(
    connection: sqlite3.Connection, name: str
) -> None:
    """All attempts that ended alike, and all ticks that a schedule ever had, are many."""
    for detail in _plan(connection, STATEMENTS[name]):
        assert not re.search(r"attempt_ended \(outcome=\?\)", detail)
        assert not re.search(r"(o|schedule_tick) USING PRIMARY KEY \(schedule_id=\?\)$", detail)


def test_a_whole_read_is_seen(connection: sqlite3.Connection) -> None:
    slow = f"""
    with input(doc) as (select ?)
    update {DEFAULT_PREFIX}schedule_tick as o set reason = m.reason
    from (select json_extract(e.value, '$.tick') as tick, json_extract(e.value, '$.why') as reason
          from input as i cross join json_each(i.doc) as e) as m
    where o.tick = m.tick
    """
    assert _scanned(connection, slow) == {"schedule_tick"}


def _scanned(connection: sqlite3.Connection, text: str) -> set[str]:
    """Return the growing tables that a statement reads whole."""
    names = {alias: table for table, alias in _TABLE.findall(text)}
    partial_indexes = {
        row[0]
        for row in connection.execute("select name from sqlite_master where sql like '%where%'")
    }
    found: set[str] = set()
    for detail in _plan(connection, text):
        scan = _SCAN.match(detail)
        if scan and scan[2] not in partial_indexes:
            found.add(names.get(scan[1], scan[1].removeprefix(DEFAULT_PREFIX)))
    return found & GROWING


def _plan(connection: sqlite3.Connection, text: str) -> list[str]:
    named = dict.fromkeys(re.findall(r"(?<!:):(\w+)", text))
    parameters = named or [None] * text.count("?")
    return [row[3] for row in connection.execute(f"explain query plan {text}", parameters)]
