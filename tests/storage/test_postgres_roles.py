"""A role that lacks rights is told which ones; with those of the manual it works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from duetime import Duetime
from duetime.errors import StorageError
from duetime.settings import Settings
from duetime.storage.migrations import upgrade
from duetime.wiring import make_migrator
from tests.conftest import fresh_database
from tests.servers import PostgresServer

RIGHTS = (
    "usage on its schema, select, insert, update and delete on all tables in it, "
    "and usage on all sequences in it"
)


@contextmanager
def role(url: str, name: str) -> Iterator[str]:
    """A role without rights, and the URL under which it connects."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"create role {name} login")
        try:
            given: dict[str, Any] = conninfo_to_dict(url)
            yield f"postgresql://{name}@{given['host']}:{given['port']}/{given['dbname']}"
        finally:
            owner.execute(f"drop owned by {name}")
            owner.execute(f"drop role {name}")


def grants(name: str) -> str:
    """The statements of the manual for a role of this name."""
    manual = Path(__file__).parents[2] / "docs" / "guide" / "deployment.md"
    blocks = re.findall(r"```sql\n(.*?)```", manual.read_text(), re.DOTALL)
    return next(block for block in blocks if f"to {name};" in block)


async def test_a_role_without_rights_is_told_what_to_grant(pg_url: str) -> None:
    with role(pg_url, "poor") as url:
        app = Duetime(url)
        with pytest.raises(StorageError) as caught:
            await app.jobs.find()

    message = str(caught.value)
    assert "permission denied for schema duetime" in message
    assert RIGHTS in message
    assert "Roles" in message


async def test_with_the_rights_of_the_manual_a_role_works(pg_url: str) -> None:
    with role(pg_url, "worker") as url:
        with psycopg.connect(pg_url, autocommit=True) as owner:
            owner.execute(grants("worker"))
        app = Duetime(url)

        @app.task(name="double")
        async def double(number: int) -> int:
            return 2 * number

        async with app.worker(name="w"):
            result = await (await double.enqueue(4)).result(timeout="10s")
        await app.close()

    assert result == 8


async def test_one_that_only_enqueues_is_told_when_it_does_more(pg_url: str) -> None:
    with role(pg_url, "web") as url:
        with psycopg.connect(pg_url, autocommit=True) as owner:
            owner.execute(grants("web"))
        app = Duetime(url)

        @app.task(name="double")
        async def double(number: int) -> int:
            return 2 * number

        job = await double.using(key="four").enqueue(4)
        with pytest.raises(StorageError) as caught:
            await app.queues.pause("default")
        await app.close()

    assert job.id > 0
    assert "permission denied for table queue" in str(caught.value)
    assert RIGHTS in str(caught.value)


def test_a_role_that_may_not_make_the_tables_is_told_so(postgres15: PostgresServer) -> None:
    with fresh_database(postgres15) as owner_url, role(owner_url, "poor") as url:
        with pytest.raises(StorageError) as caught:
            upgrade(make_migrator(Settings(database=url)))

    message = str(caught.value)
    assert "permission denied for database" in message
    assert "CREATE on the database" in message
    assert RIGHTS not in message
