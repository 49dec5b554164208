"""Workers that die, stall or lose their database: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta
from functools import partial
from subprocess import Popen
from typing import Any

import psycopg
import pytest

from duetime import Constant, Context, Duetime, JobState
from duetime.errors import StorageError
from tests import effects, workload
from tests.conftest import Backend
from tests.servers import PostgresServer
from tests.waiting import until, until_true
from tests.workload import worker_process

SHORT: dict[str, Any] = {"lease": "1s", "heartbeat": "200ms", "rescue_every": "200ms"}


@pytest.fixture
def url(backend: Backend) -> str:
    """A migrated database with the table of effects."""
    app = Duetime(backend.url, migrate=True)
    app.sync(app.now())
    app.sync(app.close())
    effects.run(backend.url, effects.CREATE)
    return backend.url


def more_than(url: str, count: int) -> bool:
    return effects.count(url) >= count


async def all_completed(app: Duetime) -> bool:
    waiting = await app.jobs.list(state=["pending", "retrying", "running", "parked"], limit=1)
    return not waiting


async def test_missed_notify_is_caught_by_the_safety_poll(pg_app: Duetime) -> None:
    """The notification is lost on the way; the safety poll finds the job."""
    ran: list[float] = []

    @pg_app.task
    async def note() -> None:
        ran.append(time.monotonic())

    async with pg_app.worker(poll="300ms"):
        # Written behind the back of the wake-up protocol.
        async with await psycopg.AsyncConnection.connect(pg_app.settings.database) as connection:
            await connection.execute("set duetime.notify = 'off'")
            await connection.execute("select duetime.enqueue(%s)", (note.name,))
        await until_true(lambda: bool(ran))


async def test_two_workers_never_run_the_same_job(url: str) -> None:
    """Across processes: claims skip rows that another worker has locked."""
    app = Duetime(url)
    effect = workload.task_of(app, "effect")
    with worker_process(url), worker_process(url):
        await app.enqueue_many(effect.job(n=n) for n in range(300))
        await until_true(lambda: effects.count(url) >= 300, seconds=40)
        await until(lambda: all_completed(app))
    await app.close()

    assert effects.doubled(url) == []
    assert effects.count(url) == 300


async def test_crash_and_reclaim(url: str) -> None:
    """A worker is killed while it runs a job; the job runs again after the lease expires."""
    app = Duetime(url, **SHORT)
    killed = []

    @app.task(name="started", retry=Constant("0s", max_attempts=5))
    async def started(ctx: Context, n: int, seconds: float = 0.0) -> None:
        killed.append(ctx.attempt)

    with worker_process(url, **SHORT) as process:
        handle = await started.enqueue(n=1, seconds=60)
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        assert line.startswith("started 1 1")
        process.kill()
        died = time.monotonic()
        async with app.worker():
            await handle.result("30s")
        took = time.monotonic() - died
    job = await handle.get()
    await app.close()

    assert killed == [2]
    assert [attempt.outcome for attempt in job.history] == ["lost", "completed"]
    assert job.history[0].error_code == "worker_lost"
    assert took < 1 + 5, "within the lease and five seconds"


async def test_a_stalled_worker_that_wakes_is_refused(url: str) -> None:
    """Fencing: stopped past its lease, rescued, continued: it writes nothing."""
    app = Duetime(url, **SHORT)
    effect = workload.task_of(app, "effect", max_attempts=9)
    with worker_process(url, **SHORT) as stalled:
        handle = await effect.enqueue(n=1, seconds=0.3)

        async def running() -> bool:
            return (await handle.get()).state is JobState.RUNNING

        await until(running)
        os.kill(stalled.pid, signal.SIGSTOP)
        async with app.worker():

            async def completed() -> bool:
                return (await handle.get()).state is JobState.COMPLETED

            await until(completed)
            os.kill(stalled.pid, signal.SIGCONT)
            # It registers anew once it has noticed, and serves again.
            after = await effect.enqueue(n=2)
            await after.result("30s")

            async def back() -> bool:
                alive = [w for w in await app.workers.list() if f":{stalled.pid}:" in w.name]
                return bool(alive) and all(w.running == 0 for w in alive)

            await until(back)
    job = await handle.get()
    await app.close()

    assert effects.doubled(url) == []
    assert [attempt.outcome for attempt in job.history] == ["lost", "completed"]


async def test_a_poison_job_ends_dead_and_costs_others_nothing(url: str) -> None:
    """A job that crashes its worker three times is dead; all others complete."""
    app = Duetime(url, **SHORT)
    effect = workload.task_of(app, "effect", max_attempts=3)
    poison = workload.task_of(app, "poison", max_attempts=3)
    bad = await poison.enqueue()
    await app.enqueue_many(effect.job(n=n, seconds=0.01) for n in range(40))
    crashes = 0
    while not await all_completed(app):
        with worker_process(url, **SHORT) as process:

            async def crashed_or_done(process: Popen[str] = process) -> bool:
                return process.poll() is not None or await all_completed(app)

            await until(crashed_or_done)
            crashes += process.poll() == 99
    dead = await app.jobs.list(state="dead")
    await app.close()

    assert crashes == 3
    assert [job.id for job in dead] == [bad.id]
    assert effects.count(url) == 40
    assert effects.doubled(url) == []


async def test_the_database_goes_away_and_comes_back(own_postgres: PostgresServer) -> None:
    """The server restarts and crashes under load; no job is lost, none runs twice."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True, lease="5s", heartbeat="500ms", rescue_every="300ms")
    await app.now()
    effects.run(url, effects.CREATE)
    effect = workload.task_of(app, "effect", max_attempts=99)
    total = 400
    await app.enqueue_many(effect.job(n=n, seconds=0.05) for n in range(total))
    with worker_process(url, concurrency=5, lease="5s", heartbeat="500ms", rescue_every="300ms"):
        for how in ("fast", "immediate", "kill"):
            seen = effects.count(url)
            await until_true(partial(more_than, url, seen + 20))
            own_postgres.stop(how)
            own_postgres.start()

        async def done() -> bool:
            try:
                return await all_completed(app)
            except StorageError:
                return False

        await until(done, seconds=60)
    await app.close()

    assert effects.count(url) == total
    assert effects.doubled(url) == []


