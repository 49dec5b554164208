"""Cron expressions and time zones: which instants a wall clock means when clocks change.

`cronsim` reads the expressions and finds matching wall times; this module maps them to instants.
An expression is *fixed* if none of its second, minute and hour fields starts with `*` (Debian
cron's rule, carried over to seconds); else it is *elapsed*.

- Fixed, clocks go forward over it: runs once, at the first moment after the gap.
- Fixed, clocks go back over it: runs once, the first time.
- Elapsed: follows real time. Nothing runs for the gap; a repeated hour runs in both passes.

Instants only ever increase, whatever the zone does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from duetime.domain.schedules.cron_fields import FIELDS, nearest_weekday, translate
from duetime.errors import InvalidSchedule

MAX_CRON_LENGTH = 200
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_CHARACTERS = re.compile(r"[ \t0-9A-Za-z*,/#?-]+")
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}")
# `right` counts leap seconds, and `localtime` is another zone on another machine.
_NOT_ZONES = ("right", "posix", "posixrules", "localtime", "build")
_SOME_DAY = datetime(2024, 1, 1)  # noqa: DTZ001
_SECOND = timedelta(seconds=1)
_MOMENT = timedelta(microseconds=1)
_PATIENCE = 50
"""Years without a tick after which there is none: 29 February on a given weekday takes up to 40."""


class Cron:
    """A cron expression of 5 fields, or of 6 with the seconds first. Made by `parse_cron`."""

    __slots__ = ("_sim", "fixed", "has_seconds", "text")

    def __init__(self, written: str) -> None:
        fields = written.upper().split()
        self.text = " ".join(fields)
        self.has_seconds = len(fields) == 6
        self.fixed = not any(field.startswith("*") for field in fields[: len(fields) - 3])
        self._sim = _read(written, fields)

    def __repr__(self) -> str:
        return f"Cron({self.text!r})"

    def walls(self, after: datetime) -> Iterator[datetime]:
        """Yield the matching wall times (naive) after the wall time `after`."""
        sim = copy(self._sim)
        sim.dt = after.replace(microsecond=0)
        yield from sim

    def ticks(self, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
        """Yield the instants (UTC) after `after` at which it runs in `zone`.

        >>> cron = parse_cron("30 2 * * *")
        >>> saturday = datetime(2026, 3, 7, 12, tzinfo=UTC)
        >>> next(cron.ticks(parse_zone("America/New_York"), saturday)).isoformat()
        '2026-03-08T07:00:00+00:00'
        """
        if self.fixed:
            return fixed_ticks(self.walls, zone, after)
        return elapsed_ticks(lambda wall, _: self.walls(wall), zone, after)

    def matches(self, wall: datetime) -> bool:
        """Whether `wall` lies in a matching minute (of 5 fields) or second (of 6)."""
        sim = self._sim
        return (
            wall.minute in sim.minutes
            and wall.hour in sim.hours
            and wall.month in sim.months
            and (not self.has_seconds or wall.second in sim.seconds)
            and sim.match_day(wall.date())
        )

    def matches_always(self) -> bool:
        """Whether every minute matches."""
        return all(field in ("*", "*/1") for field in self.text.split())

    def matches_until(self, wall: datetime) -> datetime:
        """Return up to when all times match, given one that does: the end of its day, hour, minute
        or second, whichever the expression has whole. It may match longer."""
        sim = self._sim
        if self.has_seconds and len(sim.seconds) < 60:
            return wall.replace(microsecond=0) + _SECOND
        if len(sim.minutes) < 60:
            return wall.replace(second=0, microsecond=0) + timedelta(minutes=1)
        if len(sim.hours) < 24:
            return wall.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        return wall.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


@lru_cache(maxsize=4096)
def parse_cron(text: str) -> Cron:
    """Return the expression, or raise `InvalidSchedule`: it cannot be read, or never fires.

    >>> parse_cron("@Daily").text
    '0 0 * * *'
    >>> parse_cron("30  9 * * mon-fri").text
    '30 9 * * MON-FRI'
    """
    if not isinstance(text, str) or len(text) > MAX_CRON_LENGTH:
        raise InvalidSchedule(
            f"A cron expression must be a string of at most {MAX_CRON_LENGTH} characters, got "
            + (f"{len(text)}." if isinstance(text, str) else f"{text!r}.")
        )
    alias = text.strip().lower()
    if alias.startswith("@") and alias not in ALIASES:
        raise InvalidSchedule(
            f"{text!r} is not a known alias. Write '@every 10m', one of {', '.join(ALIASES)}, or "
            "the fields of a cron expression."
        )
    text = ALIASES.get(alias, text)
    if not text.strip():
        raise InvalidSchedule(
            "A cron expression must not be empty. Write one such as '0 9 * * 1-5'."
        )
    if not _CHARACTERS.fullmatch(text):
        raise InvalidSchedule(
            f"Cron expression {text!r} has invalid characters. Use digits, names such as MON or "
            "JAN, and * , - / # L W ?."
        )
    return Cron(text)


def parse_zone(name: str) -> ZoneInfo:
    """Return the IANA time zone, or raise `InvalidSchedule` with names that are near."""
    if not isinstance(name, str) or not _ZONE.fullmatch(name):
        raise InvalidSchedule(
            f"{name!r:.60} is not the name of a time zone. "
            "Use an IANA name, such as 'Europe/Berlin'."
        )
    return _zone(name)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if name.split("/")[0] not in _NOT_ZONES:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # No such file, or not one of a zone.
    near = _near_zones(name)
    raise InvalidSchedule(
        f"There is no time zone {name!r}. "
        + (f"Did you mean {' or '.join(near)}?" if near else "Use an IANA name: 'Europe/Berlin'.")
    )


def to_wall(instant: datetime, zone: ZoneInfo) -> datetime:
    """Return what the clocks of `zone` show, without the zone."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def to_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant (UTC) at which the clocks of `zone` show `wall` or later."""
    local = wall.replace(tzinfo=zone)
    first = local.utcoffset()
    second = local.replace(fold=1).utcoffset()
    assert first is not None
    assert second is not None
    naive = wall - first
    if first < second:  # In a gap, the offset before it comes first.
        change = next_change(zone, (wall - second).replace(tzinfo=UTC), naive.replace(tzinfo=UTC))
        if change is not None:
            return change
    return naive.replace(tzinfo=UTC)


