"""Events of an iCalendar file, as what `app.subjects.define` takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from duetime.domain import effort
from duetime.domain.checks import MAX_NAME_LENGTH
from duetime.domain.duration import format_duration, format_time
from duetime.domain.reminders.recurrence import parse_repeats
from duetime.domain.reminders.rule import Rule, rule_times
from duetime.domain.reminders.rule_text import MAX_RULES, parse_rule
from duetime.errors import InvalidInput
from duetime.integrations.ical.library import icalendar
from duetime.integrations.ical.limits import safe_text
from duetime.integrations.ical.zones import instant, zone_name, zone_of

_MAX_TEXT_LENGTH = 10_000
_MAX_REPEATS = 20
_MAX_STEPS = 40_000_000
"""For the rules of a whole file: about ten seconds."""
_CLOCK_CHANGE = timedelta(hours=1)
OWN_DATA = ("title", "description", "location", "url", "all_day", "duration")
"""What a file says of a subject's data; the rest stays as it is."""
_TEXTS = {"SUMMARY": "title", "DESCRIPTION": "description", "LOCATION": "location", "URL": "url"}


class Event(msgspec.Struct, kw_only=True):
    """One event, with the single occurrences that the file says are different."""

    ref: str
    tz: str
    due: datetime | None = None
    repeats: dict[str, Any] | None = None
    rules: tuple[Rule, ...] | None = None
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    cancelled: bool = False


class Problem(msgspec.Struct, frozen=True):
    """An event that is left out, and why."""

    uid: str
    reason: str


def read_events(data: bytes | str, *, tz: str | None = None) -> tuple[list[Event], list[Problem]]:
    """Return the events of a file, and those that cannot be read. Raises `InvalidInput`.

    `tz`: the zone of times that name none (floating ones, whole days); by default the calendar's
    own (X-WR-TIMEZONE), else UTC.
    """
    text = safe_text(data)
    try:
        calendars = icalendar().Calendar.from_ical(text, multiple=True)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise InvalidInput(f"The iCalendar file cannot be read: {error!s:.200}.") from None
    with effort.limited(_MAX_STEPS, "the rules of this file take too long to compute: split it"):
        return _read_calendars(calendars, tz)


def _read_calendars(calendars: Any, tz: str | None) -> tuple[list[Event], list[Problem]]:
    events: list[Event] = []
    problems: list[Problem] = []
    for calendar in calendars:
        default = _default_zone(calendar, tz)
        for uid, group in _by_uid(calendar).items():
            try:
                events += _read_group(uid, group, default)
            except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
                problems.append(Problem(uid, str(error)[:300]))
    return _once(events, problems), problems


def _default_zone(calendar: Any, tz: str | None) -> str:
    if tz is not None:
        return tz
    named = calendar.get("X-WR-TIMEZONE")
    try:
        return zone_name(str(named)) if named else "UTC"
    except InvalidInput:
        return "UTC"


def _by_uid(calendar: Any) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for number, event in enumerate(calendar.walk("VEVENT")):
        uid = str(event.get("UID") or "").strip()
        groups.setdefault(uid or f"event without a UID, number {number + 1}", []).append(event)
    return groups


def _once(events: Sequence[Event], problems: list[Problem]) -> list[Event]:
    found: dict[str, Event] = {}
    for event in events:
        if event.ref in found:
            problems.append(Problem(event.ref, "it is in the file twice; the first one holds"))
        found.setdefault(event.ref, event)
    return list(found.values())


