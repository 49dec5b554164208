"""The statements of an enqueue do no more than they must."""

from __future__ import annotations

import re

import psycopg
import pytest

from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore

VALUES = {
    "args": "'{\"{}\"}'",
    "kind": "'{1}'",
    "notify": "true",
    "queue": "'default'",
    "task": "'noop'",
}


@pytest.fixture
def plan_of(pg_url: str) -> dict[str, str]:
    """The plans of both statements, with every name."""
    upgrade(PostgresMigrator(pg_url))
    sql = PostgresStore(pg_url)._sql
    plans = {}
    with psycopg.connect(pg_url) as connection:
        for name in ("enqueue_alike", "enqueue_unlike"):
            lists = name == "enqueue_unlike"

            def literal(match: re.Match[str], lists: bool = lists) -> str:
                value = VALUES.get(match[1], "null")
                return f"array[{value}]" if lists and match[1] in ("queue", "task") else value

            text = re.sub(r"%\((\w+)\)s", literal, sql[name])
            rows = connection.execute(f"explain (verbose, costs off) {text}".encode()).fetchall()
            plans[name] = "\n".join(row[0] for row in rows)
    return plans


@pytest.mark.parametrize("name", ["enqueue_alike", "enqueue_unlike"])
def test_jobs_without_keys_are_written_and_nothing_is_read(
    plan_of: dict[str, str], name: str
) -> None:
    plan = plan_of[name]

    assert set(re.findall(r"Insert on (\S+)", plan)) == {"duetime.job", "duetime.due"}
    assert not re.findall(r"Scan (?:using \S+ )?on duetime\.", plan), plan


@pytest.mark.parametrize("name", ["enqueue_alike", "enqueue_unlike"])
def test_the_wake_up_is_part_of_the_statement(plan_of: dict[str, str], name: str) -> None:
    """A function in PL/pgSQL takes six times as long."""
    plan = plan_of[name]

    assert "pg_try_advisory_xact_lock_shared" in plan
    assert "wake(" not in plan.replace("'duetime.wake'", "")
