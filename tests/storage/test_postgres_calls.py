"""Single statements on connections of the pool, by libpq itself."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from duetime.domain.jobs.job import NewJob
from duetime.errors import DatabaseUnreachable
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.calls import Calls
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from tests.waiting import until

SECONDS = 20.0
PID = "select pg_backend_pid()"
STATEMENTS = "select count(*) from pg_prepared_statements where name like 'duetime_call%'"
SLOW_PID = "select pg_backend_pid() from pg_sleep(0.5)"


@pytest.fixture
async def store(pg_url: str) -> AsyncIterator[PostgresStore]:
    upgrade(PostgresMigrator(pg_url))
    store = PostgresStore(pg_url, pool_size=2)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def calls(store: PostgresStore) -> Calls:
    return store._calls


async def test_statement_is_prepared_again_after_a_rollback(
    store: PostgresStore, calls: Calls
) -> None:
    """The driver removes all statements of a session after a ROLLBACK, and ours with them."""
    await calls.execute(PID, (), SECONDS)
    pool = calls._pool()
    connection = await pool.take(SECONDS)
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with connection.transaction():
            await connection.execute("select 1 / 0")
    await connection.execute("select 1")
    removed = await (await connection.execute(STATEMENTS)).fetchone()
    await pool.give_back(connection)

    assert removed == (0,)
    assert await calls.execute(PID, (), SECONDS) == [(connection.info.backend_pid,)]


async def test_one_after_another_uses_one_connection(calls: Calls) -> None:
    pids = [await calls.execute(PID, (), SECONDS) for _ in range(3)]
    two = await asyncio.gather(*(calls.execute(SLOW_PID, (), SECONDS) for _ in range(2)))

    assert len({rows[0] for rows in pids}) == 1
    assert len({rows[0] for rows in two}) == 2


async def test_more_calls_than_connections_wait_for_each_other(calls: Calls) -> None:
    statement = "select %s::int, pg_sleep(0.01)::text"
    rows = await asyncio.gather(*(calls.execute(statement, [n], SECONDS) for n in range(20)))

    assert [row[0][0] for row in rows] == list(range(20))


async def test_an_error_leaves_the_connection_usable(calls: Calls) -> None:
    [before] = await calls.execute(PID, (), SECONDS)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await calls.execute("select 1 / %s::int", [0], SECONDS)

    assert await calls.execute(PID, (), SECONDS) == [before]


async def test_what_is_larger_than_a_socket_holds_arrives(calls: Calls) -> None:
    text = "x" * 20_000_000

    assert await calls.execute("select %s::text", [text], SECONDS) == [(text,)]


async def test_a_cancelled_call_is_settled_before_it_returns(calls: Calls, pg_url: str) -> None:
    """Its effect is known, and the connection serves the next."""
    [before] = await calls.execute(PID, (), SECONDS)
    statement = "select pg_advisory_lock(1), pg_backend_pid()"
    async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as other:
        await other.execute("select pg_advisory_lock(1)")
        call = asyncio.create_task(calls.execute(statement, (), SECONDS))
        await until(lambda: _waits(pg_url))
        call.cancel()
        await asyncio.sleep(0)
        was_done = call.done()
        await other.execute("select pg_advisory_unlock(1)")
        with pytest.raises(asyncio.CancelledError):
            await call

    assert not was_done
    assert await calls.execute(PID, (), SECONDS) == [before]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_call_that_is_cancelled_while_the_answer_arrives_is_settled(
    calls: Calls, turns: int
) -> None:
    """Before the answer is read, in the same turn of the loop, or once it is read."""
    [before] = await calls.execute(PID, (), SECONDS)
    pool = calls._pool()
    connection = await pool.take(SECONDS)
    socket = connection.pgconn.socket
    await pool.give_back(connection)
    call = asyncio.create_task(calls.execute(PID, (), SECONDS))
    await asyncio.sleep(0)
    select.select([socket], [], [], SECONDS)
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    done, _ = await asyncio.wait([call], timeout=2.0)

    assert done
    assert call.cancelled()
    assert await calls.execute(PID, (), SECONDS) == [before]


async def test_a_server_that_does_not_answer_costs_the_connection(calls: Calls) -> None:
    [before] = await calls.execute(PID, (), SECONDS)
    with pytest.raises(TimeoutError):
        await calls.execute("select pg_sleep(60)::text", (), 0.2)

    assert await calls.execute(PID, (), SECONDS) != [before]


@pytest.mark.parametrize("times_out", [False, True], ids=["cancelled", "timed out"])
async def test_a_call_that_is_given_up_does_not_go_on_in_the_server(
    calls: Calls, pg_url: str, times_out: bool
) -> None:
    await calls.execute("create table public.written (number integer primary key)", (), SECONDS)
    insert = "insert into public.written values (%s::integer) on conflict do nothing"
    await calls.execute(insert, [0], SECONDS)
    async with await psycopg.AsyncConnection.connect(pg_url) as other:
        await other.execute("insert into public.written values (1)")
        call = asyncio.create_task(calls.execute(insert, [1], 0.3 if times_out else SECONDS))
        if not times_out:
            await until(lambda: _waits(pg_url, event="transactionid"))
            call.cancel()
        with pytest.raises(TimeoutError if times_out else asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(call), 3.0)
        still_waits = await _waits(pg_url, event="transactionid")
        await other.rollback()

    assert not still_waits
    assert await calls.execute("select number from public.written", (), SECONDS) == [(0,)]


async def test_a_call_that_is_cancelled_twice_does_not_go_on_in_the_server(
    calls: Calls, pg_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as other:
        await other.execute("select pg_advisory_lock(1)")
        call = asyncio.create_task(calls.execute("select pg_advisory_lock(1)", (), SECONDS))
        await until(lambda: _waits(pg_url))
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        assert not await _waits(pg_url)


@pytest.mark.parametrize("early", [0.08, 0.03, 0.0, -0.002, -0.005, -0.02])
async def test_a_call_that_is_cancelled_as_its_time_ends_does_not_go_on_in_the_server(
    calls: Calls, pg_url: str, early: float
) -> None:
    """Shortly before, and while it is being stopped because it is late."""
    seconds = 0.5
    lock = "select pg_advisory_lock(%s::bigint)"
    await calls.execute(lock, [1], SECONDS)
    async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as other:
        await other.execute("select pg_advisory_lock(2)")
        call = asyncio.create_task(calls.execute(lock, [2], seconds))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(seconds - early, call.cancel)
        await asyncio.wait([call])

        assert not await _waits(pg_url)


async def test_a_late_request_to_cancel_does_not_reach_the_next_statement(pg_url: str) -> None:
    async with _delaying(pg_url) as (url, delay, arrived, go_on):
        store = PostgresStore(url, pool_size=1)
        await store.open()
        calls = store._calls
        async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as other:
            await other.execute("select pg_advisory_lock(1)")
            call = asyncio.create_task(calls.execute("select pg_advisory_lock(1)", (), SECONDS))
            await until(lambda: _waits(pg_url))
            delay.set()
            call.cancel()
            await asyncio.wait_for(arrived.wait(), SECONDS)
        await until(lambda: _none_waits(pg_url))
        call.cancel()
        following = asyncio.create_task(calls.execute("select pg_sleep(0.5)::text", (), SECONDS))
        with suppress(AssertionError):
            await until(lambda: _waits(pg_url, event="PgSleep"), seconds=0.5)
        go_on.set()

        with pytest.raises(asyncio.CancelledError):
            await call
        assert await following == [("",)]
        await store.close()


async def test_a_statement_that_was_prepared_for_a_cancelled_call_is_no_obstacle(
    calls: Calls, pg_url: str
) -> None:
    await calls.execute("create table public.written (number integer primary key)", (), SECONDS)
    count = "select count(*) from public.written"
    async with await psycopg.AsyncConnection.connect(pg_url) as other:
        await other.execute("lock table public.written")
        call = asyncio.create_task(calls.execute(count, (), SECONDS))
        await until(lambda: _waits(pg_url, event="relation"))
        call.cancel()
        await asyncio.sleep(0)
        await other.commit()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert await calls.execute(count, (), SECONDS) == [(0,)]


async def test_a_connection_that_is_cut_fails_the_call_alone(
    store: PostgresStore, calls: Calls, pg_url: str
) -> None:
    enqueues = [store.enqueue([NewJob(task="noop")])]
    await asyncio.gather(*enqueues)
    call = asyncio.create_task(calls.execute("select pg_sleep(60)::text", (), SECONDS))
    async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as other:
        await until(lambda: _waits(pg_url, event="PgSleep"))
        await other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'"
        )
    with pytest.raises(psycopg.OperationalError):
        await call

    [enqueued] = await store.enqueue([NewJob(task="noop")])
    assert enqueued.action == "created"


async def test_an_enqueue_that_is_cut_is_reported_as_unreachable(
    store: PostgresStore, pg_url: str
) -> None:
    [held] = await store.enqueue([NewJob(task="noop", key="k")])
    async with await psycopg.AsyncConnection.connect(pg_url) as other:
        await other.execute("update duetime.job_key set hold = hold")
        again = NewJob(task="noop", key="k", on_conflict="replace")
        waits = asyncio.create_task(store.enqueue([again]))
        await until(lambda: _waits(pg_url, event="transactionid"))
        async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as killer:
            await killer.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where wait_event = 'transactionid'"
            )
        with pytest.raises(DatabaseUnreachable):
            await waits

    assert (await store.enqueue([again]))[0].job_id == held.job_id


@pytest.mark.parametrize("count", [1, 100, 999])
async def test_an_enqueue_is_one_round_trip(
    store: PostgresStore, tmp_path: Path, count: int
) -> None:
    """A Sync ends each round trip; a Parse would mean that the statement is not prepared."""
    jobs = [NewJob(task="noop")] * count
    for _ in range(2):
        await store.enqueue(jobs)
    async with store._connection() as connection:
        pgconn = connection.pgconn
    with (tmp_path / "trace").open("w+b") as trace:
        pgconn.trace(trace.fileno())
        await store.enqueue(jobs)
        pgconn.untrace()
        trace.seek(0)
        sent = [line.split(b"\t")[3].strip() for line in trace if line.split(b"\t")[1] == b"F"]

    assert sent == [b"Bind", b"Describe", b"Execute", b"Sync"]


async def test_a_key_of_an_open_transaction_delays_its_own_job_alone(
    store: PostgresStore, pg_url: str
) -> None:
    from duetime import Duetime

    app = Duetime(pg_url)

    @app.task(name="note")
    async def note(number: int) -> None: ...

    await note.enqueue(0)
    async with await psycopg.AsyncConnection.connect(pg_url) as other:
        await other.execute("select duetime.enqueue('note', '{\"number\": 1}', key => 'held')")
        held = asyncio.create_task(note.using(key="held").enqueue(2))
        rest = [asyncio.create_task(note.using(key=f"k{n}").enqueue(n)) for n in range(3, 6)]
        rest.append(asyncio.create_task(note.enqueue(6)))
        async with asyncio.timeout(SECONDS):
            handles = await asyncio.gather(*rest)
        was_done = held.done()
        await other.commit()
    async with asyncio.timeout(SECONDS):
        handle = await held
    await app.close()

    assert [one.action for one in handles] == ["created"] * 4
    assert not was_done
    assert handle.action == "existing"


@asynccontextmanager
async def _delaying(
    url: str,
) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event, asyncio.Event]]:
    """A way to the server on which new connections wait, once the first event is set, until the
    last one is. The second one is set when a connection waits."""
    to = urlsplit(url)
    delay, arrived, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if delay.is_set():
            arrived.set()
            await go_on.wait()
        from_server, to_server = await asyncio.open_connection(to.hostname, to.port)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        # Without encryption, which is negotiated first, a request is sent at once.
        own = to._replace(netloc=f"{to.username}@127.0.0.1:{port}", query="sslmode=disable")
        yield own.geturl(), delay, arrived, go_on


async def _none_waits(url: str) -> bool:
    return not await _waits(url)


async def _waits(url: str, event: str = "advisory") -> bool:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity"
            " where wait_event = %s and datname = current_database()",
            (event,),
        )
        return (await cursor.fetchall())[0][0] > 0
