"""A store of each backend on a fresh database, and a clock that stands still until moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from duetime.domain.duration import parse_duration
from duetime.storage.migrations import Migrator, upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.sqlite.migrator import SqliteMigrator
from duetime.storage.sqlite.store import SqliteStore
from duetime.storage.store import Store
from tests.conformance.hand import Hand
from tests.conftest import Backend

OpenStore = Callable[[], Awaitable[Store]]
MakeHand = Callable[..., Awaitable[Hand]]


@pytest.fixture(autouse=True)
def worlds(ready_world: None) -> None:
    """The tables of a world are there; that it can make them is shown by the tests of the kit."""


@pytest.fixture
async def open_store(backend: Backend) -> AsyncIterator[OpenStore]:
    """Opens as many stores on the same database as are asked for; the first call migrates."""
    opened: list[Store] = []

    async def open_one() -> Store:
        if not opened:
            upgrade(_migrator(backend))
        store: Store = (
            PostgresStore(backend.url)
            if backend.is_postgres
            else SqliteStore(backend.url.removeprefix("sqlite:///"))
        )
        await store.open()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()


class Clock:
    """The database's clock, driven by hand."""

    def __init__(self, store: Store, now: datetime) -> None:
        self._store = store
        self.now = now

    async def advance(self, by: str) -> datetime:
        return await self.set(self.now + parse_duration(by))

    async def set(self, now: datetime) -> datetime:
        self.now = now
        await self._store.drive_clock(now)
        return now

    def after(self, by: str) -> datetime:
        return self.now + parse_duration(by)

    def before(self, by: str) -> datetime:
        return self.now - parse_duration(by)


@pytest.fixture
async def clock(store: Store) -> Clock:
    """Stands at noon of 1 January 2030."""
    clock = Clock(store, datetime(2030, 1, 1, 12, tzinfo=UTC))
    await clock.set(clock.now)
    return clock


@pytest.fixture
def make_hand(store: Store) -> MakeHand:
    """Registers a worker that the test moves by hand."""

    async def make(
        *queues: str, of: Store | None = None, lease: str = "30s", name: str = "hand"
    ) -> Hand:
        return await Hand.register(of or store, queues or ("default",), parse_duration(lease), name)

    return make


@pytest.fixture
async def hand(make_hand: MakeHand) -> Hand:
    return await make_hand()


def _migrator(backend: Backend) -> Migrator:
    if backend.is_postgres:
        return PostgresMigrator(backend.url)
    return SqliteMigrator(backend.url.removeprefix("sqlite:///"))


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)
