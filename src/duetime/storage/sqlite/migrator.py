"""Duetime's tables in an SQLite file, beside the user's own."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from duetime.storage.migrations import Migration, load_migrations
from duetime.storage.sqlite.connection import (
    DEFAULT_PREFIX,
    check_path,
    check_prefix,
    connect,
    told_errors,
    with_prefix,
)
from duetime.storage.statements import load_statements

_LOCK_SECONDS = 30.0


class SqliteMigrator:
    def __init__(self, path: str, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = check_prefix(prefix)
        self.path = check_path(path)
        self.migrations = load_migrations("duetime.storage.sqlite", self._rename)
        self._sql = load_statements("duetime.storage.sqlite", self._rename)

    def version(self) -> int:
        if not Path(self.path).exists():
            return 0
        with told_errors(self.path), closing(self._connect()) as connection:
            return _Session(connection, self._sql).version()

    @contextmanager
    def session(self) -> Iterator[_Session]:
        with told_errors(self.path):
            Path(self.path).touch()
            with closing(self._connect()) as connection:
                _use_wal(connection)
                # One migrator at a time: this waits for the write lock.
                connection.execute("begin immediate")
                try:
                    session = _Session(connection, self._sql)
                    session.prepare()
                    yield session
                    connection.execute("commit")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("rollback")
                    raise

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, busy_seconds=_LOCK_SECONDS)

    def _rename(self, text: str) -> str:
        return with_prefix(text, self.prefix)


class _Session:
    def __init__(self, connection: sqlite3.Connection, sql: dict[str, str]) -> None:
        self._connection = connection
        self._sql = sql

    def prepare(self) -> None:
        self._rows("create_migration")

    def version(self) -> int:
        exists = self._rows("migration_exists")[0][0]
        return self.applied() if exists else 0

    def applied(self) -> int:
        return int(self._rows("applied")[0][0])

    def run(self, script: str) -> None:
        # Not `executescript`: that would commit what went before.
        for statement in _split(script):
            self._connection.execute(statement)

    def record(self, migration: Migration) -> None:
        self._rows(
            "record_migration",
            version=migration.version,
            name=migration.name,
            now=time.time_ns() // 1000,
        )

    def forget(self, migration: Migration) -> None:
        self._rows("forget_migration", version=migration.version)
        if migration.version == 1:
            self._rows("drop_migration")

    def _rows(self, statement: str, /, **parameters: Any) -> list[Any]:
        return self._connection.execute(self._sql[statement], parameters).fetchall()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL, for good. The switch does not wait for locks by itself."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _split(script: str) -> Iterator[str]:
    """Yield the statements of a script, triggers whole."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
