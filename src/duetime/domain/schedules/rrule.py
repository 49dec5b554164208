"""Recurrence rules of RFC 5545 (python-dateutil finds the times), with the same care as cron.

Rules by the day and longer follow the wall clock; those by the hour and shorter count elapsed time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from duetime.domain import effort
from duetime.domain.schedules.cron import (
    elapsed_ticks,
    fixed_ticks,
    next_change,
    to_instant,
    to_wall,
)
from duetime.errors import InvalidSchedule, MissingPackage

_BEGIN = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_MAX_RULE_LENGTH = 500
_MOMENT = timedelta(microseconds=1)
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
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_LAST_YEAR = 9000
"""Ticks end before it. A year more, for the zones."""
_DATE_PARTS = ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY")
_DAILY = _FREQUENCIES.index("DAILY")
_LISTS = tuple(name for name in _PARTS if name.startswith("BY"))
# A step of dateutil's search takes about half a microsecond, that of a frequency so many of them.
# A rule is accepted if it fires within 440 years or 46 years of days; later, it may take longer.
_COSTS = (500, 60, 60, 13, 1, 1, 1)
_DAY_COST = 500
_STEPS_TO_ACCEPT = 220_000
_MAX_STEPS = 5 * _STEPS_TO_ACCEPT
_MAX_COUNTED = 1000
_MAX_TIMES_A_DAY = 96


def read_rule(
    text: str, start: datetime | None, zone: ZoneInfo, anchor: datetime | None
) -> tuple[str, datetime | None]:
    """Return the rule without its DTSTART line, and the start; raise `InvalidSchedule`."""
    if len(text) > _MAX_RULE_LENGTH:
        raise InvalidSchedule(
            f"A recurrence rule must have at most {_MAX_RULE_LENGTH} characters, got {len(text)}."
        )
    rules = []
    for line in text.split():
        if line[:7].upper() == "DTSTART":
            if start is not None:
                raise InvalidSchedule(f"The rule {text!r} has two starts. Remove one.")
            start = _read_dtstart(line, zone)
        else:
            rules.append(line[6:] if line[:6].upper() == "RRULE:" else line)
    if len(rules) != 1:
        raise InvalidSchedule(
            "A recurrence rule must be a single RRULE line, optionally after a DTSTART line, got "
            f"{text!r}. Give several rules as several specs, and dates to leave out as exclude=."
        )
    if start is not None and start.microsecond:
        raise InvalidSchedule(
            f"A recurrence rule must start at a whole second, got {start.isoformat()}."
        )
    rule = find_rule(rules[0], start or anchor, zone)
    if next(rule.ticks(_BEGIN, steps=_STEPS_TO_ACCEPT), None) is None:
        raise InvalidSchedule(f"The rule {text!r} never fires. Correct it.")
    return rules[0].upper(), start


def _read_dtstart(line: str, zone: ZoneInfo) -> datetime:
    found = re.fullmatch(
        r"DTSTART(;VALUE=DATE(?:-TIME)?)?(?:;TZID=([^:;]+))?:(\d{8}(?:T\d{6}Z?)?)",
        line,
        re.IGNORECASE,
    )
    if found is None:
        raise InvalidSchedule(f"{line!r} cannot be parsed. Write it as 'DTSTART:20260105T090000'.")
    if found[2] is not None and found[2] != zone.key:
        raise InvalidSchedule(
            f"The rule has the time zone {found[2]!r}, but the timetable has {zone.key!r}. Set tz "
            "to the zone of the rule."
        )
    start = _rule_moment(found[3].upper(), zone)
    if start.year >= _LAST_YEAR:
        raise InvalidSchedule(
            f"A recurrence rule must start before the year {_LAST_YEAR}, got {found[3]}."
        )
    return start


def _rule_moment(text: str, zone: ZoneInfo) -> datetime:
    form = "%Y%m%dT%H%M%S" if "T" in text else "%Y%m%d"
    try:
        wall = datetime.strptime(text.removesuffix("Z"), form)  # noqa: DTZ007
        return wall.replace(tzinfo=UTC) if text.endswith("Z") else to_instant(wall, zone)
    except (ValueError, OverflowError):
        raise InvalidSchedule(f"{text!r} is not a valid time. Correct it in the rule.") from None


class Rule:
    """A recurrence rule at work in a zone."""

    def __init__(self, text: str, start: datetime | None, zone: ZoneInfo) -> None:
        parts = _rule_parts(text)
        self.text = text
        self.zone = zone
        self.start = start or to_instant(datetime(1970, 1, 1), zone)  # noqa: DTZ001
        self.frequency = _FREQUENCIES.index(parts["FREQ"])
        self.interval = int(parts.pop("INTERVAL", "1"))
        self.until = _until(parts.pop("UNTIL", None), zone)
        self._take_weekday(parts, start)
        count = int(parts.pop("COUNT", "0"))
        if count and (start is None or count > _MAX_COUNTED or self.until):
            raise InvalidSchedule(
                f"A rule with COUNT requires a start, a COUNT of at most {_MAX_COUNTED}, and no "
                f"UNTIL: {text!r}."
            )
        self.days = None
        if self.frequency > _DAILY and any(name in parts for name in _DATE_PARTS):
            dates = {name: parts.pop(name) for name in _DATE_PARTS if name in parts}
            self.days = _dateutil_rule({"FREQ": "DAILY"} | dates, text)
        self.rule = _dateutil_rule(parts, text)
        self.cost = _COSTS[self.frequency] * (4 if "BYSETPOS" in parts else 1)
        self.counted = self._count(count) if count else None

    def _take_weekday(self, parts: dict[str, str], start: datetime | None) -> None:
        """Say the weekday that the rule takes from its start: dateutil takes all of a numbered
        week, and the first week only from the start on, which changes the positions in it."""
        self.week_start = None
        positions = parts["FREQ"] == "WEEKLY" and "BYSETPOS" in parts
        if positions:
            self.week_start = _WEEKDAYS.index(parts.get("WKST", "MO"))
        if not positions and "BYWEEKNO" not in parts:
            return
        if not any(name in parts for name in ("BYDAY", "BYMONTHDAY", "BYYEARDAY")):
            if start is None and not positions:
                raise InvalidSchedule(
                    f"The rule {self.text!r} has no weekday and no start to take it from. Add "
                    "BYDAY, or a start."
                )
            parts["BYDAY"] = _WEEKDAYS[to_wall(self.start, self.zone).weekday()]

    def ticks(self, after: datetime, *, steps: int = _MAX_STEPS) -> Iterator[datetime]:
        if self.counted is not None:
            return iter([tick for tick in self.counted if tick > after])
        ticks = self._every_tick(after, _Search(self.text, steps))
        until = self.until
        return ticks if until is None else takewhile(until.__ge__, ticks)

    def fixed_walls(self, after: datetime) -> Iterator[datetime]:
        """Yield the wall times after `after`, if the rule follows the wall clock."""
        if self.frequency > _DAILY:
            return iter(())
        return self._walls(after, to_wall(self.start, self.zone), _Search(self.text, _MAX_STEPS))

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
        ticks = self._every_tick(self.start - _MOMENT, _Search(self.text, _MAX_STEPS, refill=False))
        counted = tuple(islice(takewhile(century.__gt__, ticks), count))
        if len(counted) < count:
            raise InvalidSchedule(
                f"The rule {self.text!r} needs more than a century to reach its COUNT. Use a "
                "smaller COUNT."
            )
        return counted

    def _walls(self, after: datetime, start: datetime, search: _Search) -> Iterator[datetime]:
        """Yield the rule's wall times after `after`, counted from `start`."""
        interval = _Interval(self.interval, search, self.cost)
        after = max(after, start - _MOMENT)
        if self.week_start is not None:
            start -= timedelta(days=(start.weekday() - self.week_start) % 7)
        start = _ahead(start, after, self.frequency, self.interval)
        try:
            for wall in self.rule.replace(dtstart=start, interval=interval):
                if wall.year > _LAST_YEAR:
                    return  # Near the end of the calendar, zones cannot be computed.
                if wall > after:
                    yield wall
                    search.found()  # A caller that wants more could use this one.
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

    `day`: no day before it needs to be checked again.
    """

    def __init__(self, text: str, steps: int, *, refill: bool = True) -> None:
        self.text = text
        self.steps = self.left = steps
        self.refill = refill
        self.day = datetime.min  # noqa: DTZ901

    def spend(self, steps: int) -> None:
        effort.spend(steps)
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
    """An interval that counts for the search how often it is used.

    dateutil looks for a match until the year 9999, for hours if need be, and has no option to
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
def find_rule(text: str, start: datetime | None, zone: ZoneInfo) -> Rule:
    return Rule(text, start, zone)


