"""Tables of other systems, only read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from duetime.domain.urls import HOW_TO_WRITE, check_postgres_url, describe_parse_error
from duetime.errors import InvalidInput
from duetime.wiring import file_of

_SECONDS = 10


def read_tables(
    source: str, queries: Mapping[str, str], *, needed: str
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table. One that is not there is empty, except the needed one.

    `source` is a URL, as SQLAlchemy writes it, too; or the path of a SQLite file.
    """
    url = re.sub(r"^(\w+)\+\w+://", r"\1://", source if "://" in source else f"sqlite:///{source}")
    file = file_of(url)
    rows = _read_postgres(url, queries) if file is None else _read_sqlite(file, queries)
    if rows[needed] is None:
        raise InvalidInput(
            f"The database has no table {needed}. Check that it is the right database."
        )
    return {name: found or [] for name, found in rows.items()}


def _read_sqlite(path: str, queries: Mapping[str, str]) -> dict[str, list[dict[str, Any]] | None]:
    if not Path(path).is_file():
        raise InvalidInput(f"There is no database at {path!r}.")
    rows: dict[str, list[dict[str, Any]] | None] = {}
    try:
        with closing(
            sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_SECONDS)
        ) as connection:
            for name, query in queries.items():
                try:
                    cursor = connection.execute(query)
                except sqlite3.OperationalError as error:
                    if "no such table" not in str(error):
                        raise
                    rows[name] = None
                    continue
                columns = [column[0] for column in cursor.description]
                rows[name] = [dict(zip(columns, row, strict=True)) for row in cursor]
    except sqlite3.Error as error:
        raise InvalidInput(f"The database {path!r} cannot be read: {error}.") from error
    return rows


def _read_postgres(url: str, queries: Mapping[str, str]) -> dict[str, list[dict[str, Any]] | None]:
    try:
        import psycopg
        from psycopg.conninfo import make_conninfo
        from psycopg.rows import dict_row
    except ImportError:
        raise InvalidInput(
            "PostgreSQL requires a driver: pip install 'duetime[postgres]'."
        ) from None
    try:
        dsn = make_conninfo(check_postgres_url(url), connect_timeout=_SECONDS)
    except psycopg.ProgrammingError as error:
        raise InvalidInput(
            f"The database URL cannot be parsed: {describe_parse_error(error)}. {HOW_TO_WRITE}"
        ) from None
    rows: dict[str, list[dict[str, Any]] | None] = {}
    try:
        # Each query on its own: a table that is not there must not spoil the others.
        with psycopg.connect(dsn, autocommit=True) as connection:
            for name, query in queries.items():
                try:
                    with connection.cursor(row_factory=dict_row) as cursor:
                        rows[name] = cursor.execute(query.encode()).fetchall()
                except psycopg.errors.UndefinedTable:
                    rows[name] = None
    except psycopg.Error as error:
        raise InvalidInput(f"The database cannot be read: {error}.") from error
    return rows
