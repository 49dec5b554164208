"""Deadlocks, serialization failures and lock time-outs: told as what they are, and tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from duetime import Duetime, JobState
from duetime.domain.jobs.job import JobFilter, NewJob
from duetime.domain.reasons import Reason
from duetime.engine.services import Service, repeat
from duetime.errors import DatabaseUnreachable, StorageError, TransactionConflict, TransientError
from duetime.storage.jobs.changes import JobStatements
from duetime.storage.postgres.connection import translate_errors
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.store import Lane
from duetime.telemetry.events import Outage
from tests.log_events import events_of
from tests.operating import cancel_many
from tests.waiting import until

FAIL_ONCE = """
create sequence public.failing;
create function public.fail_once() returns trigger language plpgsql as $$
begin
    if nextval('public.failing') = 1 then
        raise exception 'deadlock detected' using errcode = '40P01';
    end if;
    return new;
end $$;
"""


async def waits(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
        )
        return bool(await cursor.fetchall())


async def test_a_deadlock_is_told_as_one(pg_url: str) -> None:
    store = PostgresStore(pg_url)
    await store.open()
    ids = [given.job_id for given in await store.enqueue([NewJob(task="noop")] * 2)]
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute("set deadlock_timeout = '1min'")
        hold = "select from duetime.due where job_id = %s for update"
        await connection.execute(hold, (ids[1],))
        cancelling = asyncio.create_task(cancel_many(store, ids, reason=Reason("cancelled")))
        await until(lambda: waits(pg_url))
        await connection.execute(hold, (ids[0],))
    with pytest.raises(TransactionConflict, match=r"deadlock.*Try again"):
        await cancelling
    waiting = await store.find(JobFilter(states=(JobState.PENDING,)))
    await store.close()

    assert {job.id for job in waiting} == set(ids)


@pytest.mark.parametrize("action", ["cancel", "reschedule"])
@pytest.mark.parametrize("change", ["replace", "reprioritise"])
async def test_a_bulk_action_that_waits_does_not_deadlock_with_a_change_of_another_job(
    pg_url: str, action: str, change: str
) -> None:
    app = Duetime(pg_url)

    @app.task(name="note")
    async def note(number: int) -> None: ...

    first, second = [await note.using(key=key, delay="1h").enqueue(1) for key in "ab"]
    async with app.worker(), await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute("select from duetime.due where job_id = %s for update", [first.id])
        if action == "cancel":
            bulk = await app.jobs.cancel_all(task="note")
        else:
            bulk = await app.jobs.reschedule_all(await app.now() + timedelta(1), task="note")
        await until(lambda: waits(pg_url))
        if change == "replace":
            again = note.using(key="b", on_conflict="replace", delay="2h")
            changing: Awaitable[object] = again.enqueue(2)
        else:
            changing = second.reprioritise(1)
        # Nobody holds what it needs.
        await asyncio.wait_for(changing, 5.0)
        await connection.rollback()
        progress = await bulk.result("30s")

    assert (progress.done, progress.skipped) == (2, 0)


async def test_jobs_that_run_are_cancelled_in_the_order_in_which_they_are_finished(
    pg_url: str,
) -> None:
    store = PostgresStore(pg_url)
    await store.open()
    worker = await store.register_worker(
        name="w", queues=["default"], tasks={}, concurrency=9, lease=timedelta(seconds=60)
    )
    ids = [given.job_id for given in await store.enqueue([NewJob(task="noop")] * 2)]
    lanes = [Lane("default", 5, datetime(1970, 1, 1, tzinfo=UTC))]
    tokens = [
        (await store.exchange(worker, lanes=lanes, want=1)).claimed[0].token for _ in range(2)
    ]
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        hold = "select from duetime.claim where token = %s for share"
        await connection.execute(hold, [tokens[0]])
        statements = JobStatements(store.dialect).cancel_all(
            ids[::-1], reason=Reason("cancelled"), by="ann"
        )
        cancelling = asyncio.create_task(store.transact(statements))
        await until(lambda: waits(pg_url))
        await connection.execute("set lock_timeout = '2s'")
        await connection.execute(hold, [tokens[1]])
    done = await cancelling
    await store.close()

    assert done == 2


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_conflicts_are_no_lost_connections(pg_url: str, code: str) -> None:
    raises = f"do $$ begin raise exception 'no' using errcode = '{code}'; end $$"
    with (
        psycopg.connect(pg_url) as connection,
        pytest.raises(StorageError) as told,
        translate_errors(),
    ):
        connection.execute(raises)

    assert isinstance(told.value, TransactionConflict)
    assert isinstance(told.value, TransientError)
    assert not isinstance(told.value, DatabaseUnreachable)


def test_a_connection_that_breaks_off_is_unreachable(pg_url: str) -> None:
    with (
        pytest.raises(DatabaseUnreachable) as told,
        psycopg.connect(pg_url) as connection,
        translate_errors(),
    ):
        connection.execute("select pg_terminate_backend(pg_backend_pid())")

    assert isinstance(told.value, TransientError)


async def fail_once(url: str, table: str) -> None:
    """The next insert into the table meets a deadlock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(FAIL_ONCE)
        await connection.execute(
            f"create trigger failing before insert on duetime.{table}"
            " for each row execute function public.fail_once()"
        )


@pytest.mark.parametrize("table", ["claim", "attempt"])
async def test_a_worker_tries_again(
    pg_url: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Duetime(pg_url)
    ran: list[int] = []

    @app.task
    async def note(number: int) -> None:
        ran.append(number)

    await fail_once(pg_url, table)
    async with app.worker():
        handle = await note.enqueue(1)
        await handle.result("30s")
    job = await handle.get()
    await app.close()

    assert ran == [1]
    assert [record.outcome for record in job.history] == ["completed"]
    assert "transaction_conflict" in events_of(caplog)
    assert "database_unreachable" not in events_of(caplog)


async def test_a_service_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    async def work() -> float:
        tries.append(1)
        if len(tries) == 1:
            raise TransactionConflict("a deadlock")
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await repeat(Service("any", work), stopping=asyncio.Event(), outage=Outage("w"))

    assert events_of(caplog) == ["transaction_conflict"]
    assert caplog.records[0].levelno == logging.WARNING


async def test_schedules_do_not_fall_back_to_memory_for_a_conflict(
    pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Duetime(pg_url, schedule_fallback=True)

    @app.schedule("0 9 * * *")
    @app.task
    async def tick() -> None: ...

    await fail_once(pg_url, "schedule")
    async with app.worker():
        stored = [schedule.name for schedule in await app.schedules.list()]
    await app.close()

    assert len(stored) == 1
    assert "database_unreachable" in events_of(caplog), "it was tried again"
    assert "schedule_fallback_started" not in events_of(caplog)
