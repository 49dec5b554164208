"""When a schedule ticks: cron expressions, intervals, recurrence rules and single moments, merged.

A tick is an instant. Those of a cron expression or a rule follow the wall clock of the timetable's
zone (see `cron` for what happens when clocks change); those of an interval follow elapsed time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from heapq import merge
from itertools import islice, takewhile
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from duetime.domain.cron import (
    Cron,
    elapsed_ticks,
    fixed_ticks,
    next_change,
    parse_cron,
    parse_zone,
    to_instant,
    to_wall,
)
from duetime.domain.duration import Duration, format_duration, parse_duration
from duetime.errors import InvalidInput, InvalidSchedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(9000, 1, 1, tzinfo=UTC)
"""Ticks lie between these two: every database, and every calendar calculation, can hold them."""
SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_JITTER = timedelta(days=1)
MOST_SPECS = 50
MOST_EXCLUSIONS = 1000
_LONGEST_JSON = 500_000
_LONGEST_RULE = 500
_MOMENT = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)

# No clock is read here; what fires after this day still fires.
_RECENTLY = datetime(2025, 1, 1, tzinfo=UTC)

Spec = str | timedelta | datetime | Mapping[str, Any]


class Tick(NamedTuple):
    """An instant (UTC), and why nothing runs then: None if it does."""

    at: datetime
    excluded: str | None


class CronTimes(msgspec.Struct, frozen=True):
    """A cron expression."""

    cron: str

    def ticks(self, zone: ZoneInfo, after: datetime, anchor: datetime | None) -> Iterator[datetime]:
        return parse_cron(self.cron).ticks(zone, after)

    def to_json(self) -> dict[str, str]:
        return {"cron": self.cron}

    def describe(self, tz: str) -> str:
        return f"cron {self.cron} ({tz})"


class Interval(msgspec.Struct, frozen=True):
    """Every so often in elapsed time, from an anchor: its start, the timetable's, or the epoch."""

    every: timedelta
    start: datetime | None = None

    def ticks(self, zone: ZoneInfo, after: datetime, anchor: datetime | None) -> Iterator[datetime]:
        tick = self.start or anchor or EPOCH
        if tick <= after:
            tick += ((after - tick) // self.every + 1) * self.every
        while True:
            yield tick
            tick += self.every

    def to_json(self) -> dict[str, str]:
        return {"every": format_duration(self.every)} | _start_json(self.start)

    def describe(self, tz: str) -> str:
        since = f" from {_iso(self.start)}" if self.start else ""
        return f"every {format_duration(self.every)}{since}"


class RuleTimes(msgspec.Struct, frozen=True):
    """A recurrence rule (RFC 5545), from its start, the timetable's, or the epoch's local day.

    Rules by the day and longer follow the wall clock, like fixed cron times. Rules by the hour and
    shorter count elapsed time, and their BY parts are read on the wall clock.
    """

    rrule: str
    start: datetime | None = None

    def ticks(self, zone: ZoneInfo, after: datetime, anchor: datetime | None) -> Iterator[datetime]:
        return _rule(self.rrule, self.start or anchor, zone).ticks(after)

    def to_json(self) -> dict[str, str]:
        return {"rrule": self.rrule} | _start_json(self.start)

    def describe(self, tz: str) -> str:
        since = f" from {_iso(self.start)}" if self.start else ""
        return f"rrule {self.rrule}{since} ({tz})"


class Once(msgspec.Struct, frozen=True):
    """A single moment."""

    at: datetime

    def ticks(self, zone: ZoneInfo, after: datetime, anchor: datetime | None) -> Iterator[datetime]:
        return iter((self.at,) if self.at > after else ())

    def to_json(self) -> dict[str, str]:
        return {"at": _iso(self.at)}

    def describe(self, tz: str) -> str:
        return f"at {_iso(self.at)}"


Times = CronTimes | Interval | RuleTimes | Once


class Timetable(msgspec.Struct, frozen=True):
    """When a schedule ticks. A value: equal if it says the same. Made by `timetable`."""

    specs: tuple[Times, ...]
    tz: str = "UTC"
    exclude: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    jitter: timedelta = timedelta(0)

    def ticks(self, after: datetime) -> Iterator[Tick]:
        """Yield the ticks after `after`, each once, ascending; the excluded ones with the reason.

        From `start` on, before `end`, in the years 1970 to 8999. Ends if there are no more.
        """
        first = self.start or EPOCH
        return self._ticks(max(_aware(after, "after"), first - _MOMENT), self.end or END)

    def _ticks(self, after: datetime, end: datetime) -> Iterator[Tick]:
        if after >= end:
            return
        zone = parse_zone(self.tz)
        streams = [spec.ticks(zone, after, self.start) for spec in self.specs]
        for at in streams[0] if len(streams) == 1 else merge(*streams):
            if at >= end:
                return
            if at > after:
                after = at
                yield Tick(at, self._excluded(at, zone) if self.exclude else None)

    def _excluded(self, at: datetime, zone: ZoneInfo) -> str | None:
        dates, masks = _masks(self.exclude)
        local = to_wall(at, zone)
        if local.date() in dates:
            return f"excluded date {local.date()}"
        for mask in masks:
            if mask.matches(local):
                return f"excluded by {mask.text!r}"
        return None

    def run_at(self, name: str, tick: datetime) -> datetime:
        """Return `tick` plus this schedule's jitter: the same in every process, less than `jitter`.

        >>> timetable("@daily", jitter="5m").run_at("digest", EPOCH) < EPOCH + timedelta(minutes=5)
        True
        """
        steps = self.jitter // _MILLISECOND
        if not steps:
            return tick
        digest = blake2b(f"{name}\0{_iso(tick)}".encode(), digest_size=8).digest()
        return tick + (int.from_bytes(digest) * steps >> 64) * _MILLISECOND

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads. Equal timetables give equal JSON."""
        value: dict[str, Any] = {"specs": [spec.to_json() for spec in self.specs], "tz": self.tz}
        if self.exclude:
            value["exclude"] = list(self.exclude)
        if self.start is not None:
            value["start"] = _iso(self.start)
        if self.end is not None:
            value["end"] = _iso(self.end)
        if self.jitter:
            value["jitter"] = format_duration(self.jitter)
        return value

    @classmethod
    def from_json(cls, value: Any) -> Timetable:
        """Return the timetable that `to_json` gave, as a mapping or as JSON text.

        Anyone may have written it: raises `InvalidSchedule` like `timetable`.
        """
        try:
            text = value if isinstance(value, str | bytes) else _ENCODER.encode(value)
        except (TypeError, ValueError, RecursionError):
            raise InvalidSchedule(f"A timetable is a JSON object, not {value!r:.60}.") from None
        return _stored(text)

    def describe(self) -> str:
        """Return one plain phrase.

        >>> timetable("0 9 * * 1-5", tz="America/New_York").describe()
        'cron 0 9 * * 1-5 (America/New_York)'
        """
        parts = [spec.describe(self.tz) for spec in self.specs[:3]]
        if len(self.specs) > 3:
            parts.append(f"{len(self.specs) - 3} more")
        phrase = " and ".join(parts)
        if self.exclude:
            shown = ", ".join(self.exclude[:3]) + (", …" if len(self.exclude) > 3 else "")
            phrase += f", except {shown}"
        phrase += f", starting {_iso(self.start)}" if self.start else ""
        phrase += f", ending {_iso(self.end)}" if self.end else ""
        return phrase + (f", up to {format_duration(self.jitter)} later" if self.jitter else "")


def timetable(
    *specs: Spec,
    tz: str = "UTC",
    exclude: Iterable[str | date] | str | date = (),
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    jitter: Duration | None = None,
) -> Timetable:
    """Return the timetable that these specs make together, or raise `InvalidSchedule`.

    A spec is a cron expression ("0 9 * * 1-5", "@daily", seconds first if it has 6 fields); an
    interval ("@every 10m", a timedelta, {"every": "10m", "start": …}); a rule ("RRULE:FREQ=…",
    {"rrule": …, "start": …}); or a moment (an aware datetime, its ISO text, {"at": …}).
    `exclude` masks local dates ("2026-12-25") and what cron expressions match. `start` is
    inclusive, `end` is not.

    >>> night = timetable("0 2 * * *", {"at": "2026-03-08T12:00Z"}, tz="Europe/Berlin")
    >>> [tick.at.hour for tick, _ in zip(night.ticks(datetime(2026, 3, 8, tzinfo=UTC)), "ab")]
    [1, 12]
    """
    zone = parse_zone(tz)
    first = None if start is None else _moment(start, "start")
    last = None if end is None else _moment(end, "end")
    if first and last and last <= first:
        raise InvalidSchedule(f"The end {_iso(last)} must be later than the start {_iso(first)}.")
    if not 1 <= len(specs) <= MOST_SPECS:
        raise InvalidSchedule(f"A timetable has 1 to {MOST_SPECS} specs, got {len(specs)}.")
    read = {_canonical(spec): spec for spec in (_read_spec(spec, zone, first) for spec in specs)}
    made = Timetable(
        specs=tuple(read[text] for text in sorted(read)),
        tz=tz,
        exclude=_read_exclusions(exclude),
        start=first,
        end=last,
        jitter=_read_jitter(jitter),
    )
    if last is not None and next(made.ticks(EPOCH - _MOMENT), None) is None:
        raise InvalidSchedule(
            f"The timetable '{made.describe()}' never fires: no tick lies between start and end."
        )
    return made


def rule_walls(
    spec: RuleTimes, zone: ZoneInfo, after: datetime, anchor: datetime | None
) -> Iterator[datetime]:
    """Yield the wall times after `after` of a rule that follows the wall clock."""
    return _rule(spec.rrule, spec.start or anchor, zone).fixed_walls(after)


_ENCODER = msgspec.json.Encoder(order="deterministic")


@lru_cache(maxsize=4096)
def _stored(text: str | bytes) -> Timetable:
    if len(text) > _LONGEST_JSON:
        raise InvalidSchedule(f"A timetable's JSON has at most {_LONGEST_JSON} characters.")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidSchedule(f"The stored timetable is not JSON: {error}.") from None
    if not isinstance(value, dict) or not isinstance(value.get("specs"), list):
        raise InvalidSchedule('A timetable is a JSON object such as {"specs": ["0 9 * * *"]}.')
    known = {"specs", "tz", "exclude", "start", "end", "jitter"}
    if unknown := sorted(set(value) - known):
        raise InvalidSchedule(f"A timetable has no {unknown[0]!r:.60}. It has {sorted(known)}.")
    specs = value.pop("specs")
    return timetable(*specs, **value)


def _canonical(spec: Times) -> str:
    return _ENCODER.encode(spec.to_json()).decode()


def _read_spec(spec: Any, zone: ZoneInfo, anchor: datetime | None) -> Times:
    if isinstance(spec, Mapping):
        return _read_mapping(spec, zone, anchor)
    if isinstance(spec, timedelta):
        return _read_interval(spec, None)
    if isinstance(spec, datetime):
        return Once(_moment(spec, "A moment"))
    if not isinstance(spec, str):
        raise InvalidSchedule(
            f"A spec is a string, a timedelta, an aware datetime or a mapping, not {spec!r:.60}."
        )
    text = spec.strip()
    if text[:7].lower() == "@every ":
        return _read_interval(text[7:].strip(), None)
    if text[:7].upper().startswith(("RRULE:", "DTSTART", "FREQ=")):
        return _read_rule(text, None, zone, anchor)
    if re.match(r"\d{4}-?\d\d-?\d\d($|[T ])", text):
        return Once(_moment(text, "A moment"))
    return _read_cron(spec, zone)


def _read_mapping(spec: Mapping[str, Any], zone: ZoneInfo, anchor: datetime | None) -> Times:
    keys = set(spec)
    if keys == {"cron"} and isinstance(spec["cron"], str):
        return _read_cron(spec["cron"], zone)
    if keys == {"at"}:
        return Once(_moment(spec["at"], "A moment"))
    start = spec.get("start")
    start = None if start is None else _moment(start, "A spec's start")
    if keys - {"start"} == {"every"}:
        return _read_interval(spec["every"], start)
    if keys - {"start"} == {"rrule"} and isinstance(spec["rrule"], str):
        return _read_rule(spec["rrule"], start, zone, anchor)
    raise InvalidSchedule(
        f'A spec is {{"cron": …}}, {{"at": …}}, {{"every": …, "start": …}} or '
        f'{{"rrule": …, "start": …}}, not {dict(spec)!r:.100}.'
    )


def _read_cron(text: str, zone: ZoneInfo) -> CronTimes:
    cron = parse_cron(text)
    if next(cron.ticks(zone, _RECENTLY), None) is None:
        raise InvalidSchedule(
            f"Cron expression {cron.text!r} never fires in {zone.key}: clocks go forward over it."
        )
    return CronTimes(cron.text)


def _read_interval(every: Any, start: datetime | None) -> Interval:
    span = _span(every, "An interval")
    if span < SHORTEST_INTERVAL or span % _MILLISECOND:
        raise InvalidSchedule(
            f"An interval is at least {format_duration(SHORTEST_INTERVAL)} and whole "
            f"milliseconds, got {format_duration(span)}. Enqueue from a handler to go faster."
        )
    return Interval(span, start)


def _read_exclusions(exclude: Any) -> tuple[str, ...]:
    if not isinstance(exclude, Iterable | date) or isinstance(exclude, Mapping):
        raise InvalidSchedule(
            f"exclude is a list of dates and cron expressions, not {exclude!r:.60}."
        )
    given = [exclude] if isinstance(exclude, str | date) else list(exclude)
    if len(given) > MOST_EXCLUSIONS:
        raise InvalidSchedule(
            f"A timetable has at most {MOST_EXCLUSIONS} exclusions, got {len(given)}."
        )
    return tuple(sorted({_read_exclusion(one) for one in given}))


def _read_exclusion(one: Any) -> str:
    if isinstance(one, datetime) or not isinstance(one, str | date):
        raise InvalidSchedule(
            f"An exclusion is a date or a cron expression, not {one!r:.60}. "
            "A date is a local day of the timetable's zone."
        )
    if isinstance(one, date):
        return one.isoformat()
    if re.fullmatch(r"\d{4}-\d\d-\d\d", one.strip(), re.ASCII):
        try:
            return date.fromisoformat(one.strip()).isoformat()
        except ValueError:
            raise InvalidSchedule(f"There is no date {one.strip()}; correct it.") from None
    cron = parse_cron(one)
    if cron.matches_always():
        raise InvalidSchedule(
            f"The exclusion {cron.text!r} masks every tick. Pause the schedule instead."
        )
    return cron.text


def _read_jitter(jitter: Any) -> timedelta:
    span = timedelta(0) if jitter is None else _span(jitter, "jitter")
    if span > LONGEST_JITTER or span % _MILLISECOND:
        raise InvalidSchedule(
            f"jitter is at most {format_duration(LONGEST_JITTER)} and whole milliseconds, "
            f"got {format_duration(span)}."
        )
    return span


@lru_cache(maxsize=1024)
def _masks(exclude: tuple[str, ...]) -> tuple[frozenset[date], tuple[Cron, ...]]:
    dates = frozenset(date.fromisoformat(one) for one in exclude if " " not in one)
    return dates, tuple(parse_cron(one) for one in exclude if " " in one)


def _span(value: Any, name: str) -> timedelta:
    try:
        return parse_duration(value, name=name)
    except InvalidInput as error:
        raise InvalidSchedule(str(error)) from None


def _moment(value: Any, name: str) -> datetime:
    """Return an aware datetime, or its ISO text, in UTC, if a tick can lie there."""
    instant = _aware(value, name)
    if not EPOCH <= instant < END:
        raise InvalidSchedule(
            f"{name} must lie in the years 1970 to 8999, got {instant.isoformat()}."
        )
    return instant


def _aware(value: Any, name: str) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise InvalidSchedule(
                f"{name} {value[:40]!r} is not a time. Write it as '2026-01-01T09:00:00Z'."
            ) from None
    if not isinstance(value, datetime):
        raise InvalidSchedule(f"{name} must be a datetime with a time zone, not {value!r:.60}.")
    if value.utcoffset() is None:
        raise InvalidSchedule(
            f"{name} has no time zone: {value.isoformat()}. Give an aware datetime, or text that "
            "ends in 'Z' or an offset such as '+02:00'."
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidSchedule(
            f"{name} lies outside of the calendar: {value.isoformat()}."
        ) from None


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def _start_json(start: datetime | None) -> dict[str, str]:
    return {} if start is None else {"start": _iso(start)}


_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_STEPS = (
    *(None, None, timedelta(weeks=1), timedelta(days=1)),
    *(timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)),
)
# What a part may hold: BYMONTHDAY=0 and its like would be ignored, not refused.
_PARTS = {
    "FREQ": "|".join(_FREQUENCIES),
    "INTERVAL": r"[1-9]\d{0,3}",
    "COUNT": r"[1-9]\d{0,3}",
    "UNTIL": r"\d{8}(T\d{6}Z?)?",
    "WKST": "MO|TU|WE|TH|FR|SA|SU",
    "BYDAY": r"([+-]?([1-9]|[1-4]\d|5[0-3]))?(MO|TU|WE|TH|FR|SA|SU)",
    "BYMONTH": r"[1-9]|1[0-2]",
    "BYMONTHDAY": r"[+-]?([1-9]|[12]\d|3[01])",
    "BYYEARDAY": r"[+-]?([1-9]\d?|[12]\d\d|3[0-5]\d|36[0-6])",
    "BYWEEKNO": r"[+-]?([1-9]|[1-4]\d|5[0-3])",
    "BYSETPOS": r"[+-]?([1-9]\d?|[12]\d\d|3[0-5]\d|36[0-6])",
    "BYHOUR": r"[01]?\d|2[0-3]",
    "BYMINUTE": r"[0-5]?\d",
    "BYSECOND": r"[0-5]?\d",
}
_DATE_PARTS = ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY")
_DAILY = _FREQUENCIES.index("DAILY")
_LISTS = tuple(name for name in _PARTS if name.startswith("BY"))
# A step of dateutil's search takes about half a microsecond, that of a frequency so many of them.
# A rule is accepted if it fires within 440 years or 46 years of days; later, it may take longer.
_COSTS = (500, 60, 60, 13, 1, 1, 1)
_DAY_COST = 500
_STEPS_TO_ACCEPT = 220_000
_MOST_STEPS = 5 * _STEPS_TO_ACCEPT
_MOST_COUNTED = 1000
_MOST_TIMES_A_DAY = 96


def _read_rule(
    text: str, start: datetime | None, zone: ZoneInfo, anchor: datetime | None
) -> RuleTimes:
    """Return the rule without its DTSTART line, which gives the start."""
    if len(text) > _LONGEST_RULE:
        raise InvalidSchedule(f"A rule has at most {_LONGEST_RULE} characters, got {len(text)}.")
    rules = []
    for line in text.split():
        if line[:7].upper() == "DTSTART":
            if start is not None:
                raise InvalidSchedule(f"The rule {text!r} has two starts; keep one.")
            start = _read_dtstart(line, zone)
        else:
            rules.append(line.upper().removeprefix("RRULE:"))
    if len(rules) != 1:
        raise InvalidSchedule(
            f"A rule is one RRULE line, after a DTSTART line if it has one, not {text!r}. "
            "Give several rules as several specs, and dates to leave out as exclude=."
        )
    if start is not None and start.microsecond:
        raise InvalidSchedule(f"A rule starts at a whole second, not at {_iso(start)}.")
    rule = _rule(rules[0], start or anchor, zone)
    if next(rule.ticks(EPOCH - _MOMENT, steps=_STEPS_TO_ACCEPT), None) is None:
        raise InvalidSchedule(f"The rule {text!r} never fires; correct it.")
    return RuleTimes(rules[0], start)


def _read_dtstart(line: str, zone: ZoneInfo) -> datetime:
    found = re.fullmatch(
        r"DTSTART(;VALUE=DATE(?:-TIME)?)?(?:;TZID=([^:;]+))?:(\d{8}(?:T\d{6}Z?)?)",
        line,
        re.IGNORECASE,
    )
    if found is None:
        raise InvalidSchedule(f"{line!r} cannot be read. Write 'DTSTART:20260105T090000'.")
    if found[2] is not None and found[2] != zone.key:
        raise InvalidSchedule(
            f"The rule's zone {found[2]!r} is not the timetable's, {zone.key!r}. "
            "Give the timetable that tz."
        )
    return _rule_moment(found[3].upper(), zone)


def _rule_moment(text: str, zone: ZoneInfo) -> datetime:
    form = "%Y%m%dT%H%M%S" if "T" in text else "%Y%m%d"
    try:
        wall = datetime.strptime(text.removesuffix("Z"), form)  # noqa: DTZ007
        return wall.replace(tzinfo=UTC) if text.endswith("Z") else to_instant(wall, zone)
    except (ValueError, OverflowError):
        raise InvalidSchedule(f"There is no time {text!r}; correct it in the rule.") from None


class _Rule:
    """A recurrence rule at work in a zone."""

    def __init__(self, text: str, start: datetime | None, zone: ZoneInfo) -> None:
        parts = _rule_parts(text)
        self.text = text
        self.zone = zone
        self.start = start or to_instant(datetime(1970, 1, 1), zone)  # noqa: DTZ001
        self.frequency = _FREQUENCIES.index(parts["FREQ"])
        self.interval = int(parts.pop("INTERVAL", "1"))
        self.until = _until(parts.pop("UNTIL", None), zone)
        count = int(parts.pop("COUNT", "0"))
        if count and (start is None or count > _MOST_COUNTED or self.until):
            raise InvalidSchedule(
                f"A rule with COUNT needs a start, at most {_MOST_COUNTED} times, and no UNTIL: "
                f"{text!r}."
            )
        self.days = None
        if self.frequency > _DAILY and any(name in parts for name in _DATE_PARTS):
            dates = {name: parts.pop(name) for name in _DATE_PARTS if name in parts}
            self.days = _dateutil_rule({"FREQ": "DAILY"} | dates, text)
        self.rule = _dateutil_rule(parts, text)
        self.cost = _COSTS[self.frequency] * (4 if "BYSETPOS" in parts else 1)
        self.counted = self._count(count) if count else None

    def ticks(self, after: datetime, *, steps: int = _MOST_STEPS) -> Iterator[datetime]:
        if self.counted is not None:
            return iter([tick for tick in self.counted if tick > after])
        ticks = self._every_tick(after, _Search(self.text, steps))
        until = self.until
        return ticks if until is None else takewhile(until.__ge__, ticks)

    def fixed_walls(self, after: datetime) -> Iterator[datetime]:
        """Yield the wall times after `after`, if the rule follows the wall clock."""
        if self.frequency > _DAILY:
            return iter(())
        return self._walls(after, to_wall(self.start, self.zone), _Search(self.text, _MOST_STEPS))

    def _every_tick(self, after: datetime, search: _Search) -> Iterator[datetime]:
        after = max(after, self.start - _MOMENT)
        start = self.start.replace(tzinfo=None)
        if self.frequency <= _DAILY:
            first = to_wall(self.start, self.zone)
            return fixed_ticks(lambda wall: self._walls(wall, first, search), self.zone, after)
        walls = self._walls if self.days is None else self._walls_on_days
        return elapsed_ticks(
            lambda wall, offset: walls(wall, start + offset, search), self.zone, after
        )

    def _count(self, count: int) -> tuple[datetime, ...]:
        century = self.start + timedelta(days=36525)
        ticks = self._every_tick(
            self.start - _MOMENT, _Search(self.text, _MOST_STEPS, refill=False)
        )
        counted = tuple(islice(takewhile(century.__gt__, ticks), count))
        if len(counted) < count:
            raise InvalidSchedule(f"The rule {self.text!r} takes over a century for its COUNT.")
        return counted

    def _walls(self, after: datetime, start: datetime, search: _Search) -> Iterator[datetime]:
        """Yield the rule's wall times after `after`, counted from `start`."""
        interval = _Interval(self.interval, search, self.cost)
        start = _ahead(start, after, self.frequency, self.interval)
        try:
            for wall in self.rule.replace(dtstart=start, interval=interval):
                if wall > after:
                    yield wall
                    search.found()  # Who asks for more could use this one.
        except InvalidSchedule:
            raise
        except ValueError:
            return  # dateutil finds out late that the interval meets none of the BY parts.

    def _walls_on_days(
        self, after: datetime, start: datetime, search: _Search
    ) -> Iterator[datetime]:
        """Yield the same, day by day: dateutil would walk through each second of other days.

        Up to the next clock change at least: then, the interval meets other times of the day.
        """
        assert self.days is not None
        offset = start - self.start.replace(tzinfo=None)
        now = (after - offset + _MOMENT).replace(tzinfo=UTC)
        change = next_change(self.zone, now, now + timedelta(days=366))
        midnight = max(start, after).replace(hour=0, minute=0, second=0, microsecond=0)
        interval = _Interval(1, search, _COSTS[_DAILY])
        for day in self.days.replace(dtstart=max(midnight, search.day), interval=interval):
            if change is not None and day > change.replace(tzinfo=None) + offset:
                return
            search.spend(_DAY_COST)
            # Clocks that go back may show the day before once more.
            search.day = day - timedelta(days=2)
            before, end = max(after, day - _MOMENT), day + timedelta(days=1)
            yield from takewhile(end.__gt__, self._walls(before, start, search))


class _Search:
    """What is left of the steps that a search for the next tick may take.

    `day`: no day before it needs to be looked at again.
    """

    def __init__(self, text: str, steps: int, *, refill: bool = True) -> None:
        self.text = text
        self.steps = self.left = steps
        self.refill = refill
        self.day = datetime.min  # noqa: DTZ901

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise InvalidSchedule(
                f"The rule {self.text!r} never fires, or too rarely to be found in time. "
                "Correct it, or write it as a cron expression."
            )

    def found(self) -> None:
        if self.refill:
            self.left = self.steps


class _Interval(int):
    """An interval that tells the search how often it is used.

    dateutil looks for a match until the year 9999, for hours if need be, and cannot be told to
    stop. But each round of its search adds the interval, or multiplies it.
    """

    def __new__(cls, value: int, search: _Search, cost: int) -> _Interval:
        made = super().__new__(cls, value)
        made.search = search
        made.cost = cost
        return made

    search: _Search
    cost: int

    def __radd__(self, other: int) -> int:
        self.search.spend(self.cost)
        return other + int(self)

    def __mul__(self, other: int) -> int:
        self.search.spend(self.cost)
        return int(self) * other


@lru_cache(maxsize=1024)
def _rule(text: str, start: datetime | None, zone: ZoneInfo) -> _Rule:
    return _Rule(text, start, zone)


def _rule_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.split(";"):
        name, _, value = part.partition("=")
        values = value.split(",") if name in _LISTS else [value]
        if name not in _PARTS or name in parts:
            raise InvalidSchedule(
                f"The rule {text!r} has an unknown or repeated part {part[:40]!r}. "
                f"Parts are {', '.join(_PARTS)}, separated by semicolons."
            )
        if not all(re.fullmatch(_PARTS[name], one, re.ASCII) for one in values):
            raise InvalidSchedule(
                f"The rule {text!r} has a bad value in {part[:60]!r}; correct it."
            )
        parts[name] = value
    if "FREQ" not in parts:
        raise InvalidSchedule(f"The rule {text!r} has no FREQ. Begin with 'RRULE:FREQ=DAILY'.")
    _check_rule(parts, text)
    return parts


def _check_rule(parts: dict[str, str], text: str) -> None:
    """Refuse what dateutil would take for something else, or search for too long."""
    frequency = _FREQUENCIES.index(parts["FREQ"])
    numbers = [int(number) for number in re.findall(r"\d+", parts.get("BYDAY", ""))]
    most = 0 if frequency > 1 else 53 if frequency == 0 and "BYMONTH" not in parts else 5
    if max(numbers, default=0) > most:
        raise InvalidSchedule(
            f"The rule {text!r} numbers its weekdays too high. A number needs FREQ=MONTHLY, or "
            "FREQ=YEARLY with BYMONTH (up to 5), or FREQ=YEARLY alone (up to 53)."
        )
    if frequency > _DAILY and "BYSETPOS" in parts:
        raise InvalidSchedule(f"The rule {text!r} has BYSETPOS, which needs days or longer.")
    times = 1
    for name in ("BYHOUR", "BYMINUTE", "BYSECOND"):
        times *= len(set(parts.get(name, "0").split(",")))
    if frequency <= _DAILY and times > _MOST_TIMES_A_DAY:
        raise InvalidSchedule(
            f"The rule {text!r} names {times} times a day; at most {_MOST_TIMES_A_DAY} are "
            "allowed. Write it with FREQ=MINUTELY, or as a cron expression."
        )


def _dateutil_rule(parts: dict[str, str], text: str) -> Any:
    try:
        from dateutil.rrule import rrulestr
    except ImportError:
        raise InvalidSchedule(
            "Recurrence rules need python-dateutil: pip install 'duetime[rrule]'."
        ) from None
    rest = ";".join(f"{name}={value}" for name, value in parts.items())
    try:
        return rrulestr(rest, dtstart=datetime(1970, 1, 1))  # noqa: DTZ001
    except (ValueError, TypeError, IndexError) as error:
        raise InvalidSchedule(f"The rule {text!r} cannot be read: {error}.") from None


def _until(text: str | None, zone: ZoneInfo) -> datetime | None:
    """The last instant that the rule allows: a bare date means the whole local day."""
    if text is None:
        return None
    if "T" in text:
        return _rule_moment(text, zone)
    return _rule_moment(text + "T235959", zone)


def _ahead(start: datetime, after: datetime, frequency: int, interval: int) -> datetime:
    """Move `start` by whole intervals to shortly before `after`: dateutil counts every one."""
    step = _STEPS[frequency]
    if step is not None:
        # One interval less: dateutil sees only the rest of the first week.
        return start + max((after - start) // (step * interval) - 1, 0) * step * interval
    months = interval * (12 if frequency == 0 else 1)
    passed = ((after.year - start.year) * 12 + after.month - start.month) // months
    for count in range(passed, 0, -1):
        year, month = divmod(start.year * 12 + start.month - 1 + count * months, 12)
        try:
            moved = start.replace(year=year, month=month + 1)
        except ValueError:
            continue  # A month without that day.
        if moved <= after:
            return moved
    return start
