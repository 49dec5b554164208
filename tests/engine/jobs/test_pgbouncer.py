"""Behind a pooler in transaction mode: LISTEN and the lease use a direct connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from duetime import Constant, Context, Duetime
from duetime.errors import SettingsError
from tests.pgbouncer import find_pgbouncer, pgbouncer
from tests.waiting import until_true

pytestmark = pytest.mark.skipif(
    find_pgbouncer() is None, reason="pgbouncer is neither installed nor could be"
)


@pytest.fixture
def pooled(pg_url: str) -> Iterator[str]:
    with pgbouncer(pg_url) as url:
        yield url


async def test_jobs_run_behind_a_transaction_pooler(pg_url: str, pooled: str) -> None:
    app = Duetime(pooled, listen_database=pg_url, prepare=False, migrate=True, poll="60s")

    @app.task(retry=Constant("0s"))
    async def double(ctx: Context, n: int) -> int:
        if ctx.attempt == 1:
            raise ValueError
        async with ctx.transaction() as connection:
            await connection.execute("select 1")
        return 2 * n

    async with app.worker():
        await app.enqueue_many(double.job(n=n) for n in range(50))
        handle = await double.enqueue(n=21)
        await handle.result("30s")
    jobs = await app.jobs.list(limit=100)
    await app.close()

    assert len(jobs) == 51
    assert {job.state for job in jobs} == {"completed"}


async def test_without_a_direct_connection_the_worker_polls(pooled: str) -> None:
    app = Duetime(pooled, prepare=False, notify=False, migrate=True)
    ran: list[float] = []

    @app.task
    async def note() -> None:
        ran.append(time.monotonic())

    async with app.worker():
        before = time.monotonic()
        await note.enqueue()
        await until_true(lambda: bool(ran))
    await app.close()

    assert ran[0] - before < 20, "found by polling, about every second"


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "listen_database"),
        ({"prepare": False}, "listen_database"),
        ({"notify": False}, "prepare"),
    ],
)
async def test_a_pooler_that_a_worker_cannot_work_through_is_named(
    pooled: str, options: dict[str, Any], advice: str
) -> None:
    """Else jobs would wait for the safety poll, and nothing would say why."""
    app = Duetime(pooled, migrate=True, **options)
    with pytest.raises(SettingsError, match=f"pooler in transaction mode.*Set {advice} "):
        async with app.worker():
            pass
    await app.close()


async def test_a_direct_url_that_is_none_is_named(pooled: str, pg_url: str) -> None:
    app = Duetime(pg_url, listen_database=pooled, migrate=True)
    with pytest.raises(
        SettingsError, match="The URL of listen_database leads to a connection pooler"
    ):
        async with app.worker():
            pass
    await app.close()


async def test_a_pooler_in_session_mode_needs_no_settings(pg_url: str) -> None:
    with pgbouncer(pg_url, mode="session") as url:
        app = Duetime(url, migrate=True, poll="60s")

        @app.task
        async def note() -> str:
            return "ran"

        async with app.worker():
            assert await (await note.enqueue()).result("30s") == "ran"
        await app.close()
