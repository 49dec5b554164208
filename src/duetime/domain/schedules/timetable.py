"""When a schedule ticks: cron expressions, intervals, recurrence rules and single moments, merged.

A tick is an instant. Those of a cron expression or a rule follow the wall clock of the timetable's
zone (see `cron` for what happens when clocks change); those of an interval follow elapsed time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from hashlib import blake2b
from heapq import merge
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from duetime.domain import effort
from duetime.domain.duration import MAX_DURATION, Duration, format_duration, parse_duration
from duetime.domain.reasons import Reason
from duetime.domain.schedules.cron import (
    Cron,
    next_change,
    parse_cron,
    parse_zone,
    to_wall,
)
from duetime.domain.schedules.rrule import find_rule, read_rule
from duetime.errors import InvalidInput, InvalidSchedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(9000, 1, 1, tzinfo=UTC)
"""Ticks lie between these two: every database, and every calendar calculation, can hold them."""
MIN_INTERVAL = timedelta(seconds=1)
MAX_JITTER = timedelta(days=1)
MAX_SPECS = 50
MAX_EXCLUSIONS = 1000
_MAX_JSON_LENGTH = 500_000
_MAX_MASKED = 20_000
"""How many excluded ticks in a row are checked: about a quarter of a second."""
_STEPS_TO_READ = 1_500_000
_TOO_LONG = "The times take too long to compute. Give fewer or simpler specs and exclusions."
_MAX_YEARS_MASKED = 100
"""What masks allow comes again sooner: 29 February on a given weekday within 40 years."""
_MASKS_A_STEP = 50
"""How many masks are compared in about the time in which a tick is found."""
_MOMENT = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_MILLISECOND = timedelta(milliseconds=1)

# No clock is read here; what fires after this day still fires.
_RECENTLY = datetime(2025, 1, 1, tzinfo=UTC)


Spec = str | timedelta | datetime | Mapping[str, Any]
Exclusions = str | date | Iterable[str | date]


class Tick(NamedTuple):
    """An instant (UTC), and why nothing runs then: None if it does."""

    at: datetime
    excluded: Reason | None


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
        return find_rule(self.rrule, self.start or anchor, zone).ticks(after)

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
        return self._ticks(max(read_aware(after, "after"), first - _MOMENT), self.end or END)

    @property
    def moments(self) -> list[datetime]:
        """The single moments among its specs."""
        return [spec.at for spec in self.specs if isinstance(spec, Once)]

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
                effort.spend(effort.STEPS_A_TICK)
                yield Tick(at, self._excluded(at, zone) if self.exclude else None)

    def _excluded(self, at: datetime, zone: ZoneInfo) -> Reason | None:
        dates, masks = _masks(self.exclude)
        local = to_wall(at, zone)
        if local.date() in dates:
            return Reason.of("excluded_date", date=local.date().isoformat())
        for mask in masks:
            if mask.matches(local):
                return Reason.of("excluded_mask", mask=mask.text)
        return None

    def runs(self, after: datetime, until: datetime = END) -> Iterator[datetime]:
        """Yield the ticks after `after`, up to `until`, that are not excluded.

        Raises `InvalidSchedule` if very many in a row are excluded, since that may go on for ever.

        >>> hourly = timetable("0 * * * *", exclude=["* 0-22 * * *"])
        >>> next(hourly.runs(datetime(2026, 3, 8, tzinfo=UTC))).hour
        23
        """
        zone = parse_zone(self.tz)
        step = 1 + len(_masks(self.exclude)[1]) // _MASKS_A_STEP
        last, left = after, _MAX_MASKED
        while True:
            before = None
            for tick in self.ticks(after):
                if tick.at > until:
                    return
                if tick.excluded is None:
                    last, left, before = tick.at, _MAX_MASKED, None
                    yield tick.at
                    continue
                left -= step
                if left < 0 or tick.at.year > last.year + _MAX_YEARS_MASKED:
                    raise InvalidSchedule(
                        f"The exclusions of '{self.describe()}' leave no tick after {_iso(last)}, "
                        "or too few to be found. Remove some of them, or pause the schedule."
                    )
                if before is not None and tick.at - before < _DAY:
                    masked_until = self._masked_until(before, zone)
                    if tick.at < masked_until:
                        # There are many: go straight to where they may end.
                        after = masked_until - _MOMENT
                        break
                before = tick.at
            else:
                return

    def _masked_until(self, at: datetime, zone: ZoneInfo) -> datetime:
        """Up to when all ticks are excluded, given one that is."""
        dates, masks = _masks(self.exclude)
        local = to_wall(at, zone)
        if local.date() in dates:
            end = datetime.combine(local.date() + _DAY, time())
        else:
            end = max(mask.matches_until(local) for mask in masks if mask.matches(local))
        until = at + (end - local)
        # Later, the clock shows other times.
        return next_change(zone, at, until) or until

    def run_at(self, name: str, tick: datetime) -> datetime:
        """Return `tick` plus this schedule's jitter: the same in every process, less than `jitter`.

        >>> timetable("@daily", jitter="5m").run_at("digest", EPOCH) < EPOCH + timedelta(minutes=5)
        True
        """
        steps = self.jitter // _MILLISECOND
        if not steps:
            return tick
        hashed = blake2b(f"{name}\0{_iso(tick)}".encode(), digest_size=8).digest()
        return tick + (int.from_bytes(hashed) * steps >> 64) * _MILLISECOND

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
    exclude: Exclusions = (),
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
    with effort.limited(_STEPS_TO_READ, _TOO_LONG):
        return _timetable(specs, tz, exclude, start, end, jitter)


def _timetable(
    specs: tuple[Any, ...], tz: Any, exclude: Any, start: Any, end: Any, jitter: Any
) -> Timetable:
    zone = parse_zone(tz)
    first = None if start is None else _moment(start, "start")
    last = None if end is None else _moment(end, "end")
    if first and last and last <= first:
        raise InvalidSchedule(f"The end {_iso(last)} must be later than the start {_iso(first)}.")
    if not 1 <= len(specs) <= MAX_SPECS:
        raise InvalidSchedule(f"A timetable has 1 to {MAX_SPECS} specs, got {len(specs)}.")
    read = {_canonical(spec): spec for spec in (_read_spec(spec, zone, first) for spec in specs)}
    made = Timetable(
        specs=tuple(read[text] for text in sorted(read)),
        tz=tz,
        exclude=_read_exclusions(exclude),
        start=first,
        end=last,
        jitter=_read_jitter(jitter),
    )
    if (made.exclude or last is not None) and next(made.runs(EPOCH - _MOMENT), None) is None:
        where = "between start and end" if last is not None else "outside of the exclusions"
        raise InvalidSchedule(
            f"The timetable '{made.describe()}' never fires: no tick lies {where}."
        )
    return made


def rule_walls(
    spec: RuleTimes, zone: ZoneInfo, after: datetime, anchor: datetime | None
) -> Iterator[datetime]:
    """Yield the wall times after `after` of a rule that follows the wall clock."""
    return find_rule(spec.rrule, spec.start or anchor, zone).fixed_walls(after)


_ENCODER = msgspec.json.Encoder(order="deterministic")


@lru_cache(maxsize=4096)
def _stored(text: str | bytes) -> Timetable:
    if len(text) > _MAX_JSON_LENGTH:
        raise InvalidSchedule(f"A timetable's JSON has at most {_MAX_JSON_LENGTH} characters.")
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
        return RuleTimes(*read_rule(text, None, zone, anchor))
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
        return RuleTimes(*read_rule(spec["rrule"], start, zone, anchor))
    raise InvalidSchedule(
        f'A spec is {{"cron": …}}, {{"at": …}}, {{"every": …, "start": …}} or '
        f'{{"rrule": …, "start": …}}, not {dict(spec)!r:.100}.'
    )


def _read_cron(text: str, zone: ZoneInfo) -> CronTimes:
    cron = parse_cron(text)
    if next(cron.ticks(zone, _RECENTLY), None) is None:
        raise InvalidSchedule(
            f"Cron expression {text!r} never fires in {zone.key}: clocks go forward over it."
        )
    return CronTimes(cron.text)


def _read_interval(every: Any, start: datetime | None) -> Interval:
    span = _span(every, "An interval")
    if span < MIN_INTERVAL or span % _MILLISECOND:
        raise InvalidSchedule(
            f"An interval is at least {format_duration(MIN_INTERVAL)} and whole "
            f"milliseconds, got {format_duration(span)}. Enqueue from a handler to go faster."
        )
    return Interval(span, start)


def _read_exclusions(exclude: Any) -> tuple[str, ...]:
    if not isinstance(exclude, Iterable | date) or isinstance(exclude, Mapping):
        raise InvalidSchedule(
            f"exclude is a list of dates and cron expressions, not {exclude!r:.60}."
        )
    given = [exclude] if isinstance(exclude, str | date) else list(exclude)
    if len(given) > MAX_EXCLUSIONS:
        raise InvalidSchedule(
            f"A timetable has at most {MAX_EXCLUSIONS} exclusions, got {len(given)}."
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
            f"The exclusion {one!r} masks every tick. Pause the schedule instead."
        )
    return cron.text


def _read_jitter(jitter: Any) -> timedelta:
    span = timedelta(0) if jitter is None else _span(jitter, "jitter", most=MAX_JITTER)
    if span % _MILLISECOND:
        raise InvalidSchedule(f"jitter must be whole milliseconds, got {format_duration(span)}.")
    return span


@lru_cache(maxsize=1024)
def _masks(exclude: tuple[str, ...]) -> tuple[frozenset[date], tuple[Cron, ...]]:
    dates = frozenset(date.fromisoformat(one) for one in exclude if " " not in one)
    return dates, tuple(parse_cron(one) for one in exclude if " " in one)


def _span(value: Any, name: str, *, most: timedelta = MAX_DURATION) -> timedelta:
    try:
        return parse_duration(value, name=name, most=most)
    except InvalidInput as error:
        raise InvalidSchedule(str(error)) from None


def _moment(value: Any, name: str) -> datetime:
    """Return an aware datetime, or its ISO text, in UTC, if a tick can lie there."""
    instant = read_aware(value, name)
    if not EPOCH <= instant < END:
        raise InvalidSchedule(
            f"{name} must lie in the years 1970 to 8999, got {instant.isoformat()}."
        )
    return instant


def read_aware(value: Any, name: str) -> datetime:
    """Return an aware datetime, or its ISO text, in UTC."""
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
