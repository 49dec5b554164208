"""Duetime's migrations as statements, for the migration tool that the user already has.

Executed in the tool's own transaction, and recorded as `duetime db upgrade` records them.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable, Iterator

from duetime.errors import InvalidDatabaseURL
from duetime.settings import Settings
from duetime.storage.migrations import Migration, plan_downgrade, plan_upgrade
from duetime.storage.statements import load_statements
from duetime.storage.store import Statements
from duetime.wiring import make_migrator

_PARAMETER = re.compile(r"%\((\w+)\)s|:(\w+)")
_PIECE = re.compile(r"'[^']*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/|(;)", re.DOTALL)


class EmbeddedSchema:
    """Duetime's schema in a database, which is named as SQLAlchemy and Django name it."""

    def __init__(self, database: str, *, schema: str, prefix: str) -> None:
        if database not in ("postgresql", "sqlite"):
            raise InvalidDatabaseURL(
                f"Duetime's tables cannot be created on {database}. Use PostgreSQL or SQLite."
            )
        self._postgres = database == "postgresql"
        self.placeholder = "%s" if self._postgres else "?"
        self._schema = schema
        # The URL is never connected to: the statements are executed by somebody else.
        url = "postgresql://" if self._postgres else "sqlite:///embedded"
        settings = Settings(database=url, schema=schema, prefix=prefix)
        migrator = make_migrator(settings)
        self._migrations = migrator.migrations
        self._functions = migrator.functions
        ours, theirs = ("duetime.", f"{schema}.") if self._postgres else ("duetime_", prefix)
        self._sql = load_statements(
            f"duetime.storage.{'postgres' if self._postgres else 'sqlite'}",
            lambda text: text.replace(ours, theirs),
        )

    def upgrade(self, to: int | None) -> Statements:
        """Apply what is missing, up to `to`."""
        version = yield from self._prepare()
        for sql in self._apply(plan_upgrade(self._migrations, version, to)):
            yield sql, ()
        if self._functions.script and self._reaches_latest(to):
            [[digest]] = yield self._sql["installed_functions"], ()
            if digest != self._functions.digest:
                for sql in self._replace_functions():
                    yield sql, ()

    def downgrade(self, to: int) -> Statements:
        """Undo down to `to`; 0 removes everything of ours."""
        version = yield from self._prepare()
        for sql in self._undo(plan_downgrade(self._migrations, version, to)):
            yield sql, ()

    def script_upgrade(self, since: int, to: int | None) -> Iterator[str]:
        """The statements from version `since` to `to`, for a database that cannot be asked."""
        if self._postgres:
            yield f"create schema if not exists {self._schema}"
        yield self._sql["create_migration"]
        yield from self._apply(plan_upgrade(self._migrations, since, to))
        if self._functions.script and self._reaches_latest(to):
            yield from self._replace_functions()

    def script_downgrade(self, since: int | None, to: int) -> Iterator[str]:
        version = len(self._migrations) if since is None else since
        yield from self._undo(plan_downgrade(self._migrations, version, to))

    def _prepare(self) -> Statements:
        """Lock, make the table that holds the version, and return the version."""
        if self._postgres:
            if (yield self._filled("is_reserved", schema=self._schema), ()):
                raise InvalidDatabaseURL(
                    f"{self._schema!r} is a reserved word of SQL. Choose another name."
                )
            yield self._filled("lock_schema", schema=self._schema), ()
            if not (yield self._filled("schema_exists", schema=self._schema), ()):
                yield f"create schema {self._schema}", ()
        yield self._sql["create_migration"], ()
        rows = yield self._sql["applied"], ()
        return rows[0][0]

    def _apply(self, migrations: Iterable[Migration]) -> Iterator[str]:
        for migration in migrations:
            yield from self._split(migration.up)
            yield self._filled(
                "record_migration",
                version=migration.version,
                name=migration.name,
                now=time.time_ns() // 1000,
            )

    def _reaches_latest(self, to: int | None) -> bool:
        return to is None or to == len(self._migrations)

    def _replace_functions(self) -> Iterator[str]:
        yield from self._split(self._functions.script)
        yield self._filled("record_functions", digest=self._functions.digest)

    def _undo(self, migrations: Iterable[Migration]) -> Iterator[str]:
        for migration in migrations:
            yield from self._split(migration.down)
            yield self._filled("forget_migration", version=migration.version)
            if migration.version == 1:
                yield self._sql["drop_migration"]

    def _filled(self, statement: str, /, **values: int | str) -> str:
        """A statement with its values written into it: numbers and plain names of our own."""

        def write(found: re.Match[str]) -> str:
            value = values[found[1] or found[2]]
            return str(value) if isinstance(value, int) else f"'{value}'"

        return _PARAMETER.sub(write, self._sql[statement])

    def _split(self, script: str) -> Iterator[str]:
        """Each statement alone: asyncpg and sqlite3 take no more than one at a time."""
        statement, start = "", 0
        for piece in _PIECE.finditer(script):
            if piece[2]:
                statement += script[start : piece.end()]
                start = piece.end()
                # In SQLite, a trigger's body has semicolons of its own.
                if self._postgres or sqlite3.complete_statement(statement):
                    yield statement.strip().removesuffix(";")
                    statement = ""
