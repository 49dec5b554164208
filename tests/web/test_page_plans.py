"""Every page of the dashboard reads little, whatever waits and has finished.

The real pages are asked for, each often enough that the server may keep a generic plan. Then the
server's own statistics say what was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

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
from tests.servers import PostgresServer
from tests.storage.jobs.test_find_plans import CALLS
from tests.storage.stats.test_stats_plans import FILL, rows_read

ROWS = 60_000
"""Of each. The test counts the rows that are read: a million more would not change the number."""
MOST_READ = 45_000
"""By one page, with the numbers of the side bar. A lane is counted up to 10,000."""
MOST_BYTES = 100_000
"""Without what charts are drawn from."""
CHARTS = ("/timing",)
EXAMPLES = {"job_id": ROWS + 7, "queue": "default", "name": "s7", "ref": "s7", "key": "dtr_60007"}
QUERIES = (
    "/jobs?state=dead", "/jobs?state=completed", "/jobs?state=pending", "/jobs?state=retrying",
    "/jobs?queue=default", "/jobs?task=noop", "/jobs?key=none", "/jobs?error_code=ValueError",
    "/jobs?args=a%3D7", "/timing?window=30d", "/search?q=s77", "/audit?kind=job",
)  # fmt: skip
NOT_PAGES = {"/live", "/metrics", "/healthz", "/readyz"}


@pytest.fixture(scope="module")
def url(postgres15: PostgresServer) -> Iterator[str]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        with psycopg.connect(url, autocommit=True) as connection:
            rule = json.dumps(Rule(offset=timedelta(hours=-1)).to_json())
            connection.execute(FILL.format(rows=ROWS).replace('{"offset": "-1h"}', rule).encode())
            connection.execute("vacuum duetime.due, duetime.job, duetime.attempt")
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


async def test_a_page_reads_a_bounded_number_of_rows(url: str) -> None:
    visitor = Visitor("ann", TokenScope.ADMIN)
    paths = pages_of(make_service(Duetime(url), authenticate=lambda request: visitor))
    assert {"/", "/jobs", f"/jobs/{ROWS + 7}", "/queues/default", "/schedules/s7"} <= set(paths)
    too_much = {}
    for path in paths:
        app = Duetime(url)
        service = make_service(app, parts=["dashboard"], authenticate=lambda request: visitor)
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            before = rows_read(url)
            for _ in range(CALLS):
                answer = await client.get(path)
        await app.close()
        after = rows_read(url)
        assert answer.status_code in (200, 404, 422), path
        scans, rows = after[0] - before[0], (after[1] - before[1]) / CALLS
        size = len(answer.content)
        is_large = size > MOST_BYTES and not path.startswith(CHARTS)
        if scans or rows > MOST_READ or is_large:
            too_much[path] = f"{scans} scans, {rows:,.0f} rows, {size:,} bytes"
    assert too_much == {}
