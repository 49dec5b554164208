"""What people look up reads a page of rows, whatever has ended and is armed.

The real calls are made, each often enough that the server may keep a generic plan. Then its own
statistics say what was read.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime, JobState
from duetime.domain.page import make_cursor
from duetime.domain.reminders.rule import Rule
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from tests.conftest import fresh_database
from tests.counting import rows_read, rows_read_here
from tests.servers import PostgresServer

ROWS = 200_000
"""Of each. The test counts the rows that are read: a million more would not change the number."""
CALLS = 7
"""The sixth execution of a prepared statement may use a generic plan."""
FILL = """
insert into duetime.job (task, queue, priority, args, key, max_attempts, created_at)
    select case when n % 10000 = 0 then 'rare' else 'noop' end, 'default', 5,
        json_build_object('order', json_build_object('id', n)),
        case when n % 1000 = 0 then 'key-' || n end, 3,
        '2025-01-01Z'::timestamptz + n * interval '1 second'
    from generate_series(1, {rows}) as n;
insert into duetime.attempt (job_id, token, attempt, outcome, finished_at, error_code)
    select id, id, 1, case when id % 2000 = 0 then 'dead' else 'completed' end, clock_timestamp(),
        case when id % 2000 = 0 then 'KeyError' end
    from duetime.job;
insert into duetime.subject (ref, due_at) values ('subject', now());
insert into duetime.job (task, queue, priority, args, key, max_attempts)
    select 'duetime.remind', 'default', 5, '{{}}', 'reminder-' || n, 3
    from generate_series(1, {rows}) as n;
insert into duetime.due (queue, priority, run_at, job_id, attempt)
    select queue, priority, '2030-01-01Z'::timestamptz + id * interval '1 second', id,
        case when id % 50000 = 0 then 1 else 0 end
    from duetime.job where id > {rows};
insert into duetime.rule (id, digest, name, body)
    values (1, md5('1')::uuid, '1h-before', '{rule}');
insert into duetime.reminder (key, subject_id, due_at, rule, time, revision, run_at, status, job_id)
    select md5(d.job_id::text)::uuid, s.id, now(), 1, d.run_at, 1, d.run_at,
        case when d.job_id % 2000 = 0 then 'failed' when d.job_id % 2 = 0 then 'sent'
             else 'armed' end, d.job_id
    from duetime.subject as s cross join duetime.due as d;
insert into duetime.subject (ref, due_at)
    select 's' || n, now() + n * interval '1 minute' from generate_series(1, {rows} / 10) as n;
insert into duetime.audit (actor, action, entity)
    select 'ann', 'subject.put', 'subject:s' || n
    from generate_series(1, {rows} / 10) as n cross join generate_series(1, 3);
insert into duetime.schedule (name, target, timetable)
    select 's' || n, 'noop', '{{"specs": [{{"cron": "0 9 * * *"}}], "tz": "UTC"}}'
    from generate_series(1, 2000) as n;
