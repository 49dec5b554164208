"""Triggers on tracked tables of SQLite: they record each changed row, and enqueue a job for it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import msgspec

from duetime.domain.reasons import Reason
from duetime.domain.reminders.tracking import Track
from duetime.errors import InvalidInput
from duetime.storage.reminders.tracking import WRITER, ChangeStatements, TableInfo, short_name
from duetime.storage.sqlite.dialect import SqliteDialect
from duetime.storage.store import Row, Statement, Statements

_EVENTS = ("insert", "update", "delete")


class SqliteTriggers:
    """Writes row triggers. Names are quoted here."""

    def __init__(self, sql: Mapping[str, str], dialect: SqliteDialect, prefix: str) -> None:
        self._sql = sql
        self._dialect = dialect
        self._prefix = prefix

    def read(self, table: str) -> Generator[Statement, list[Row], TableInfo]:
        found = yield from self._dialect.run("track_table", {"table": table})
        if not found:
            raise InvalidInput(f"There is no table {table!r} in this SQLite file.")
        name, kind = found[0]
        if kind != "table":
            raise InvalidInput(f"{name} is not a table. Only tables can be tracked.")
        if name.startswith(self._prefix):
            raise InvalidInput(f"{name} is one of Duetime's own tables and cannot be tracked.")
        columns = yield from self._dialect.run("track_columns", {"table": name})
        keys: dict[str, set[str]] = {}
        for index, column in (yield from self._dialect.run("track_keys", {"table": name})):
            keys.setdefault(index, set()).add(column)
        primary = frozenset(row[0] for row in columns if row[2])
        return TableInfo(
            name=_quoted(name),
            schema=None,
            columns={row[0]: row[1] for row in columns},
            keys=tuple(frozenset(key) for key in [primary, *keys.values()] if key),
        )

    def check(self, track: Track, table: TableInfo) -> Statements:
        yield self._fill("track_check", track, table), ()

    def install(self, track: Track, table: TableInfo) -> list[str]:
        old = [self._untrigger(f"{self._name(track)}_{event}") for event in _EVENTS]
        return [*old, *(self._fill(f"track_trigger_{e}", track, table) for e in _EVENTS)]

    def count(self, track: Track, table: TableInfo) -> Statements:
        [(count,)] = yield self._fill("track_count", track, table), ()
        return count

    def remove(self, track: Track) -> Statements:
        name = self._name(track)
        for row in (yield from self._dialect.run("track_triggers", {"name": name})):
            yield self._untrigger(row[0]), ()

    def fill(
        self, track: Track, table: TableInfo, after: Sequence[str] | None, most: int
    ) -> Generator[Statement, list[Row], tuple[int, list[str] | None]]:
        keys = [_quoted(column) for column in track.id]
        more = {
            "keys": ", ".join(keys),
            "texts": ", ".join(_as_literal(key) for key in keys),
            "past": f"({', '.join(keys)}) > ({', '.join(after)})" if after else "true",
            "most": str(most),
        }
        found = yield self._fill("track_fill_key", track, table, more), ()
        yield self._fill("track_fill", track, table, more), ()
        return len(found), list(found[-1]) if len(found) == most else None

    def missing(self, track: Track, table: TableInfo) -> Generator[Statement, list[Row], list[str]]:
        rows = yield self._fill("track_missing", track, table), ()
        return [row[0] for row in rows]

    def drop(self, track: Track, table: TableInfo, refs: Sequence[str]) -> Statements:
        document = msgspec.json.encode(refs).decode()
        yield self._fill("track_drop", track, table, {"refs": _literal(document)}), ()

    def clear(self, track: Track, most: int) -> Generator[Statement, list[Row], int]:
        statements = ChangeStatements(self._dialect)
        document = {"name": track.name, "most": most}
        rows = yield from self._dialect.run("track_gone_scopes", document)
        now = yield from self._dialect.now()
        for row in rows:
            yield from statements.remove_scope(track, row[0], at=now)
        if rows:
            return len(rows)
        rows = yield from self._dialect.run("track_gone", document)
        for row in rows:
            yield from statements.close(row[0], actor=WRITER, delete=True)
        return len(rows)

    def broken(self, track: Track) -> Generator[Statement, list[Row], Reason | None]:
        found = yield from self._dialect.run("track_triggers", {"name": self._name(track)})
        if not found:
            return Reason("triggers_gone")
        return None if len(found) == len(_EVENTS) else Reason("triggers_incomplete")

    def _name(self, track: Track) -> str:
        return f"{self._prefix}track_{short_name(track.name)}"

    def _untrigger(self, name: str) -> str:
        return self._sql["track_untrigger"].replace("{trigger}", name)

    def _fill(
        self, name: str, track: Track, table: TableInfo, more: Mapping[str, str] | None = None
    ) -> str:
        """A statement with its places filled. Each is filled once: what is put in stays."""
        all_columns = [_quoted(column) for column in table.columns]
        keys = [_quoted(column) for column in track.id]
        # Those in the condition too: whichever it may name.
        watched = [
            _quoted(column)
            for column in table.columns
            if column in track.columns or column.lower() in (track.when or "").lower()
        ]
        places = {
            "table": table.name,
            "trigger": self._name(track),
            "name": _literal(track.name),
            "kind": _literal(track.kind),
            "ref": _ref(track),
            "row": _row(track),
            "open": _open(track),
            "when": track.when or "true",
            "names": ", ".join(all_columns),
            "is_new": " and ".join(f"{column} = new.{column}" for column in keys),
            "is_old": " and ".join(f"{column} = old.{column}" for column in keys),
            "old": ", ".join(f"old.{column} as {column}" for column in all_columns),
            "watched": ", ".join(watched),
            "differs": " or ".join(f"old.{column} is not new.{column}" for column in watched),
            **(more or {}),
        }
        parts = self._sql[name].split("{")
        return parts[0] + "".join(
            places[place] + rest for place, _, rest in (part.partition("}") for part in parts[1:])
        )


def _ref(track: Track) -> str:
    parts = [f"cast({_quoted(column)} as text)" for column in track.id]
    if len(parts) > 1:
        # So that ('a:b', 'c') and ('a', 'b:c') are two.
        parts = [f"replace(replace({part}, '%', '%25'), ':', '%3A')" for part in parts]
    return f"{_literal(track.name + ':')} || " + " || ':' || ".join(parts)


def _open(track: Track) -> str:
    return f"coalesce((\n        {track.when}\n    ), false)" if track.when else "true"


def _row(track: Track) -> str:
    """What is tracked of a row, as JSON. Times are read by the worker: SQLite knows no zones."""
    scope = " || ".join(
        f"cast({_quoted(part)} as text)" if is_column else _literal(part)
        for part, is_column in track.scope_parts
    )
    data = ", ".join(f"{_literal(column)}, {_plain(column)}" for column in track.data)
    rest = {"rules": track.remind_from, "locked": track.locked, "due": track.due, "tz": track.tz,
            "recipients": track.recipients}  # fmt: skip
    values = ", ".join(f"'{name}', {_plain(column)}" for name, column in rest.items())
    return (
        f"json_object('scope', {scope or 'null'}, {values}, "
        f"'data', json_object({data}), 'open', {_open(track)})"
    )


def _plain(column: str | None) -> str:
    """A value that JSON can hold: a write must not fail for a blob, nor for infinity, which becomes
    text, as on PostgreSQL."""
    if column is None:
        return "null"
    name = _quoted(column)
    return (
        f"case when typeof({name}) = 'blob' then hex({name}) "
        f"when typeof({name}) = 'real' and abs({name}) = 9e999 "
        f"then iif({name} > 0, 'Infinity', '-Infinity') else {name} end"
    )


def _as_literal(column: str) -> str:
    """An expression for the literal that stands for a value. A text is written by its bytes, which
    may not be UTF-8."""
    return (
        f"case when typeof({column}) = 'text' "
        f"then 'cast(x''' || hex({column}) || ''' as text)' else quote({column}) end"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
