"""The fields of a cron expression, as sets of numbers: what other schedulers mean by them.

Celery and APScheduler want the day *and* the weekday to fit; cron wants one of them, if both are
given. Their weekdays are numbered differently, so that they are written by name here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from duetime.integrations.importing.found import Untranslatable

BOUNDS = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day": (1, 31),
    "month": (1, 12),
    "weekday": (0, 6),
}
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_NAMES = {name: number for number, name in enumerate(WEEKDAYS)} | {
    name: number for number, name in enumerate(_MONTHS, 1)
}
_MONTH_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)


class Numbers(NamedTuple):
    """What a field matches. Sunday is 0. `starred`: it was written with a `*` in front."""

    values: frozenset[int]
    starred: bool = False


def every(field: str) -> Numbers:
    low, high = BOUNDS[field]
    return Numbers(frozenset(range(low, high + 1)), starred=True)


def read_numbers(value: Any, field: str) -> Numbers:
    """Read a field as Celery does: numbers, names, ranges that may wrap, steps; or a set.

    >>> sorted(read_numbers("fri-mon", "weekday").values)
    [0, 1, 5, 6]
    """
    if isinstance(value, str):
        text = re.sub(r"[\s\[\]{}()]", "", value)
        values = {number for part in text.split(",") for number in _read_part(part, field)}
        return Numbers(frozenset(values), text.startswith("*"))
    given = value if isinstance(value, Iterable) else [value]
    return Numbers(frozenset(_read_number(str(number), field) for number in given))


def write_cron(
    *,
    minute: Numbers,
    hour: Numbers,
    day: Numbers,
    month: Numbers,
    weekday: Numbers,
    second: Numbers | None = None,
) -> tuple[str, tuple[str, ...]]:
    """Return the cron expression for times at which every field fits, and what to exclude.

    >>> nine = {"minute": read_numbers(0, "minute"), "hour": read_numbers(9, "hour")}
    >>> write_cron(**nine, day=read_numbers("1-7", "day"), month=every("month"),
    ...            weekday=read_numbers(1, "weekday"))
    ('0 9 * * MON#1', ())
    """
    if min(day.values) > max(_MONTH_LENGTHS[number - 1] for number in month.values):
        raise Untranslatable("none of its months has such a day, so it never runs")
    days, weekdays = write_field(day, "day"), write_field(weekday, "weekday")
    exclude: tuple[str, ...] = ()
    if not days.startswith("*") and weekdays != "*":
        days, weekdays, exclude = _write_both(day, weekday, weekdays)
    fields = [
        write_field(minute, "minute"),
        write_field(hour, "hour"),
        days,
        write_field(month, "month"),
    ]
    if second is not None and second.values != {0}:
        fields.insert(0, write_field(second, "second"))
    return " ".join([*fields, weekdays]), exclude


def _write_both(day: Numbers, weekday: Numbers, weekdays: str) -> tuple[str, str, tuple[str, ...]]:
    """The day and the weekday for an expression whose date has to fit both."""
    weeks = [week for week in range(1, 5) if 7 * week in day.values]
    if day.values == {d for week in weeks for d in range(7 * week - 6, 7 * week + 1)}:
        named = [f"{WEEKDAYS[one]}#{week}" for one in sorted(weekday.values) for week in weeks]
        return "*", ",".join(named), ()
    others = Numbers(every("day").values - day.values)
    return "*", weekdays, (f"* * {write_field(others, 'day')} * *",)


def write_field(numbers: Numbers, field: str) -> str:
    """Return one field of a cron expression; weekdays by name.

    >>> write_field(read_numbers("1-5", "weekday"), "weekday")
    'MON-FRI'
    """
    low, high = BOUNDS[field]
    values = sorted(numbers.values)
    if len(values) == high - low + 1:
        return "*"
    step = values[1] - values[0] if len(values) > 1 else 0
    if numbers.starred and field != "weekday" and values == [*range(low, high + 1, step or 1)]:
        # Whether it begins with a star says what it does when clocks change.
        return f"*/{step}"
    parts = []
    while values:
        run = 1
        while run < len(values) and values[run] == values[0] + run:
            run += 1
        run = run if run > 2 else 1
        ends = dict.fromkeys((values[0], values[run - 1]))
        parts.append("-".join(WEEKDAYS[n] if field == "weekday" else str(n) for n in ends))
        values = values[run:]
    return ",".join(parts)


def _read_part(part: str, field: str) -> list[int]:
    found = _PART.fullmatch(part)
    if found is None or (found[3] and found[1] and not found[2]) or found[3] == "0":
        raise Untranslatable(f"the {field} {part!r} cannot be read")
    low, high = BOUNDS[field]
    numbers = [*range(low, high + 1)]
    if found[1]:
        first = _read_number(found[1], field)
        last = _read_number(found[2], field) if found[2] else first
        numbers = [*range(first, last + 1)]
        if last < first:
            numbers = [*range(first, high + 1), *range(low, last + 1)]
    return numbers[:: int(found[3] or 1)]


def _read_number(text: str, field: str) -> int:
    number = int(text) if text.isdecimal() else _NAMES.get(text[:3].upper(), -1)
    if field == "weekday" and number == 7:
        number = 0
    low, high = BOUNDS[field]
    if not low <= number <= high:
        raise Untranslatable(f"the {field} {text!r} is not between {low} and {high}")
    return number
