"""Duetime's tables in an SQLite file, beside the user's own."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from duetime.errors import InvalidDatabaseURL
from duetime.storage.migrations import NO_FUNCTIONS, Migration, load_migrations
from duetime.storage.sqlite.connection import (
    DEFAULT_PREFIX,
    LOCK_SECONDS,
    check_path,
    check_prefix,
    connect,
    persist,
    translate_errors,
    with_prefix,
)
from duetime.storage.statements import load_statements


class SqliteMigrator:
    functions = NO_FUNCTIONS

    def __init__(self, path: str, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = check_prefix(prefix)
        self.path = check_path(path)
        self.migrations = load_migrations("duetime.storage.sqlite", self._rename)
        self._sql = load_statements("duetime.storage.sqlite", self._rename)

    def version(self) -> int:
        if not Path(self.path).exists():
            return 0
        with translate_errors(self.path), closing(connect(self.path)) as connection:
            return persist(_Session(connection, self._sql).version, LOCK_SECONDS)

    def installed_functions(self) -> str:
        return NO_FUNCTIONS.digest

    @contextmanager
    def session(self) -> Iterator[_Session]:
        with translate_errors(self.path):
            _make_file(self.path)
            with closing(connect(self.path)) as connection:
                persist(lambda: connection.execute("pragma journal_mode = wal"), LOCK_SECONDS)
                # One migrator at a time: this waits for the write lock.
                persist(lambda: connection.execute("begin immediate"), LOCK_SECONDS)
                try:
                    session = _Session(connection, self._sql)
                    session.prepare()
                    yield session
                    connection.execute("commit")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("rollback")
                    raise

    def _rename(self, text: str) -> str:
        return with_prefix(text, self.prefix)


def _make_file(path: str) -> None:
    """Make the file if it is not there, for this user only: SQLite gives its log the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise InvalidDatabaseURL(
            f"{path} cannot be created ({error.strerror}). Give this user write permission to it "
            "and its directory, or choose another file."
        ) from error


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

    def functions(self) -> str:
        return NO_FUNCTIONS.digest

    def record_functions(self, digest: str) -> None:
        raise AssertionError("SQLite has no SQL functions of ours")

    def _rows(self, statement: str, /, **parameters: Any) -> list[Any]:
        return self._connection.execute(self._sql[statement], parameters).fetchall()


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
