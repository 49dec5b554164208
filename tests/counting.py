"""Counts the statements that a store runs, the round trips that they take, and the rows that
PostgreSQL reads for them."""

from __future__ import annotations

import time
from typing import Any, cast

import psycopg
import pytest

from duetime.storage.postgres.calls import Calls
from duetime.storage.postgres.direct import DirectSession
from duetime.storage.store import Statements, Store
from tests.waiting import PATIENCE

_OTHERS = """
select from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""
_READ = """
select coalesce(sum(seq_scan), 0)::bigint,
    coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
from {view} where relname = any (%s)
"""


def is_alone(connection: psycopg.Connection[Any]) -> bool:
    """Whether all other sessions of the database have ended, and so reported what they read."""
    return connection.execute(_OTHERS).fetchone() is None


def rows_read(url: str, tables: list[str]) -> tuple[int, int]:
    """Sequential scans and rows read so far. Call it while nothing is connected."""
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(url, autocommit=True) as connection:
        # A session that was closed ends, and reports, a moment later.
        while not is_alone(connection):
            assert time.monotonic() < deadline, "another session stays connected"
            time.sleep(0.01)
        return _read(connection, "pg_stat_user_tables", tables)


def rows_read_here(connection: psycopg.Connection[Any], tables: list[str]) -> tuple[int, int]:
    """Sequential scans and rows read in the current transaction of this session."""
    return _read(connection, "pg_stat_xact_user_tables", tables)


def _read(connection: psycopg.Connection[Any], view: str, tables: list[str]) -> tuple[int, int]:
    row = connection.execute(_READ.format(view=view).encode(), [tables]).fetchone()
    assert row is not None
    return row[0], row[1]


class Counted:
    """How many statements a store ran, for those who write them without I/O, since it was last
    asked: all, or those with a name."""

    def __init__(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, name: str | None = None
    ) -> None:
        self._ran = 0
        self._text = None if name is None else cast("Any", store)._sql[name]
        transact = store.transact

        def count(statements: Statements, **how: Any) -> Any:
            return transact(self._each(statements), **how)

        monkeypatch.setattr(store, "transact", count)

    def ran(self) -> int:
        ran, self._ran = self._ran, 0
        return ran

    def _each(self, statements: Statements) -> Statements:
        try:
            statement = next(statements)
            while True:
                self._ran += self._text is None or statement[0] == self._text
                statement = statements.send((yield statement))
        except StopIteration as done:
            return done.value


class RoundTrips:
    """The statements that PostgreSQL was sent by this process, by their names, in their order.

    Statements of a transaction stand between `begin` and `commit`, which are round trips as well.
    """

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names = {text: name for name, text in cast("Any", store)._sql.items()}
        self.sent: list[str] = []
        direct, call, cursor = DirectSession._run, Calls._run, psycopg.AsyncCursor.execute
        begin, end = psycopg.AsyncTransaction.__aenter__, psycopg.AsyncTransaction.__aexit__

        def run_directly(session: Any, statement: Any, *more: Any, **how: Any) -> Any:
            self._add(statement)
            return direct(session, statement, *more, **how)

        def run(calls: Any, connection: Any, statement: Any, *more: Any) -> Any:
            self._add(statement)
            return call(calls, connection, statement, *more)

        def execute(on: Any, statement: Any, *more: Any, **how: Any) -> Any:
            self._add(statement)
            return cursor(on, statement, *more, **how)

        def enter(transaction: Any) -> Any:
            self.sent.append("begin")
            return begin(transaction)

        def leave(transaction: Any, *error: Any) -> Any:
            self.sent.append("commit")
            return end(transaction, *error)

        monkeypatch.setattr(DirectSession, "_run", run_directly)
        monkeypatch.setattr(Calls, "_run", run)
        monkeypatch.setattr(psycopg.AsyncCursor, "execute", execute)
        monkeypatch.setattr(psycopg.AsyncTransaction, "__aenter__", enter)
        monkeypatch.setattr(psycopg.AsyncTransaction, "__aexit__", leave)

    def _add(self, statement: Any) -> None:
        self.sent.append(self._names.get(statement, str(statement)))
