"""A transaction under way on the store's connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from duetime.storage.store import Row, Statements

_LONGEST_SLEEP_US = 600_000_000


class Transaction:
    """Runs named statements; collects what is to be announced once it has committed."""

    __slots__ = ("_sql", "cancelled", "connection", "ended", "now", "queues")

    def __init__(self, connection: sqlite3.Connection, sql: Mapping[str, str], now: int) -> None:
        self.connection = connection
        self._sql = sql
        self.now = now
        """Taken once the write lock is held: later transactions have later times."""
        self.queues: set[str] = set()
        """Queues whose sleepers are to be woken."""
        self.ended: list[int] = []
        """Jobs that may be waited for, and have ended."""
        self.cancelled: list[tuple[int, int]] = []
        """(worker, job) whose cancellation was asked for."""

    def statement(self, name: str) -> str:
        return self._sql[name]

    def rows(self, statement: str, /, **parameters: Any) -> list[Row]:
        return self.connection.execute(self._sql[statement], parameters).fetchall()

    def value(self, statement: str, /, **parameters: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self.connection.execute(self._sql[statement], parameters).fetchone()
        return None if row is None else row[0]

    def run(self, statement: str, /, **parameters: Any) -> int:
        """Return how many rows were changed."""
        return self.connection.execute(self._sql[statement], parameters).rowcount

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        self.connection.executemany(self._sql[name], rows)

    def drive(self, statements: Statements) -> Any:
        """Run statements that were written without I/O; return their result."""
        try:
            sql, parameters = next(statements)
            while True:
                rows = self.connection.execute(sql, parameters).fetchall()
                sql, parameters = statements.send(rows)
        except StopIteration as stop:
            return stop.value

    def wake(self, queue: str, run_at: int | None = None) -> None:
        """Wake who sleeps on this queue. No worker sleeps longer than ten minutes."""
        if run_at is None or run_at <= self.now + _LONGEST_SLEEP_US:
            self.queues.add(queue)
