"""Subjects as an iCalendar file: events that repeat as they do, with an alarm for each rule."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, NamedTuple

from duetime.domain import effort
from duetime.domain.duration import parse_duration
from duetime.domain.reminders.plan_recurrence import rules_of
from duetime.domain.reminders.recurrence import Recurrence
from duetime.domain.reminders.reminder import Subject
from duetime.domain.reminders.rule import Rule, rule_times
from duetime.domain.schedules.cron import parse_zone, to_instant, to_wall
from duetime.domain.schedules.timetable import EPOCH, MAX_SPECS, Once, RuleTimes
from duetime.errors import InvalidInput
from duetime.integrations.ical.library import icalendar

_MAX_STEPS = 40_000_000
_PRODUCT = "-//Duetime//Duetime//EN"
_AHEAD = timedelta(days=366)
_MAX_WRITTEN = MAX_SPECS - 1
_MOMENT = timedelta(microseconds=1)
_TEXTS = {"description": "DESCRIPTION", "location": "LOCATION", "url": "URL"}


class Entry(NamedTuple):
    """A subject, and the rules that hold for it."""

    subject: Subject
    rules: Sequence[Rule]


def write_calendar(entries: Iterable[Entry], now: datetime) -> bytes:
    """Return the file. Subjects that are never due are left out."""
    library = icalendar()
    calendar = library.Calendar()
    calendar.add("PRODID", _PRODUCT)
    calendar.add("VERSION", "2.0")
    with effort.limited(_MAX_STEPS, "These subjects take too long to compute. Export fewer."):
        for entry in entries:
            for event in _events(entry, now):
                calendar.add_component(event)
    calendar.add_missing_timezones()
    written: bytes = calendar.to_ical()
    return written


def _events(entry: Entry, now: datetime) -> Iterator[Any]:
    subject = entry.subject
    if subject.repeats is None:
        if subject.due_at is not None:
            event = _event(entry, subject.due_at, now)
            yield _with_alarms(event, entry, subject.due_at, single=True)
        return
    yield from _series(entry, subject.repeats, now)


def _series(entry: Entry, repeats: Recurrence, now: datetime) -> Iterator[Any]:
    rule, more = _as_rule(repeats)
    exceptions = repeats.exceptions or {}
    if rule is None:
        times = [
            one.due
            for one in takewhile(
                lambda one: one.due < now + _AHEAD, islice(repeats.occurrences(now), _MAX_WRITTEN)
            )
        ]
        if not times:
            return
        event = _event(entry, times[0], now)
        for at in times[1:]:
            event.add("RDATE", _local(at, entry.subject))
        event.add("X-DUETIME-REPEATS", json.dumps(repeats.to_json(), separators=(",", ":")))
        yield _with_alarms(event, entry, times[0])
        return
    first = _first(repeats)
    if first is None:
        return
    event = _event(entry, first, now)
    event.add("RRULE", icalendar().vRecur.from_ical(_with_until(rule.rrule, repeats)))
    for at in more:
        event.add("RDATE", _local(at, entry.subject))
    moved = {at: due for at, due in exceptions.items() if isinstance(due, datetime)}
    for at in sorted({*exceptions, *_excluded(repeats, now)} - set(moved)):
        event.add("EXDATE", _local(at, entry.subject))
    yield _with_alarms(event, entry, first)
    for at, due in sorted(moved.items()):
        if repeats.has(at):
            other = _event(entry, due, now)
            other.add("RECURRENCE-ID", _local(at, entry.subject))
            yield _with_alarms(
                other, Entry(entry.subject, rules_of(repeats, entry.rules, due)), due
            )


def _event(entry: Entry, start: datetime, now: datetime) -> Any:
    subject, data = entry.subject, entry.subject.data
    event = icalendar().Event()
    event.add("UID", subject.ref)
    event.add("DTSTAMP", now.astimezone(UTC).replace(microsecond=0))
    event.add("SUMMARY", str(data.get("title", subject.ref)))
    local = _local(start, subject)
    whole_day = data.get("all_day") is True and not any((local.hour, local.minute, local.second))
    event.add("DTSTART", local.date() if whole_day else local)
    if (span := _span(data)) is not None:
        event.add("DURATION", span)
    for name, prop in _TEXTS.items():
        if isinstance(data.get(name), str) and data[name]:
            event.add(prop, data[name])
    if subject.status != "open":
        event.add("STATUS", "CANCELLED")
    return event


def _with_alarms(event: Any, entry: Entry, due: datetime, *, single: bool = False) -> Any:
    for rule in entry.rules:
        times = rule_times(rule, due, entry.subject.tz)
        alarm = icalendar().Alarm()
        alarm.add("ACTION", "DISPLAY")
        alarm.add("DESCRIPTION", str(event["SUMMARY"]))
        # An absolute time is exact; of a series, only the distance holds for all of it.
        fixed = rule.at is not None or (single and rule.wall is not None)
        alarm.add("TRIGGER", times[0] if fixed else times[0] - due)
        if rule.every is not None and len(times) > 1:
            alarm.add("REPEAT", len(times) - 1)
            alarm.add("DURATION", rule.every)
        if rule.wall is not None or rule.every is not None:
            alarm.add("X-DUETIME-RULE", rule.text)
        event.add_component(alarm)
    return event


def _as_rule(repeats: Recurrence) -> tuple[RuleTimes | None, list[datetime]]:
    """The one rule that a recurrence is, and the moments beside it; None if it is more."""
    specs = repeats.timetable.specs
    rules = [spec for spec in specs if isinstance(spec, RuleTimes)]
    once = [spec.at for spec in specs if isinstance(spec, Once)]
    masks = any(" " in mask for mask in repeats.timetable.exclude)
    if len(rules) != 1 or len(rules) + len(once) != len(specs) or masks:
        return None, []
    begin = repeats.timetable.start
    return rules[0], [at for at in once if begin is None or at >= begin]


def _first(repeats: Recurrence) -> datetime | None:
    """The start of a series: its rule's, from which it counts."""
    rule = next(spec for spec in repeats.timetable.specs if isinstance(spec, RuleTimes))
    zone = parse_zone(repeats.timetable.tz)
    begin = max(rule.start or EPOCH, repeats.timetable.start or EPOCH)
    ticks = rule.ticks(zone, begin - _MOMENT, repeats.timetable.start)
    return next(ticks, None)


def _with_until(rule: str, repeats: Recurrence) -> str:
    end = repeats.timetable.end
    if end is None or "COUNT=" in rule or "UNTIL=" in rule:
        return rule
    return f"{rule};UNTIL={(end - _MOMENT).astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _excluded(repeats: Recurrence, now: datetime) -> Iterator[datetime]:
    """The occurrences that excluded dates leave out, up to some years from now."""
    if not repeats.timetable.exclude:
        return
    zone = parse_zone(repeats.timetable.tz)
    for text in repeats.timetable.exclude:
        day = datetime.fromisoformat(text)
        begin, end = to_instant(day, zone), to_instant(day + timedelta(days=1), zone)
        if begin < now + 5 * _AHEAD:
            ticks = (tick.at for tick in repeats.timetable.ticks(begin - _MOMENT))
            yield from takewhile(end.__gt__, ticks)


def _local(at: datetime, subject: Subject) -> datetime:
    if subject.tz == "UTC":
        return at.astimezone(UTC)
    return to_wall(at, parse_zone(subject.tz)).replace(tzinfo=parse_zone(subject.tz))


def _span(data: dict[str, Any]) -> timedelta | None:
    try:
        return parse_duration(data["duration"], name="duration") or None
    except (KeyError, InvalidInput, TypeError):
        return None
