"""Query plans with a million rows: the hot statements use their indexes, however stale the plan.

The statements are prepared while the tables are empty, as a worker does that starts on a fresh
database, and explained when they are full.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from duetime.storage.migrations import upgrade
from duetime.storage.postgres.connection import array
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from tests.conftest import fresh_database

ROWS = 1_000_000
FILL = """
insert into duetime.job (task, queue, priority, args, max_attempts)
    select 'noop', 'default', 5, '{}', 3 from generate_series(1, %(rows)s);
insert into duetime.due (queue, priority, run_at, job_id)
    select 'default', 5, clock_timestamp() + (id - 1000) * interval '1 second', id from duetime.job;
insert into duetime.attempt (job_id, token, attempt, outcome, finished_at)
    select id, id, 1, case when id %% 1000 = 0 then 'dead' else 'completed' end, clock_timestamp()
    from duetime.job where id <= %(rows)s / 2;
insert into duetime.job_key (task, key, job_id, hold)
    select 'noop', id::text, id, interval '1 hour' from duetime.job where id >= %(rows)s / 2;
"""
LIMIT = """
insert into duetime.queue (name, running) values ('narrow', 10);
insert into duetime.worker (id, name, queues, tasks, concurrency, started_at, seen_at, lease_until)
    values (2, 'w2', '{narrow}', '{}', 9, now(), now(), now() + interval '1 day');
"""
FILL_LIMITED = """
insert into duetime.job (id, task, queue, priority, args, max_attempts)
    select -id, 'noop', 'narrow', id % 3, '{}', 3 from generate_series(1, 100000) as id;
insert into duetime.due (queue, priority, run_at, job_id)
    select queue, priority, clock_timestamp() + (-id - 20) * interval '1 hour', id
    from duetime.job where queue = 'narrow';
"""
LANES = json.dumps(
    [
        {"queue": "default", "priority": priority, "floor": "1970-01-01T00:00:00Z", "floor_id": 0}
        for priority in range(10)
    ]
)

LIMITED: dict[str, Any] = {
    "worker": 2,
    "queue": "narrow",
    "want": 5,
    "quarantined": "false",
    "most_args": 16384,
}
PRUNING: dict[str, Any] = {
    "outcomes": "{completed,dead}",
    "ages": "{0s,7d}",
    "after": 400_000,
    "batch": 1000,
    "checked": 5000,
}


class Prepared:
    """A session as the store's: statements prepared on empty tables, their plans kept."""

    def __init__(self, connection: psycopg.Connection[Any], sql: dict[str, str]) -> None:
        self._connection = connection
        self._sql = sql

    def prepare(self, name: str, /, **parameters: Any) -> None:
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", self._sql[name])))
        text = self._sql[name]
        for place, parameter in enumerate(names, 1):
            text = text.replace(f"%({parameter})s", f"${place}")
        types = {"want": "integer", "worker": "bigint", "queue": "text", "lead": "float8"}
        kinds = ", ".join(types.get(parameter, "unknown") for parameter in names)
        self._connection.execute(f"prepare {name} ({kinds}) as {text}")
        self.names = {**getattr(self, "names", {}), name: names}
        for _ in range(6):
            self.execute(name, "", **parameters)

    def execute(self, name: str, explain: str, /, **parameters: Any) -> str:
        values = ", ".join(_literal(parameters[each]) for each in self.names[name])
        done = self._connection.execute(f"{explain} execute {name} ({values})")
        rows = done.fetchall() if done.description else []
        return "\n".join(str(row[0]) for row in rows)

    @contextmanager
    def claimed(self, token: int, jobs: list[int]) -> Iterator[None]:
        self._connection.execute(
            "insert into duetime.claim (token, worker_id, job_ids, attempts, claimed_at)"
            " values (%s, 1, %s, %s, now())",
            (token, jobs, [1] * len(jobs)),
        )
        yield
        self._connection.execute("delete from duetime.claim where token = %s", (token,))

    def plan(self, name: str, /, **parameters: Any) -> str:
        self._connection.execute("begin")
        text = self.execute(name, "explain (analyze, buffers)", **parameters)
        self._connection.execute("rollback")
        return text


@pytest.fixture(scope="module", params=["postgres15", "postgres18"])
def session(request: pytest.FixtureRequest) -> Iterator[Prepared]:
    with fresh_database(request.getfixturevalue(request.param)) as url:
        upgrade(PostgresMigrator(url))
        store = PostgresStore(url)
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            connection.execute("set enable_seqscan = off")
            connection.execute("set jit = off")
            prepared = Prepared(connection, store._sql)
            prepared.prepare("claim", worker=1, want=500, lanes=LANES, lead=0.0, most_args=16384)
            prepared.prepare("next_run_at", queues=["default"])
            prepared.prepare("finish", **ending([]))
            prepared.prepare("finish_fully", **ending_fully([]))
            prepared.prepare("job_result", job=1)
            prepared.prepare("find_prunable", **PRUNING)
            prepared.prepare("prune", **PRUNING, jobs="{}")
            connection.execute(LIMIT)
            prepared.prepare("claim_limited", **LIMITED)
            with psycopg.ClientCursor(connection) as cursor:
                cursor.execute(FILL, {"rows": ROWS})
                cursor.execute(FILL_LIMITED)
            yield prepared


