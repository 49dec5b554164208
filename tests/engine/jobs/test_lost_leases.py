"""Leases: what a worker that has lost its own may still do, and what becomes of its jobs."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime, JobState
from duetime.engine.lease import Heartbeat
from duetime.errors import JobFailed
from duetime.storage.store import Beat
from tests.conftest import Backend, query
from tests.log_events import events_of
from tests.waiting import until, until_true

SHORT: dict[str, Any] = {"lease": "1s", "heartbeat": "200ms", "rescue_every": "100ms"}


@asynccontextmanager
async def locked(backend: Backend) -> AsyncIterator[None]:
    """Nobody else reads or writes Duetime's tables; on SQLite nobody else writes.

    Taken on a thread: whoever holds a lock just now may need the event loop to release it.
    """
    lock = _locked(backend)
    await asyncio.to_thread(lock.__enter__)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


@contextmanager
def _locked(backend: Backend) -> Iterator[None]:
    if backend.is_postgres:
        with psycopg.connect(backend.url) as connection:
            _lock_tables(connection)
            yield
    else:
        path = backend.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as lite:
            lite.execute("begin immediate")
            yield
            lite.execute("commit")


def _lock_tables(connection: psycopg.Connection[Any]) -> None:
    """Try again after a deadlock: a statement of the worker may lock the same tables in another
    order at the same time."""
    while True:
        try:
            connection.execute(
                "lock table duetime.due, duetime.claim, duetime.worker in access exclusive mode"
            )
        except psycopg.errors.DeadlockDetected:
            connection.rollback()
        else:
            return


def count(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return events_of(caplog).count(event)


async def test_a_claim_that_waited_past_its_lease_takes_nothing(
    app: Duetime, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes through long after its worker was fenced; the job has only one attempt."""

    @app.task(max_attempts=1)
    async def note() -> str:
        return "ran"

    async with app.worker(**SHORT):
        handle = await note.using(delay="300ms").enqueue()
        async with locked(backend):
            await until_true(lambda: count(caplog, "worker_fenced") == 1)

        assert await handle.result("30s") == "ran"
    assert [attempt.outcome for attempt in (await handle.get()).history] == ["completed"]


