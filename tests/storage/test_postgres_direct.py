"""The session for single statements, which goes around the driver's cursor."""

from __future__ import annotations

import asyncio
import select
from typing import Any

import psycopg
import pytest

from duetime.storage.postgres.direct import DirectSession
from duetime.storage.postgres.pool import Connection
from tests.waiting import until, until_true, waits

SECONDS = 10.0


class Session(DirectSession):
    """Counts its connections."""

    def __init__(self, url: str) -> None:
        super().__init__(self._connect_here)
        self._url = url
        self.connections = 0

    async def _connect_here(self) -> Connection:
        self.connections += 1
        return await psycopg.AsyncConnection.connect(self._url, autocommit=True)


async def test_rows_are_those_of_a_cursor(pg_url: str) -> None:
    statement = (
        "select n, n = 2, 'a%%b', to_char(n, '\"x\"'), null, make_interval(secs => n),"
        " '{\"a\": [1]}'::json from generate_series(%s::integer, %s::integer) as n"
    )
    session = Session(pg_url)
    try:
        rows = [await session.execute(statement, ["1", "3"], SECONDS) for _ in range(2)]
    finally:
        await session.close()
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        expected = await (await connection.execute(statement, (1, 3))).fetchall()

    assert rows == [expected, expected]
    assert session.connections == 1


async def test_parameters_have_numbers_or_names(pg_url: str) -> None:
    session = Session(pg_url)
    named = "select %(b)s::integer, %(a)s::text, %(b)s::integer + 1, %(no)s::boolean, '%%'"
    try:
        was_ready = session.is_ready
        by_name = await session.execute(named, {"a": "x", "no": False, "b": 2, "c": 0}, SECONDS)
        by_place = await session.execute("select %s::float8, %s::text", [0.5, "%s"], SECONDS)
        is_ready = session.is_ready
    finally:
        await session.close()

    assert by_name == [(2, "x", 3, False, "%")]
    assert by_place == [(0.5, "%s")]
    assert (was_ready, is_ready) == (False, True)


async def test_text_is_refused_rather_than_cut_off(pg_url: str) -> None:
    session = Session(pg_url)
    try:
        with pytest.raises(psycopg.DataError, match="NUL"):
            await session.execute("select %s::text", ["before\0after"], SECONDS)
        rows = await session.execute("select %s::text", ["whole"], SECONDS)
    finally:
        await session.close()

    assert rows == [("whole",)]


async def test_statements_execute_together_share_a_transaction(pg_url: str) -> None:
    session = Session(pg_url)
    begun = "select now()::text"
    try:
        await session.open()
        statements: list[tuple[str, Any]] = [
            (begun, ()),
            ("select %(n)s::integer", {"n": 7}),
            ("select 1 where false", ()),
            *[("select repeat('x', %s::integer)", [200_000])] * 20,
            (begun, ()),
        ]
        found = await session.execute_together(statements, SECONDS)
        alone = await session.execute(begun, (), SECONDS)
    finally:
        await session.close()

    assert found[0] == found[-1] != alone
    assert found[1:3] == [[(7,)], []]
    assert {len(rows[0][0]) for rows in found[3:-1]} == {200_000}


async def test_an_error_in_statements_execute_together_leaves_the_session_usable(
    pg_url: str,
) -> None:
    session = Session(pg_url)
    try:
        await session.open()
        with pytest.raises(psycopg.errors.DivisionByZero):
            await session.execute_together([("select 1", ()), ("select 1 / 0", ())] * 2, SECONDS)
        again = await session.execute_together([("select 2", ()), ("select 3", ())], SECONDS)
    finally:
        await session.close()

    assert again == [[(2,)], [(3,)]]
    assert session.connections == 1


async def test_statements_execute_together_that_take_too_long_leave_no_half_read_session(
    pg_url: str,
) -> None:
    session = Session(pg_url)
    try:
        await session.open()
        with pytest.raises(TimeoutError):
            await session.execute_together([("select 1", ()), ("select pg_sleep(30)", ())], 0.3)
        after = await session.execute("select 5", (), SECONDS)
    finally:
        await session.close()

    assert after == [(5,)]
    assert session.connections == 2


async def test_an_answer_and_a_question_may_be_larger_than_the_socket_s_buffers(
    pg_url: str,
) -> None:
    session = Session(pg_url)
    text = "0123456789" * 2_000_000
    try:
        rows = await session.execute("select %s || 'x'", [text], 30.0)
    finally:
        await session.close()

    assert rows == [(text + "x",)]


async def test_after_an_error_the_session_goes_on(pg_url: str) -> None:
    session = Session(pg_url)
    try:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await session.execute("select 1 / %s::integer", ["0"], SECONDS)
        with pytest.raises(psycopg.errors.UndefinedTable):
            await session.execute("select * from no_such_table", [], SECONDS)
        rows = await session.execute("select 1 / %s::integer", ["1"], SECONDS)
    finally:
        await session.close()

    assert rows == [(1,)]
    assert session.connections == 1


