"""Runs Duetime's statements inside the caller's own transaction, whatever library holds it.

The caller's transaction is never committed and never rolled back. Where none is open and the
connection commits each statement by itself, ours get a transaction of their own.

A library is known by the name of its class and imported only here, when its object is here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from operator import attrgetter
from typing import Any, NamedTuple

from duetime.errors import UnsupportedTransaction
from duetime.storage.store import Row, Statements

_DATABASES = {"%s": "postgresql", "?": "sqlite"}
"""The database that a placeholder belongs to, as SQLAlchemy and Django name it."""


def is_async(tx: Any) -> bool:
    """Whether `tx` has to be awaited. Raises `UnsupportedTransaction` for what is not known."""
    return _find_library(tx).is_async


def run(tx: Any, statements: Statements, *, placeholder: str) -> Any:
    """Execute `statements` in the transaction of `tx`, and return what they return."""
    library = _find_library(tx)
    if library.is_async:
        raise UnsupportedTransaction(
            f"tx= is {_name(tx)}, which is asynchronous. Use `await ….enqueue(…)`, or pass a "
            "synchronous connection or session."
        )
    _check_database(tx, library, placeholder)
    return library.run(tx, statements)


async def run_async(tx: Any, statements: Statements, *, placeholder: str) -> Any:
    """Like `run`, for every kind of transaction; a synchronous one is run inline."""
    library = _find_library(tx)
    _check_database(tx, library, placeholder)
    answer = library.run(tx, statements)
    return await answer if library.is_async else answer


def _find_library(tx: Any) -> _Library:
    # Not type(tx): a proxy such as Werkzeug's shows its object's class.
    for cls in tx.__class__.__mro__:
        if found := _LIBRARIES.get(f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"):
            return found
    raise UnsupportedTransaction(
        f"tx= is {_name(tx)}, which Duetime does not support. Pass a connection or session of one "
        f"of these: {', '.join(_LIBRARIES)}."
    )


def _check_database(tx: Any, library: _Library, placeholder: str) -> None:
    expected, found = _DATABASES[placeholder], library.database
    if not isinstance(found, str):
        found = found(tx)
    if found != expected:
        raise UnsupportedTransaction(
            f"tx= is {_name(tx)} on {found}, but the jobs of this app are stored on {expected}. "
            "Pass a transaction on the same database, or leave tx= out."
        )


def _name(tx: Any) -> str:
    return f"{tx.__class__.__module__}.{tx.__class__.__qualname__}"


# The libraries, each with its way to execute


def _run_psycopg(connection: Any, statements: Statements) -> Any:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    # Not connection.cursor(): the caller's factories may give rows and placeholders another form.
    cursor = Cursor(connection, row_factory=tuple_row)

    def execute(sql: str, params: Row) -> list[Row]:
        # In the caller's pipeline, a nested one brings the answer at its end.
        with connection.pipeline() if connection.pgconn.pipeline_status else nullcontext():
            cursor.execute(sql.encode(), params or None)
        return [] if cursor.rownumber is None else cursor.fetchall()

    return _drive(_framed(statements, connection), execute)


async def _run_psycopg_async(connection: Any, statements: Statements) -> Any:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    cursor = AsyncCursor(connection, row_factory=tuple_row)

    async def execute(sql: str, params: Row) -> list[Row]:
        async with connection.pipeline() if connection.pgconn.pipeline_status else nullcontext():
            await cursor.execute(sql.encode(), params or None)
        return [] if cursor.rownumber is None else await cursor.fetchall()

    return await _drive_async(_framed(statements, connection), execute)


def _run_psycopg2(connection: Any, statements: Statements) -> Any:
    from psycopg2.extensions import cursor as plain_cursor

    with connection.cursor(cursor_factory=plain_cursor) as cursor:
        return _drive(_framed(statements, connection), _executes(cursor))


async def _run_asyncpg(connection: Any, statements: Statements) -> Any:
    async def execute(sql: str, params: Row) -> list[Row]:
        return [tuple(row) for row in await connection.fetch(_to_dollars(sql, params), *params)]

    return await _drive_async(_framed(statements, connection), execute)


def _run_sqlite3(connection: Any, statements: Statements) -> Any:
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        return _drive(_framed(statements, connection), _executes(cursor))
    finally:
        cursor.close()


async def _run_aiosqlite(connection: Any, statements: Statements) -> Any:
    # All in one hop: nothing else of this connection comes between our statements.
    return await connection._execute(_run_sqlite3, connection._conn, statements)


def _run_django(connection: Any, statements: Statements) -> Any:
    translate = _to_format if connection.vendor == "sqlite" else None
    with connection.cursor() as cursor:
        return _drive(_framed(statements, connection.connection), _executes(cursor, translate))


def _run_sqlalchemy(connection: Any, statements: Statements) -> Any:
    held = connection.connection
    dollars = connection.dialect.default_paramstyle == "numeric_dollar"

    def execute(sql: str, params: Row) -> list[Row]:
        text = _to_dollars(sql, params) if dollars else sql
        result = connection.exec_driver_sql(text, params or None, {"no_parameters": not params})
        return [tuple(row) for row in result] if result.returns_rows else []

    # Its drivers for PostgreSQL begin at the first statement, unless in AUTOCOMMIT.
    if connection.dialect.name != "postgresql" or held.dbapi_connection.autocommit:
        statements = _framed(statements, held.driver_connection)
    return _drive(statements, execute)


def _run_session(session: Any, statements: Statements) -> Any:
    return _run_sqlalchemy(session.connection(), statements)


async def _run_sqlalchemy_async(connection: Any, statements: Statements) -> Any:
    return await connection.run_sync(_run_sqlalchemy, statements)


async def _run_session_async(session: Any, statements: Statements) -> Any:
    return await _run_sqlalchemy_async(await session.connection(), statements)


class _Library(NamedTuple):
    run: Callable[[Any, Statements], Any]
    database: str | Callable[[Any], str]
    """Its database, or where to ask for it."""
    is_async: bool = False


_of_bind = attrgetter("dialect.name")


def _of_session(session: Any) -> str:
    return str(_of_bind(session.get_bind()))


_LIBRARIES = {
    "psycopg.Connection": _Library(_run_psycopg, "postgresql"),
    "psycopg.Cursor": _Library(lambda tx, todo: _run_psycopg(tx.connection, todo), "postgresql"),
    "psycopg.AsyncConnection": _Library(_run_psycopg_async, "postgresql", is_async=True),
    "psycopg.AsyncCursor": _Library(
        lambda tx, todo: _run_psycopg_async(tx.connection, todo), "postgresql", is_async=True
    ),
    "psycopg2.connection": _Library(_run_psycopg2, "postgresql"),
    "asyncpg.Connection": _Library(_run_asyncpg, "postgresql", is_async=True),
    "asyncpg.PoolConnectionProxy": _Library(_run_asyncpg, "postgresql", is_async=True),
    "sqlalchemy.Session": _Library(_run_session, _of_session),
    "sqlalchemy.scoped_session": _Library(_run_session, _of_session),
    "sqlalchemy.Connection": _Library(_run_sqlalchemy, _of_bind),
    "sqlalchemy.AsyncSession": _Library(_run_session_async, _of_session, is_async=True),
    "sqlalchemy.async_scoped_session": _Library(_run_session_async, _of_session, is_async=True),
    "sqlalchemy.AsyncConnection": _Library(_run_sqlalchemy_async, _of_bind, is_async=True),
    "django.ConnectionProxy": _Library(_run_django, attrgetter("vendor")),
    "django.BaseDatabaseWrapper": _Library(_run_django, attrgetter("vendor")),
    "sqlite3.Connection": _Library(_run_sqlite3, "sqlite"),
    "sqlite3.Cursor": _Library(lambda tx, todo: _run_sqlite3(tx.connection, todo), "sqlite"),
    "aiosqlite.Connection": _Library(_run_aiosqlite, "sqlite", is_async=True),
}


# Around the statements


def _framed(statements: Statements, driver: Any) -> Statements:
    """Return `statements` with a transaction around them, if the driver's connection has none."""
    if hasattr(driver, "in_transaction"):  # sqlite3, aiosqlite
        if driver.in_transaction:
            return statements
        if driver.isolation_level is None or getattr(driver, "autocommit", False) is True:
            return _committed(statements, "begin immediate")
        return _begun(statements)
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        idle = not driver.is_in_transaction()
    else:  # psycopg, psycopg2
        idle = driver.autocommit and driver.info.transaction_status == 0
    return _committed(statements, "begin") if idle else statements


