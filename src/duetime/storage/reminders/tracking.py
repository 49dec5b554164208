"""What is done to tracked tables, as statements without I/O.

How triggers are written differs from one database to another: that is a backend's `Triggers`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from duetime.domain.reasons import Reason, read_reason
from duetime.domain.reminders.reminder import Subject
from duetime.domain.reminders.tracking import Track, read_subject
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.store import Dialect, Row, Statement, Statements

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
        yield from self._dialect.run("track_patience", {})
        return (yield from self.triggers.fill(track, table, after, most))

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
        for ref, name, text, at in changes:
            track = tracks.get(name)
            if track is None:
                continue
            row = None if text is None else msgspec.json.decode(text)
            if row is None or not row["open"]:
                yield from self.close(ref, actor=WRITER, delete=row is None)
                continue
            subject, problem = read_subject(track, ref, row)
            subjects.append(subject)
            tracked.append({"ref": ref, "track": name, "problem": problem})
            as_of[ref] = self._dialect.moment(at)
        yield from self._make_scopes(subjects)
        yield from self.put(subjects, actor=WRITER, as_of=as_of)
        yield from self._dialect.run("tracked_subjects_write", tracked)
        yield from self._dialect.run("tracked_applied", [change[0] for change in changes])
        return len(changes)

    def _make_scopes(self, subjects: Iterable[Subject]) -> Statements:
        """A row may name a scope that nobody has put: it is made, and sets no rules itself."""
        names = sorted({subject.scope for subject in subjects if subject.scope is not None})
        rows = (yield from self._dialect.run("scope_make", names)) if names else []
        for row in rows:
            after: Mapping[str, Any] = {
                "ref": row[0], "parent": None, "rules": None, "locked": False,
            }  # fmt: skip
            yield from self._audit(WRITER, "scope.put", f"scope:{row[0]}", None, after)


def short_name(name: str) -> str:
    """Part of the names of triggers and functions: legible, and no other's."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name.lower())[:24]
    return f"{plain}_{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _track(text: str) -> Track:
    return msgspec.json.decode(text, type=Track)
