"""Times as people read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from duetime.domain.schedules.cron import parse_zone
from duetime.errors import InvalidInput

DEFAULT_PATTERN = "%Y-%m-%d %H:%M"

_MAX_PATTERN_LENGTH = 100
# No widths: a C library pads to any.
_DIRECTIVE = re.compile(r"%-?[aAbBdGHIjmMpSuUVwWyYzZ%]")
_MINUTE = 60
_UNITS = (("day", 1440), ("hour", 60), ("minute", 1))


def local(moment: datetime, zone: str, pattern: str = DEFAULT_PATTERN) -> str:
    """Write the moment as the clocks of the time zone show it; the pattern is `strftime`'s.

    >>> moment = datetime.fromisoformat("2026-03-06T14:00Z")
    >>> local(moment, "Europe/Berlin"), local(moment, "America/New_York", "%a %-d %b, %H:%M %Z")
    ('2026-03-06 15:00', 'Fri 6 Mar, 09:00 EST')
    """
    if moment.tzinfo is None:
        raise InvalidInput(
            f"{moment.isoformat()} has no time zone. Add one, for example tzinfo=UTC."
        )
    if len(pattern) > _MAX_PATTERN_LENGTH or "%" in _DIRECTIVE.sub("", pattern):
        raise InvalidInput(
            f"{pattern[:_MAX_PATTERN_LENGTH]!r} is not a valid time format. Use strftime codes, "
            "such as '%d.%m.%Y %H:%M'."
        )
    return moment.astimezone(parse_zone(zone)).strftime(pattern)


def in_words(span: timedelta) -> str:
    """Say how long a time is, in its one or two largest units, to the minute.

    >>> in_words(timedelta(days=1, hours=2, minutes=5)), in_words(timedelta(seconds=3599.9))
    ('1 day 2 hours', '1 hour')
    """
    seconds = abs(span).total_seconds()
    if seconds < _MINUTE - 0.5:
        return _count(round(seconds), "second")
    rest = round(seconds / _MINUTE)
    parts: list[str] = []
    for unit, minutes in _UNITS:
        count, rest = divmod(rest, minutes)
        if count:
            parts.append(_count(count, unit))
        elif parts:
            break
    return " ".join(parts[:2])


def until_in_words(moment: datetime, now: datetime) -> str:
    """Say how far away a moment is.

    >>> noon, day = datetime.fromisoformat("2026-03-06T12:00Z"), timedelta(days=1)
    >>> until_in_words(noon + day / 12, noon), until_in_words(noon - day, noon)
    ('in 2 hours', '1 day ago')
    """
    span = moment - now
    if abs(span) < timedelta(seconds=1):
        return "now"
    return f"in {in_words(span)}" if span > timedelta(0) else f"{in_words(span)} ago"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" + ("" if number == 1 else "s")