async def test_a_worker_that_cannot_renew_its_lease_stops_its_handlers(
    own_postgres: PostgresServer,
) -> None:
    """Self-fencing: the database hangs; the handler is stopped before the lease has run out."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(
        url, migrate=True, lease="2s", heartbeat="300ms", rescue_every="200ms",
        database_timeout="1s",
    )  # fmt: skip
    stopped: list[float] = []
    begun: list[float] = []

    @app.task(retry=Constant("0s", max_attempts=9))
    async def long(ctx: Context) -> None:
        begun.append(time.monotonic())
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(time.monotonic())

    async with app.worker():
        handle = await long.enqueue()
        await until_true(lambda: bool(begun))
        own_postgres.stop("immediate")
        down = time.monotonic()
        await until_true(lambda: bool(stopped))
        own_postgres.start()

        async def done() -> bool:
            try:
                return (await handle.get()).state is JobState.COMPLETED
            except StorageError:
                return False

        await until(done)
    await app.close()

    assert stopped[0] - down <= 2.2
    assert len(begun) == 2


async def test_a_worker_whose_clock_is_wrong_by_hours_is_still_on_time(
    pg_app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 9: only the database's clock counts."""
    ran: list[float] = []

    @pg_app.task
    async def note() -> None:
        ran.append(time.monotonic())

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 7200)
    async with pg_app.worker():
        due = await pg_app.now() + timedelta(milliseconds=300)
        before = time.monotonic()
        await note.using(at=due).enqueue()
        await until_true(lambda: bool(ran))

    assert 0.25 < ran[0] - before < 10
