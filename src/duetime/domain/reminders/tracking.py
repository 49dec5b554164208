"""A tracked table: how its rows become subjects. Pure values; a backend's triggers follow them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Required, TypedDict, get_args

import msgspec

from duetime.domain.checks import MAX_NAME_LENGTH, check_moment, check_name, check_text
from duetime.domain.reasons import Reason
from duetime.domain.reminders.reminder import MAX_RECIPIENTS, Subject
from duetime.domain.reminders.rule import Rule
from duetime.domain.reminders.rule_column import read_rules_column
from duetime.domain.reminders.rule_text import RulesLike, parse_rules
from duetime.domain.schedules.cron import parse_zone, to_instant
from duetime.errors import InvalidInput

MAX_CONDITION_LENGTH = 4000
MAX_DATA_BYTES = 1024 * 1024
"""Of the columns for the message, of one row."""
SECONDS_UP_TO = 100_000_000_000
"""Numbers below are seconds since 1970, larger ones milliseconds: they meet in the year 5138."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMN = re.compile(r"[^\W\d]\w*")
_PLACE = re.compile(r"\{([^{}]*)\}")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")


TableKind = Literal["subjects", "scopes"]
"""What the rows of a tracked table are."""


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What is tracked of a table. Names of columns, unless said otherwise. Made by `make_track`."""

    name: str
    table: str
    id: tuple[str, ...]
    kind: TableKind = "subjects"
    due: str | None = None
    """None of a table of scopes."""
    scope: str | None = None
    """A column that holds the scope, or a pattern such as `channel:{channel_id}`."""
    parent: str | None = None
    """The same, of a table of scopes: the scope around it."""
    locked: str | None = None
    """Of a table of scopes: the column that says whether levels inside may set other rules."""
    tz: str | None = None
    """The column with the subject's time zone."""
    zone: str | None = None
    """The time zone of all subjects, or of those whose column is empty. None: UTC."""
    due_zone: str | None = None
    """The zone in which due times without one are read. None: the subject's."""
    recipients: str | None = None
    data: tuple[str, ...] = ()
    when: str | None = None
    """A condition of SQL: rows for which it is not true have no reminders."""
    remind: tuple[str, ...] | None = None
    """The rules, as people write them. None: those of the scope."""
    rules: tuple[Any, ...] | None = None
    """The rules, as they are stored."""
    remind_from: str | None = None
    """The column with the rules of each row. Where it is null, the scope's hold."""

    @property
    def scope_parts(self) -> list[tuple[str, bool]]:
        """The parts of the scope or the parent, in order: text, or (if True) a column's name."""
        pattern = self.parent if self.kind == "scopes" else self.scope
        if pattern is None:
            return []
        if "{" not in pattern:
            return [(pattern, True)]
        return [
            (part, number % 2 == 1) for number, part in enumerate(_PLACE.split(pattern)) if part
        ]

    @property
    def columns(self) -> list[str]:
        """Every column that is named, but for those in `when`."""
        scope = [part for part, is_column in self.scope_parts if is_column]
        rest = (self.tz, self.recipients, self.remind_from, self.locked)
        named = (*self.id, self.due, *scope, *rest, *self.data)
        return list(dict.fromkeys(column for column in named if column is not None))


class TableArguments(TypedDict, total=False):
    """The keyword arguments of `tables.plan(…)`, and of `tables.put(…)` but for `by` and
    `progress`."""

    id: Required[str | Iterable[str]]
    due: str | None
    kind: TableKind
    scope: str | None
    parent: str | None
    locked: str | None
    tz: str | None
    due_tz: str | None
    recipients: str | None
    data: str | Iterable[str]
    when: str | None
    remind: RulesLike | None
    name: str | None


def make_track(
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
) -> Track:
    """Return what is to be tracked, as far as it can be checked without the table.

    >>> make_track("game_sessions", id="id", due="starts_at", scope="channel:{channel_id}").columns
    ['id', 'starts_at', 'channel_id']
    >>> make_track("guilds", kind="scopes", id="id", remind="reminder_minutes").remind_from
    'reminder_minutes'
    """
    keys = (id,) if isinstance(id, str) else tuple(id)
    if not keys or len(set(keys)) < len(keys):
        raise InvalidInput("id must name the column or columns that identify a row.")
    texts = (data,) if isinstance(data, str) else tuple(data)
    _check_kind(
        kind,
        {"due": due, "scope": scope, "tz": tz, "due_tz": due_tz, "recipients": recipients,
         "data": texts or None},
        {"parent": parent, "locked": locked},
    )  # fmt: skip
    for column in (*keys, *texts, *(c for c in (due, recipients, tz, locked) if c is not None)):
        check_name(column, what="column")
    check_name(table, what="table")
    given = default_name(table) if name is None else name
    if ":" in given:
        raise InvalidInput(
            f"The name of a tracked table must not contain a colon, got {given!r:.60}: the "
            "references of its subjects are NAME:ID. Choose another name=."
        )
    for what, pattern in (("scope", scope), ("parent", parent)):
        if pattern is not None:
            _check_scope(check_name(pattern, what=what), what)
    rules, remind_from = read_remind(remind)
    return Track(
        name=check_name(given, what="name of what is tracked"),
        table=table,
        id=keys,
        kind=kind,
        due=due,
        scope=scope,
        parent=parent,
        locked=locked,
        tz=tz,
        due_zone=None if due_tz is None else parse_zone(due_tz).key,
        recipients=recipients,
        data=tuple(dict.fromkeys(texts)),
        when=None if when is None else check_condition(when),
        remind=None if rules is None else tuple(rule.text for rule in rules),
        rules=None if rules is None else tuple(rule.to_json() for rule in rules),
        remind_from=remind_from,
    )


