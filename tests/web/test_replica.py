"""Pages of the dashboard that are read from a replica: a real standby, which can be made to lag."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

import httpx
import psycopg
import pytest
from fastapi.routing import APIRoute

from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.errors import SettingsError
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.web.service import Service, make_service
from tests.replication import Standby
from tests.servers import PostgresServer
from tests.waiting import until_true
from tests.web.test_login import csrf_of

ANN = Visitor("ann", TokenScope.ADMIN)
NOT_PAGES = {"/live", "/metrics", "/healthz", "/readyz"}


@dataclass
class Watched:
    """An app whose pages are read from a standby, and a browser."""

    app: Duetime
    service: Service
    standby: Standby
    browser: httpx.AsyncClient

    async def page(self, path: str) -> str:
        answer = await self.browser.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def send(self, path: str, *, page: str, **fields: str) -> None:
        """Send a form of a page."""
        token = csrf_of(await self.page(page))
        answer = await self.browser.post(path, data={"csrf": token, **fields})
        assert answer.status_code == 303, answer.text


@pytest.fixture
async def watched(own_postgres: PostgresServer) -> AsyncIterator[Watched]:
    own_postgres.create_database("shop")
    url = own_postgres.dsn("shop")
    upgrade(PostgresMigrator(url))
    with Standby(own_postgres) as standby:
        app = Duetime(url, replica_database=standby.dsn("shop"))
        for name in ("before", "later"):
            app.task(name=name)(_nothing)
        service = make_service(app, parts=["dashboard"], authenticate=lambda request: ANN)
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers={"accept": "text/html"}
        ) as browser:
            yield Watched(app, service, standby, browser)
        await app.close()


async def _nothing() -> None: ...


async def lag(watched: Watched, primary: PostgresServer) -> None:
    """The standby has all until now, and shows nothing newer."""
    await until_true(lambda: watched.standby.has_replayed(primary))
    with psycopg.connect(watched.standby.dsn(), autocommit=True) as connection:
        connection.execute("select pg_wal_replay_pause()")


async def test_pages_are_read_from_the_replica(
    watched: Watched, own_postgres: PostgresServer
) -> None:
    await watched.app.jobs.enqueue("before")
    await lag(watched, own_postgres)
    await watched.app.jobs.enqueue("later")

    page = await watched.page("/jobs")
    assert "before" in page
    assert "later" not in page


async def test_what_the_replica_does_not_have_yet_is_read_from_the_primary(
    watched: Watched, own_postgres: PostgresServer
) -> None:
    await lag(watched, own_postgres)
    job = await watched.app.jobs.enqueue("later")

    assert "later" in await watched.page(f"/jobs/{job.id}")
    assert (await watched.browser.get("/jobs/999")).status_code == 404


async def test_a_browser_sees_its_own_changes(
    watched: Watched, own_postgres: PostgresServer
) -> None:
    await watched.app.jobs.enqueue("before")
    await lag(watched, own_postgres)
    await watched.send("/queues/default/pause", page="/queues/default", reason="stock taking")

    assert "stock taking" in await watched.page("/queues/default")
    watched.browser.cookies.delete("duetime_changed")
    assert "stock taking" not in await watched.page("/queues/default")


async def test_pages_are_shown_without_the_replica(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.app.jobs.enqueue("before")
    await watched.page("/jobs")
    watched.standby.stop("kill")
    with caplog.at_level(logging.WARNING, "duetime.web"):
        pages = [await watched.page("/jobs") for _ in range(3)]

    assert all("before" in page for page in pages)
    assert [record.event for record in caplog.records] == ["replica_failed"]  # type: ignore[attr-defined]


async def test_an_app_can_be_closed_while_its_replica_does_not_answer(pg_url: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        port = mute.getsockname()[1]
        app = Duetime(pg_url, replica_database=f"postgresql://127.0.0.1:{port}/shop")
        service = make_service(app, parts=["dashboard"], authenticate=lambda request: ANN)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(service), base_url="http://localhost", timeout=30
        ) as browser:
            answer = await browser.get("/jobs")
        await app.close()

    assert answer.status_code == 200


async def test_every_page_can_be_read_from_a_replica(
    watched: Watched, own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = watched.app
    job = await app.jobs.enqueue("before")
    await app.schedules.put("nightly", "before", "0 3 * * *")
    await app.scopes.put("shop", remind=["-1h"])
    due = await app.now() + timedelta(days=1)
    await app.subjects.put("order", scope="shop", due=due, recipients=["ann"])
    await app.recipients.put("ann")
    [reminder] = await app.reminders.list(subject="order")
    await until_true(lambda: watched.standby.has_replayed(own_postgres))
    examples = {
        "job_id": job.id, "name": "nightly", "ref": "order", "reminder_id": reminder.id,
        "queue": "default", "task": "before", "run_id": job.id,
    }  # fmt: skip
    paths = [
        route.path.format_map(Anything(examples))
        for route in watched.service.routes
        if isinstance(route, APIRoute) and "GET" in (route.methods or ())
        and route.path not in NOT_PAGES
    ]  # fmt: skip
    assert len(paths) > 25
    with caplog.at_level(logging.WARNING, "duetime.web"):
        for path in paths:
            answer = await watched.browser.get(path)
            assert answer.status_code in (200, 404, 422), (path, answer.text)

    assert [record.getMessage() for record in caplog.records] == []


class Anything(dict[str, object]):
    def __missing__(self, name: str) -> object:
        return 7


def test_sqlite_has_no_replica() -> None:
    with pytest.raises(SettingsError, match="DUETIME_REPLICA_DATABASE"):
        Duetime("sqlite:///jobs.db", replica_database="postgresql://127.0.0.1/shop")
