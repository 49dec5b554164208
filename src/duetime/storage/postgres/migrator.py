"""Duetime's tables in a PostgreSQL schema of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg

from duetime.errors import InvalidDatabaseURL
from duetime.storage.migrations import Migration, load_functions, load_migrations
from duetime.storage.postgres.connection import (
    RIGHTS_TO_MIGRATE,
    check_schema_name,
    in_schema,
    make_dsn,
    translate_errors,
)
from duetime.storage.statements import load_statements


class PostgresMigrator:
    def __init__(self, url: str, schema: str = "duetime") -> None:
        self.schema = check_schema_name(schema)
        self._dsn = make_dsn(url)
        self.migrations = load_migrations("duetime.storage.postgres", self._rename)
        self.functions = load_functions("duetime.storage.postgres", self._rename)
        self._sql = load_statements("duetime.storage.postgres", self._rename)

    def version(self) -> int:
        with translate_errors(), psycopg.connect(self._dsn) as connection:
            return _Session(connection, self._sql).version()

    def installed_functions(self) -> str:
        with translate_errors(), psycopg.connect(self._dsn) as connection:
            session = _Session(connection, self._sql)
            return session.functions() if session.version() else ""

    @contextmanager
    def session(self) -> Iterator[_Session]:
        with (
            translate_errors(rights=RIGHTS_TO_MIGRATE),
            psycopg.connect(self._dsn) as connection,
        ):
            # Once the lock is ours, we must see what the migrator before us has made.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            session = _Session(connection, self._sql)
            session.prepare(self.schema)
            yield session

    def _rename(self, text: str) -> str:
        return in_schema(text, self.schema)


class _Session:
    def __init__(self, connection: psycopg.Connection[Any], sql: dict[str, str]) -> None:
        self._connection = connection
        self._sql = sql

    def prepare(self, schema: str) -> None:
        if self._rows("is_reserved", schema=schema):
            raise InvalidDatabaseURL(
                f"{schema!r} is a reserved word of SQL. Choose another name for the schema."
            )
        # One migrator at a time; the lock is released with the transaction.
        self._rows("lock_schema", schema=schema)
        if not self._rows("schema_exists", schema=schema):
            self.run(self._sql["create_schema"].replace("duetime", schema))
        self._rows("create_migration")

    def version(self) -> int:
        if not self._rows("migration_exists")[0][0]:
            return 0
        if not self._rows("is_readable")[0][0]:
            return cast("int", self._rows("ask_installed")[0][0])
        return self.applied()

    def applied(self) -> int:
        return cast("int", self._rows("applied")[0][0])

    def run(self, script: str) -> None:
        self._connection.execute(script)

    def record(self, migration: Migration) -> None:
        self._rows("record_migration", version=migration.version, name=migration.name)

    def forget(self, migration: Migration) -> None:
        self._rows("forget_migration", version=migration.version)
        if migration.version == 1:
            self._rows("drop_migration")

    def functions(self) -> str:
        if not self._rows("is_readable")[0][0]:
            return cast("str", self._rows("ask_installed")[0][1])
        return cast("str", self._rows("installed_functions")[0][0])

    def record_functions(self, digest: str) -> None:
        self._rows("record_functions", digest=digest)

    def _rows(self, name: str, /, **parameters: Any) -> list[Any]:
        cursor = self._connection.execute(self._sql[name], parameters)
        return cursor.fetchall() if cursor.description else []
