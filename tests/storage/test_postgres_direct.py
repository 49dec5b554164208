"""The session for single statements, which goes around the driver's cursor."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from duetime.storage.postgres.direct import DirectSession
from duetime.storage.postgres.pool import Connection
from tests.waiting import until_true

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
