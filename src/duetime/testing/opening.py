"""Opens a test world: the app uses a temporary database until the world is closed."""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
)
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from duetime.app import Duetime
from duetime.errors import DuetimeError, StorageError
from duetime.settings import Settings
from duetime.testing.world import World, read_moment
from duetime.wiring import file_of, make_migrator

MAX_EXTRA_JOBS = 1000
_in_a_world: WeakSet[Duetime] = WeakSet()


def open_world(
    app: Duetime,
    *,
    now: datetime | str | None = None,
    inline: bool = False,
    isolated: bool = True,
    max_extra_jobs: int = MAX_EXTRA_JOBS,
) -> Opening:
    """Return what `app.testing(…)` returns: enter it with `async with`, or `with` in sync code.

    `now`: where the clock starts, by default the current time. `inline`: an enqueued job that is
    due runs at once, and its error is raised to the caller. `isolated=False`: use the app's own
    tables instead of temporary ones, for a database that belongs to the tests.
    `max_extra_jobs`: how many jobs may run in addition to those that were due, while the clock
    stands still.
    """
    start = None if now is None else read_moment(now, name="now")
    return Opening(
        app,
        _open(app, start=start, inline=inline, isolated=isolated, max_extra_jobs=max_extra_jobs),
    )


class Opening(AbstractAsyncContextManager[World], AbstractContextManager[World]):
    """A world that is not open yet. In sync code it runs on the event loop of `app.sync`."""

    def __init__(self, app: Duetime, world: AbstractAsyncContextManager[World]) -> None:
        self._app = app
        self._world = world

    async def __aenter__(self) -> World:
        return await self._world.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._world.__aexit__(kind, error, traceback)

    def __enter__(self) -> World:
        return self._app.sync(self.__aenter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._app.sync(self.__aexit__(kind, error, traceback))


@asynccontextmanager
async def _open(
    app: Duetime, *, start: datetime | None, inline: bool, isolated: bool, max_extra_jobs: int
) -> AsyncIterator[World]:
    if app in _in_a_world:
        raise DuetimeError(
            "This app is already in use by another test world. Leave that one first. Tests that "
            "run at the same time in one process need separate apps."
        )
    _in_a_world.add(app)
    try:
        async with _database(app, isolated=isolated):
            store = await app.store()
            start = start or await store.now()
            await store.drive_clock(start)
            try:
                async with World(app, store, now=start, max_extra_jobs=max_extra_jobs) as world:
                    app._inline = world.run_inline if inline else None
                    yield world
            finally:
                app._inline = None
                await store.drive_clock(None)
    finally:
        _in_a_world.discard(app)


@asynccontextmanager
async def _database(app: Duetime, *, isolated: bool) -> AsyncIterator[None]:
    """Make the app use the world's database. Its own connections stay as they are meanwhile."""
    settings, stores, checked = app.settings, app._database.stores, app._database.checked
    with TemporaryDirectory(prefix="duetime-test-", ignore_cleanup_errors=True) as folder:
        app.settings = _settings(settings, isolated=isolated, folder=Path(folder))
        app._database.stores = WeakKeyDictionary()
        app._database.checked = False
        try:
            yield
        finally:
            await _close_stores(app)
            dropped, app.settings = app.settings, settings
            app._database.stores, app._database.checked = stores, checked
            if isolated:
                await asyncio.to_thread(_drop, dropped)


def _settings(settings: Settings, *, isolated: bool, folder: Path) -> Settings:
    settings = msgspec.structs.replace(settings, migrate=True)
    if not isolated:
        return settings
    if file_of(settings.database) is not None:
        return msgspec.structs.replace(settings, database=f"sqlite:///{folder / 'world.db'}")
    return msgspec.structs.replace(settings, schema=_name_schema())


def _name_schema() -> str:
    return f"duetime_test_{secrets.token_hex(6)}"


async def _close_stores(app: Duetime) -> None:
    """Close what was opened in the world, on each event loop that still runs."""
    here = asyncio.get_running_loop()
    for loop in list(app._database.stores):
        if loop is here:
            await app.close()
        elif loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(app.close(), loop))


def _drop(settings: Settings) -> None:
    if file_of(settings.database) is not None:
        return
    try:
        with make_migrator(settings).session() as session:
            # A transaction that the test left open must not hold up the tests that follow.
            session.run("set local lock_timeout = '2s'")
            session.run(f"drop schema {settings.schema} cascade")
    except StorageError as error:
        warnings.warn(
            f"The schema {settings.schema} of the test could not be dropped ({error}). Commit or "
            "roll back transactions before you leave the test world.",
            ResourceWarning,
            stacklevel=2,
        )
