"""Every page of the dashboard reads little, whatever waits and has finished.

The real pages are asked for, with generic plans and with plans for their values. Then the server's
own statistics say what was read: rows, and pages of tables and indexes (buffers). These numbers are
the same on a busy machine as on an idle one, which times are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest
from fastapi.routing import APIRoute

from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.domain.reminders.rule import Rule
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.web.service import Service, make_service
from tests.conftest import fresh_database
from tests.counting import is_alone
from tests.servers import PostgresServer
from tests.storage.stats.test_stats_plans import FILL
from tests.waiting import until_true

ROWS = 120_000
"""Of each. A plan that reads all of one of them is over every budget; a million more would not
change what the right plans read."""
BUDGETS = (
    ("/queues/", 56_000, 22_000),
    ("/queues", 30_000, 16_000),
    ("/timing", 32_000, 32_000),
    ("/reminders", 32_000, 28_000),
    ("/doctor", 32_000, 18_000),
    ("/recipients/", 30_000, 12_000),
    ("/schedules", 30_000, 6_000),
    ("/jobs/", 25_000, 2_500),
    # No index serves these: they examine a bounded number of the newest jobs.
    ("/jobs?error_code", 35_000, 70_000),
    ("/jobs?task", 35_000, 80_000),
    ("/jobs?args", 35_000, 80_000),
    ("/jobs?queue", 20_000, 28_000),
    ("/jobs?state", 20_000, 22_000),
    ("/jobs", 18_000, 17_000),
    ("/", 30_000, 6_000),
)
"""The most rows and buffers that a page may read, by the beginning of its address: the first that
fits. 20,000 of the rows are for the numbers of the side bar, or fewer if an index has all."""
NOW = ("/", 38_000, 19_000)
MOST_BYTES = 100_000
"""Without what charts are drawn from."""
CHARTS = ("/timing",)
EXAMPLES = {"job_id": ROWS + 7, "queue": "default", "name": "s7", "ref": "s7", "key": "dtr_60007"}
QUERIES = (
    "/jobs?state=dead", "/jobs?state=completed", "/jobs?state=pending", "/jobs?state=retrying",
    "/jobs?queue=default", "/jobs?task=noop", "/jobs?key=none", "/jobs?error_code=ValueError",
    "/jobs?args=a%3D7", "/timing?window=30d", "/search?q=s77", "/audit?kind=job",
)  # fmt: skip
PLAN_MODES = ("force_generic_plan", "force_custom_plan")
"""The server chooses between these by what it expects them to cost: either must be good."""
TABLES = (
    "'job', 'due', 'attempt', 'reminder', 'subject', 'schedule', 'schedule_tick', 'recipient', "
    "'delivery', 'flow_step', 'attempt_stat', 'attempt_sample'"
)
READ = f"""
select sum(t.seq_scan), sum(t.seq_tup_read + coalesce(t.idx_tup_fetch, 0)),
    sum(i.heap_blks_hit + i.heap_blks_read + coalesce(i.idx_blks_hit + i.idx_blks_read, 0))
from pg_stat_user_tables as t join pg_statio_user_tables as i using (relid)
where t.relname in ({TABLES})
"""
WITHOUT_AUTOVACUUM = f"""
do $$
declare name text;
begin
    foreach name in array array[{TABLES}] loop
        execute format('alter table duetime.%I set (autovacuum_enabled = off)', name);
    end loop;
end $$
"""
NOT_PAGES = {"/live", "/metrics", "/healthz", "/readyz"}


@pytest.fixture(scope="module")
def url(postgres15: PostgresServer) -> Iterator[str]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        with psycopg.connect(url, autocommit=True) as connection:
            rule = json.dumps(Rule(offset=timedelta(hours=-1)).to_json())
            connection.execute(FILL.format(rows=ROWS).replace('{"offset": "-1h"}', rule).encode())
            connection.execute("vacuum duetime.due, duetime.job, duetime.attempt, duetime.reminder")
            # What autovacuum reads counts as read, too.
            connection.execute(WITHOUT_AUTOVACUUM)
            connection.execute("analyze")
        yield url


def pages_of(service: Service) -> list[str]:
    """An address of each page, and of some with their filters."""
    paths = [
        route.path
        for route in service.routes
        if isinstance(route, APIRoute)
        and "GET" in (route.methods or ())
        and not route.path.startswith("/api/")
        and route.path not in NOT_PAGES
    ]
    shown = [path.replace("/recipients/{ref}", "/recipients/r7") for path in paths]
    return [path.format_map(Examples()) for path in shown] + list(QUERIES)


class Examples(dict[str, object]):
    """What there is one of; of others the number 7."""

    def __missing__(self, name: str) -> object:
        return EXAMPLES.get(name, 7)


def budget_of(path: str) -> tuple[int, int]:
    if path == NOW[0]:
        return NOW[1:]
    return next((rows, buffers) for start, rows, buffers in BUDGETS if path.startswith(start))


def read_so_far(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """Sequential scans, rows and buffers."""
    row = connection.execute(READ).fetchone()
    assert row is not None
    scans, rows, buffers = row
    return int(scans), int(rows), int(buffers)


@pytest.mark.timeout(600)  # It asks for a hundred pages.
async def test_a_page_reads_a_bounded_number_of_rows_and_buffers(url: str) -> None:
    visitor = Visitor("ann", TokenScope.ADMIN)
    paths = pages_of(make_service(Duetime(url), authenticate=lambda request: visitor))
    assert {"/", "/jobs", f"/jobs/{ROWS + 7}", "/queues/default", "/schedules/s7"} <= set(paths)
    too_much = {}
    for mode in PLAN_MODES:
        app = Duetime(f"{url}?options=-c%20plan_cache_mode%3D{mode}")
        service = make_service(app, parts=["dashboard"], authenticate=lambda request: visitor)
        async with AsyncExitStack() as stack:
            read = stack.enter_context(psycopg.connect(url, autocommit=True))
            transport = httpx.ASGITransport(service)
            tab = await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://localhost")
            )
            for path in paths:
                before = read_so_far(read)
                answer = await tab.get(path)
                await app.close()
                # A session reports what it read before it is gone.
                await until_true(partial(is_alone, read))
                after = read_so_far(read)
                assert answer.status_code in (200, 404, 422), path
                if found := describe_excess(path, answer, before, after):
                    too_much[path, mode] = found
    assert too_much == {}


def describe_excess(
    path: str, answer: httpx.Response, before: tuple[int, ...], after: tuple[int, ...]
) -> str | None:
    scans, rows, buffers = (now - then for now, then in zip(after, before, strict=True))
    most_rows, most_buffers = budget_of(path)
    size = len(answer.content)
    is_large = size > MOST_BYTES and not path.startswith(CHARTS)
    if not (scans or rows > most_rows or buffers > most_buffers or is_large):
        return None
    read = f"{rows:,} rows of {most_rows:,}, {buffers:,} buffers of {most_buffers:,}"
    return f"{scans} scans, {read}, {size:,} bytes"