def _read_group(uid: str, group: Sequence[Any], default: str) -> Iterator[Event]:
    """Yield the event of a UID; or, if the file has only single occurrences of it, those."""
    if group[0].get("UID") is None:
        raise InvalidInput("it has no UID, which identifies an event")
    series = [event for event in group if "RECURRENCE-ID" not in event]
    single = [event for event in group if "RECURRENCE-ID" in event]
    if not series:
        for event in single:
            original = instant(_one(event, "RECURRENCE-ID").dt, _zone(event, default))
            yield _read_event(f"{uid}@{format_time(original)}", event, default)
        return
    # Of several versions, the last one holds.
    newest = max(series, key=lambda event: int(event.get("SEQUENCE", 0)))
    made = _read_event(uid, newest, default)
    if single and made.repeats is not None:
        made.repeats["exceptions"] |= dict(_overrides(single, made.tz))
    if made.repeats is not None:
        parse_repeats(made.repeats, made.tz)  # What it refuses is a problem of this event.
    yield made


def _read_event(uid: str, event: Any, default: str) -> Event:
    start = _one(event, "DTSTART")
    zone = zone_of(start, default)
    due = instant(start.dt, zone)
    data: dict[str, Any] = {
        name: str(event[prop])[:_MAX_TEXT_LENGTH]
        for prop, name in _TEXTS.items()
        if event.get(prop)
    }
    span = _span(event, zone)
    if not isinstance(start.dt, datetime):
        data["all_day"] = True
    if span:
        data["duration"] = format_duration(span)
    if data.get("title") == uid:
        del data["title"]  # What an export says of a subject without one.
    repeats = _read_repeats(event, due, zone)
    return Event(
        ref=_ref(uid),
        tz=zone,
        due=None if repeats else due,
        repeats=repeats,
        rules=_read_alarms(event, span, due, zone),
        data=data,
        cancelled=str(event.get("STATUS", "")).upper() == "CANCELLED",
    )


def _ref(uid: str) -> str:
    """The UID; a longer one than a reference may be ends in its hash."""
    uid = uid.replace("\x00", "")
    if len(uid) <= MAX_NAME_LENGTH:
        return uid
    hashed = blake2b(uid.encode(), digest_size=16).hexdigest()
    return f"{uid[: MAX_NAME_LENGTH - len(hashed) - 1]}~{hashed}"


# When


def _read_repeats(event: Any, due: datetime, zone: str) -> dict[str, Any] | None:
    rules = [prop.to_ical().decode() for prop in _several(event, "RRULE")]
    more = [instant(value, zone) for value in _moments(event, "RDATE")]
    if own := event.get("X-DUETIME-REPEATS"):
        read = _own_repeats(str(own), [due, *more], zone)
        if read is not None:
            return read
    if not rules and not more:
        return None
    specs: list[Any] = [{"rrule": rule, "start": format_time(due)} for rule in rules]
    if not rules or not parse_repeats({"specs": specs}, zone).has(due):
        specs.append({"at": format_time(due)})  # The start counts, also if the rule misses it.
    specs += [{"at": format_time(at)} for at in dict.fromkeys(more) if at != due]
    skipped = list(_moments(event, "EXDATE"))
    timed = isinstance(_one(event, "DTSTART").dt, datetime)
    days = [day for day in skipped if timed and not isinstance(day, datetime)]
    times = [value for value in skipped if value not in days]
    repeats: dict[str, Any] = {"specs": specs} if len(specs) > 1 else dict(specs[0])
    if "at" in repeats:
        return None
    exceptions: dict[str, Any] = {format_time(instant(at, zone)): "skip" for at in times}
    exclude = {"exclude": [day.isoformat() for day in days]} if days else {}
    return repeats | exclude | {"exceptions": exceptions}


def _own_repeats(text: str, times: Sequence[datetime], zone: str) -> dict[str, Any] | None:
    """What our own export says, where iCalendar has no words for it; None if the event's times
    have changed since, in a program that kept what it did not understand."""
    try:
        value = {"exceptions": {}} | json.loads(text)
        read = parse_repeats(value, zone)
    except (ValueError, TypeError):
        return None
    same = [one.due for one in islice(read.occurrences(times[0]), len(times))] == [*times]
    return value if same else None