analyze duetime.subject, duetime.audit, duetime.schedule;
analyze duetime.job, duetime.attempt, duetime.due, duetime.reminder;
"""
TABLES = ["job", "due", "attempt", "reminder", "job_key", "subject", "audit", "schedule"]
NEW_YEAR = datetime(2025, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DUE = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=300_000)
Look = Callable[[Duetime], Awaitable[Any]]


def below(app: Duetime, job_id: int) -> Awaitable[Any]:
    return app.jobs.list(state="pending", after=make_cursor("jobs", (job_id,)))


async def second_page(noun: Any, *, limit: int = 100, **filters: Any) -> Any:
    """What follows the first page; of a few, what follows the first of them."""
    if "entity" in filters:
        limit = 1
    first = await noun.list(limit=limit, **filters)
    return await noun.list(limit=max(limit, 10), after=first.next, **filters)


LOOKS: dict[str, tuple[Look, int]] = {
    "all": (lambda app: app.jobs.list(), 100),
    "pending": (lambda app: app.jobs.list(state="pending"), 100),
    "parked": (lambda app: app.jobs.list(state=["parked"]), 0),
    "retrying": (lambda app: app.jobs.list(state="retrying"), 4),
    "by error": (lambda app: app.jobs.list(error_code="KeyError"), 100),
    "created in an hour": (
        lambda app: app.jobs.list(created_since=NEW_YEAR, created_before=NEW_YEAR + HOUR, limit=80),
        80,
    ),
    "created before that hour": (lambda app: app.jobs.list(created_before=NEW_YEAR), 0),
    "due in a minute": (
        lambda app: app.jobs.list(due_since=DUE, due_before=DUE + timedelta(minutes=1)),
        60,
    ),
    "of one's own task": (lambda app: app.jobs.list(task="duetime.remind"), 100),
    "running": (lambda app: app.jobs.list(state="running"), 0),
    "completed": (lambda app: app.jobs.list(state="completed"), 100),
    "dead": (lambda app: app.jobs.list(state="dead"), 100),
    "dead or pending": (lambda app: app.jobs.list(state=["dead", "pending"]), 100),
    "a page": (
        lambda app: below(app, ROWS + 500),
        100,
    ),
    "the last page": (
        lambda app: below(app, ROWS + 5),
        4,
    ),
    "by key": (lambda app: app.jobs.list(key="key-7000"), 1),
    "by key and state": (lambda app: app.jobs.list(key="reminder-7", state="pending"), 1),
    "reminders": (lambda app: app.reminders.list(), 100),
    "armed reminders": (lambda app: app.reminders.list(status="armed"), 100),
    "armed reminders, on": (lambda app: second_page(app.reminders, status="armed"), 100),
    "reminders, on": (lambda app: second_page(app.reminders), 100),
    "subjects": (lambda app: app.subjects.list(), 100),
    "subjects, on": (lambda app: second_page(app.subjects), 100),
    "open subjects": (lambda app: app.subjects.list(status="open"), 100),
    "audit": (lambda app: app.audit.list(), 100),
    "audit of one thing": (lambda app: app.audit.list(entity="subject:s7000"), 3),
    "audit of one thing, on": (lambda app: second_page(app.audit, entity="subject:s7000"), 2),
    "schedules": (lambda app: app.schedules.list(limit=10), 10),
    "schedules, on": (lambda app: second_page(app.schedules, limit=10), 10),
    "failed reminders": (lambda app: app.reminders.list(status="failed"), 100),
    "sent reminders": (lambda app: app.reminders.list(status="sent"), 100),
}
DOCUMENTED = [
    "select duetime.next_due('default')",
    "select min(run_at) from duetime.reminder where status = 'armed'",
]


@pytest.fixture(scope="module")
def url(postgres15: PostgresServer) -> Iterator[str]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                FILL.format(
                    rows=ROWS, rule=json.dumps(Rule(offset=timedelta(hours=-1)).to_json())
                ).encode()
            )
        yield url


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_reads_a_page(url: str, name: str) -> None:
    look, expected = LOOKS[name]
    before = rows_read(url, TABLES)
    app = Duetime(url)
    for _ in range(CALLS):
        assert len(await look(app)) == expected
    await app.close()
    after = rows_read(url, TABLES)

    assert after[0] == before[0], "nothing is read from end to end"
    assert (after[1] - before[1]) / CALLS < 7 * max(expected, 100)


@pytest.mark.parametrize(
    "filters", [{"args": {"order.id": 7}}, {"task": "rare"}, {"error_code": "none"}], ids=str
)
async def test_what_no_index_serves_examines_so_many_rows(url: str, filters: Any) -> None:
    before = rows_read(url, TABLES)
    app = Duetime(url)
    page = await app.jobs.list(**filters)
    await app.close()
    after = rows_read(url, TABLES)

    assert after[0] == before[0], "nothing is read from end to end"
    assert after[1] - before[1] < 3 * 10_000
    assert page == []
    if "error_code" in filters:
        assert page.next is None, "few have failed"
    else:
        assert page.examined == 10_000
        assert page.next is not None


async def test_counts_and_groups_read_so_many_rows_of_each_state(url: str) -> None:
    before = rows_read(url, TABLES)
    app = Duetime(url)
    facets = await app.jobs.facets()
    groups = await app.jobs.errors()
    await app.close()
    after = rows_read(url, TABLES)

    assert after[0] == before[0], "nothing is read from end to end"
    assert after[1] - before[1] < 6 * 10_000
    assert facets.states[JobState.PENDING].precision == "at_least"
    assert facets.states[JobState.DEAD].value == sum(group.count.value for group in groups) == 100


@pytest.mark.parametrize("query", DOCUMENTED)
def test_next_due_is_a_few_probes(url: str, query: str) -> None:
    with psycopg.connect(url) as connection:
        assert connection.execute(query.encode()).fetchone() != (None,)
        scans, rows = rows_read_here(connection, TABLES)

    assert scans == 0
    assert rows < 50
