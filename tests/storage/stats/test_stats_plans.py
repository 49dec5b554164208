"""The numbers that people watch cost the same beside many jobs and reminders as beside few.

The real calls are made, each often enough that the server may keep a generic plan. Then its own
statistics say what was read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime
from duetime.domain.alert import make_alert
from duetime.storage.alerts import AlertStatements
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from tests.conftest import fresh_database
from tests.counting import rows_read
from tests.servers import PostgresServer
from tests.storage.jobs.test_find_plans import CALLS

ROWS = 100_000
"""Of each. The test counts the rows that are read: a million more would not change the number."""
FILL = """
insert into duetime.job (task, queue, priority, args, max_attempts)
    select 'noop', 'default', 5, '{{}}', 3 from generate_series(1, {rows});
insert into duetime.attempt (job_id, token, attempt, outcome, finished_at, error_code)
    select id, id, 1, case when id % 20 = 0 then 'dead' else 'completed' end,
        clock_timestamp() - (id - {rows}) * interval '1 second', 'ValueError'
    from duetime.job;
insert into duetime.subject (ref, due_at)
    select 's' || n, now() + n * interval '1 minute' from generate_series(1, {rows} / 10) as n;
insert into duetime.job (task, queue, priority, args, max_attempts)
    select 'duetime.remind', 'default', 5, '{{}}', 3 from generate_series(1, {rows});
insert into duetime.due (queue, priority, run_at, job_id, attempt)
    select queue, priority, clock_timestamp() + (id - 1.5 * {rows}) * interval '1 second', id,
        (id % 20 = 0)::integer
    from duetime.job where id > {rows};
insert into duetime.rule (id, digest, name, body)
    values (1, md5('1')::uuid, '1h-before', '{{"offset": "-1h"}}');
insert into duetime.reminder (key, subject_id, due_at, rule, time, revision, run_at,
                              status, job_id, recipient)
    select md5(d.job_id::text)::uuid, 1 + d.job_id % ({rows} / 10), now(), 1,
        d.run_at, 1, d.run_at, case when d.job_id % 20 = 0 then 'failed' else 'armed' end,
        d.job_id, 'r' || d.job_id % 1000
    from duetime.due as d;
insert into duetime.schedule (name, target, timetable)
    select 's' || n, 'noop', '{{"specs": [{{"cron": "0 9 * * *"}}], "tz": "UTC"}}'
    from generate_series(1, 1000) as n;
insert into duetime.schedule_tick (schedule_id, tick, run_at, status)
    select s, now() - n * interval '1 minute', now(), 'fired'
    from generate_series(1, 20) as s cross join generate_series(1, 2000) as n;
insert into duetime.recipient (ref) select 'r' || n from generate_series(1, {rows} / 10) as n;
insert into duetime.attempt_stat (minutes, at, task, counts, lateness, duration, busy_us)
    select m, date_trunc('hour', now()) - n * m * interval '1 minute', task, '{{"completed": 7}}',
        '{{"5": 7}}', '{{"7": 7}}', 1
    from unnest('{{1,10,60}}'::integer[]) as m cross join generate_series(-59, 300) as n
    cross join unnest('{{"",task7,task8}}'::text[]) as task;
insert into duetime.attempt_sample (level, started_at, job_id, task, outcome, run_at, finished_at)
    select level, now() - n * interval '1 second', n, 'task7', 'completed', now(), now()
    from generate_series(0, 2) as level cross join generate_series(1, 20000) as n;
analyze;
"""
Look = Callable[[Duetime], Awaitable[Any]]

FAR = datetime.now(UTC) + timedelta(hours=5)
LOOKS: dict[str, tuple[Look, int]] = {
    "now": (lambda app: app.stats.now(), 17_000),
    "problems": (lambda app: app.stats.problems(), 20_000),
    "series of an hour": (lambda app: app.stats.series(), 61),
    "series of a week": (lambda app: app.stats.series(window="7d", task="task7"), 169),
    "samples": (lambda app: app.stats.samples(), 2001),
    "samples of a week": (lambda app: app.stats.samples(window="7d"), 2001),
    "timeline": (lambda app: app.stats.timeline(), 10_051),
    "heat map": (lambda app: app.stats.heat_map("s7"), 42_001),
    "agenda": (lambda app: app.stats.agenda(), 1_500),
    "agenda, far ahead": (lambda app: app.stats.agenda(since=FAR), 1_500),
    "week of a recipient": (lambda app: app.stats.recipient_week("r7", days=31), 1_500),
    "preview of a spec": (lambda app: app.stats.preview("0 9 * * *"), 501),
    "search by a number": (lambda app: app.stats.search("7"), 5_000),
    "search by a prefix": (lambda app: app.stats.search("s77"), 5_000),
    "totals": (lambda app: app.stats.totals(), 21_500),
    "metrics": (lambda app: scrape(app), 8_000),
    "alert": (lambda app: check_alert(app), 50),
}
"""Each with the most rows that it may read. A lane is counted up to 10,000."""


async def scrape(app: Duetime) -> str:
    app._metrics._next_at = 0.0
    return await app.metrics()


TABLES = [
    "job", "due", "attempt", "reminder", "subject", "schedule", "schedule_tick", "recipient",
    "delivery", "flow_step", "attempt_stat", "attempt_sample",
]  # fmt: skip


async def check_alert(app: Duetime) -> bool:
    store = await app.store()
    statements = AlertStatements(store.dialect)
    alert = make_alert("ops", channels=["mail"], on=["job_dead", "tick_missed"], every="1h")
    await store.transact(statements.open(["ops"]))
    now = await store.now()
    await store.transact(statements.next([alert], timedelta(0)), reads=True)
    await store.transact(statements.incidents(alert, now - timedelta(seconds=1), now))
    return True


@pytest.fixture(scope="module")
def url(postgres15: PostgresServer) -> Iterator[str]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(FILL.format(rows=ROWS).encode())
            connection.execute("vacuum duetime.due, duetime.job, duetime.attempt")
        yield url


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_reads_a_bounded_number_of_rows(url: str, name: str) -> None:
    look, most = LOOKS[name]
    before = rows_read(url, TABLES)
    app = Duetime(url)
    assert await look(app)
    for _ in range(CALLS - 1):
        await look(app)
    await app.close()
    after = rows_read(url, TABLES)

    assert after[0] == before[0], "nothing is read from end to end"
    assert (after[1] - before[1]) / CALLS <= most