def fixed_ticks(
    walls: Callable[[datetime], Iterator[datetime]], zone: ZoneInfo, after: datetime
) -> Iterator[datetime]:
    """Yield each wall time's first instant; those in one gap become one."""
    for wall in walls(to_wall(after, zone)):
        tick = to_instant(wall, zone)
        if tick > after:
            yield tick
            after = tick


def elapsed_ticks(
    walls: Callable[[datetime, timedelta], Iterator[datetime]], zone: ZoneInfo, after: datetime
) -> Iterator[datetime]:
    """Yield every instant that shows a matching wall time, from one clock change to the next.

    `walls` gets the wall time after which to look, and the offset that holds there.
    """
    offset = _offset(zone, after)
    start = to_wall(after, zone)
    last_year = after.year + _PATIENCE
    while True:
        change = None
        for wall in walls(start, offset):
            tick = (wall - offset).replace(tzinfo=UTC)
            change = next_change(zone, after, tick)
            if change is not None:
                break
            yield tick
            after = tick
            last_year = tick.year + _PATIENCE
        else:
            change = next_change(zone, after, after + timedelta(days=366))
        if change is None or change.year > last_year:
            return
        after = change
        offset = _offset(zone, change)
        start = to_wall(change, zone) - _MOMENT


def next_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first instant later than `after`, up to `until`, at which clocks change."""
    for year in range(after.year, until.year + 1):
        for change in _changes(zone, year):
            if after < change <= until:
                return change
    return None


@lru_cache(maxsize=8192)
def _changes(zone: ZoneInfo, year: int) -> tuple[datetime, ...]:
    """The instants of a UTC year at which clocks change, the year's last one included.

    zoneinfo does not list them, so they are searched for. Since 1970, no zone changed twice in a
    week.
    """
    at, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    changes = []
    while at < end:
        low, at = at, min(at + timedelta(days=3), end)
        if _offset(zone, low) != _offset(zone, at):
            changes.append(_between(zone, low, at))
    return tuple(changes)


def _between(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The first whole second after `low` that has the offset of `high`."""
    wanted = _offset(zone, high)
    while high - low > _SECOND:
        middle = low + (high - low) // (2 * _SECOND) * _SECOND
        low, high = (low, middle) if _offset(zone, middle) == wanted else (middle, high)
    return high


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


