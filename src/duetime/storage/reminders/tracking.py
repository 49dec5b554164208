"""What is done to tracked tables, as statements without I/O.

How triggers are written differs from one database to another: that is a backend's `Triggers`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from duetime.domain.checks import MAX_NAME_LENGTH
from duetime.domain.reasons import Reason, read_reason
from duetime.domain.reminders.reminder import Subject
from duetime.domain.reminders.tracking import Track, read_level, read_subject
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.reminders.rows import MAX_LEVELS, ScopeInfo, scope_document
from duetime.storage.store import Dialect, Row, Statement, Statements

_NOT_TRACKED = Reason("scope_not_tracked")
_ROW_GONE = Reason("row_gone")
WRITER = "trigger: sqlite"
"""Who changes subjects by a trigger, where the database has no roles."""


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the user's, as the database knows it."""

    name: str
    """Its name as SQL, quoted, with its schema if there is one."""
    schema: str | None
    columns: dict[str, str]
    """Each column and its type."""
    keys: tuple[frozenset[str], ...]
    """The sets of columns that are unique."""


class TrackedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tracked table, and how it does."""

    track: Track
    subjects: int
    scopes: int
    problems: int
    example: Reason | None
    """One of the problems."""
    broken: Reason | None
    """Why its triggers do not work any more."""
    created_at: datetime


class Triggers(Protocol):
    """How a backend follows the rows of a table."""

    def read(self, table: str) -> Generator[Statement, list[Row], TableInfo]: ...

    def check(self, track: Track, table: TableInfo) -> Statements:
        """Have the database read every expression, without reading a row."""

    def install(self, track: Track, table: TableInfo) -> list[str]:
        """The statements that make the triggers, or make them anew."""

    def count(self, track: Track, table: TableInfo) -> Statements:
        """How many rows the table has."""

    def remove(self, track: Track) -> Statements: ...

    def fill(
        self, track: Track, table: TableInfo, after: Sequence[str] | None, most: int
    ) -> Generator[Statement, list[Row], tuple[int, list[str] | None]]:
        """Make subjects of some rows; return how many, and the key of the last. None: that was all.

        The rows are locked: what is written meanwhile is either seen or comes after.
        """

    def missing(self, track: Track, table: TableInfo) -> Generator[Statement, list[Row], list[str]]:
        """The references of subjects, or of scopes, whose rows are not there. Reads only."""

    def drop(self, track: Track, table: TableInfo, refs: Sequence[str]) -> Statements:
        """Do for some of them what the trigger of a delete does, unless their rows are there."""

    def clear(self, track: Track, most: int) -> Generator[Statement, list[Row], int]:
        """Delete some of the subjects; return how many."""

    def broken(self, track: Track) -> Generator[Statement, list[Row], Reason | None]:
        """Why its triggers do not work any more."""


class TrackingStatements:
    """Every method is one transaction."""

    def __init__(self, dialect: Dialect, triggers: Triggers) -> None:
        self._dialect = dialect
        self.triggers = triggers

    def install(self, track: Track, table: TableInfo, *, actor: str) -> Statements:
        """Store the definition and make the triggers. What exists is replaced."""
        yield from self._dialect.run("track_patience", {})
        yield from self._dialect.run(
            "tracked_put",
            {
                "name": track.name,
                "table": table.name,
                "definition": msgspec.to_builtins(track),
                "actor": actor,
            },
        )
        for statement in self.triggers.install(track, table):
            yield statement, ()

    def fill(
        self, track: Track, table: TableInfo, after: Sequence[str] | None, most: int
    ) -> Statements:
        # Of a large table, workers arm all but the first rows. So these are locked for an instant.
        yield from self._dialect.run("track_patience", {"arm_later": after is not None})
        return (yield from self.triggers.fill(track, table, after, most))

    def missing(self, track: Track, table: TableInfo) -> Statements:
        """Return the references of subjects whose rows are not there. Reads only."""
        yield from self._dialect.run("track_patience", {})
        return (yield from self.triggers.missing(track, table))

    def drop(self, track: Track, table: TableInfo, refs: Sequence[str]) -> Statements:
        yield from self._dialect.run("track_patience", {})
        yield from self.triggers.drop(track, table, refs)

    def remove(self, track: Track) -> Statements:
        yield from self._dialect.run("track_patience", {})
        yield from self.triggers.remove(track)

    def forget(self, name: str, *, actor: str) -> Statements:
        """Remove the definition; the triggers and the subjects are gone already."""
        yield from self._dialect.run("tracked_forget", {"name": name, "actor": actor})

    def find(self, name: str | None = None) -> Statements:
        """Return what is tracked. Reads only."""
        rows = yield from self._dialect.run("tracked_find", {"name": name})
        return [_track(row[1]) for row in rows]

    def look(self, *, name: str | None, after: str, limit: int) -> Statements:
        """Return what is tracked, by name, and how each does: one, or those after a name."""
        document = {"name": name, "after": after, "limit": limit}
        rows = yield from self._dialect.run("tracked_look", document)
        found = []
        for row in rows:
            track = _track(row[1])
            broken = yield from self.triggers.broken(track)
            found.append(
                TrackedInfo(
                    track=track,
                    created_at=self._dialect.moment(row[2]),
                    subjects=row[3],
                    scopes=row[6],
                    problems=row[4],
                    example=read_reason(row[5]),
                    broken=broken,
                )
            )
        return found


class ChangeStatements(ReminderStatements):
    """What a worker does with the changes that triggers of SQLite recorded."""

    def apply(self, most: int) -> Statements:
        """Make the subjects of some changed rows true; return how many rows those were.

        Their reminders are armed as of the moment of the change: what came due since is late, not
        past.
        """
        changes = yield from self._dialect.run("tracked_changes", {"most": most})
        if not changes:
            return 0
        rows = yield from self._dialect.run("tracked_find", {"name": None})
        tracks = {row[0]: _track(row[1]) for row in rows}
        subjects: list[Subject] = []
        tracked: list[dict[str, Any]] = []
        as_of: dict[str, datetime] = {}
        left: list[str] = []
        refs: list[str] = []
        looping: list[tuple[Track, str, Mapping[str, Any], datetime]] = []
        for raw_ref, name, text, at in changes:
            # SQLite stores any bytes as text. Those that are not UTF-8 must not hold up the others.
            ref = raw_ref.decode(errors="replace")
            refs.append(ref)
            track = tracks.get(name)
            if track is None:
                continue
            row = None if text is None else msgspec.json.decode(text.decode(errors="replace"))
            if track.kind == "scopes":
                moment = self._dialect.moment(at)
                left += yield from self._apply_scope(track, ref, row, moment, looping)
                continue
            if row is None or not row["open"]:
                left += (yield from self._scope_of(ref)) if row is None else []
                yield from self.close(ref, actor=WRITER, delete=row is None)
                continue
            subject, problem = read_subject(track, ref, row)
            subjects.append(subject)
            tracked.append({"ref": ref, "track": name, "problem": problem})
            as_of[ref] = self._dialect.moment(at)
        for track, ref, row, moment in looping:
            # The scope that was inside it may have left it since, in a row that came later.
            yield from self._apply_scope(track, ref, row, moment, [])
        yield from self._make_scopes(s.scope for s in subjects if s.scope is not None)
        _, moved = yield from self._store(subjects, WRITER)
        yield from self._rearm_all(subjects, {s.id: as_of[s.ref] for s in moved})
        yield from self._dialect.run("tracked_subjects_write", tracked)
        if left:
            # At the end: one of the rows may be inside such a scope.
            yield from self._drop_gone_scopes(left)
        yield from self._dialect.run("tracked_applied", refs)
        return len(changes)

    def _rearm_all(self, subjects: Sequence[Subject], moved: Mapping[int, datetime]) -> Statements:
        """Arm subjects again whose rows have changed. `moved`: those whose rows say other times or
        rules, by id, and since when.

        The others too, as of their marks: a scope around them may have marked them, and a mark does
        not say what it is for.
        """
        marks = yield from self._dialect.run("tracked_marks", [s.ref for s in subjects])
        since = {row[0]: self._dialect.moment(row[1]) for row in marks}
        yield from self._rearm(subjects, None, as_of=since | dict(moved))

    def _scope_of(self, ref: str) -> Statements:
        found = yield from self.subjects([ref])
        return [subject.scope for subject in found if subject.scope is not None]

    def _apply_scope(
        self,
        track: Track,
        ref: str,
        row: Mapping[str, Any] | None,
        at: datetime,
        looping: list[tuple[Track, str, Mapping[str, Any], datetime]],
    ) -> Statements:
        """Make a scope what its row says, and the reminders of all subjects inside it true. Returns
        the scopes that may have nothing inside any more, if its row is gone. Adds it to `looping`
        if its parent is inside it."""
        if len(ref) > MAX_NAME_LENGTH:
            return []
        if row is None or not row["open"]:
            return (yield from self._empty_scope(track, ref, at=at))
        parent, rules, locked, problems = read_level(track, row)
        yield from self._make_scopes([ref, *([parent] if parent else [])])
        [(noted, said)] = (yield from self._dialect.run("tracked_scope_find", {"ref": ref})) or [
            (None, None)
        ]
        known = yield from self._scopes([ref, *([parent] if parent else [])])
        before = known[ref]
        if before != ScopeInfo(ref, None, None, False) and (
            noted is None or read_reason(said) == _NOT_TRACKED
        ):
            yield from self._note_scope(track, ref, _NOT_TRACKED)
            return []
        if parent is not None and _is_around(parent, ref, known):
            problems.append(Reason.of("scope_in_itself", parent=parent[:60]))
            parent = None
            looping.append((track, ref, row, at))
        problem = Reason.of("row_unusable", problems=problems) if problems else None
        yield from self._note_scope(track, ref, problem)
        after = ScopeInfo(ref, parent, rules, locked)
        if before != after:
            yield from self._write_scope(before, after, "scope.put", at)
        return []

    def remove_scope(self, track: Track, ref: str, *, at: datetime) -> Statements:
        """A scope is tracked no longer: it sets nothing. With nothing inside, it is deleted."""
        left = yield from self._empty_scope(track, ref, at=at)
        yield from self._drop_gone_scopes(left)
        yield from self._dialect.run("tracked_scope_forget", {"ref": ref})

    def _empty_scope(self, track: Track, ref: str, *, at: datetime) -> Statements:
        """The row of a scope is gone: it sets nothing any more. Returns the scopes that may have
        nothing inside: this one, and the one around it."""
        found = yield from self._dialect.run("tracked_scope_find", {"ref": ref})
        if not found:
            return []
        known = yield from self._scopes([ref])
        if ref in known and read_reason(found[0][1]) != _NOT_TRACKED:
            empty = ScopeInfo(ref, None, None, False)
            yield from self._write_scope(known[ref], empty, "scope.delete", at)
            yield from self._note_scope(track, ref, _ROW_GONE)
            return [ref, *filter(None, [known[ref].parent])]
        yield from self._dialect.run("tracked_scope_forget", {"ref": ref})
        return []

    def _write_scope(
        self, before: ScopeInfo, after: ScopeInfo, action: str, at: datetime
    ) -> Statements:
        document = scope_document(after)
        yield from self._dialect.run("scope_put", [document])
        gone = action == "scope.delete"
        yield from self._audit(
            WRITER, action, f"scope:{after.ref}", scope_document(before), None if gone else document
        )
        # They are armed as of the change: what came due since is late, not past.
        marked = yield from self._dialect.run("tracked_scope_mark", {"ref": after.ref, "at": at})
        if marked:
            yield from self.request_rearm()

    def _note_scope(self, track: Track, ref: str, problem: Reason | None) -> Statements:
        document = {"ref": ref, "track": track.name, "problem": problem}
        yield from self._dialect.run("tracked_scope_note", document)

    def _drop_gone_scopes(self, refs: Iterable[str]) -> Statements:
        """Delete those whose rows are gone and that have nothing inside any more."""
        yield from self._dialect.run("prune_scopes", list(refs))

    def _make_scopes(self, refs: Iterable[str]) -> Statements:
        """A row may name a scope that nobody has put: it is made, and sets no rules itself."""
        names = sorted(set(refs))
        rows = (yield from self._dialect.run("scope_make", names)) if names else []
        for row in rows:
            after: Mapping[str, Any] = {
                "ref": row[0], "parent": None, "rules": None, "locked": False,
            }  # fmt: skip
            yield from self._audit(WRITER, "scope.put", f"scope:{row[0]}", None, after)


def _is_around(ref: str, inner: str, known: Mapping[str, ScopeInfo]) -> bool:
    """Whether a scope is `inner` or inside it."""
    place: str | None = ref
    for _ in range(MAX_LEVELS):
        if place is None or place not in known:
            return False
        if place == inner:
            return True
        place = known[place].parent
    return True


def short_name(name: str) -> str:
    """Part of the names of triggers and functions: legible, and no other's."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name.lower())[:24]
    return f"{plain}_{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _track(text: str) -> Track:
    return msgspec.json.decode(text, type=Track)
