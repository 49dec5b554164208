"""Databases for the tests. Servers start on first use, one of each kind per test process."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.sqlite.migrator import SqliteMigrator
from duetime.testing import opening
from tests.postgres_binaries import find_system, find_wheel
from tests.servers import PostgresServer

# A test never depends on how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TESTS = Path(__file__).parent
BACKENDS = ("postgres15", "postgres18", "sqlite")
WITH_TABLES = {"conformance", "engine", "storage", "channels", "web"}
"""Where databases come with Duetime's tables, copied: on PostgreSQL to make them takes 0.3 s.
In `acceptance` it is what asks for `app`; the rest begins with nothing."""


WHOLE_ON_18 = ("conformance/jobs", "migrations", "storage")
"""What meets PostgreSQL itself runs whole on both versions. Of the other tests that run on 15,
every fifth, chosen by its name, runs on 18, too. All of it, and the plans, run on both by
`make chaos`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_15 = {item.nodeid for item in items if "postgres15" in item.name}
    for item in items:
        twin = item.nodeid.replace("postgres18", "postgres15")
        if "postgres18" in item.name and twin in on_15 and not _is_for_18(item):
            item.add_marker(pytest.mark.chaos)


def _is_for_18(item: pytest.Item) -> bool:
    path = item.path.relative_to(TESTS)
    if path.as_posix().startswith(WHOLE_ON_18):
        return not path.stem.endswith("plans")
    return crc32(item.name.partition("[")[0].encode()) % 5 == 0


def pytest_sessionfinish() -> None:
    """End the children that a failed test left behind: Python would wait for them at its exit."""
    for child in multiprocessing.active_children():
        child.kill()


@dataclass(frozen=True)
class Backend:
    """A fresh database: with Duetime's tables, as the tests of `WITH_TABLES` get it, or empty."""

    name: str
    url: str

    @property
    def is_postgres(self) -> bool:
        return self.name != "sqlite"


def query(backend: Backend, text: str) -> list[tuple[Any, ...]]:
    """The rows of a statement, written for PostgreSQL, on either backend.

    To write while a worker of this event loop runs on SQLite, call it in a thread: the worker may
    hold the lock in a transaction that goes on only when the loop does.
    """
    if backend.is_postgres:
        with psycopg.connect(backend.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(backend.url.removeprefix("sqlite:///"), timeout=10)) as lite:
        rows = lite.execute(text.replace("duetime.", "duetime_")).fetchall()
        lite.commit()
        return rows


@pytest.fixture(scope="session")
def postgres15() -> Iterator[PostgresServer]:
    """Debian's PostgreSQL: 15 on bookworm, the system's or the wheel's 16 elsewhere."""
    with PostgresServer(find_system()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    with PostgresServer(find_wheel()) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, to be stopped, paused or killed. Takes about a second."""
    with PostgresServer(find_system()) as server:
        yield server


@pytest.fixture(params=BACKENDS)
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, sqlite_tables: Path
) -> Iterator[Backend]:
    """A fresh database on each backend in turn."""
    name: str = request.param
    if name == "sqlite":
        path = tmp_path / "duetime.db"
        if _with_tables(request):
            shutil.copy(sqlite_tables, path)
        yield Backend(name, f"sqlite:///{path}")
        return
    with fresh_database(request.getfixturevalue(name), tables=_with_tables(request)) as url:
        yield Backend(name, url)


@pytest.fixture
def pg_url(request: pytest.FixtureRequest, postgres15: PostgresServer) -> Iterator[str]:
    """The URL of a fresh database on Debian's PostgreSQL."""
    with fresh_database(postgres15, tables=_with_tables(request)) as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with Duetime's tables, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "tables.db"
    upgrade(SqliteMigrator(str(path)))
    return path


@pytest.fixture
def ready_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first world of the test finds the tables of its schema made, by the copy."""
    schemas = chain([READY], iter(opening._name_schema, None))
    monkeypatch.setattr(opening, "_name_schema", lambda: next(schemas))


def _with_tables(request: pytest.FixtureRequest) -> bool:
    folder = request.path.relative_to(TESTS).parts[0]
    return folder in WITH_TABLES or (folder == "acceptance" and "app" in request.fixturenames)


@contextmanager
def fresh_database(server: PostgresServer, *, tables: bool = False) -> Iterator[str]:
    name = server.create_database(template=_template(server) if tables else "template0")
    try:
        yield server.dsn(name)
    finally:
        if server.running:
            server.drop_database(name)


_TEMPLATE = "duetime_tables"
READY = "duetime_test_ready"
"""A schema of the copied databases, with tables of its own: for `ready_world`."""
_made: set[int] = set()


def _template(server: PostgresServer) -> str:
    """The name of a database with Duetime's tables, to be copied."""
    if id(server) not in _made:
        server.create_database(_TEMPLATE)
        for schema in ("duetime", READY):
            upgrade(PostgresMigrator(server.dsn(_TEMPLATE), schema))
        _made.add(id(server))
    return _TEMPLATE
