"""A NOTIFY is a poke, never data: every role that may connect can send one, with any payload."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from duetime import Duetime
from duetime.domain.jobs.job import JobState
from duetime.storage.postgres.listener import Listener
from tests.conftest import fresh_database
from tests.engine.jobs.test_worker import reaches
from tests.log_events import events_of
from tests.servers import PostgresServer
from tests.waiting import until_true

ODD = [
    "²",
    "٣",
    "",
    "1 ²",
    "9" * 5000,
    "-1",
    "1.5",
    "0x10",
    "\n",
    "default\x01",
    "'; drop table job",
]
"""Among them what `str.isdigit` takes for a number and `int` does not."""


def notify(url: str, channel: str, payload: str | bytes) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_notify(%s, %s)", [channel, payload])


@pytest.fixture
def stranger(pg_url: str) -> str:
    """The URL of a role that may connect, and has no right in Duetime's schema."""
    # A role belongs to the server, and other tests have strangers of their own.
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(
            "do $$ begin create role notifying_stranger login; "
            "exception when duplicate_object then null; end $$"
        )
    return psycopg.conninfo.make_conninfo(pg_url, user="notifying_stranger")


async def test_a_forged_cancel_stops_no_job(pg_app: Duetime, stranger: str) -> None:
    hold = asyncio.Event()
    begun = asyncio.Event()

    @pg_app.task(max_attempts=1)
    async def work() -> str:
        begun.set()
        await hold.wait()
        return "done"

    @pg_app.task
    async def marker() -> None: ...

    async with pg_app.worker(concurrency=2):
        job = await work.enqueue()
        await begun.wait()
        [worker] = await pg_app.workers.list()
        for payload in (f"{worker.id} {job.id}", f"{worker.id}"):
            await asyncio.to_thread(notify, stranger, "duetime.cancel", payload)
        # It has looked, and gone on.
        await (await marker.enqueue()).result(timeout="30s")
        hold.set()

        assert await job.result(timeout="30s") == "done"


@pytest.mark.parametrize("channel", ["duetime.cancel", "duetime.wake", "duetime.finished"])
async def test_no_payload_ends_a_worker_or_a_wait(
    pg_app: Duetime, stranger: str, channel: str
) -> None:
    hold = asyncio.Event()

    @pg_app.task
    async def work(n: int) -> int:
        await hold.wait()
        return n

    async with pg_app.worker(poll="60s"):
        first = await work.enqueue(1)
        waiting = asyncio.create_task(first.result(timeout="30s"))
        await reaches(pg_app, first.id, JobState.RUNNING)
        [worker] = await pg_app.workers.list()
        for payload in [*ODD, *(f"{worker.id} {odd}" for odd in ODD)]:
            await asyncio.to_thread(notify, stranger, channel, payload)
        hold.set()

        assert await waiting == 1
        assert await (await work.enqueue(2)).result(timeout="30s") == 2


async def test_bytes_that_are_no_text_end_no_worker(
    postgres15: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with fresh_database(postgres15) as url:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        with psycopg.connect(postgres15.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'drop database "{name}"')
            connection.execute(
                f"create database \"{name}\" encoding 'SQL_ASCII' locale 'C' template template0"
            )
        app = Duetime(url, migrate=True)

        @app.task
        async def work(n: int) -> int:
            return n

        async with app.worker(poll="60s"):
            for channel in ("duetime.cancel", "duetime.wake", "duetime.finished"):
                with psycopg.connect(url, autocommit=True) as raw:
                    raw.execute(f"notify \"{channel}\", '\xff\xfe'".encode("latin-1"))

            assert await (await work.enqueue(2)).result(timeout="30s") == 2
        await app.close()
    assert "Traceback" not in caplog.text


async def test_a_handler_that_raises_does_not_fail_the_session(
    pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def hear(channel: str, payload: str) -> None:
        heard.append(payload)
        int(payload)

    listener = Listener(
        lambda: psycopg.AsyncConnection.connect(pg_url, autocommit=True), ["poke"], hear
    )
    await listener.open()
    # On its own session it arrives with the answer, inside `execute`.
    rows = await listener.execute("select 1 from (select pg_notify('poke', %s)) as sent", ["²"])
    await until_true(lambda: heard == ["²"])
    await listener.close()

    assert rows == [(1,)]
    assert "notification_failed" in events_of(caplog)


async def test_a_real_cancel_is_found_by_its_poke(pg_app: Duetime) -> None:
    stopped: list[str] = []

    @pg_app.task
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append("work")

    async with pg_app.worker(lease="5m", heartbeat="1m", poll="1m"):
        job = await work.enqueue()
        await reaches(pg_app, job.id, JobState.RUNNING)
        await pg_app.jobs.cancel(job.id)

        await until_true(lambda: stopped == ["work"])
