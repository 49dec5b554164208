"""`check_live` and `check_ready`: what probes of a process ask about its own workers."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from duetime import Duetime
from duetime.api.starting import start_worker
from duetime.errors import DatabaseCorrupted
from duetime.health import Check, check_live, check_ready
from duetime.storage.migrations import Migration
from duetime.wiring import make_migrator
from tests.engine.jobs.test_damaged_file import damage
from tests.servers import PostgresServer
from tests.waiting import until, until_true


def failing(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.ok]


async def test_a_process_is_live_and_ready_with_and_without_a_worker(app: Duetime) -> None:
    assert failing(check_live(app)) == failing(await check_ready(app)) == []
    assert failing(await check_ready(app, worker=True)) == ["worker"]
    async with app.worker():
        assert failing(check_live(app)) == failing(await check_ready(app, worker=True)) == []

    assert failing(await check_ready(app, worker=True)) == ["worker"]
    assert failing(check_live(app)) == []


async def test_a_forked_process_has_none_of_its_parents_workers(app: Duetime) -> None:
    async with app.worker():
        child = os.fork()
        if child == 0:
            os._exit(len(app._running_workers))
        _, status = await asyncio.to_thread(os.waitpid, child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert failing(await check_ready(app, worker=True)) == []


async def test_a_worker_that_stops_is_not_ready_while_its_jobs_finish(app: Duetime) -> None:
    release = asyncio.Event()
    begun = asyncio.Event()

    @app.task(name="wait")
    async def wait() -> None:
        begun.set()
        await release.wait()

    async with app.worker() as worker:
        await wait.enqueue()
        await begun.wait()
        worker.stop()
        stopping = await check_ready(app)
        live = check_live(app)
        release.set()

    assert failing(stopping) == ["worker"]
    assert failing(live) == []


async def test_a_worker_thread_whose_event_loop_is_blocked_is_not_live(app: Duetime) -> None:
    release = threading.Event()

    @app.task(name="block")
    async def block() -> None:
        release.wait(30)

    worker = await asyncio.to_thread(app.worker_thread, block_limit="300ms", lease="2s")
    try:
        await block.enqueue()
        await until_true(lambda: failing(check_live(app)))
        release.set()
        await until_true(lambda: not failing(check_live(app)))
    finally:
        release.set()
        await asyncio.to_thread(worker.stop)


async def test_a_worker_that_ended_by_itself_is_not_live(
    tmp_path: Path, sqlite_tables: Path
) -> None:
    path = Path(shutil.copy(sqlite_tables, tmp_path))
    app = Duetime(f"sqlite:///{path}", poll="200ms")
    _, running = await start_worker(app)
    damage(path, "duetime_due")
    with pytest.raises(DatabaseCorrupted):
        await running
    await app.close()

    assert failing(check_live(app)) == ["worker"]


async def test_a_database_that_is_away_makes_a_process_unready_but_not_dead(
    own_postgres: PostgresServer,
) -> None:
    app = Duetime(own_postgres.dsn(own_postgres.create_database()), migrate=True)
    async with app.worker():
        assert failing(await check_ready(app)) == []
        own_postgres.stop("immediate")
        away = await check_ready(app)
        live = check_live(app)
        own_postgres.start()

        async def ready() -> bool:
            return not failing(await check_ready(app))

        await until(ready)
    await app.close()

    assert failing(away) == ["database"]
    assert failing(live) == []


async def test_a_database_that_hangs_is_given_up_in_time(own_postgres: PostgresServer) -> None:
    app = Duetime(own_postgres.dsn(own_postgres.create_database()), migrate=True)
    await app.store()
    began = time.monotonic()
    with own_postgres.paused():
        checks = await check_ready(app, timeout=timedelta(milliseconds=300))
    took = time.monotonic() - began
    await app.close()

    assert failing(checks) == ["database"]
    assert took < 10


async def test_a_schema_of_another_version(app: Duetime) -> None:
    with make_migrator(app.settings).session() as session:
        session.record(Migration(99, "from_the_future", "", ""))

    assert failing(await check_ready(app)) == ["schema"]
