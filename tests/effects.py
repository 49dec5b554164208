"""The table in which the tasks of `tests.workload` leave their effects."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from duetime.wiring import file_of

CREATE = "create table effect (n integer, job_id bigint, token bigint, worker text, at float)"


def run(url: str, statement: str) -> list[Any]:
    """Run one statement on the test's database, over a connection of its own."""
    if (file := file_of(url)) is not None:
        with closing(sqlite3.connect(file, timeout=10)) as connection, connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as postgres:
        cursor = postgres.execute(statement)
        return cursor.fetchall() if cursor.description else []


def count(url: str) -> int:
    return int(run(url, "select count(*) from effect")[0][0])


def doubled(url: str) -> list[Any]:
    """Which effects are there more than once."""
    return run(url, "select n, count(*) from effect group by n having count(*) > 1")
