"""Triggers on tracked tables of PostgreSQL: one call for each statement, however many rows."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from hashlib import md5
from typing import Any

import msgspec

from duetime.domain.checks import MAX_NAME_LENGTH
from duetime.domain.reasons import Reason
from duetime.domain.reminders.reminder import MAX_RECIPIENTS
from duetime.domain.reminders.rule_text import MAX_RULES
from duetime.domain.reminders.tracking import MAX_DATA_BYTES, Track
from duetime.errors import InvalidInput
from duetime.storage.reminders.tracking import TableInfo, short_name
from duetime.storage.store import Row, Statement, Statements

_KEYS = {
    "smallint", "integer", "bigint", "numeric", "text", "character varying", "character", "uuid",
    "citext", "date", "boolean", "name",
}  # fmt: skip
_LISTS = {"json", "jsonb"}
_MAX_RULES_BYTES = 20_000
_TEXTS = {"text", "character varying", "character", "json"}
# By name: where the role is called as the schema, the user's tables are made in it, too.
OWN_TABLES = frozenset(
    {
        "account", "alert", "api_token", "attempt", "attempt_sample", "attempt_stat", "audit",
        "channel_rate", "channel_use", "claim", "delivery", "digest", "due", "flow_run",
        "flow_signal", "flow_step", "idempotency", "installation", "installation_secret", "job",
        "job_key", "login_failure", "migration", "parked", "progress", "queue", "rate_use",
        "recipient", "recipient_use", "reminder", "rule", "schedule", "schedule_preset",
        "schedule_tick", "scope", "bulk_change", "bulk_change_part", "service", "session",
        "subject", "task", "timeline", "tracked", "tracked_scope", "waiter", "worker",
        "worker_name", "zone",
    }
)  # fmt: skip
_NAMES = ("ref", "scope", "due", "local_due", "zone", "recipients", "data", "rules", "open")
_SCOPE_NAMES = ("ref", "scope", "rules", "locked", "open")
_NUMBERS = {"smallint", "integer", "bigint", "numeric", "real", "double precision"}
# Every value of these types can be converted to `jsonb`.
_PLAIN = _NUMBERS | {
    "text", "character varying", "character", "jsonb", "boolean", "uuid", "date",
    "timestamp with time zone", "timestamp without time zone",
}  # fmt: skip


class PostgresTriggers:
    """Writes statement-level triggers with transition tables. Names are quoted here."""

    def __init__(self, sql: Mapping[str, str], schema: str) -> None:
        self._sql = sql
        self._schema = schema

    def read(self, table: str) -> Generator[Statement, list[Row], TableInfo]:
        # The user's table is resolved by the user's own search path.
        yield "set local search_path to default", ()
        rows = yield self._sql["track_table"], (msgspec.json.encode({"table": table}).decode(),)
        if not rows:
            raise InvalidInput(
                f"There is no table {table!r}. Write its name as in SQL, such as games or "
                "sales.orders."
            )
        [(name, schema, kind, owned, columns, keys, whole)] = rows
        if kind not in ("r", "p"):
            raise InvalidInput(f"{name} is not a table. Only tables can be tracked.")
        if whole is not None:
            raise InvalidInput(
                f"{name} is a partition of {whole}. Its triggers would not see what is written "
                f"through {whole}: track that table."
            )
        # Its triggers would be called by what they cause.
        if schema == self._schema and name.rpartition(".")[2].strip('"') in OWN_TABLES:
            raise InvalidInput(f"{name} is one of Duetime's own tables and cannot be tracked.")
        if not owned:
            raise InvalidInput(
                f"The table {name} belongs to another role, and only its owner can add triggers. "
                "Connect as its owner."
            )
        return TableInfo(
            name=name,
            schema=schema,
            columns={column["name"]: column["type"] for column in msgspec.json.decode(columns)},
            keys=tuple(frozenset(key) for key in msgspec.json.decode(keys)),
        )

    def check(self, track: Track, table: TableInfo) -> Statements:
        yield self._sql["track_patience"], ("{}",)
        yield self._fill("track_check", track, table), ()

    def install(self, track: Track, table: TableInfo) -> list[str]:
        function = "track_scopes_function" if track.kind == "scopes" else "track_function"
        names = (function, "track_trigger_insert", "track_trigger_update",
                 "track_trigger_delete", "track_trigger_truncate")  # fmt: skip
        old = [
            self._fill("track_untrigger", track, table, {"event": event})
            for event in ("insert", "update", "delete", "truncate")
        ]
        return [*old, *(self._fill(name, track, table) for name in names)]

    def count(self, track: Track, table: TableInfo) -> Statements:
        [(count,)] = yield self._fill("track_count", track, table), ()
        return count

    def remove(self, track: Track) -> Statements:
        name = self._name(track)
        document = msgspec.json.encode({"name": name}).decode()
        for row in (yield self._sql["track_leftovers"], (document,)):
            yield row[0], ()

    def fill(
        self, track: Track, table: TableInfo, after: Sequence[str] | None, most: int
    ) -> Generator[Statement, list[Row], tuple[int, list[str] | None]]:
        keys = ", ".join(_quoted(column) for column in track.id)
        texts = ", ".join(f"{_quoted(column)}::text" for column in track.id)
        past = "true"
        if after is not None:
            values = ", ".join(
                f"{_literal(value)}::{table.columns[column]}"
                for column, value in zip(track.id, after, strict=True)
            )
            past = f"({keys}) > ({values})"
        statement = self._fill(
            "track_scopes_fill" if track.kind == "scopes" else "track_fill", track, table,
            {"texts": texts, "past": past, "most": str(most)},
        )  # fmt: skip
        [(count, last)] = yield statement, ()
        return count, last if count == most else None

    def missing(self, track: Track, table: TableInfo) -> Generator[Statement, list[Row], list[str]]:
        more = {"table_name": _literal(table.name)}
        rows = yield self._fill("track_missing", track, table, more), ()
        return [row[0] for row in rows]

    def drop(self, track: Track, table: TableInfo, refs: Sequence[str]) -> Statements:
        more = {"refs": f"array[{', '.join(map(_literal, refs))}]::text[]"}
        # A statement of its own: the next sees what was committed until they were locked.
        rows = yield self._fill("track_hold", track, table, more), ()
        if rows:
            more = {"refs": f"array[{', '.join(_literal(row[0]) for row in rows)}]::text[]"}
            more["nothing"] = "null, " * (5 if track.kind == "scopes" else 9)
            yield self._fill("track_drop", track, table, more), ()

    def clear(self, track: Track, most: int) -> Generator[Statement, list[Row], int]:
        document = {"name": track.name, "most": most}
        [(count,)] = yield self._sql["track_clear"], (msgspec.json.encode(document).decode(),)
        return int(count)

    def broken(self, track: Track) -> Generator[Statement, list[Row], Reason | None]:
        document = {"name": self._name(track), "columns": track.columns}
        [(triggers, missing)] = yield (
            self._sql["track_state"], (msgspec.json.encode(document).decode(),)
        )  # fmt: skip
        if triggers == 0:
            return Reason("triggers_gone")
        if missing:
            return Reason.of("column_gone", column=missing)
        return None if triggers == 4 else Reason("triggers_incomplete")

    def _name(self, track: Track) -> str:
        return f"{self._schema}_track_{short_name(track.name)}"

    def _fill(
        self, name: str, track: Track, table: TableInfo, more: Mapping[str, str] | None = None
    ) -> str:
        """A statement with its places filled. Each is filled once: what is put in stays."""
        is_scopes = track.kind == "scopes"
        columns = (_scope_columns if is_scopes else _columns)(track, table, self._schema)
        names = _SCOPE_NAMES if is_scopes else _NAMES
        places = {
            "table": table.name,
            "function": f"{table.schema}.{_quoted(self._name(track))}",
            "trigger": self._name(track),
            "call": f"_track_{md5(track.name.encode(), usedforsecurity=False).hexdigest()}",
            "ref": columns["ref"],
            "columns": ",\n        ".join(f"{columns[n]} as {n}" for n in names),
            "when": track.when or "true",
            "keys": ", ".join(_quoted(column) for column in track.id),
            **(more or {}),
        }
        parts = self._sql[name].split("{")
        return parts[0] + "".join(
            places[place] + rest for place, _, rest in (part.partition("}") for part in parts[1:])
        )


def _columns(track: Track, table: TableInfo, ours: str) -> dict[str, str]:
    """What is tracked of a row, as expressions over its columns. `ours`: Duetime's own schema."""
    types = table.columns
    assert track.due is not None
    kind = types[track.due]
    if kind.startswith("timestamp") and kind.endswith("with time zone"):
        due, local_due = _quoted(track.due), "null::timestamp"
    elif kind == "date" or kind.startswith("timestamp"):
        due, local_due = "null::timestamptz", f"{_quoted(track.due)}::timestamp"
    else:
        raise InvalidInput(
            f"The column {track.due!r} has the type {kind}. due must be a timestamp or a date."
        )
    return {
        "ref": _ref(track, types),
        "scope": _scope(track),
        "due": due,
        "local_due": local_due,
        "zone": "null::text" if track.tz is None else f"left({_text(track.tz)}, 100)",
        "recipients": _recipients(track, types, ours),
        "data": _data(track, types, ours),
        "rules": _rules(track, types, ours),
        "open": _open(track),
    }  # fmt: skip