def default_name(table: str) -> str:
    """The name under which a table is tracked, if none is given.

    >>> default_name('public."games"')
    'games'
    """
    return table.rpartition(".")[2].strip('"')


def check_condition(text: str) -> str:
    """Return `text` if it can only be one condition. Whether it means something, SQL knows."""
    check_text(text, what="The condition")
    bare = _QUOTED.sub("''", text)
    depth = 0
    for character in bare:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
    if (
        not text.strip()
        or len(text) > MAX_CONDITION_LENGTH
        or depth
        or re.search(r";|--|/\*|\$", bare)
    ):
        raise InvalidInput(
            "when must be a single SQL condition, such as \"status = 'open'\", without ; or "
            f"comments and with at most {MAX_CONDITION_LENGTH} characters, got {text[:200]!r}."
        )
    if re.search(r"['\"]", bare.replace("''", "")):
        raise InvalidInput(f"The condition {text[:200]!r} has an unclosed quote.")
    return text.strip()


def check_columns(track: Track, columns: Iterable[str]) -> Track:
    """Return the track with each column as the table spells it; raise for one that is not there.

    `tz` may name a zone instead of a column.
    """
    known = list(columns)
    zone = track.zone
    tz = track.tz
    if tz is not None and tz.lower() not in {column.lower() for column in known}:
        zone, tz = _zone_or_column(tz, known), None

    def spelled(column: str) -> str:
        if column in known:
            return column
        found = [name for name in known if name.lower() == column.lower()]
        if len(found) != 1:
            raise InvalidInput(
                f"The table {track.table!r} has no column {column!r}. Its columns are: "
                f"{', '.join(known)}."
            )
        return found[0]

    if track.remind_from is not None and track.remind_from.lower() not in {
        column.lower() for column in known
    }:
        raise InvalidInput(
            f"remind must be rules or a column with rules, but {track.remind_from[:60]!r} is "
            f"neither. Rules are such as '-1h', '-1d at 09:00' or 60 (minutes before). The columns "
            f"are: {', '.join(known)}."
        )

    def maybe(column: str | None) -> str | None:
        return None if column is None else spelled(column)

    pattern = "".join(
        f"{{{spelled(part)}}}" if is_column else part for part, is_column in track.scope_parts
    )
    is_scopes = track.kind == "scopes"
    return msgspec.structs.replace(
        track,
        id=tuple(map(spelled, track.id)),
        due=maybe(track.due),
        scope=None if is_scopes else pattern or None,
        parent=pattern or None if is_scopes else None,
        locked=maybe(track.locked),
        tz=maybe(tz),
        zone=zone,
        recipients=maybe(track.recipients),
        data=tuple(map(spelled, track.data)),
        remind_from=maybe(track.remind_from),
    )


def read_subject(track: Track, ref: str, row: Mapping[str, Any]) -> tuple[Subject, Reason | None]:
    """Return the subject of a row of SQLite, and what of the row could not be used.

    `duetime._track_rows` does it in SQL.
    """
    problems: list[Reason] = []
    zone = track.zone or "UTC"
    if row["tz"] is not None:
        try:
            zone = parse_zone(row["tz"]).key
        except InvalidInput:
            problems.append(Reason.of("zone_unknown", tz=str(row["tz"])[:60], used=zone))
    due = read_due(row["due"], track.due_zone or zone)
    if isinstance(due, Reason):
        problems.append(due)
        due = None
    scope = None if row["scope"] in (None, "") else str(row["scope"])
    if scope is not None and len(scope) > MAX_NAME_LENGTH:
        scope = None
        problems.append(Reason.of("scope_too_long", limit=MAX_NAME_LENGTH))
    read = _read_recipients(row["recipients"])
    given = read or ()
    recipients = tuple(name for name in given if len(name) <= MAX_NAME_LENGTH)
    if read is None:
        due = None
        problems.append(Reason("recipients_unreadable"))
    elif len(given) > MAX_RECIPIENTS:
        # Without recipients its reminder would go to whom the handler says.
        recipients, due = (), None
        problems.append(Reason.of("too_many_recipients", limit=MAX_RECIPIENTS))
    elif len(recipients) < len(given):
        problems.append(Reason.of("recipient_too_long", limit=MAX_NAME_LENGTH))
    rules, unreadable = _rules_of(track, row)
    problems += unreadable
    data = row["data"]
    if len(msgspec.json.encode(data)) > MAX_DATA_BYTES:
        data = {}
        problems.append(Reason("data_too_large"))
    subject = Subject(
        ref=ref,
        scope=scope,
        due_at=due,
        tz=zone,
        status="open",
        rules=rules,
        data=data,
        recipients=recipients,
    )
    return subject, Reason.of("row_unusable", problems=problems) if problems else None


