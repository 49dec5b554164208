"""What a database holds after somebody else's tool has run our migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from duetime.settings import Settings
from duetime.storage.migrations import Migrator, SchemaStatus, read_status
from duetime.wiring import make_migrator
from tests.conftest import Backend

SCHEMA_QUERIES = (
    """select table_name, column_name, data_type, is_nullable, column_default, is_identity
    from information_schema.columns where table_schema = %s order by 1, 2""",
    "select indexdef from pg_indexes where schemaname = %s order by 1",
    "select definition from pg_views where schemaname = %s order by 1",
    """select pg_get_functiondef(oid) from pg_proc
    where pronamespace = to_regnamespace(%s) order by 1""",
    """select relname, reloptions, relpersistence from pg_class
    where relnamespace = to_regnamespace(%s) order by 1""",
)


def migrator(backend: Backend, schema: str = "duetime") -> Migrator:
    """As `duetime db` makes it; `schema` names the prefix on SQLite."""
    return make_migrator(Settings(database=backend.url, schema=schema, prefix=f"{schema}_"))


def status(backend: Backend, schema: str = "duetime") -> SchemaStatus:
    return read_status(migrator(backend, schema))


def describe(backend: Backend, schema: str = "duetime") -> list[Any]:
    """Everything of ours in the database, and the versions recorded."""
    if backend.is_postgres:
        with psycopg.connect(backend.url) as connection:
            found: list[Any] = [
                row
                for query in SCHEMA_QUERIES
                for row in connection.execute(query.encode(), (schema,)).fetchall()
            ]
            if found:
                versions = f"select version, name from {schema}.migration order by 1"
                found += connection.execute(versions.encode()).fetchall()
            return found
    found = query_sqlite(
        backend,
        "select type, name, sql from sqlite_schema"
        f" where tbl_name like '{schema}!_%' escape '!' or name like '{schema}!_%' escape '!'"
        " order by 1, 2",
    )
    if found:
        found += query_sqlite(backend, f"select version, name from {schema}_migration order by 1")
    return found


def keep_apart(backend: Backend) -> None:
    """Have the user's tables made in `public`.

    The tests' role is named as our schema is, so that PostgreSQL would find that one first.
    """
    if backend.is_postgres:
        execute_script(
            backend,
            "do $$ begin execute format("
            "'alter database %I set search_path = public', current_database()); end $$",
        )


def tables(backend: Backend) -> list[str]:
    """The user's own tables."""
    if backend.is_postgres:
        with psycopg.connect(backend.url) as connection:
            rows: list[Any] = connection.execute(
                "select tablename from pg_tables where schemaname = 'public' order by 1"
            ).fetchall()
    else:
        rows = query_sqlite(
            backend,
            "select name from sqlite_schema where type = 'table' and name not like 'duetime!_%'"
            " escape '!' and name not like 'sqlite!_%' escape '!' order by 1",
        )
    return [row[0] for row in rows]


def execute_script(backend: Backend, script: str) -> None:
    if backend.is_postgres:
        with psycopg.connect(backend.url, autocommit=True) as connection:
            connection.execute(script.encode())
    else:
        with closing(sqlite3.connect(backend.url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)


def query_sqlite(backend: Backend, sql: str) -> list[Any]:
    with closing(sqlite3.connect(backend.url.removeprefix("sqlite:///"))) as connection:
        return connection.execute(sql).fetchall()
