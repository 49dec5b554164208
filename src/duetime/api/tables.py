"""`app.track`: reminders that follow the rows of your own tables, whoever writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.domain.jobs.job import check_name
from duetime.domain.reminders.tracking import Track, check_columns, make_track
from duetime.errors import (
    InvalidInput,
    SchemaMismatch,
    StorageError,
    TransactionConflict,
    TransientError,
)
from duetime.reminders.rearm import rearm_stale
from duetime.storage.reminders.tracking import TableInfo, TrackedInfo, TrackingStatements
from duetime.storage.store import Store

if TYPE_CHECKING:
    from duetime.app import Duetime

Progress = Callable[[int, int], None]
"""Is told how many rows are done, of how many."""

_MOST_ROWS = 1000
_TRIES = 60
_PAUSE = 0.25


class Tracking:
    """What `app.track`, `app.untrack` and `app.tracked` do."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def track(
        self, table: str, *, by: str = "unknown", progress: Progress | None = None, **options: Any
    ) -> int:
        """Install the triggers, then make subjects of the rows that are there; return how many
        rows those were. What is tracked under the same name is changed."""
        actor = check_name(by, what="actor (by=)")
        store = await self._app.store()
        statements = TrackingStatements(store.dialect, store.triggers)
        track, info = await self._check(store, statements, make_track(table, **options))
        await _patiently(lambda: store.transact(statements.install(track, info, actor=actor)))
        count = await self._fill(store, statements, track, info, progress)
        if not store.dialect.arms:
            await rearm_stale(self._app)
        return count

    async def plan(self, table: str, **options: Any) -> list[str]:
        """Return the statements that `track` would run on the table, and run none."""
        store = await self._app.store()
        statements = TrackingStatements(store.dialect, store.triggers)
        track, info = await self._check(store, statements, make_track(table, **options))
        return store.triggers.install(track, info)

    async def untrack(self, name: str, *, by: str = "unknown") -> int:
        """Remove the triggers, then the subjects with their reminders; return how many."""
        actor = check_name(by, what="actor (by=)")
        store = await self._app.store()
        statements = TrackingStatements(store.dialect, store.triggers)
        found = await store.transact(statements.find(name))
        if not found:
            known = [track.name for track in await store.transact(statements.find())]
            said = f"There are: {', '.join(known)}." if known else "Nothing is tracked."
            raise InvalidInput(f"No tracked table is named {name!r}. {said}")
        track = found[0]
        await _patiently(lambda: store.transact(statements.remove(track)))
        count = 0
        while some := await store.transact(store.triggers.clear(track, _MOST_ROWS)):
            count += some
        await store.transact(statements.forget(name, actor=actor))
        return count

    async def all(self) -> list[TrackedInfo]:
        """Return what is tracked, and how each does."""
        store = await self._app.store()
        statements = TrackingStatements(store.dialect, store.triggers)
        found: list[TrackedInfo] = await store.transact(statements.look())
        return found

    async def _check(
        self, store: Store, statements: TrackingStatements, given: Track
    ) -> tuple[Track, TableInfo]:
        """Return the track as the table spells it; raise for what cannot be."""
        info: TableInfo = await store.transact(store.triggers.read(given.table))
        track = check_columns(given, info.columns)
        track = msgspec.structs.replace(track, table=info.name)
        if not any(key <= frozenset(track.id) for key in info.keys):
            raise InvalidInput(
                f"The table {info.name} has no unique key on {', '.join(track.id)}. id must be its "
                "primary key, or columns with a unique constraint."
            )
        for known in await store.transact(statements.find(track.name)):
            if (known.table, known.id) != (track.table, track.id):
                raise InvalidInput(
                    f"{track.name!r} already tracks {known.table} by {', '.join(known.id)}. Choose "
                    "another name=, or untrack it first."
                )
        try:
            await store.transact(store.triggers.check(track, info))
        except TransientError:
            raise
        except StorageError as error:
            # A column that is not there is one of the condition, not of our tables.
            said = error.__cause__ if isinstance(error, SchemaMismatch) else None
            raise InvalidInput(
                f"The rows of {info.name} cannot be read in this way"
                + (f", with the condition {track.when!r:.200}" if track.when else "")
                + f": {said or error}. On PostgreSQL a function, a type or an operator of your own "
                "is written with its schema: public.is_open(state), operator(public.=)."
            ) from error
        return track, info

    async def _fill(
        self,
        store: Store,
        statements: TrackingStatements,
        track: Track,
        info: TableInfo,
        progress: Progress | None,
    ) -> int:
        """Make subjects of the rows that are there. The triggers are: who writes meanwhile is
        followed by them. May be repeated."""
        total = await store.transact(store.triggers.count(track, info)) if progress else 0
        done, after = 0, None
        while True:
            count, after = await self._fill_some(store, statements, track, info, after)
            done += count
            if progress:
                progress(done, max(total, done))
            if after is None:
                return done

    async def _fill_some(
        self,
        store: Store,
        statements: TrackingStatements,
        track: Track,
        info: TableInfo,
        after: Sequence[str] | None,
    ) -> tuple[int, list[str] | None]:
        """One batch. If a writer has its rows, fewer are tried: we hold none while we wait."""
        most = _MOST_ROWS

        async def fill() -> Any:
            nonlocal most
            try:
                return await store.transact(statements.fill(track, info, after, most))
            except StorageError:
                most = max(1, most // 8)
                raise

        answer: tuple[int, list[str] | None] = await _patiently(fill)
        return answer


async def _patiently(work: Callable[[], Any]) -> Any:
    """Try again while writers hold what is to be locked: they never wait for us."""
    for left in reversed(range(_TRIES)):
        try:
            return await work()
        except TransactionConflict:
            if not left:
                raise
        await asyncio.sleep(_PAUSE)
    raise AssertionError
