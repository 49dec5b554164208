"""Cron fields as people write them, translated to what cronsim reads.

cronsim has lists, ranges, steps, names, `L`, `LW` and `#`. Here are ranges that wrap around
(`FRI-SUN`, `NOV-MAR`, `22-3`), `?` for a day that does not matter, `15W` for the weekday nearest to
a date, and `FRIL` for the last Friday.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date
from typing import NamedTuple

from cronsim.cronsim import SYMBOLIC_DAYS, SYMBOLIC_MONTHS

from duetime.errors import InvalidSchedule

FIELDS = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_SIZES = {"second": 60, "minute": 60, "hour": 24, "month": 12, "day-of-week": 7}
_RANGE = re.compile(r"([A-Z]{3}|\d{1,2})-([A-Z]{3}|\d{1,2})(?:/(\d{1,2}))?")
_NEAREST = re.compile(r"([1-9]|[12]\d|3[01])W")
_LAST_NAMED = re.compile(rf"({'|'.join(SYMBOLIC_DAYS)})L")


class Fields(NamedTuple):
    """The fields for cronsim. `nearest`: the dates whose nearest weekday matches, beside them."""

    texts: list[str]
    nearest: frozenset[int]


def translate(text: str, fields: list[str]) -> Fields:
    """Translate the fields of an expression; raise `InvalidSchedule` for what may mislead."""
    names = FIELDS[len(FIELDS) - len(fields) :]
    by_name = dict(zip(names, fields, strict=True))
    days, weekdays = by_name["day-of-month"], by_name["day-of-week"]
    if days == "?" and re.search(r"(?<!#)[0-9]", weekdays):
        # Where `?` comes from, Sunday is 1; in cron, it is 0 and 7.
        raise InvalidSchedule(
            f"Cron expression {text!r} has a ? and numeric weekdays, which are ambiguous: Sunday "
            "is 1 in Quartz and AWS, but 0 in cron. Use names: MON-FRI."
        )
    nearest: set[int] = set()
    texts = []
    for name, field in by_name.items():
        if field == "?" and name in ("day-of-month", "day-of-week"):
            field = "*"
        texts.append(",".join(_translate(text, name, term, nearest) for term in field.split(",")))
    return Fields(texts, frozenset(nearest))


def _translate(text: str, name: str, term: str, nearest: set[int]) -> str:
    if name == "day-of-month" and (found := _NEAREST.fullmatch(term)):
        nearest.add(int(found[1]))
        return found[1]
    if name == "day-of-week" and (found := _LAST_NAMED.fullmatch(term)):
        return f"{SYMBOLIC_DAYS.index(found[1])}L"
    if found := _RANGE.fullmatch(term):
        first, last = _number(name, found[1]), _number(name, found[2])
        if first is not None and last is not None and last < first:
            return _wrap(text, name, first, last, int(found[3] or 1)) or term
    return term


def _wrap(text: str, name: str, first: int, last: int, step: int) -> str | None:
    """The numbers from `first` over the end of the field to `last`; None: cronsim refuses it."""
    if name == "day-of-month":
        raise InvalidSchedule(
            f"Cron expression {text!r}: the range of days {first}-{last} wraps around the end of "
            f"the month. Write {first}-31,1-{last}."
        )
    size = _SIZES[name]
    lowest = 1 if name == "month" else 0
    if step < 1 or first > (7 if name == "day-of-week" else lowest + size - 1):
        return None
    first %= 7 if name == "day-of-week" else 100
    count = (last - first) % size + 1
    return ",".join(str((first - lowest + n) % size + lowest) for n in range(0, count, step))


def _number(name: str, value: str) -> int | None:
    if value.isdigit():
        return int(value)
    names = {"month": SYMBOLIC_MONTHS, "day-of-week": SYMBOLIC_DAYS}.get(name, [])
    return names.index(value) + (name == "month") if value in names else None


def nearest_weekday(year: int, month: int, day: int) -> int | None:
    """Return the day from Monday to Friday that is nearest to a date, in its month; None if the
    month does not have that date.

    >>> nearest_weekday(2026, 8, 15), nearest_weekday(2026, 8, 1), nearest_weekday(2026, 5, 31)
    (14, 3, 29)
    """
    last = monthrange(year, month)[1]
    if day > last:
        return None
    weekday = date(year, month, day).weekday()
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < last else day - 2
    return day