def _scope_columns(track: Track, table: TableInfo, ours: str) -> dict[str, str]:
    types = table.columns
    if track.locked is not None and types[track.locked] != "boolean":
        raise InvalidInput(
            f"The column {track.locked!r} has the type {types[track.locked]}. locked must be a "
            "boolean."
        )
    return {
        "ref": _ref(track, types),
        "scope": _scope(track),
        "rules": _rules(track, types, ours),
        "locked": "false" if track.locked is None else f"coalesce({_quoted(track.locked)}, false)",
        "open": _open(track),
    }


def _open(track: Track) -> str:
    return f"coalesce((\n{track.when}\n), false)" if track.when else "true"


def _ref(track: Track, types: Mapping[str, str]) -> str:
    parts = []
    for column in track.id:
        kind = types[column].partition("(")[0].strip()
        if kind not in _KEYS:
            raise InvalidInput(
                f"The column {column!r} has the type {types[column]}, whose text depends on "
                "session settings. id must be a number, a text, a UUID or a date."
            )
        # Not `::text`: that of a date depends on the session.
        text = f"to_char({_quoted(column)}, 'YYYY-MM-DD')" if kind == "date" else _text(column)
        if len(track.id) > 1:
            # So that ('a:b', 'c') and ('a', 'b:c') are two.
            text = f"replace(replace({text}, '%', '%25'), ':', '%3A')"
        parts.append(text)
    return f"{_literal(track.name + ':')} || " + " || ':' || ".join(parts)


