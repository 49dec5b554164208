"""Query plans of schedules, with a thousand of them and a ledger of a hundred thousand rows.

On PostgreSQL the statements are prepared while the tables are empty, as a worker does that starts
on a fresh database, and explained when they are full. What they may touch is counted in pages: a
walk over the whole ledger, by whatever index, shows.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.sqlite.migrator import SqliteMigrator
from duetime.storage.sqlite.store import SqliteStore
from tests.conftest import fresh_database

SCHEDULES = 1_000
DAY = 86_400_000_000
TICKS = 100
"""Of each schedule: the last two are armed, one in ten of those before runs; the others ended."""
STATEMENTS: dict[str, Any] = {
    "schedule_gate": [],
    "schedule_due": {"patience": 1_000_000},
    "schedule_next": {"patience": 1_000_000},
    "schedule_open": [],
    "schedule_paced": [],
    "schedule_prune": {"ids": [], "age": 3_600_000_000, "most": 1000},
    "schedule_record_finished": [],
    "schedule_unrecorded": {},
}

FILL_POSTGRES = """
insert into duetime.schedule (name, target, timetable, plain, at_once, grace, planned_until,
                              next_run_at)
    select 's' || n, 'noop', '{{"specs": ["@hourly"]}}', true, 1, interval '10 s',
        now() + interval '2 hours', now() + interval '1 hour'
    from generate_series(1, {schedules}) as n;
insert into duetime.schedule_tick (schedule_id, tick, run_at, status, job_id, begun_at, finished_at)
    select s.id, t.tick, t.tick, case when n <= 2 then 'armed' else 'fired' end,
        s.id * {ticks} + n, case when n > 2 then t.tick end,
        case when n > 3 or n = 3 and s.id % 10 <> 0 then t.tick end
    from duetime.schedule as s cross join generate_series(1, {ticks}) as n
    cross join lateral (select now() + (3 - n) * interval '1 hour' as tick) as t;
insert into duetime.job (id, task, queue, priority, args, max_attempts)
    select job_id, 'noop', 'default', 5, '{{}}', 3 from duetime.schedule_tick;
insert into duetime.due (queue, priority, run_at, job_id)
    select 'default', 5, run_at, job_id from duetime.schedule_tick where status = 'armed';
insert into duetime.attempt (job_id, token, attempt, outcome, finished_at)
    select job_id, job_id, 1, 'completed', now() from duetime.schedule_tick
    where finished_at is not null;
