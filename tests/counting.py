"""Counts the statements that a store runs, and the round trips that they take."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

from duetime.storage.postgres.calls import Calls
from duetime.storage.postgres.direct import DirectSession
from duetime.storage.store import Statements, Store


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