def _scope(track: Track) -> str:
    parts = " || ".join(
        _text(part) if is_column else _literal(part) for part, is_column in track.scope_parts
    )
    return f"left({parts}, {MAX_NAME_LENGTH + 1})" if parts else "null::text"


# Whatever a row holds, its write must not fail: a number replaces a value that is too large, since
# it is neither a list of recipients nor data; an object replaces a list that holds something other
# than names. `_track_rows` stores that as the subject's problem.
_NO_LIST = "'{}'::jsonb"
_NO_NAME = '\'strict $[*] ? (@.type() != "string" && @.type() != "number" && @.type() != "null")\''


def _recipients(track: Track, types: Mapping[str, str], ours: str) -> str:
    if track.recipients is None:
        return "'[]'::jsonb"
    column, kind = _quoted(track.recipients), types[track.recipients]
    if kind.endswith("[]"):
        many = f"cardinality({column})"
        return (
            f"case when {many} > {MAX_RECIPIENTS} then to_jsonb({many}) "
            f"when {column} is null then '[]' "
            f"else {_as_json(track.recipients, kind, ours, _NO_LIST)} end"
        )
    if kind in _LISTS:
        size = f"octet_length({column}::text)"
        value = _as_json(track.recipients, kind, ours, _NO_LIST)
        return (
            f"case when {size} > {MAX_DATA_BYTES} then to_jsonb({size}) "
            f"when jsonb_typeof({value}) = 'number' then jsonb_build_array({value}) "
            f"when jsonb_path_exists({value}, {_NO_NAME}, silent => true) then '{{}}' "
            f"when {column} is null then '[]' else {value} end"
        )
    name = f"left({_text(track.recipients)}, {MAX_NAME_LENGTH + 1})"
    return f"case when {column} is null then '[]' else jsonb_build_array({name}) end"