async def test_what_waits_for_a_runner_when_the_lease_is_lost_is_given_back(
    app: Duetime, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """It had not begun: its only attempt is not used up."""

    @app.task(max_attempts=1)
    async def note(number: int) -> None:
        if number == 0:
            await asyncio.sleep(60)

    async with app.worker(**SHORT, concurrency=1) as worker:
        [first, *others] = await app.enqueue_many([note.job(number) for number in range(3)])
        await until_true(lambda: len(worker.loop.holdings) == 3)
        async with locked(backend):
            await until_true(lambda: count(caplog, "worker_fenced") == 1)
        for handle in others:
            await handle.result("30s")
        with pytest.raises(JobFailed, match="its worker was lost"):
            await first.result("30s")


LATE = """
create function late() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock_shared(42); return new; end $$;
create trigger late before insert on duetime.claim for each row execute function late();
"""


async def test_a_fenced_worker_does_not_start_what_a_late_answer_brings(
    pg_app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    """The claim was made within the lease, its answer came after it: the jobs are given back."""
    fenced: list[str | None] = []
    url = pg_app.settings.database

    @pg_app.task(max_attempts=1)
    async def note() -> None:
        fenced.append(worker.lease.fenced)

    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as late,
        await psycopg.AsyncConnection.connect(url) as heartless,
        # Of a claim that comes back full, jobs begin before the worker looks at its lease again.
        pg_app.worker(**SHORT, batch=1) as worker,
    ):
        await late.execute(LATE)
        await late.execute("select pg_advisory_lock(42)")
        handle = await note.enqueue()
        await until(lambda: waits_for_advisory_lock(late))
        # Beats wait for this, and nothing else does.
        await heartless.execute("select from duetime.worker for update")
        await until_true(lambda: count(caplog, "worker_fenced") == 1)
        await late.execute("select pg_advisory_unlock(42)")
        await handle.result("30s")

    assert fenced == [None]
    assert [attempt.outcome for attempt in (await handle.get()).history] == ["completed"]


async def waits_for_advisory_lock(admin: psycopg.AsyncConnection[Any]) -> bool:
    sql = "select from pg_stat_activity where wait_event = 'advisory'"
    return bool(await (await admin.execute(sql)).fetchall())


SLOW = """
create function slow() returns trigger language plpgsql as $$
begin perform pg_sleep(0.5); return new; end $$;
create trigger slow before {event} on duetime.worker for each row execute function slow();
"""


async def lease_left(url: str) -> float:
    """For how long the database will respect the only worker's lease, in seconds."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute(
            "select extract(epoch from lease_until - clock_timestamp())::float from duetime.worker"
        )
        [left] = await cursor.fetchone() or [0.0]
        return float(left)


async def test_a_renewed_lease_counts_from_before_it_was_asked_for(pg_app: Duetime) -> None:
    """The answer is slow: by then a part of the lease is over."""
    url = pg_app.settings.database
    store = await pg_app.store()
    asked = time.monotonic()
    worker_id = await store.register_worker(
        name="slow", queues=["default"], tasks={}, concurrency=1, lease=timedelta(seconds=5)
    )
    with psycopg.connect(url) as connection:
        connection.execute(SLOW.format(event="update").encode())
    beats: list[Beat] = []
    heartbeat = Heartbeat(
        store.heart(),
        worker_id,
        lease=timedelta(seconds=5),
        since=asked,
        every=timedelta(seconds=60),
        renewed=beats.append,
        lost=lambda reason: None,
    )
    heartbeat.start()
    await until_true(lambda: bool(beats))
    ours = heartbeat.seconds_left
    theirs = await lease_left(url)
    await asyncio.to_thread(heartbeat.stop)

    assert 4.0 < ours <= theirs + 0.2


async def test_the_first_lease_counts_from_before_it_was_asked_for(pg_app: Duetime) -> None:
    url = pg_app.settings.database
    refuse = SLOW.format(event="update").replace("slow", "refuse")
    await pg_app.store()
    with psycopg.connect(url) as connection:
        connection.execute(SLOW.format(event="insert").encode())
        # No beat comes after it.
        connection.execute(refuse.replace("perform pg_sleep(0.5)", "raise 'no'").encode())
    async with pg_app.worker(lease="5s") as worker:
        ours = worker.lease.heartbeat.seconds_left
        theirs = await lease_left(url)

    assert 2.0 < ours <= theirs + 0.2


async def test_a_blocked_event_loop_does_not_cost_the_lease(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(max_attempts=1)
    async def block() -> str:
        time.sleep(3.0)  # noqa: ASYNC251 - that is the point.
        return "done"

    async with app.worker(lease="1500ms", heartbeat="200ms", rescue_every="100ms"):
        assert await (await block.enqueue()).result("30s") == "done"

    assert count(caplog, "worker_fenced") == 0


async def test_quarantined_jobs_run_one_at_a_time(app: Duetime, backend: Backend) -> None:
    running: list[int] = []
    most: list[int] = []

    @app.task
    async def suspect() -> None:
        running.append(1)
        most.append(len(running))
        if len(most) == 1:
            # While a worker looks for such jobs every second.
            await until_true(lambda: len(most) > 1 or time.monotonic() > began + 1.3)
        running.pop()

    await app.enqueue_many(suspect.job() for _ in range(3))
    query(backend, "update duetime.due set priority = 10")
    began = time.monotonic()
    async with app.worker():
        await until_true(lambda: len(most) == 3)

    assert most == [1, 1, 1]


CONFLICT = """
create function conflict() returns trigger language plpgsql as $$
begin raise 'again' using errcode = '40001'; end $$;
create trigger conflict before insert on duetime.attempt for each row execute function conflict();
"""


async def test_claims_are_closed_though_the_first_try_failed(
    pg_app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    """While it stops. Else the claim, and its worker, would stay until the lease has run out."""
    backend = Backend("postgres15", pg_app.settings.database)
    ends = {"first": asyncio.Event(), "second": asyncio.Event()}
    running: set[str] = set()

    @pg_app.task
    async def note(name: str) -> None:
        running.add(name)
        await ends[name].wait()

    async with pg_app.worker(batch=1) as worker:
        await pg_app.enqueue_many(note.job(name) for name in ends)
        await until_true(lambda: len(running) == 2)
        query(backend, CONFLICT)
        worker.stop()
        ends["first"].set()
        await until_true(lambda: count(caplog, "flush_failed") >= 1)
        query(backend, "drop trigger conflict on duetime.attempt")
        ends["second"].set()

    assert query(backend, "select count(*) from duetime.attempt") == [(2,)]
    assert query(backend, "select count(*) from duetime.claim") == [(0,)]
    assert query(backend, "select count(*) from duetime.worker") == [(0,)]


async def test_a_result_is_kept_though_the_exchange_failed(
    pg_app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the job would be taken for one whose claim was not answered, and run again."""
    caplog.set_level("INFO")
    backend = Backend("postgres15", pg_app.settings.database)
    end = asyncio.Event()
    ran: list[str] = []

    @pg_app.task
    async def note(name: str) -> str:
        ran.append(name)
        await end.wait()
        return name

    async with pg_app.worker():
        handle = await note.enqueue("only")
        await until_true(lambda: bool(ran))
        query(backend, CONFLICT)
        end.set()
        await until_true(lambda: count(caplog, "transaction_conflict") >= 1)
        query(backend, "drop trigger conflict on duetime.attempt")
        result = await handle.result("30s")

    assert (result, ran) == ("only", ["only"])


async def test_a_job_that_expires_while_it_waits_for_a_runner_does_not_start(app: Duetime) -> None:
    ran: list[str] = []

    @app.task
    async def note(name: str, seconds: float = 0.0) -> None:
        ran.append(name)
        await asyncio.sleep(seconds)

    async with app.worker(concurrency=1) as worker:
        # Claimed together, long before the second expires.
        _, second = await app.enqueue_many(
            [note.job("first", 0.6), note.using(expires="400ms").job("second")]
        )
        await until_true(lambda: len(worker.loop.holdings) == 2 or ran == ["first", "second"])
        with pytest.raises(JobFailed):
            await second.result("30s")

    assert ran == ["first"]
    assert (await second.get()).state is JobState.EXPIRED


async def test_a_claim_that_came_back_short_forgets_where_it_began(
    pg_app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker would sleep over what fell due long ago, and was enqueued only now."""
    monkeypatch.setattr("duetime.engine.lanes._FLOOR_SECONDS", 1000.0)

    @pg_app.task
    async def note() -> str:
        return "ran"

    async with pg_app.worker(batch=1, poll="60s"):
        for handle in await pg_app.enqueue_many(note.job() for _ in range(5)):
            await handle.result("30s")
        long_ago = await pg_app.now() - timedelta(hours=1)

        assert await (await note.using(at=long_ago).enqueue()).result("30s") == "ran"


@pytest.mark.parametrize("many", [1, 1000], ids=["one", "copied"])
async def test_jobs_due_in_more_than_a_second_are_not_slept_over(app: Duetime, many: int) -> None:
    @app.task
    async def note() -> str:
        return "ran"

    async with app.worker(poll="60s") as worker:
        await until_true(
            lambda: worker.loop.pace.sleeper.asleep and not worker.loop.pace.should_claim
        )
        handles = await app.enqueue_many(note.using(delay="1200ms").job() for _ in range(many))

        assert await handles[-1].result("30s") == "ran"
