"""Query plans of flows beside 100,000 runs that have ended: every statement uses its indexes.

The statements are prepared while the tables are empty, as a worker does that starts on a fresh
database, and explained when they are full: with that plan, and again when the server has analyzed
the tables and has planned anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from tests.conftest import fresh_database
from tests.servers import PostgresServer
from tests.storage.jobs.test_plans import Prepared, pages

RUNS = 100_000
WAITING = list(range(50, RUNS, 50))
"""Half of them wait for a signal, the others for a job."""
HELD = [RUNS // 2 - 1, RUNS // 2 - 2]
"""Two runs that a worker holds, under token 7."""
FILL = f"""
insert into duetime.job (task, queue, priority, args, max_attempts, flow)
    select 'order', 'default', 5, '{{}}', 10000, true from generate_series(1, {RUNS});
insert into duetime.attempt (job_id, token, attempt, outcome, finished_at)
    select id, id + 10, 1,
        case when id % 50 = 0 then 'snoozed' when id % 500 = 1 then 'dead' else 'completed' end,
        now()
    from duetime.job;
insert into duetime.flow_step (run_id, seq, kind, name, state, started_at, finished_at)
    select id, 1, 'step', 'charge', 'completed', now(), now() from duetime.job;
insert into duetime.flow_step (run_id, seq, kind, name, state)
    select id, -1, 'compensation', 'refund', 'registered' from duetime.job where id % 20 = 2;
insert into duetime.flow_signal (run_id, name, sent_at, sent_by, seq)
    select id, 'approved', now(), 'ann', case when id % 100 > 0 then 2 end
    from duetime.job where id % 20 = 0;
insert into duetime.due (queue, priority, run_at, job_id)
    select queue, priority, '9000-01-01 00:00Z', id from duetime.job where id % 50 = 0;
insert into duetime.flow_step (run_id, seq, kind, name, state, correlation, job_id)
    select id, 2, case when id % 100 = 0 then 'signal' else 'job' end, 'approved', 'waiting',
        case when id % 100 = 0 then 'order:' || id end,
        case when id % 100 > 0 then {RUNS} + id end
    from duetime.job where id % 50 = 0;
insert into duetime.claim (token, worker_id, job_ids, attempts, claimed_at)
    values (7, 1, array{HELD}, '{{1,1}}', now());