async def test_a_connection_that_the_server_closed_while_idle_is_replaced(pg_url: str) -> None:
    session = Session(pg_url)
    try:
        [(backend,)] = await session.execute("select pg_backend_pid()", [], SECONDS)
        with psycopg.connect(pg_url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s)", (backend,))
        await until_true(lambda: session._connection is None)
        rows = await session.execute("select 1", [], SECONDS)
    finally:
        await session.close()

    assert rows == [(1,)]
    assert session.connections == 2


async def test_a_connection_that_breaks_under_a_statement_is_an_error_and_replaced(
    pg_url: str,
) -> None:
    session = Session(pg_url)
    try:
        with pytest.raises(psycopg.OperationalError):
            await session.execute("select pg_terminate_backend(pg_backend_pid())", [], SECONDS)
        rows = await session.execute("select 1", [], SECONDS)
    finally:
        await session.close()

    assert rows == [(1,)]


async def test_a_write_whose_caller_is_cancelled_is_awaited(pg_url: str) -> None:
    session = Session(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as other:
        other.execute("create table written (number integer primary key)")
        insert = "insert into written values (%(number)s::integer) on conflict do nothing"
        await session.write(insert, {"number": 0}, SECONDS)
        with other.transaction():
            other.execute("insert into written values (1)")
            writing = asyncio.create_task(session.write(insert, {"number": 1}, SECONDS))
            await until_true(lambda: session._answer is not None)
            writing.cancel()
            await asyncio.sleep(0)
            was_done = writing.done()
        try:
            with pytest.raises(asyncio.CancelledError):
                await writing
            rows = await session.execute("select 3", [], SECONDS)
        finally:
            await session.close()

    assert not was_done
    assert rows == [(3,)]
    assert session.connections == 1


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_caller_that_is_cancelled_while_the_answer_arrives_is_released(
    pg_url: str, turns: int
) -> None:
    """Before the answer is read, in the same turn of the loop, or once it is read."""
    session = Session(pg_url)
    try:
        await session.write("select 1", {}, SECONDS)
        writing = asyncio.create_task(session.write("select 1", {}, SECONDS))
        await asyncio.sleep(0)
        select.select([session._fd], [], [], SECONDS)
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()
        done, _ = await asyncio.wait([writing], timeout=SECONDS / 2)
        rows = await session.execute("select 3", [], SECONDS)
    finally:
        await session.close()

    assert done
    assert writing.cancelled()
    assert rows == [(3,)]
    assert session.connections == 1


async def test_a_write_whose_caller_is_cancelled_is_not_awaited_for_ever(pg_url: str) -> None:
    session = Session(pg_url)
    try:
        sleep = "select pg_sleep(%(seconds)s::integer)"
        await session.write(sleep, {"seconds": 0}, SECONDS)
        writing = asyncio.create_task(session.write(sleep, {"seconds": 30}, 0.5))
        await until_true(lambda: session._answer is not None)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        rows = await session.execute("select 3", [], SECONDS)
    finally:
        await session.close()

    assert rows == [(3,)]
    assert session.connections == 2


@pytest.mark.parametrize("times_out", [False, True], ids=["cancelled", "timed out"])
async def test_what_is_given_up_does_not_go_on_in_the_server(pg_url: str, times_out: bool) -> None:
    session = Session(pg_url)
    lock = "select pg_advisory_lock(%s::bigint)"
    try:
        await session.execute(lock, ["1"], SECONDS)
        async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as other:
            await other.execute("select pg_advisory_lock(2)")
            seconds = 0.3 if times_out else SECONDS
            waiting = asyncio.create_task(session.execute(lock, ["2"], seconds))
            if not times_out:
                await until(lambda: waits(pg_url))
                waiting.cancel()
            with pytest.raises(TimeoutError if times_out else asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(waiting), 3.0)
            await until(lambda: _none_waits(pg_url), seconds=3.0)
    finally:
        await session.close()


async def test_what_is_given_up_does_not_answer_the_next_statement(pg_url: str) -> None:
    session = Session(pg_url)
    try:
        with pytest.raises(TimeoutError):
            await session.execute("select 1 from pg_sleep(%s::integer)", ["30"], 0.1)
        sleeping = asyncio.create_task(
            session.execute("select 2 from pg_sleep(%s::integer)", ["30"], SECONDS)
        )
        await until_true(lambda: session._answer is not None)
        was_free = session.is_free
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        rows = await session.execute("select 3", [], SECONDS)
    finally:
        await session.close()

    assert rows == [(3,)]
    assert not was_free
    assert session.is_free


async def _none_waits(url: str) -> bool:
    return not await waits(url)