def _rule_parts(text: str) -> dict[str, str]:
    """The parts of a rule, in upper case. Errors show them as they were written."""
    parts: dict[str, str] = {}
    for part in text.split(";"):
        name, _, value = part.upper().partition("=")
        values = value.split(",") if name in _LISTS else [value]
        if name not in _PARTS or name in parts:
            raise InvalidSchedule(
                f"The rule {text!r} has an unknown or repeated part {part[:40]!r}. "
                f"Parts are {', '.join(_PARTS)}, separated by semicolons."
            )
        if not all(re.fullmatch(_PARTS[name], one, re.ASCII) for one in values):
            raise InvalidSchedule(
                f"The rule {text!r} has an invalid value in {part[:60]!r}. Correct it."
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
            f"The rule {text!r} has a weekday with a number that is out of range. A number "
            "requires FREQ=MONTHLY, or FREQ=YEARLY with BYMONTH (up to 5), or FREQ=YEARLY alone "
            "(up to 53)."
        )
    if "BYWEEKNO" in parts and (frequency or numbers or parts.get("INTERVAL", "1") != "1"):
        # A week may begin in one year and be counted in the next: years apart are ambiguous.
        raise InvalidSchedule(
            f"The rule {text!r} has BYWEEKNO, which needs FREQ=YEARLY, weekdays without numbers "
            "and no INTERVAL."
        )
    if frequency > _DAILY and "BYSETPOS" in parts:
        raise InvalidSchedule(f"The rule {text!r} has BYSETPOS, which needs days or longer.")
    times = 1
    for name in ("BYHOUR", "BYMINUTE", "BYSECOND"):
        times *= len(set(parts.get(name, "0").split(",")))
    if frequency <= _DAILY and times > _MAX_TIMES_A_DAY:
        raise InvalidSchedule(
            f"The rule {text!r} names {times} times a day; at most {_MAX_TIMES_A_DAY} are "
            "allowed. Write it with FREQ=MINUTELY, or as a cron expression."
        )


def _dateutil_rule(parts: dict[str, str], text: str) -> Any:
    try:
        from dateutil.rrule import rrulestr
    except ImportError:
        raise MissingPackage(
            "Recurrence rules need python-dateutil: pip install 'duetime[rrule]'."
        ) from None
    rest = ";".join(f"{name}={value}" for name, value in parts.items())
    try:
        return rrulestr(rest, dtstart=datetime(1970, 1, 1))  # noqa: DTZ001
    except (ValueError, TypeError, IndexError) as error:
        raise InvalidSchedule(f"The rule {text!r} cannot be read: {error}.") from None


def _until(text: str | None, zone: ZoneInfo) -> datetime | None:
    """The last instant that the rule allows: a bare date means the whole local day."""
    if text is None or int(text[:4]) >= _LAST_YEAR:
        return None  # Some calendars write 99991231 for "without an end".
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
