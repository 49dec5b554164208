"""An app's connection to its database: one store per event loop, opened on first use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from duetime.api.portal import keep_inherited
from duetime.settings import Settings
from duetime.wiring import file_of, make_migrator, make_store

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.storage.store import Dialect, Statements, Store


_on_replica: ContextVar[bool] = ContextVar("duetime_on_replica", default=False)


@contextmanager
def on_replica() -> Iterator[None]:
    """What is read in this block is read from the replica. It must not write."""
    token = _on_replica.set(True)
    try:
        yield
    finally:
        _on_replica.reset(token)


class Database:
    """Opens stores, checks the schema once, and runs statements."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        _ = app._portal  # In a process that is forked, it has us forget the parent's connections.
        self.stores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Store]] = (
            WeakKeyDictionary()
        )
        self._replicas: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Store]] = (
            WeakKeyDictionary()
        )
        self.checked = False
        self._check_lock = threading.Lock()
        self._text_store: tuple[Settings, Store] | None = None

    async def store(self) -> Store:
        """Return this event loop's store, opened."""
        loop = asyncio.get_running_loop()
        stores, open_store = self.stores, self._open_store
        if _on_replica.get():
            stores, open_store = self._replicas, self._open_replica
        opening = stores.get(loop)
        if opening is None or _has_failed(opening):
            opening = stores[loop] = asyncio.create_task(open_store())
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close this event loop's connections. It can be used again afterwards."""
        for stores in (self.stores, self._replicas):
            opening = stores.pop(asyncio.get_running_loop(), None)
            if opening is None:
                continue
            # If it cannot be opened, its callers get the error: there is nothing to close.
            await asyncio.wait([opening])
            if not _has_failed(opening):
                await opening.result().close()

    def forget_parent(self) -> None:
        """In a forked process, the connections and the workers belong to the parent."""
        keep_inherited([dict(self.stores), dict(self._replicas)])
        self._app._running_workers.clear()
        self.stores = WeakKeyDictionary()
        self._replicas = WeakKeyDictionary()
        self._check_lock = threading.Lock()

    async def perform(
        self,
        make: Callable[[Dialect], Statements],
        tx: Any = None,
        *,
        reads: bool = False,
        snapshot: bool = False,
        computes: bool = False,
    ) -> Any:
        """Run statements in a new transaction, or in the caller's `tx`.

        `reads`, `snapshot` and `computes`: as in `Store.transact`."""
        if tx is None:
            store = await self.store()
            return await store.transact(
                make(store.dialect), reads=reads, snapshot=snapshot, computes=computes
            )
        from duetime.storage import transaction

        store = self.unopened()
        placeholder = store.placeholder
        return await transaction.run_async(tx, make(store.dialect), placeholder=placeholder)

    def unopened(self) -> Store:
        """A store without a connection, for its statements: writing in the caller's transaction
        must not wait for a connection of ours."""
        if self._text_store is None or self._text_store[0] is not self._app.settings:
            self._text_store = (self._app.settings, make_store(self._app.settings))
        return self._text_store[1]

    async def _open_store(self) -> Store:
        if not self.checked:
            await asyncio.to_thread(self.check_schema)
        # Off the event loop, since it imports the driver and reads the statements.
        store = await asyncio.to_thread(make_store, self._app.settings)
        await store.open()
        return store

    async def _open_replica(self) -> Store:
        settings = msgspec.structs.replace(
            self._app.settings,
            database=self._app.settings.replica_database or self._app.settings.database,
            listen_database=None,
        )
        store = await asyncio.to_thread(make_store, settings)
        await store.open()
        return store

    def check_schema(self) -> None:
        """Migrate if the app does so, and raise `SchemaMismatch` if the tables are not as expected.
        Once is enough."""
        from duetime.storage.migrations import check_version, upgrade

        with self._check_lock:
            if self.checked:
                return
            migrator = make_migrator(self._app.settings)
            migrate = self._app.settings.migrate
            if migrate is None:
                migrate = file_of(self._app.settings.database) is not None
            if migrate:
                upgrade(migrator)
            check_version(migrator.version(), len(migrator.migrations))
            self.checked = True


def _has_failed(opening: asyncio.Task[Store]) -> bool:
    """Whether there is no store, and none to come."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None)