def _overrides(events: Sequence[Any], zone: str) -> Iterator[tuple[str, str]]:
    for event in events:
        original = _one(event, "RECURRENCE-ID")
        if original.params.get("RANGE"):
            raise InvalidInput("it changes this and all future occurrences (RANGE): not supported")
        at = instant(original.dt, zone_of(original, zone))
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            yield format_time(at), "skip"
            continue
        start = _one(event, "DTSTART")
        moved = instant(start.dt, zone_of(start, zone))
        if moved != at:
            yield format_time(at), format_time(moved)


def _zone(event: Any, default: str) -> str:
    return zone_of(_one(event, "DTSTART"), default)


def _span(event: Any, zone: str) -> timedelta:
    if "DURATION" in event:
        return _positive(_one(event, "DURATION").dt)
    if "DTEND" not in event:
        return timedelta(0)
    start, end = _one(event, "DTSTART"), _one(event, "DTEND")
    return _positive(instant(end.dt, zone_of(end, zone)) - instant(start.dt, zone))


def _positive(span: Any) -> timedelta:
    return max(span, timedelta(0)) if isinstance(span, timedelta) else timedelta(0)


# Alarms


def _read_alarms(event: Any, span: timedelta, due: datetime, zone: str) -> tuple[Rule, ...] | None:
    """Return the rules that its alarms say; None: it has none, and inherits."""
    rules: dict[str, Rule] = {}
    for alarm in event.walk("VALARM"):
        if str(alarm.get("ACTION", "")).upper() == "NONE":
            continue  # Apple's way to say that there is no alarm.
        for rule in _read_alarm(alarm, span, due, zone):
            rules.setdefault(rule.id, rule)
            if len(rules) > MAX_RULES:
                raise InvalidInput(f"it has more than {MAX_RULES} alarms")
    return tuple(rules.values()) or None


def _read_alarm(alarm: Any, span: timedelta, due: datetime, zone: str) -> Iterator[Rule]:
    prop = _one(alarm, "TRIGGER")
    trigger: timedelta | datetime = prop.dt
    if own := alarm.get("X-DUETIME-RULE"):
        rule = parse_rule(str(own))
        meant = trigger if isinstance(trigger, datetime) else due + trigger
        # Of a series, the distance may be that of another occurrence, across a clock change.
        if abs(rule_times(rule, due, zone)[0] - meant) <= _CLOCK_CHANGE:
            yield rule
            return
    every = alarm.get("DURATION")
    count = int(alarm.get("REPEAT", 0)) if every is not None else 0
    if not 0 <= count <= _MAX_REPEATS:
        raise InvalidInput(f"an alarm of it is repeated more than {_MAX_REPEATS} times")
    step = every.dt if every is not None else timedelta(0)
    if isinstance(trigger, timedelta) and str(prop.params.get("RELATED", "")).upper() == "END":
        trigger += span
    elif isinstance(trigger, date):
        trigger = instant(trigger, "UTC")
    for number in range(count + 1):
        yield parse_rule(trigger + number * step)


# Properties


def _several(event: Any, name: str) -> list[Any]:
    value = event.get(name)
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _one(event: Any, name: str) -> Any:
    values = _several(event, name)
    try:
        if len(values) == 1 and values[0].dt is not None:
            return values[0]
    except (AttributeError, ValueError):
        pass  # What the library could not read.
    raise InvalidInput(f"its {name} is missing or cannot be read")


def _moments(event: Any, name: str) -> Iterator[Any]:
    """Yield the times of a list property; of a period, its start."""
    for prop in _several(event, name):
        try:
            values = [one.dt for one in prop.dts]
        except (AttributeError, ValueError):
            raise InvalidInput(f"its {name} cannot be read") from None
        for value in values:
            yield _of_zone(value[0] if isinstance(value, tuple) else value, prop)


def _of_zone(value: Any, prop: Any) -> Any:
    """A time in another zone than its event's becomes an instant."""
    tzid: Mapping[str, Any] = prop.params
    if "TZID" in tzid and isinstance(value, datetime):
        return instant(value, zone_name(str(tzid["TZID"])))
    return value
