"""What the store's own connections are set to, whatever the database's defaults are."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from duetime.domain.jobs.job import NewJob
from duetime.storage.postgres.heart import PostgresHeart
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.sqlite.store import SqliteStore
from duetime.storage.store import Statements

CONTRACT = {
    # Each statement must see what was committed before it: fences and floors rely on that.
    "transaction_isolation": "read committed",
    # A plan made for an empty `due` would otherwise scan a million rows.
    "enable_seqscan": "off",
    "jit": "off",
    # What some role created in `public` never runs with the rights of a worker.
    "search_path": "pg_catalog, pg_temp",
    # The locks of a machine that is gone are released within seconds.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "application_name": "duetime",
}
HOSTILE = {
    "default_transaction_isolation": "serializable",
    "enable_seqscan": "on",
    "jit": "on",
    "tcp_keepalives_idle": "7200",
}


@pytest.fixture
def hostile_url(pg_url: str) -> str:
    """A database whose defaults are not what we need."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        name = connection.info.dbname
        for setting, value in HOSTILE.items():
            connection.execute(f"alter database \"{name}\" set {setting} = '{value}'".encode())
    return pg_url


@pytest.fixture
async def store(hostile_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(hostile_url)
    await store.open()
    yield store
    await store.close()


def read_settings(names: Iterable[str]) -> Statements:
    names = list(names)
    [row] = yield "select " + ", ".join(f"current_setting('{name}')" for name in names), ()
    return dict(zip(names, row, strict=True))


async def test_postgres_pool(store: PostgresStore) -> None:
    assert await store.transact(read_settings(CONTRACT), reads=True) == CONTRACT
    assert await store.transact(read_settings(CONTRACT)) == CONTRACT


async def test_postgres_transaction_of_a_handler(store: PostgresStore) -> None:
    async with store.transaction() as connection:
        found = {
            name: (await (await connection.execute(f"show {name}")).fetchone() or ("",))[0]
            for name in CONTRACT
        }

    # The handler's own statements are planned, and find their tables, as anywhere else.
    assert found == CONTRACT | {"enable_seqscan": "on", "search_path": '"$user", public'}
    assert await store.transact(read_settings(CONTRACT), reads=True) == CONTRACT


def test_postgres_transaction_of_a_thread(hostile_url: str) -> None:
    with PostgresStore(hostile_url).transaction_sync() as connection:
        found = connection.execute("show transaction_isolation").fetchone()

    assert found == ("read committed",)


def test_postgres_heart_gives_up_after_5_seconds_and_reads_what_is_committed(
    hostile_url: str,
) -> None:
    names = ("statement_timeout", "transaction_isolation", "search_path")
    answer = ", ".join(f"current_setting('{name}')" for name in names)
    heart = PostgresHeart(PostgresStore(hostile_url).listen_dsn, f"select 0, array[{answer}], 1")
    beat = heart.beat(1, timedelta(seconds=30))
    heart.close()

    assert list(map(str, beat.cancelled)) == ["5s", "read committed", "pg_catalog, pg_temp"]


def test_postgres_clients_notice_a_dead_server_in_seconds() -> None:
    store = PostgresStore("postgresql://ann@db/shop", listen_url="postgresql://ann@direct/shop")
    for dsn in (store.dsn, store.listen_dsn):
        found = conninfo_to_dict(dsn)

        assert found["connect_timeout"] == "5"
        assert found["keepalives"] == "1"
        assert (found["keepalives_idle"], found["keepalives_interval"]) == ("10", "5")
        assert found["keepalives_count"] == "3"
        assert found["tcp_user_timeout"] == "20000"


def test_what_the_url_says_about_keepalives_wins() -> None:
    store = PostgresStore("postgresql://ann@db/shop?keepalives_idle=99")

    assert conninfo_to_dict(store.dsn)["keepalives_idle"] == "99"


async def test_behind_a_pooler_nothing_is_set_for_a_session_that_others_use_too(
    hostile_url: str,
) -> None:
    store = PostgresStore(hostile_url, prepare=False)
    await store.open()
    found = await store.transact(read_settings(["enable_seqscan", "jit"]), reads=True)
    prepared = await store.transact(_count_prepared())
    await store.close()

    assert found == {"enable_seqscan": "on", "jit": "on"}
    assert prepared == 0


def _count_prepared() -> Statements:
    for _ in range(10):
        [(count,)] = yield "select count(*) from pg_prepared_statements", ()
    return count


# SQLite

PRAGMAS: dict[str, Any] = {
    # A commit survives a power failure.
    "synchronous": 2,
    "journal_mode": "wal",
    # SQLite's own waiting is unfair and grows: we try again ourselves.
    "busy_timeout": 60,
    # Versions before 3.51.3 may corrupt the file when two connections checkpoint at once.
    "wal_autocheckpoint": 4000,
    "mmap_size": 0,
    "cache_size": -32000,
}


@pytest.fixture
async def sqlite_store(tmp_path: Path, sqlite_tables: Path) -> AsyncIterator[SqliteStore]:
    path = tmp_path / "duetime.db"
    shutil.copy(sqlite_tables, path)
    store = SqliteStore(str(path))
    await store.open()
    yield store
    await store.close()


def read_pragmas() -> Statements:
    values = {}
    for name in PRAGMAS:
        rows = yield f"pragma {name}", ()
        values[name] = rows[0][0] if rows else 0
    return values


async def test_sqlite_store(sqlite_store: SqliteStore) -> None:
    assert await sqlite_store.transact(read_pragmas(), reads=True) == PRAGMAS


async def test_sqlite_transaction_of_a_handler(sqlite_store: SqliteStore) -> None:
    async with sqlite_store.transaction() as connection:
        found = {name: connection.execute(f"pragma {name}").fetchone() for name in PRAGMAS}

    # Only the store's own connection checkpoints.
    assert {name: row[0] for name, row in found.items() if row} == {
        name: value
        for name, value in (PRAGMAS | {"wal_autocheckpoint": 0}).items()
        if found[name] is not None
    }


async def test_sqlite_transactions_hold_the_write_lock_from_their_beginning(
    sqlite_store: SqliteStore,
) -> None:
    """Else two that have read could both want to write, and one would fail at its first write."""
    assert await sqlite_store.transact(_try_to_write(sqlite_store.path)) == "locked"
    assert await sqlite_store.transact(_try_to_write(sqlite_store.path), reads=True) == "free"
    async with sqlite_store.transaction():
        assert _write(sqlite_store.path) == "locked"


async def test_sqlite_store_waits_for_the_write_lock_of_another(sqlite_store: SqliteStore) -> None:
    with closing(sqlite3.connect(sqlite_store.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        enqueuing = asyncio.create_task(sqlite_store.enqueue([NewJob(task="noop")]))
        # Longer than SQLite itself would wait.
        done, _ = await asyncio.wait([enqueuing], timeout=0.2)
        other.execute("commit")
        [given] = await enqueuing

    assert not done
    assert given.action == "created"


def _try_to_write(path: str) -> Statements:
    yield "select 1", ()
    return _write(path)


def _write(path: str) -> str:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("begin immediate")
        except sqlite3.OperationalError:
            return "locked"
        return "free"