"""
_WHOLE = re.compile(
    r"Seq Scan on (job|due|attempt|job_key|parked|flow_step|flow_signal|flow_run)\b"
)


def record(run: int, seq: int) -> dict[str, Any]:
    return {
        "run": run, "token": 7, "seq": seq, "kind": "step", "name": "ship", "state": "completed",
        "attempt": 1, "output": 7, "started": 1, "finished": 2,
    }  # fmt: skip


SOME = list(range(40_000, 40_200))
JOBS = [RUNS + run for run in WAITING[:400]]
PAGE = {"before": RUNS + 1, "page": 100, "flow": None}
WORK: dict[str, tuple[Any, int]] = {
    "flow_load": (SOME, 12 * len(SOME)),
    "flow_began": (SOME, 15 * len(SOME)),
    "flow_record": ([record(run, seq) for run in HELD for seq in range(2, 102)], 12 * 200),
    "flow_record_one": (record(HELD[0], 2), 50),
    "flow_suspend": (
        [{"run": run, "token": 7, "started": 1, "finished": 2, "waits": [2]} for run in HELD],
        200,
    ),
    "flow_signal": ({"run": 4_100, "name": "approved", "data": 1, "key": "k", "by": "ann"}, 200),
    "flow_waiting": ({"name": "approved", "correlation": "order:5000"}, 20),
    "flow_holders": (JOBS, 5 * len(JOBS)),
    "flow_jobs_finished": (JOBS, 15 * len(JOBS)),
    "flow_wake": (WAITING[:10], 200),
    "flow_job_steps": ({"after": RUNS}, 30 * 200),
    "flow_jobs_of": (SOME, 5 * len(SOME)),
    "flow_uncompensated": (SOME, 10 * len(SOME)),
    "flow_compensations": ({"after": 40_000}, 200),
    "flow_overdue": ({}, 12 * 1_000),
    # Of graphs
    "graph_runs": (SOME, 12 * len(SOME)),
    "graph_held": ({"run": HELD[0], "token": 7}, 20),
    "graph_rows": ({"run": 4_100, "last": 1_000}, 10),
    "graph_outputs": ([{"run": run, "first": 1, "last": 3} for run in SOME], 5 * len(SOME)),
    "graph_items": ([{"run": run, "first": 1, "last": 3} for run in SOME], 5 * len(SOME)),
    "graph_jobs": ({"run": 4_150}, 50),
    "graph_signals": ({"run": 4_100}, 10),
    "graph_take": ([{"id": number, "seq": 3} for number in range(1, 101)], 20 * 100),
}
"""What workers do, the repair of the follower included: the document of each statement, and how
many pages it may touch."""
LISTS: dict[str, tuple[Any, int]] = {
    "flow_ids": (PAGE, 200),
    "flow_keyed_ids": ({**PAGE, "key": "order:7"}, 10),
    "flow_due_ids": ({**PAGE, "states": ["pending"]}, 12 * len(WAITING)),
    "flow_open_ids": ({**PAGE, "states": ["waiting", "sleeping"]}, 200),
    "flow_running_ids": (PAGE, 20),
    "flow_parked_ids": (PAGE, 10),
    "flow_troubled_ids": ({**PAGE, "outcomes": ["dead"]}, 600),
    "flow_undone_ids": (PAGE, 200),
    "flow_infos": ({"ids": SOME[:100], "full": False}, 30 * 100),
    "flow_open_steps": (WAITING[:100], 8 * 100),
    "flow_steps": ({"run": SOME[0]}, 10),
}
"""What people ask for."""

GRAPH_WRITES: dict[str, tuple[Any, int]] = {
    "graph_write_and_release": (
        {
            "changes": [{"run": run, "seq": 1, "state": "running"} for run in SOME],
            "counts": [{"run": run, "seq": 2, "by": 1} for run in SOME],
        },
        40 * len(SOME),
    ),
    "graph_reset": ([{"run": run, "seq": 1, "pending": 1} for run in SOME], 20 * len(SOME)),
    "graph_forget": ([{"run": run, "first": 1, "last": 3} for run in SOME], 20 * len(SOME)),
}
"""Until the server has analyzed the table, within a minute or so, it may hash all rows."""
ALL = WORK | LISTS | GRAPH_WRITES


@pytest.fixture(scope="module")
def session(postgres15: PostgresServer) -> Iterator[Prepared]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        sql = {
            name: text.replace("%s", "%(document)s")
            for name, text in PostgresStore(url)._sql.items()
        }
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            connection.execute("set enable_seqscan = off")
            connection.execute("set jit = off")
            prepared = Prepared(connection, sql)
            for name, (document, _) in ALL.items():
                prepared.prepare(name, **parameters(name, document))
            connection.execute(FILL.encode())
            yield prepared


@pytest.mark.parametrize("name", WORK)
def test_work_uses_its_indexes_with_plans_of_empty_tables(session: Prepared, name: str) -> None:
    check(session, name, *WORK[name])


@pytest.mark.parametrize("name", ALL)
def test_work_and_lists_use_their_indexes_once_tables_are_analyzed(
    analyzed: Prepared, name: str
) -> None:
    check(analyzed, name, *ALL[name])


@pytest.fixture(scope="module")
def analyzed(session: Prepared) -> Prepared:
    session._connection.execute("analyze")
    return session


def parameters(name: str, document: Any) -> dict[str, Any]:
    if name == "flow_record_one":
        return {**document, "place": None, "output": json.dumps(document["output"])}
    return {"document": json.dumps(document)}


def check(session: Prepared, name: str, document: Any, most: int) -> None:
    given = parameters(name, document)
    session.plan(name, **given)
    plan = session.plan(name, **given)

    assert _WHOLE.findall(plan) == []
    assert pages(plan) <= most, plan
