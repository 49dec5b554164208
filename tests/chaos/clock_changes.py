"""An oracle for cron when clocks change: it walks through real time and looks at the clock.

It shares nothing with the code that it judges. Its own small reader knows `*`, numbers, ranges,
steps and lists; its rules are the documented ones, applied to every minute (or second) in turn:

- An expression is elapsed if its second, minute or hour field starts with `*`. It ticks whenever
  the clock shows a time that matches.
- Else it is fixed. It ticks when the clock shows a matching time that it has not shown before, and
  right after a jump over a matching time.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from duetime.domain.schedules.cron import parse_cron

FIRST_YEAR, LAST_YEAR = 2025, 2030
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
AROUND = timedelta(hours=26)
CLOSELY = timedelta(hours=2, minutes=15)


class ClockChange(NamedTuple):
    """Clocks change at this instant, by the offsets before and after."""

    at: datetime
    before: timedelta
    after: timedelta


class Mismatch(NamedTuple):
    zone: str
    expression: str
    start: datetime
    expected: list[datetime]
    found: list[datetime]


class Result(NamedTuple):
    zones: int
    changes: int
    compared: int
    mismatches: list[Mismatch]


def compare(zones: Iterable[str], *, every: int = 1) -> Result:
    """Compare cron with the oracle around every `every`-th clock change of the zones."""
    names = sorted(zones)
    # Many zones change at the same moment: one after the other, they share the oracle's walk.
    changes = sorted((change, name) for name in names for change in clock_changes(name))[::every]
    compared = 0
    mismatches: list[Mismatch] = []
    for change, name in changes:
        for expression, span, step in expressions(change):
            compared += 1
            mismatches += _compare_one(name, change, expression, span, step)
    return Result(len(names), len(changes), compared, mismatches)


def all_zones() -> list[str]:
    """Every IANA zone; `localtime` is the machine's."""
    return sorted(available_timezones() - {"localtime"})


def clock_changes(name: str) -> Iterator[ClockChange]:
    """Yield the clock changes of a zone in the years looked at."""
    zone = ZoneInfo(name)
    at, step = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), timedelta(days=1)
    while at.year <= LAST_YEAR:
        before, after = _offset(zone, at), _offset(zone, at + step)
        if before != after:
            minute = at
            while _offset(zone, minute) == before:
                minute += MINUTE
            assert _offset(zone, minute - SECOND) == before
            yield ClockChange(minute, before, after)
        at += step


def expressions(change: ClockChange) -> Iterator[tuple[str, timedelta, timedelta]]:
    """Yield expressions for this change, each with how far around it to look, in which steps."""
    walls = sorted((change.at + offset).replace(tzinfo=None) for offset in change[1:])
    low, high = walls
    middle = low + (high - low) / 2
    for text in ALWAYS:
        yield text, AROUND, MINUTE
    for wall in (low - MINUTE, low, middle, high - MINUTE, high, high + MINUTE):
        h, m, weekday = wall.hour, wall.minute, wall.isoweekday() % 7
        yield f"{m} {h} * * *", AROUND, MINUTE
        yield f"{m} {h} {wall.day} {wall.month} *", AROUND, MINUTE
        yield f"{m} {h} * * {weekday}", AROUND, MINUTE
        yield f"{m} {h} 1 * {weekday}", AROUND, MINUTE
    h = middle.hour
    for text in (
        f"15,45 {h} * * *",
        f"0,10,20,30,40,50 {h} * * *",
        f"0-59/7 {h} * * *",
        f"0-59 {h} * * *",
        f"30 {h}-23 * * *",
        f"*/15 {h} * * *",
        f"* {h} * * *",
        f"5 */{max(h, 2)} * * *",
    ):
        yield text, AROUND, MINUTE
    for text in (
        f"30 {middle.minute} {h} * * *",
        f"0,59 0,59 {h} * * *",
        f"*/20 {middle.minute} {h} * * *",
        "15 */10 * * * *",
    ):
        yield text, CLOSELY, SECOND


