"""Durations as people give them: `"1h30m"`, `timedelta(hours=1)`, or a number of seconds.

And how durations and times are written.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from duetime.errors import InvalidInput

Duration = str | timedelta | float
"""A number is seconds; a string has units (`"250ms"`, `"30s"`, `"1h30m"`, `"7d"`), or is ISO 8601
as JSON answers have it (`"PT30S"`)."""

_UNITS = {
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_NUMBER = re.compile(r"\d{1,40}(?:\.\d{1,40})?", re.ASCII)
_ISO = re.compile(
    r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?(?<![PT])",
    re.ASCII,
)
_YEAR = timedelta(days=365.25)
MAX_DURATION = 100 * _YEAR


class TooLong(InvalidInput):
    """A duration that is longer than what it is for allows: at most 100 years."""

    code = InvalidInput.code

    def __init__(self, name: str, value: Duration, most: timedelta) -> None:
        limit = format_duration(most)
        if most > 2 * _YEAR:
            limit = f"{most // _YEAR} years: write {limit!r} or less"
        got = format_duration(value) if isinstance(value, timedelta) else str(value)
        super().__init__(f"{name} must be at most {limit}, got {got[:60]!r}.")


def parse_duration(
    value: Duration, *, name: str = "duration", most: timedelta = MAX_DURATION
) -> timedelta:
    """Return `value` as a `timedelta`; raise `InvalidInput` if it is negative, longer than `most`
    or not a duration.

    >>> parse_duration("1h30m")
    datetime.timedelta(seconds=5400)
    >>> parse_duration(1.5)
    datetime.timedelta(seconds=1, microseconds=500000)
    >>> parse_duration("PT1H30M")
    datetime.timedelta(seconds=5400)
    """
    if isinstance(value, timedelta):
        parsed = value
    elif isinstance(value, str):
        parsed = _parse(value, name, most)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        parsed = _seconds(value, name, most)
    else:
        raise InvalidInput(
            f"{name} must be a number of seconds, a string such as '30s', '5m' or '1h30m', or a "
            f"timedelta, got {value!r:.60}."
        )
    if parsed < timedelta(0):
        raise _negative(name, value)
    if parsed > most:
        raise TooLong(name, value, most)
    return parsed


def parse_positive_duration(
    value: Duration, *, name: str, most: timedelta = MAX_DURATION
) -> timedelta:
    """`parse_duration`, for what must be greater than zero."""
    parsed = parse_duration(value, name=name, most=most)
    if not parsed:
        raise InvalidInput(f"{name} must be greater than zero.")
    return parsed


def read_duration(text: str, *, name: str) -> timedelta:
    """Return the duration that a command line or an environment variable gives, where a number
    of seconds is text as well.

    >>> read_duration("2.5", name="lease"), read_duration("1m", name="lease")
    (datetime.timedelta(seconds=2, microseconds=500000), datetime.timedelta(seconds=60))
    """
    return parse_duration(float(text) if _NUMBER.fullmatch(text) else text, name=name)


def format_time(moment: datetime) -> str:
    """Write a moment in UTC, as reasons and keys have it.

    >>> format_time(datetime(2026, 3, 29, 1, 0, tzinfo=UTC))
    '2026-03-29T01:00:00Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def format_duration(value: timedelta) -> str:
    """Return the shortest string that `parse_duration` reads back.

    >>> format_duration(timedelta(seconds=5400))
    '1h30m'
    """
    if not value:
        return "0s"
    microseconds = round(value / timedelta(microseconds=1))
    parts = []
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)):
        count, microseconds = divmod(microseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    if microseconds % 1_000_000 == 0:
        parts += [f"{microseconds // 1_000_000}s"] if microseconds else []
    else:
        whole, rest = divmod(microseconds, 1000)
        parts.append(f"{whole}.{rest:03}".rstrip("0").rstrip(".") + "ms")
    return "".join(parts)


def _seconds(value: float, name: str, most: timedelta) -> timedelta:
    if value > most.total_seconds():
        raise TooLong(name, value, most)
    if value < 0:
        raise _negative(name, value)
    if math.isnan(value):
        raise InvalidInput(f"{name} must be a number of seconds, got {value!r}.")
    return timedelta(seconds=value)


def _negative(name: str, value: Duration) -> InvalidInput:
    return InvalidInput(f"{name} must not be negative, got {value!s:.60}.")


def _parse(text: str, name: str, most: timedelta) -> timedelta:
    if (iso := _ISO.fullmatch(text[:60])) is not None and len(text) <= 60:
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        total = seconds + 60 * (minutes + 60 * (hours + 24 * (days + 7 * weeks)))
        if total > most.total_seconds():
            raise TooLong(name, text, most)
        return timedelta(seconds=total)
    parts = _PART.findall(text)
    if not parts or len(text) > 40 or "".join(number + unit for number, unit in parts) != text:
        if _NUMBER.fullmatch(text):
            raise InvalidInput(
                f"{name} {text[:40]!r} has no unit. Write '{text[:40]}s', or pass a number of "
                "seconds."
            )
        raise InvalidInput(
            f"{name} {text[:40]!r} is not a duration. "
            "Write numbers with units ms, s, m, h, d or w: '30s', '1h30m', '7d'."
        )
    try:
        return sum(
            (timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta(0)
        )
    except OverflowError:
        raise TooLong(name, text, most) from None
