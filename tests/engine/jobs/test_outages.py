"""The database goes away and comes back: who notices, who waits, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duetime import Duetime
from tests.conftest import Backend, query
from tests.log_events import event_of
from tests.servers import PostgresServer
from tests.waiting import until_true


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of the log lines of this event."""
    return [getattr(line, "duetime", {}) for line in caplog.records if event_of(line) == event]


async def test_connections_that_the_server_cut_are_replaced_before_they_are_used(
    pg_app: Duetime,
) -> None:
    """No enqueue fails for a connection that was cut while nobody used it."""

    @pg_app.task
    async def note() -> None: ...

    # All four of them are open.
    await asyncio.gather(*(note.enqueue() for _ in range(40)))
    with psycopg.connect(pg_app.settings.database, autocommit=True) as admin:
        cut = admin.execute(
            "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchone()
    began = time.monotonic()
    for _ in range(8):
        await note.enqueue()
    took = time.monotonic() - began
    jobs = await pg_app.jobs.list(limit=100)

    assert cut is not None
    assert cut[0] >= 2
    assert len(jobs) == 48
    assert took < 5


async def test_work_resumes_soon_after_an_outage_however_long_it_was(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And one line says that the database is away, one that it is back."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True, lease="30s", heartbeat="1s")
    ran: list[float] = []

    @app.task
    async def note() -> None:
        ran.append(time.monotonic())

    async with app.worker():
        await note.enqueue()
        await until_true(lambda: len(ran) == 1)
        own_postgres.stop("immediate")
        away = time.monotonic()
        await until_true(lambda: time.monotonic() > away + 2.5)
        own_postgres.start()
        back = time.monotonic()
        query(Backend("postgres15", url), f"select duetime.enqueue('{note.name}')")
        await until_true(lambda: len(ran) == 2)
        await until_true(lambda: bool(said(caplog, "database_reconnected")))
    await app.close()

    assert ran[1] - back < 3
    assert len(said(caplog, "database_unreachable")) == 1
    [returned] = said(caplog, "database_reconnected")
    assert 1 < returned["outage_s"] < 10
    assert not any(line.name == "psycopg.pool" for line in caplog.records)


@pytest.mark.parametrize("count", [1, 1000])
async def test_callers_wait_for_a_database_that_restarts(
    own_postgres: PostgresServer, count: int
) -> None:
    """Only workers do not: they have to notice that they shall stop. Many jobs are copied, by a
    path of its own."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True)

    @app.task
    async def note() -> None: ...

    await note.enqueue()
    own_postgres.stop("immediate")
    enqueue = app.enqueue_many([note.job() for _ in range(count)])
    enqueueing = asyncio.create_task(enqueue)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.shield(enqueueing), 1.0)
    own_postgres.start()
    await asyncio.wait_for(enqueueing, 30)
    jobs = [job.id async for job in app.jobs.iterate()]
    await app.close()

    assert len(jobs) == 1 + count


async def test_a_fenced_worker_pauses_between_its_attempts_to_come_back(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And does not log each of them."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True, lease="800ms", heartbeat="200ms")
    async with app.worker() as worker:
        own_postgres.stop("immediate")
        await until_true(lambda: bool(said(caplog, "worker_fenced")))
        caplog.clear()
        fenced = time.monotonic()
        await until_true(lambda: time.monotonic() > fenced + 2)
        lines = [line for line in caplog.records if line.levelno >= logging.WARNING]
        attempts = worker.loop.failures
        own_postgres.start()
        await until_true(lambda: bool(said(caplog, "database_reconnected")))
    await app.close()

    assert len(lines) <= 3, [event_of(line) for line in lines]
    assert attempts < 10


async def test_an_sqlite_file_that_takes_no_writes_causes_no_flood_of_log_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk: neither the lease can be renewed nor can the worker join anew."""
    backend = Backend("sqlite", f"sqlite:///{tmp_path}/full.db")
    app = Duetime(backend.url, lease="800ms", heartbeat="200ms")

    @app.task
    async def note() -> str:
        return "ran"

    async with app.worker():
        for event in ("insert", "update"):
            query(
                backend,
                f"create trigger full_{event} before {event} on duetime.worker"
                " begin select raise(abort, 'database or disk is full'); end",
            )
        await until_true(lambda: bool(said(caplog, "worker_fenced")))
        fenced = time.monotonic()
        await until_true(lambda: time.monotonic() > fenced + 2)
        lines = [line for line in caplog.records if line.levelno >= logging.WARNING]
        for event in ("insert", "update"):
            query(backend, f"drop trigger full_{event}")

        assert await (await note.enqueue()).result("30s") == "ran"
    await app.close()

    assert len(lines) <= 5, [event_of(line) for line in lines]


async def test_an_embedded_worker_waits_for_a_database_that_is_away(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True)

    @app.task
    async def note() -> str:
        return "ran"

    own_postgres.stop()

    async def serve() -> str:
        async with app.worker():
            result: str = await (await note.enqueue()).result("30s")
            return result

    serving = asyncio.create_task(serve())
    await until_true(lambda: bool(said(caplog, "database_unreachable")))
    own_postgres.start()

    assert await asyncio.wait_for(serving, 30) == "ran"
    assert len(said(caplog, "database_reconnected")) == 1
    await app.close()