def _committed(statements: Statements, begin: str) -> Statements:
    yield begin, ()
    try:
        answer = yield from statements
        yield "commit", ()
    except BaseException:
        yield "rollback", ()
        raise
    return answer


def _begun(statements: Statements) -> Statements:
    # sqlite3 begins by itself, and leaves the commit to the caller, but it begins only at a
    # statement that starts with INSERT, UPDATE or DELETE: not at a SELECT, nor at a WITH.
    yield "begin immediate", ()
    return (yield from statements)


def _drive(statements: Statements, execute: Callable[[str, Row], list[Row]]) -> Any:
    try:
        sql, params = next(statements)
        while True:
            try:
                rows = execute(sql, tuple(params))
            except BaseException as error:  # noqa: BLE001 - the statements decide, and raise it
                sql, params = statements.throw(error)
            else:
                sql, params = statements.send(rows)
    except StopIteration as done:
        return done.value


async def _drive_async(
    statements: Statements, execute: Callable[[str, Row], Awaitable[list[Row]]]
) -> Any:
    try:
        sql, params = next(statements)
        while True:
            try:
                rows = await execute(sql, tuple(params))
            except BaseException as error:  # noqa: BLE001 - the statements decide, and raise it
                sql, params = statements.throw(error)
            else:
                sql, params = statements.send(rows)
    except StopIteration as done:
        return done.value


def _executes(
    cursor: Any, translate: Callable[[str], str] | None = None
) -> Callable[[str, Row], list[Row]]:
    def execute(sql: str, params: Row) -> list[Row]:
        if params:
            cursor.execute(translate(sql) if translate else sql, params)
        else:
            cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []

    return execute


# Placeholders. A statement without parameters is sent as it is: its % is a %.


def _to_dollars(sql: str, params: Row) -> str:
    """Write `%s` as asyncpg's `$1`.

    Text is cast to text: the caller may have set their own codec for json.
    """
    if not params:
        return sql
    places = iter(range(len(params)))

    def write(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        place = next(places)
        return f"${place + 1}::text" if isinstance(params[place], str) else f"${place + 1}"

    return re.sub(r"%[s%]", write, sql)


def _to_format(sql: str) -> str:
    """Write `?` as Django's `%s`."""
    return re.sub(
        r"'[^']*'|\?|%",
        lambda found: "%s" if found[0] == "?" else found[0].replace("%", "%%"),
        sql,
    )