"""

Plan = tuple[str, int]
"""The text, and how many pages were touched."""


class Session:
    """A connection as the store's, with the statements prepared on empty tables."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def prepare(self, sql: dict[str, str]) -> None:
        for name, document in STATEMENTS.items():
            text = sql[name].replace("%s", "$1")
            self._connection.execute(f"prepare {name} (unknown) as {text}".encode())
            for _ in range(6):
                self._execute("", name, document)

    def fill(self) -> None:
        text = FILL_POSTGRES.format(schedules=SCHEDULES, ticks=TICKS)
        self._connection.execute(text.encode())

    def plan(self, name: str, document: Any) -> Plan:
        self._connection.execute("begin")
        rows = self._execute("explain (analyze, buffers)", name, document)
        self._connection.execute("rollback")
        text = "\n".join(str(row[0]) for row in rows)
        # The first line with buffers is the root's: it includes all below.
        found = re.search(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?", text)
        assert found is not None
        return text, int(found[1] or 0) + int(found[2] or 0)

    def _execute(self, explain: str, name: str, document: Any) -> list[Any]:
        statement = f"{explain} execute {name} ('{json.dumps(document)}')"
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module", params=["postgres15", "postgres18"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with fresh_database(request.getfixturevalue(request.param)) as url:
        upgrade(PostgresMigrator(url))
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            # As the store's sessions are configured.
            connection.execute("set enable_seqscan = off")
            connection.execute("set jit = off")
            session = Session(connection)
            session.prepare(PostgresStore(url)._sql)
            session.fill()
            yield session


def some_runs() -> list[int]:
    """The jobs of fifty schedules, whose run has begun and not ended."""
    return [schedule * TICKS + 3 for schedule in range(10, 510, 10)]


def test_gate(session: Session) -> None:
    plan, pages = session.plan("schedule_gate", some_runs())

    assert "on schedule_tick_job" in plan or "using schedule_tick_job" in plan
    assert "using schedule_tick_open" in plan
    assert scanned(plan) == set()
    assert discarded(plan) < 100
    assert pages < 50 * 40


def test_due(session: Session) -> None:
    """The partial index is searched by time, not scanned."""
    plan, pages = session.plan("schedule_due", STATEMENTS["schedule_due"])

    assert "schedule_next" in plan
    assert re.search(r"Index Cond: \(\(?next_run_at\b.* <=", plan)
    assert scanned(plan) == set()
    assert discarded(plan) < 100
    assert pages < 20, "nothing is due, and next to nothing is read"


def test_open(session: Session) -> None:
    after = datetime.now(UTC).isoformat()
    plan, pages = session.plan(
        "schedule_open", [{"id": schedule, "after": after} for schedule in range(1, 51)]
    )

    assert "schedule_tick_open" in plan
    assert scanned(plan) == set()
    assert discarded(plan) < 100
    assert pages < 50 * 40


def test_paced(session: Session) -> None:
    plan, pages = session.plan("schedule_paced", [{"schedule_id": n} for n in range(1, 51)])

    assert "schedule_tick_pkey" in plan
    assert scanned(plan) == set()
    assert pages < 50 * 120, "the last hundred rows of each"


def test_next(session: Session) -> None:
    plan, pages = session.plan("schedule_next", STATEMENTS["schedule_next"])

    assert "schedule_next" in plan
    assert "schedule_paused" in plan
    assert scanned(plan) == set()
    assert pages < 20


def test_settle(session: Session) -> None:
    plan, pages = session.plan("schedule_record_finished", some_runs())

    assert "schedule_tick_job" in plan
    assert scanned(plan) == set()
    assert discarded(plan) < 100, "what is settled, and not all that is open"
    assert pages < 50 * 60


def test_unrecorded(session: Session) -> None:
    plan, pages = session.plan("schedule_unrecorded", {})

    assert "schedule_tick_open" in plan
    assert scanned(plan) == set()
    assert pages < 2 * SCHEDULES * 3, "the open runs, and not the ledger"


def test_prune(session: Session) -> None:
    """Nothing is to be pruned, whatever the length of the ledger."""
    page = {"ids": list(range(1, SCHEDULES + 1)), "age": 90 * DAY, "most": 1000}
    plan, pages = session.plan("schedule_prune", page)

    assert "using schedule_tick_pkey" in plan
    assert scanned(plan) == set()
    assert discarded(plan) == 0
    assert pages < 5 * SCHEDULES, "where the ledger of each begins"


def scanned(plan: str) -> set[str]:
    """The tables that grow and that are read from end to end."""
    return set(re.findall(r"Seq Scan on (job|due|attempt|schedule_tick|schedule)\b", plan))


def discarded(plan: str) -> int:
    """How many rows a part of the plan has read in vain, at most."""
    return max(map(int, re.findall(r"Rows Removed by Filter: (\d+)", plan)), default=0)


# SQLite

NOW = 1_900_000_000_000_000
SOME = [{"id": n, "after": NOW} for n in range(1, 51)]
LONG = 1
"""The schedule with a long ledger of its own."""
FILL_SQLITE = """
with recursive n(n) as (select 1 union all select n + 1 from n where n < {schedules})
insert into duetime_schedule (id, name, target, timetable, plain, at_once, grace, planned_until,
                              next_run_at, created_at, updated_at)
    select n, 's' || n, 'noop', '{{}}', 1, 1, 10000000, {now} + 7200000000, {now} + 3600000000,
        {now}, {now} from n;
with recursive n(n) as (select 1 union all select n + 1 from n where n < {ticks})
insert into duetime_schedule_tick (schedule_id, tick, run_at, status, job_id, begun_at, finished_at)
    select s.id, {now} + (3 - n) * 3600000000, {now} + (3 - n) * 3600000000,
        iif(n <= 2, 'armed', 'fired'), s.id * {ticks} + n, iif(n > 2, {now}, null),
        iif(n > 3 or n = 3 and s.id % 10 <> 0, {now}, null)
    from duetime_schedule as s cross join n;
with recursive n(n) as (select 1 union all select n + 1 from n where n < 20 * {ticks})
insert into duetime_schedule_tick (schedule_id, tick, run_at, status, job_id, begun_at, finished_at)
    select {long}, {now} - n * 7000000, {now} - n * 7000000, 'fired', 9000000 + n, {now}, {now}
    from n;
insert into duetime_job (id, task, queue, priority, args, max_attempts, created_at)
    select job_id, 'noop', 'default', 5, '{{}}', 3, {now} from duetime_schedule_tick;
insert into duetime_due (job_id, queue, priority, run_at)
    select job_id, 'default', 5, run_at from duetime_schedule_tick where status = 'armed';
insert into duetime_attempt (job_id, token, attempt, outcome, finished_at)
    select job_id, job_id, 1, 'completed', {now} from duetime_schedule_tick
    where finished_at is not null;
"""


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A full database, without statistics, as duetime leaves it."""
    path = tmp_path_factory.mktemp("plans") / "duetime.db"
    upgrade(SqliteMigrator(str(path)))
    with closing(sqlite3.connect(path)) as connection:
        values = {"schedules": SCHEDULES, "ticks": TICKS, "now": NOW, "long": LONG}
        connection.executescript(FILL_SQLITE.format(**values))
        yield connection


@pytest.mark.parametrize(
    ("name", "document", "most"),
    [
        pytest.param("schedule_gate", [LONG * TICKS + 2], 5_000, id="gate, long"),
        pytest.param("schedule_gate", some_runs(), 50_000, id="gate"),
        pytest.param("schedule_due", {"patience": 1}, 5_000, id="due"),
        pytest.param("schedule_open", [{"id": LONG, "after": NOW}], 5_000, id="open, long"),
        pytest.param("schedule_open", SOME, 50_000, id="open"),
        pytest.param("schedule_paced", [{"schedule_id": LONG}], 5_000, id="paced, long"),
        pytest.param("schedule_next", {"patience": 1}, 5_000, id="next"),
        pytest.param(
            "schedule_prune",
            {"ids": list(range(1, SCHEDULES + 1)), "age": 90 * DAY, "most": 1000},
            50_000,
            id="prune",
        ),
        pytest.param("schedule_record_finished", some_runs(), 100_000, id="record_finished"),
        pytest.param("schedule_unrecorded", {}, 200_000, id="unrecorded"),
    ],
)
def test_sqlite_takes_few_steps(
    sqlite: sqlite3.Connection, name: str, document: Any, most: int
) -> None:
    """Counted in steps of SQLite's machine: a walk over the ledger takes millions."""
    sql = SqliteStore("never-opened.db")._sql
    parameters = (json.dumps({"now": NOW, "doc": document}),)
    texts = [text for key, text in sql.items() if re.fullmatch(rf"{name}(_\d)?", key)]
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    sqlite.set_progress_handler(count, 100)
    try:
        for text in texts:
            sqlite.execute(text, parameters).fetchall()
    finally:
        sqlite.set_progress_handler(None, 100)
        sqlite.rollback()

    assert texts
    assert steps < most
