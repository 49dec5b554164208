"""`ctx.transaction()`: what a handler writes and how its job ends, in one commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import psycopg
import pytest

from duetime import Constant, Context, Digest, Duetime, JobState, Reminder, Retry, Sent, Snooze
from duetime.api.handler_source import refuse_return_in_transaction
from duetime.domain.jobs.outcome import Outcome
from duetime.errors import DatabaseUnreachable, InvalidInput
from tests.conftest import Backend, query
from tests.log_events import event_of
from tests.waiting import until, until_true

TWO = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)


async def execute(connection: Any, text: str) -> None:
    result = connection.execute(text)
    if hasattr(result, "__await__"):
        await result


@pytest.fixture
def notes(backend: Backend) -> None:
    query(backend, "create table note (n integer)")


def count(backend: Backend) -> int:
    return int(query(backend, "select count(*) from note")[0][0])


async def reaches(app: Duetime, job_id: int, state: JobState) -> None:
    async def there() -> bool:
        return (await app.jobs.get(job_id)).state is state

    await until(there)


def messages(caplog: pytest.LogCaptureFixture, *names: str) -> list[str]:
    return [event_of(record) for record in caplog.records if event_of(record) in names]


# One commit


@TWO
@pytest.mark.usefixtures("notes")
async def test_writes_are_not_committed_if_the_completion_is_refused(
    app: Duetime, backend: Backend
) -> None:
    claim = "duetime.claim" if backend.is_postgres else "duetime_claim"

    @app.task(max_attempts=1)
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await execute(connection, "insert into note values (1)")
            # As a rescuer does to a worker that has lost its lease.
            await execute(connection, f"delete from {claim} where token = {ctx.token}")

    async with app.worker():
        handle = await write.enqueue()
        await reaches(app, handle.id, JobState.DEAD)

    assert (await handle.get()).error_code == "claim_lost"
    assert count(backend) == 0


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
@pytest.mark.usefixtures("notes")
async def test_the_job_is_not_completed_if_the_writes_cannot_be_committed(
    app: Duetime, backend: Backend
) -> None:
    """A constraint that is checked at the commit refuses the writes, after our statement ran."""
    query(backend, "create table child (n integer unique deferrable initially deferred)")
    query(backend, "insert into child values (7)")

    @app.task(retry=Constant("0s", max_attempts=2))
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await execute(connection, f"insert into note values ({ctx.attempt})")
            if ctx.attempt == 1:
                await execute(connection, "insert into child values (7)")

    async with app.worker():
        handle = await write.enqueue()
        await handle.result("30s")
    history = (await handle.get()).history

    assert [attempt.outcome for attempt in history] == ["retried", "completed"]
    assert query(backend, "select n from note") == [(2,)]


# Outcomes


def test_a_value_returned_inside_the_block_is_refused_at_registration() -> None:
    app = Duetime("sqlite:///unused.db")

    async def returns_outcome(ctx: Context) -> object:
        async with ctx.transaction():
            if ctx.attempt == 1:
                return Retry("later")
        return None

    def returns_result(ctx: Context) -> int:
        with ctx.transaction_sync() as connection, suppress(KeyError):
            return int(connection.execute("select 1").fetchone()[0])
        return 0

    async def handler(reminder: Reminder, context: Context) -> Sent:
        async with context.transaction():
            return Sent("id")

    for function in (returns_outcome, returns_result):
        with pytest.raises(InvalidInput, match=r"returns a value inside ctx\.transaction\(\)"):
            app.task(function)
    with pytest.raises(InvalidInput, match=r"handler returns a value inside context\.trans"):
        app.on_reminder(handler)
    with pytest.raises(InvalidInput, match=r"handler returns a value inside context\.trans"):
        app.on_digest(cast("Callable[[Digest, Context], Any]", handler))


def test_other_returns_are_not_refused() -> None:
    app = Duetime("sqlite:///unused.db")

    @app.task
    async def after(ctx: Context) -> int:
        async with ctx.transaction() as connection:

            def inner() -> int:
                return 1

            connection.execute("select ?", (inner(),))
            if ctx.attempt == 1:
                return None  # type: ignore[return-value]
        return 2

    @app.task
    async def another(ctx: Context, tx: object) -> int:
        async with tx.transaction():  # type: ignore[attr-defined]
            return ctx.id

    refuse_return_in_transaction(len, "ctx", what="A built-in function")


@TWO
@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize("outcome", [Retry("later", after="0s"), Snooze("0s")])
async def test_an_outcome_raised_inside_the_block_rolls_it_back_and_holds(
    app: Duetime, backend: Backend, outcome: Outcome
) -> None:
    runs: list[int] = []

    @app.task
    async def write(ctx: Context) -> None:
        runs.append(ctx.attempt)
        async with ctx.transaction() as connection:
            await execute(connection, "insert into note values (1)")
            if len(runs) == 1:
                raise outcome

    async with app.worker():
        handle = await write.enqueue()
        await handle.result("30s")

    assert len(runs) == 2
    assert count(backend) == 1


@TWO
async def test_an_outcome_after_the_commit_is_reported_as_ignored(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def late(ctx: Context, how: str) -> object:
        transaction = ctx.transaction
        async with transaction():
            if how == "return inside":
                return Retry("too late")
        if how == "raise":
            raise ValueError("too late")
        return Snooze("1h", "too late")

    async with app.worker():
        for how in ("return inside", "raise", "return"):
            handle = await late.enqueue(how)
            await reaches(app, handle.id, JobState.COMPLETED)
            await until_true(lambda: messages(caplog, "outcome_ignored"))
            record = next(r for r in caplog.records if event_of(r) == "outcome_ignored")
            caplog.clear()

            assert record.duetime["error"] == "too late"  # type: ignore[attr-defined]
            assert record.duetime["job_id"] == handle.id  # type: ignore[attr-defined]


@TWO
async def test_a_result_can_be_stored_in_the_block(app: Duetime) -> None:
    @app.task
    async def compute(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await ctx.complete(42, tx=connection)

    async with app.worker():
        handle: Any = await compute.enqueue()
        assert await handle.result("30s") == 42


@TWO
async def test_an_error_after_the_job_was_completed_is_no_failed_job(
    app: Duetime, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "duetime")

    @app.task(retry=Constant("0s"))
    async def complete(ctx: Context) -> None:
        store = await app.store()
        async with store.transaction() as connection:
            await ctx.complete("result", tx=connection)
        raise ValueError("after the commit")

    async with app.worker():
        handle = await complete.enqueue()
        await until_true(lambda: messages(caplog, "job_completed"))
    job = await handle.get()

    assert (job.state, job.attempts) == (JobState.COMPLETED, 1)
    assert messages(caplog, "job_failed", "claim_lost") == []
    assert messages(caplog, "outcome_ignored") == ["outcome_ignored"]


# Failures of the database


@TWO
async def test_a_database_that_was_away_is_retried_whatever_the_task_lists(app: Duetime) -> None:
    @app.task(retry_on=KeyError, retry=Constant("0s", max_attempts=2))
    async def unlucky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise DatabaseUnreachable("the connection broke off")
        return ctx.attempt

    async with app.worker():
        assert await (await unlucky.enqueue()).result("30s") == 2


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_connection_that_breaks_in_the_block_is_retried(pg_app: Duetime, kind: str) -> None:
    end = "select pg_terminate_backend(pg_backend_pid())"

    async def on_the_loop(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            if ctx.attempt == 1:
                await connection.execute(end)

    def in_a_thread(ctx: Context) -> None:
        with ctx.transaction_sync() as connection:
            if ctx.attempt == 1:
                connection.execute(end)

    function = on_the_loop if kind == "async" else in_a_thread
    task: Any = pg_app.task(name="broken", retry_on=KeyError, retry=Constant("0s", max_attempts=2))(
        function
    )

    async with pg_app.worker():
        handle = await task.enqueue()
        await handle.result("30s")
    [first, second] = (await handle.get()).history

    assert (first.outcome, first.error_code) == ("retried", "database_unreachable")
    assert second.outcome == "completed"


async def test_the_callers_own_errors_pass_as_they_are(pg_app: Duetime) -> None:
    caught: list[BaseException] = []

    @pg_app.task(max_attempts=1)
    async def divide(ctx: Context) -> None:
        try:
            async with ctx.transaction() as connection:
                await connection.execute("select 1 / 0")
        except psycopg.errors.DivisionByZero as error:
            caught.append(error)

    async with pg_app.worker():
        await (await divide.enqueue()).result("30s")

    assert len(caught) == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_blocks_own_statements_have_the_time_limit_of_every_call(
    pg_url: str, kind: str
) -> None:
    app = Duetime(pg_url, database_timeout="300ms")
    inside, locked = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def on_the_loop(ctx: Context) -> None:
        async with ctx.transaction():
            if ctx.attempt == 1:
                inside.set()
                await locked.wait()

    def in_a_thread(ctx: Context) -> None:
        with ctx.transaction_sync():
            if ctx.attempt == 1:
                loop.call_soon_threadsafe(inside.set)
                asyncio.run_coroutine_threadsafe(locked.wait(), loop).result()

    function = on_the_loop if kind == "async" else in_a_thread
    task: Any = app.task(name="held_up", retry=Constant("0s", max_attempts=50))(function)

    async with app.worker(), await psycopg.AsyncConnection.connect(pg_url) as other:
        handle = await task.enqueue()
        await inside.wait()
        await other.execute("select 1 from duetime.claim for update")
        locked.set()

        async def gave_up() -> bool:
            # The lock keeps its end from being recorded; so look at the connections.
            return not await waits_for_the_lock(pg_url)

        await until(lambda: waits_for_the_lock(pg_url))
        await until(gave_up)
        await other.rollback()
        await handle.result("30s")
    history = (await handle.get()).history
    await app.close()

    assert history[0].error_code == "database_unreachable"


async def waits_for_the_lock(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            " and state = 'active' and xact_start < clock_timestamp() - interval '20 ms'"
        )
        row = await cursor.fetchone()
        return row is not None and row[0] > 0


async def test_waiting_for_another_handlers_connection_has_no_limit(pg_url: str) -> None:
    app = Duetime(pg_url, database_timeout="600ms", pool_size=1)
    inside: list[int] = []

    @app.task(max_attempts=1)
    async def hold(ctx: Context) -> None:
        async with ctx.transaction():
            inside.append(ctx.id)
            await asyncio.sleep(1.0)

    async with app.worker():
        handles = [await hold.enqueue() for _ in range(2)]
        for handle in handles:
            await handle.result("30s")
    await app.close()

    assert len(inside) == 2
