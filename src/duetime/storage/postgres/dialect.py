"""How the statements that are written once for all backends are run on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from duetime.domain.keys import shorten_installation
from duetime.storage.postgres.calls import Calls
from duetime.storage.postgres.connection import rows_of
from duetime.storage.postgres.direct import DirectSession
from duetime.storage.postgres.pool import Connection
from duetime.storage.store import Row, Statement, Statements


class PostgresDialect:
    """A statement takes the document as it is; times are native."""

    arms = True
    part = 5000

    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql
        self._installation: str | None = None

    def run(self, name: str, document: Any) -> Generator[Statement, list[Row], list[Row]]:
        return (yield self._sql[name], (msgspec.json.encode(document).decode(),))

    def now(self) -> Generator[Statement, list[Row], datetime]:
        rows = yield self._sql["now"], ()
        return self.moment(rows[0][0])

    def installation(self) -> Generator[Statement, list[Row], str]:
        if self._installation is None:
            rows = yield self._sql["installation"], ()
            self._installation = shorten_installation(rows[0][0])
        return self._installation

    def moment(self, value: Any) -> datetime:
        # It comes in the session's time zone, which may be any.
        return cast("datetime", value).astimezone(UTC)


async def drive(
    connection: Connection,
    statements: Statements,
    *,
    seconds: float | None = None,
    thread: ThreadPoolExecutor | None = None,
    rows: list[Row] | None = None,
) -> Any:
    """Execute the statements; with a `thread`, what they compute is computed there.

    `rows`: the answer to the first of them, which was executed before."""
    loop = asyncio.get_running_loop()
    while True:
        if thread is None:
            statement, answer = _advance(statements, rows)
        else:
            statement, answer = await loop.run_in_executor(thread, _advance, statements, rows)
        if statement is None:
            return answer
        async with asyncio.timeout(seconds):
            cursor = await connection.execute(statement[0], statement[1] or None)
            rows = await rows_of(cursor)


def one_statement(statements: Statements) -> Statements:
    """The same statements, which must be one at most: each of several would see another state."""
    rows = None
    while True:
        statement, answer = _advance(statements, rows)
        if statement is None:
            return answer
        if rows is not None:
            raise RuntimeError("These are several statements: read them with snapshot=True.")
        rows = yield statement


async def drive_directly(
    session: DirectSession | Calls, statements: Statements, *, seconds: float
) -> Any:
    """Execute the statements, each as a transaction of its own."""
    statement, answer = _advance(statements, None)
    while statement is not None:
        rows = await session.execute(statement[0], list(statement[1]), seconds)
        statement, answer = _advance(statements, rows)
    return answer


def _advance(statements: Statements, rows: list[Row] | None) -> tuple[Statement | None, Any]:
    """The next statement, or None and what they return: a future cannot hold `StopIteration`."""
    try:
        return (next(statements) if rows is None else statements.send(rows)), None
    except StopIteration as done:
        return None, done.value
