"""Runs statements that were written without I/O on a connection."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from duetime.storage.postgres.connection import rows_of
from duetime.storage.postgres.pool import Connection
from duetime.storage.store import Row, Statement, Statements


async def drive(
    connection: Connection,
    statements: Statements,
    *,
    seconds: float | None = None,
    thread: ThreadPoolExecutor | None = None,
) -> Any:
    """Execute the statements; with a `thread`, what they compute is computed there."""
    loop = asyncio.get_running_loop()
    rows: list[Row] | None = None
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


def _advance(statements: Statements, rows: list[Row] | None) -> tuple[Statement | None, Any]:
    """The next statement, or None and what they return: a future cannot hold `StopIteration`."""
    try:
        return (next(statements) if rows is None else statements.send(rows)), None
    except StopIteration as done:
        return None, done.value