def ending(jobs: list[int]) -> dict[str, Any]:
    return {
        "jobs": array(jobs),
        "tokens": array(jobs),
        "attempts": array(1 for _ in jobs),
        "started": array(1 for _ in jobs),
        "finished": array(2 for _ in jobs),
        "held": array(jobs),
        "closed": "{}",
    }


def ending_fully(jobs: list[int]) -> dict[str, Any]:
    nothing = "{" + ",".join("null" for _ in jobs) + "}"
    names = ("again", "codes", "errors", "facts", "tracebacks", "results", "logs")
    return (
        ending(jobs)
        | {"outcome": "{" + ",".join("completed" for _ in jobs) + "}"}
        | dict.fromkeys(names, nothing)
    )


def test_claim_walks_its_lane_and_no_table(session: Prepared) -> None:
    plan = session.plan("claim", worker=1, want=500, lanes=LANES, lead=0.0, most_args=16384)

    assert "Index Scan using due_pkey" in plan
    assert "Tid Scan on due" in plan
    assert "Index Scan using job_pkey" in plan
    assert scanned(plan) == set()
    assert pages(plan) < 11 * 500


def test_a_limited_claim_reads_no_job_that_is_due_later(session: Prepared) -> None:
    plan = session.plan("claim_limited", **LIMITED)

    assert re.search(r"Function Scan on claim_limited .*rows=5(\.00)? loops=1\)", plan)
    assert pages(plan) < 300


def test_the_pruner_checks_some_jobs_by_their_ids(session: Prepared) -> None:
    found = session.plan("find_prunable", **PRUNING)
    prune = session.plan("prune", **PRUNING, jobs=array(range(400_001, 401_001)))

    assert "Index Scan using job_pkey" in found
    assert "Index Scan Backward using attempt_pkey" in found
    assert scanned(found) == scanned(prune) == set()
    assert pages(found) < 6 * PRUNING["checked"]
    assert pages(prune) < 20 * PRUNING["batch"]


def test_next_run_at_is_one_probe_a_lane(session: Prepared) -> None:
    """One MIN over the index, whatever the number of rows."""
    plan = session.plan("next_run_at", queues=["default"])

    assert re.search(r"Index (Only )?Scan using due_pkey", plan)
    assert scanned(plan) == set()
    assert pages(plan) < 100


def test_finish_touches_only_what_it_ends(session: Prepared) -> None:
    plan = session.plan("finish", **ending(list(range(600_000, 600_500))))

    assert scanned(plan) == set()
    assert pages(plan) < 5 * 500


def test_finish_finds_each_job_in_its_claim_by_hash(session: Prepared) -> None:
    jobs = list(range(600_000, 600_500))
    with session.claimed(7, jobs):
        plan = session.plan("finish", **ending(jobs) | {"tokens": array([7] * 500), "held": "{7}"})

    assert re.search(r"Insert on attempt .*rows=500(\.00)? loops=1\)", plan)
    assert "Rows Removed by Join Filter" not in plan


def test_a_result_is_read_by_its_job(session: Prepared) -> None:
    plan = session.plan("job_result", job=300_000)

    assert scanned(plan) == set()
    assert pages(plan) < 30


def test_keys_of_many_jobs_are_let_go_by_their_index(session: Prepared) -> None:
    jobs = list(range(600_000, 600_500))
    of_claim = {"tokens": array([7] * 500), "held": "{7}"}
    with session.claimed(7, jobs):
        plan = session.plan("finish_fully", **ending_fully(jobs) | of_claim)

    assert re.search(r"Insert on attempt .*rows=500(\.00)? loops=1\)", plan)
    assert "Index Scan using job_key_job on job_key" in plan
    assert "Rows Removed by Join Filter" not in plan
    assert scanned(plan) == set()


def scanned(plan: str) -> set[str]:
    """The tables that grow and that are read from end to end."""
    return set(re.findall(r"Seq Scan on (job|due|attempt|job_key)\b", plan))


def pages(plan: str) -> int:
    """How many pages the statement touched. Unlike its time, that does not depend on what else the
    machine does."""
    touched = re.search(r"Buffers: shared (.*)", plan)
    assert touched is not None
    return sum(int(count) for count in re.findall(r"(?:hit|read)=(\d+)", touched[1]))


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"'{array(value)}'"
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else f"'{value}'"
