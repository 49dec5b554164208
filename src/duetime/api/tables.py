"""`app.tables`: reminders that follow the rows of your own tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.domain.audit import AuditEvent
from duetime.domain.change import Put
from duetime.domain.checks import check_actor, check_sought
from duetime.domain.page import DEFAULT_LIMIT, Page, check_limit, make_page, read_cursor
from duetime.domain.reminders.rule_text import RulesLike
from duetime.domain.reminders.tracking import (
    TableArguments,
    TableKind,
    Track,
    check_columns,
    make_track,
)
from duetime.errors import (
    InvalidInput,
    SchemaMismatch,
    StorageError,
    TableNotFound,
    TransactionConflict,
    TransientError,
)
from duetime.reminders.rearm import rearm_stale
from duetime.storage.reminders.tracking import TableInfo, TrackedInfo, TrackingStatements
from duetime.storage.store import Store, in_parts

if TYPE_CHECKING:
    from duetime.app import Duetime

Progress = Callable[[int, int], None]
"""Called with how many rows are done, and how many there are."""

_MAX_ROWS = 2000
"""How many rows are made subjects at a time."""
_MAX_DELETED = 1000
_MAX_MISSING = 5000
"""How many subjects are deleted at a time; each time, the keys of the whole table are read."""
_TRIES = 60
_PAUSE = 0.25


class Tables:
    """`app.tables`. `app.tables["games"]` is one of them, by the name of the tracked table."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, name: str) -> TableHandle:
        return TableHandle(self, check_sought(name, what="name of what is tracked"))

    async def put(
        self,
        table: str,
        *,
        id: str | Iterable[str],  # noqa: A002
        due: str | None = None,
        kind: TableKind = "subjects",
        scope: str | None = None,
        parent: str | None = None,
        locked: str | None = None,
        tz: str | None = None,
        due_tz: str | None = None,
        recipients: str | None = None,
        data: str | Iterable[str] = (),
        when: str | None = None,
        remind: RulesLike | None = None,
        name: str | None = None,
        by: str = "unknown",
        progress: Progress | None = None,
    ) -> Put:
        """Make the rows of a table subjects, by triggers on it; return `added`, `changed`, `same`.

        `id`, `due`, `tz`, `recipients`, `data` name columns; `tz` may also be a time zone. `scope`
        is a column or a pattern such as `channel:{channel_id}`. `when` is a condition in SQL: a row
        for which it is not true has no reminders. `due_tz` is the zone of due times without one.
        `remind` is rules, or a column with the rules of each row.

        With `kind="scopes"` the rows are scopes: `remind` is their rules, `parent` (given like
        `scope`) the scope around each, `locked` a column that says whether it is locked.
        To change the options, put it again with the same `name` (by default the table's). That also
        follows what was written while the triggers were off.
        `affected` of the result: how many rows there are.
        """
        actor = check_actor(by)
        store, statements, track, info = await self._check(
            table, id=id, due=due, kind=kind, scope=scope, parent=parent, locked=locked, tz=tz,
            due_tz=due_tz, recipients=recipients, data=data, when=when, remind=remind, name=name,
        )  # fmt: skip
        before = await store.transact(statements.find(track.name))
        await _patiently(lambda: store.transact(statements.install(track, info, actor=actor)))
        count = await self._fill(store, statements, track, info, progress)
        if before:
            await self._drop_missing(store, statements, track, info)
        if not store.dialect.arms:
            await rearm_stale(self._app)
        return Put(
            "added" if not before else "same" if before == [track] else "changed", affected=count
        )

    async def plan(self, table: str, **options: Unpack[TableArguments]) -> Sequence[str]:
        """Return the SQL that `put` would run on the table, without running it."""
        store, _, track, info = await self._check(table, **options)
        return store.triggers.install(track, info)

    async def get(self, name: str) -> TrackedInfo:
        """Return a tracked table and its problems; raise `TableNotFound`."""
        check_sought(name, what="name of what is tracked")
        for found in await self._look(name=name, after="", limit=1):
            return found
        raise TableNotFound(name)

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[TrackedInfo]:
        """Return the tracked tables by name, with their problems.

        `after`: the `next` of the previous page.
        """
        position = read_cursor(after, order="tables", shape=tuple[str])
        found = await self._look(
            name=None, after=position[0] if position else "", limit=check_limit(limit) + 1
        )
        return make_page(found, limit=limit, order="tables", position=lambda one: (one.track.name,))

    iterate = iterated(list)

    async def delete(self, name: str, *, by: str = "unknown") -> int:
        """Remove the triggers, then the subjects with their reminders; return how many subjects.

        For a table of scopes, remove the scopes; those that contain something stay, without rules.
        The table itself stays. Raises `TableNotFound`."""
        actor = check_actor(by)
        check_sought(name, what="name of what is tracked")
        store = await self._app.store()
        statements = TrackingStatements(store.dialect, store.triggers)
        found = await store.transact(statements.find(name))
        if not found:
            raise TableNotFound(name)
        track = found[0]
        await _patiently(lambda: store.transact(statements.remove(track)))
        count = 0
        while some := await store.transact(store.triggers.clear(track, _MAX_DELETED)):
            count += some
        await store.transact(statements.forget(name, actor=actor))
        return count

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the tracked table, newest first."""
        known = check_sought(name, what="name of what is tracked")
        return await self._app.audit.list(entity=f"table:{known}", limit=limit, after=after)

    async def _look(self, *, name: str | None, after: str, limit: int) -> Sequence[TrackedInfo]:
        store = await self._app.store()
        statements = TrackingStatements(store.dialect, store.triggers)
        found: Sequence[TrackedInfo] = await store.transact(
            statements.look(name=name, after=after, limit=limit)
        )
        return found

    async def _check(
        self, table: str, **options: Unpack[TableArguments]
    ) -> tuple[Store, TrackingStatements, Track, TableInfo]:
        """Return the track as the table spells it; raise for what cannot be."""
        store = await self._app.store()
        statements = TrackingStatements(store.dialect, store.triggers)
        given = make_track(table, **options)
        info: TableInfo = await store.transact(store.triggers.read(given.table))
        track = check_columns(given, info.columns)
        track = msgspec.structs.replace(track, table=info.name)
        if not any(key <= frozenset(track.id) for key in info.keys):
            raise InvalidInput(
                f"The table {info.name} has no unique key on {', '.join(track.id)}. id must be its "
                "primary key, or columns with a unique constraint, which must not be deferrable."
            )
        for known in await store.transact(statements.find(track.name)):
            if (known.table, known.id, known.kind) != (track.table, track.id, track.kind):
                raise InvalidInput(
                    f"{track.name!r} already tracks {known.table} by {', '.join(known.id)} as "
                    f"{known.kind}. Choose another name=, or delete that one first."
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
        return store, statements, track, info

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

    async def _drop_missing(
        self, store: Store, statements: TrackingStatements, track: Track, info: TableInfo
    ) -> None:
        """Delete the subjects, or the scopes, of rows that were deleted without the triggers."""
        missing: Sequence[str] = await store.transact(
            statements.missing(track, info), reads=True, snapshot=True
        )

        async def drop(refs: Sequence[str]) -> None:
            await store.transact(statements.drop(track, info, refs))

        for part in in_parts(missing, _MAX_MISSING):
            await _patiently(partial(drop, part))

    async def _fill_some(
        self,
        store: Store,
        statements: TrackingStatements,
        track: Track,
        info: TableInfo,
        after: Sequence[str] | None,
    ) -> tuple[int, Sequence[str] | None]:
        """One batch. If a writer has its rows, fewer are tried: we hold none while we wait."""
        most = _MAX_ROWS

        async def fill() -> Any:
            nonlocal most
            try:
                return await store.transact(statements.fill(track, info, after, most))
            except StorageError:
                most = max(1, most // 8)
                raise

        answer: tuple[int, Sequence[str] | None] = await _patiently(fill)
        return answer


class TableHandle(Handle[Tables, str]):
    """One tracked table, by its name."""

    @property
    def name(self) -> str:
        return self._ref

    get = bound(Tables.get)
    delete = bound(Tables.delete)
    audit = bound(Tables.audit)


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