def read_level(
    track: Track, row: Mapping[str, Any]
) -> tuple[str | None, tuple[Rule, ...] | None, bool, list[Reason]]:
    """Return the parent, the rules and the lock of a scope's row of SQLite, and what of it cannot
    be used. `duetime._track_scopes` does it in SQL."""
    rules, problems = _rules_of(track, row)
    parent = None if row["scope"] in (None, "") else str(row["scope"])
    if parent is not None and len(parent) > MAX_NAME_LENGTH:
        parent = None
        problems.append(Reason.of("parent_too_long", limit=MAX_NAME_LENGTH))
    return parent, rules, row["locked"] not in (None, 0, "", "0", "false", "f"), problems


def _rules_of(track: Track, row: Mapping[str, Any]) -> tuple[tuple[Rule, ...] | None, list[Reason]]:
    if track.remind_from is not None:
        return read_rules_column(row["rules"])
    return None if track.rules is None else tuple(map(Rule.from_json, track.rules)), []


def read_due(value: Any, zone: str) -> datetime | Reason | None:
    """Return the due time in a column of SQLite, or why it cannot be used. Without an offset it is
    read in `zone`.

    >>> read_due("2026-03-08 02:30", "America/New_York").isoformat()
    '2026-03-08T07:00:00+00:00'
    >>> read_due(1_700_000_000, "UTC") == read_due(1_700_000_000_000, "UTC")
    True
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, int | float):
            scale = 1 if abs(value) < SECONDS_UP_TO else 1000
            found = _EPOCH + timedelta(microseconds=round(value * 1_000_000 / scale))
        else:
            text = str(value).strip()
            if text.isascii() and text.isdigit() and len(text) > 8:
                # A column of texts keeps numbers as such. (Eight digits are a date.)
                return read_due(int(text), zone)
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                found = to_instant(found, parse_zone(zone))
        return check_moment(found.astimezone(UTC), name="due")
    except (ValueError, OverflowError) as error:
        if isinstance(value, str) and not isinstance(error, InvalidInput | OverflowError):
            return Reason.of("due_unreadable", due=value[:60])
        return Reason("due_out_of_range")


def _read_recipients(value: Any) -> tuple[str, ...] | None:
    """One recipient, or a JSON array of them; None: it is something else.

    >>> _read_recipients('["ann", 7]'), _read_recipients("ann"), _read_recipients('{"id": 7}')
    (('ann', '7'), ('ann',), None)
    """
    if isinstance(value, str) and value.lstrip().startswith(("[", "{", '"')):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            pass
        except RecursionError:
            return None
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, dict | list | bool) for one in values):
        return None
    return tuple(dict.fromkeys(str(one) for one in values if one not in (None, "")))


def _check_kind(
    kind: str, of_subjects: Mapping[str, object], of_scopes: Mapping[str, object]
) -> None:
    if kind not in get_args(TableKind):
        raise InvalidInput(f"kind must be 'subjects' or 'scopes', got {kind!r:.60}.")
    if kind == "subjects" and of_subjects["due"] is None:
        raise InvalidInput(
            "due must name the column with the due time. Of a table whose rows are scopes, such as "
            "channels or guilds, say kind='scopes'."
        )
    others = of_subjects if kind == "scopes" else of_scopes
    for option, value in others.items():
        if value is not None:
            other = "subjects" if kind == "scopes" else "scopes"
            raise InvalidInput(f"{option} is an option of tables of {other}, not of {kind}.")


def read_remind(remind: RulesLike | None) -> tuple[tuple[Rule, ...] | None, str | None]:
    """The rules, or the column that holds them: a single text that is no rule."""
    if remind is None:
        return None, None
    try:
        return parse_rules(remind), None
    except InvalidInput:
        given = [remind] if isinstance(remind, str) else remind
        names = list(given) if isinstance(given, list | tuple) else []
        if [name for name in names if isinstance(name, str) and _COLUMN.fullmatch(name)] != names:
            raise
        if len(names) != 1:
            raise
        return None, str(names[0])


def _check_scope(scope: str, what: str) -> None:
    if "{" not in scope and "}" not in scope:
        return
    rest = _PLACE.sub("", scope)
    if "{" in rest or "}" in rest or "" in _PLACE.findall(scope):
        raise InvalidInput(
            f"{what} must be a column, or a pattern such as 'channel:{{channel_id}}', got "
            f"{scope!r:.200}."
        )


def _zone_or_column(tz: str, columns: list[str]) -> str:
    try:
        return parse_zone(tz).key
    except InvalidInput as error:
        raise InvalidInput(
            f"tz must be a column or a time zone, but {tz[:60]!r} is neither. The columns are: "
            f"{', '.join(columns)}. {error}"
        ) from None