ALWAYS = (
    "* * * * *",
    "*/15 * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 * * * *",
    "0 */2 * * *",
    "30 1-23/2 * * *",
    "5-55/10 * * * *",
    "0 0-23 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "59 23 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "0 9 * * 1-5",
    "30 2 * * 0",
    "0 0 * * 0",
    "0 0 1 * *",
    "0 0 28-31 * *",
    "0 12 1,15 * 1",
    "15 1,2,3 * 3,10,11 *",
)


def expected_ticks(
    expression: str, name: str, start: datetime, end: datetime, *, step: timedelta = MINUTE
) -> list[datetime]:
    """Return the ticks in start <= tick < end, by walking."""
    shown = _shown(ZoneInfo(name), start, end, step)
    return [start + index * step for index in _walk(expression, shown, step)]


def _compare_one(
    name: str, change: ClockChange, expression: str, span: timedelta, step: timedelta
) -> Iterator[Mismatch]:
    start, end = change.at - span, change.at + span
    expected = expected_ticks(expression, name, start, end, step=step)
    cron, zone = parse_cron(expression), ZoneInfo(name)
    found = list(takewhile(end.__gt__, cron.ticks(zone, start - SECOND)))
    if found != expected:
        yield Mismatch(name, expression, start, expected, found)
    for minutes in (-61, -30, -1, 0, 1, 29, 30, 59, 60, 61, 90, 121):
        after = change.at + minutes * MINUTE
        rest = expected[bisect_right(expected, after) :][:1]
        if rest and next(cron.ticks(zone, after), None) != rest[0]:
            yield Mismatch(name, expression, after, rest, [next(cron.ticks(zone, after))])


@lru_cache(maxsize=100)
def _walk(expression: str, shown: tuple[datetime, ...], step: timedelta) -> tuple[int, ...]:
    matches = _Matcher(expression)
    if matches.elapsed:
        return tuple(index for index, wall in enumerate(shown) if matches(wall))
    ticks = []
    seen: set[datetime] = set()
    previous = shown[0] - step
    for index, wall in enumerate(shown):
        due = wall not in seen and matches(wall)
        skipped = previous + step
        while skipped < wall:
            due = due or matches(skipped)
            skipped += step
        if due:
            ticks.append(index)
        seen.add(wall)
        previous = wall
    return tuple(ticks)


@lru_cache(maxsize=4)
def _shown(zone: ZoneInfo, start: datetime, end: datetime, step: timedelta) -> tuple[datetime, ...]:
    """What the clock shows at every step."""
    count = (end - start) // step
    instants = (start + index * step for index in range(count))
    return tuple(instant.astimezone(zone).replace(tzinfo=None, fold=0) for instant in instants)


class _Matcher:
    def __init__(self, expression: str) -> None:
        fields = expression.split()
        fields = fields if len(fields) == 6 else ["0", *fields]
        given = fields[:3] if len(expression.split()) == 6 else fields[1:3]
        self.elapsed = any(field.startswith("*") for field in given)
        self.both = fields[3].startswith("*") or fields[5].startswith("*")
        bounds = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
        sets = [_values(field, *bound) for field, bound in zip(fields, bounds, strict=True)]
        self.seconds, self.minutes, self.hours, self.days, self.months, self.weekdays = sets
        self.dates: dict[date, bool] = {}

    def __call__(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.second in self.seconds
            and self._day(wall.date())
        )

    def _day(self, day: date) -> bool:
        if day not in self.dates:
            by_day = day.day in self.days
            by_week = bool({day.isoweekday(), day.isoweekday() % 7} & self.weekdays)
            self.dates[day] = day.month in self.months and (
                by_day and by_week if self.both else by_day or by_week
            )
        return self.dates[day]


def _values(field: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            start, end = low, high
        else:
            start, end = int(first), int(last or (high if step else first))
        values |= set(range(start, end + 1, int(step or 1)))
    return values


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


if __name__ == "__main__":
    result = compare(sys.argv[1:] or all_zones())
    print(f"{result.zones} zones, {result.changes} clock changes, {result.compared} comparisons")
    for mismatch in result.mismatches[:20]:
        print(*mismatch)
    sys.exit(f"{len(result.mismatches)} mismatches" if result.mismatches else 0)