class _Search(CronSim):
    """cronsim on wall times without a zone, going straight to the next time that fits.

    cronsim itself walks there, hour by hour and minute by minute.
    """

    nearest: frozenset[int] = frozenset()
    """The dates whose nearest weekday matches, too."""

    def match_dom(self, d: date) -> bool:
        return super().match_dom(d) or any(
            nearest_weekday(d.year, d.month, day) == d.day for day in self.nearest
        )

    def advance_hour(self) -> bool:
        if self.dt.hour in self.hours:
            return False
        day = self.dt.replace(hour=0, minute=0, second=0)
        self.dt = day + timedelta(hours=_later(self.hours, self.dt.hour, 24))
        return True

    def advance_minute(self) -> bool:
        if self.dt.minute in self.minutes:
            return False
        hour = self.dt.replace(minute=0, second=0)
        self.dt = hour + timedelta(minutes=_later(self.minutes, self.dt.minute, 60))
        return True

    def advance_second(self) -> bool:
        if self.dt.second in self.seconds:
            return False
        minute = self.dt.replace(second=0)
        self.dt = minute + timedelta(seconds=_later(self.seconds, self.dt.second, 60))
        return True


def _later(values: set[int], now: int, end: int) -> int:
    return min((value for value in values if value > now), default=end)


def _read(text: str, fields: list[str]) -> _Search:
    """Read the fields, in upper case. Errors show the text as it was written."""
    if len(fields) not in (5, 6):
        raise InvalidSchedule(
            f"Cron expression {text!r} has {len(fields)} field{'s'[: len(fields) != 1]}. "
            "Write 5 (minute hour day month weekday), or 6 with the seconds first. There is no "
            "field for years: give a start and an end."
        )
    plain = translate(text, fields)
    try:
        sim = _Search(" ".join(plain.texts), _SOME_DAY)
        if plain.nearest:
            days = [day for day in fields[-3].split(",") if not day.endswith("W") or day == "LW"]
            sim.days = cast("set[int]", Field.DAY.parse(",".join(days)) if days else set())
            sim.nearest = plain.nearest
        never = next(copy(sim), None) is None
    except CronSimError as error:
        never = _reads_in_any_month(plain.texts)
        if not never:
            raise InvalidSchedule(_bad_field(text, str(error))) from None
    if never:
        raise InvalidSchedule(
            f"Cron expression {text!r} never fires: no date fits its day, month and weekday."
        )
    return sim


def _reads_in_any_month(fields: list[str]) -> bool:
    """Whether only the month forbids the day: cronsim calls 30 February a bad day."""
    try:
        CronSim(" ".join([*fields[:-2], "*", fields[-1]]), _SOME_DAY)
        CronSim(" ".join(["*"] * (len(fields) - 2) + [fields[-2], "*"]), _SOME_DAY)
    except CronSimError:
        return False
    return True


def _bad_field(text: str, error: str) -> str:
    fields = text.split()
    name = error.removeprefix("Bad ")
    if name not in FIELDS:
        return f"Cron expression {text!r} cannot be read: {error}."
    value = fields[FIELDS.index(name) - (6 - len(fields))]
    more = {
        "day-of-month": ", L, LW or a nearest weekday (15W)",
        "day-of-week": ", a name, the second Monday (MON#2) or the last Friday (FRIL)",
    }
    return (
        f"Cron expression {text!r} has a bad {name} field, {value!r}. Write *, a number, a range "
        "(1-5), a list (1,15) or steps of at least 1 (*/15), within the field's bounds"
        + more.get(name, "")
        + "."
    )


def _near_zones(name: str) -> list[str]:
    known = {zone.lower(): zone for zone in _zone_names()}
    return [repr(known[near]) for near in get_close_matches(name.lower(), known, n=3, cutoff=0.7)]


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(zone for zone in available_timezones() if zone.split("/")[0] not in _NOT_ZONES)