def _rules(track: Track, types: Mapping[str, str], ours: str) -> str:
    """An object replaces what is too large."""
    if track.remind_from is None:
        return "null::jsonb"
    column = _quoted(track.remind_from)
    kind = types[track.remind_from]
    element = kind.removesuffix("[]").partition("(")[0].strip()
    too_many = "'{\"too_many\": true}'::jsonb"
    if element not in _NUMBERS | _TEXTS | _LISTS | {"interval"}:
        raise InvalidInput(
            f"The column {track.remind_from!r} has the type {kind}. Rules are in a column of "
            "numbers (minutes before the due time), texts, intervals, an array of these, or JSON."
        )
    if element == "interval":
        # As much before the due time. The text of an interval depends on the session.
        rule = "'-' || trim_scale(extract(epoch from {0})::numeric) || 's'"
        if kind == element:
            return f"to_jsonb({rule.format(column)})"
        each = f"array(select {rule.format('e.one')} from unnest({column}) as e(one))"  # noqa: S608
        return (
            f"case when cardinality({column}) > {MAX_RULES} then {too_many} "
            f"when {column} is not null then to_jsonb({each}) end"
        )
    value = _as_json(track.remind_from, kind, ours, f"to_jsonb({column}::text)")
    if kind.endswith("[]"):
        return f"case when cardinality({column}) > {MAX_RULES} then {too_many} else {value} end"
    if element in _NUMBERS:
        return f"to_jsonb({column})"
    size = f"octet_length({column}::text) > {_MAX_RULES_BYTES}"
    return f"case when {size} then {too_many} else {value} end"


def _data(track: Track, types: Mapping[str, str], ours: str) -> str:
    if not track.data:
        return "'{}'::jsonb"
    pairs = ", ".join(
        f"{_literal(column)}, "
        + _as_json(column, types[column], ours, f"to_jsonb({_quoted(column)}::text)")
        for column in track.data
    )
    sizes = " + ".join(f"coalesce({_size(column, types)}, 0)::bigint" for column in track.data)
    return (
        f"case when {sizes} > {MAX_DATA_BYTES} then to_jsonb({sizes}) "
        f"else jsonb_build_object({pairs}) end"
    )


def _size(column: str, types: Mapping[str, str]) -> str:
    kind = types[column].partition("(")[0].strip()
    if kind in _TEXTS:
        # Known without reading it. `pg_column_size` may be what is left of it when compressed.
        return f"octet_length({_quoted(column)}::text)"
    return f"pg_column_size({_quoted(column)})"


def _text(column: str) -> str:
    """A column as text. By its own collation, texts that differ might count as equal."""
    return f'{_quoted(column)}::text collate "default"'


def _as_json(column: str, kind: str, ours: str, otherwise: str) -> str:
    """A column as `jsonb`. `otherwise`: if it cannot be converted, as some `json` cannot."""
    if kind.partition("(")[0].strip() in _PLAIN or kind in ("text[]", "integer[]", "bigint[]"):
        return f"to_jsonb({_quoted(column)})"
    return f"coalesce({ours}._as_json({_quoted(column)}), {otherwise})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: Any) -> str:
    plain = str(text).replace("'", "''")
    # Independent of the setting `standard_conforming_strings`.
    return f"E'{plain}'".replace("\\", "\\\\") if "\\" in plain else f"'{plain}'"
