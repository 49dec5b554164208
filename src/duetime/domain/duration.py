"""Durations as people write them: `"30s"`, `"1h30m"`, `"7d"`."""

from __future__ import annotations

import re
from datetime import timedelta

from duetime.errors import InvalidInput

Duration = str | timedelta

_UNITS = {
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_LONGEST = timedelta(days=36525)


class TooLong(InvalidInput):
    """A duration of more than 100 years."""

    def __init__(self, name: str, value: Duration) -> None:
        most = format_duration(_LONGEST)
        super().__init__(
            f"{name} must be at most 100 years: write {most!r} or less, got {str(value)!r}."
        )


def parse_duration(value: Duration, *, name: str = "duration") -> timedelta:
    """Return `value` as a `timedelta`; it must not be negative.

    >>> parse_duration("1h30m")
    datetime.timedelta(seconds=5400)
    >>> parse_duration("250ms")
    datetime.timedelta(microseconds=250000)
    """
    if isinstance(value, timedelta):
        parsed = value
    elif isinstance(value, str):
        parsed = _parse(value, name)
    else:
        raise InvalidInput(
            f"{name} must be a timedelta or a string such as '30s', '5m' or '1h30m', "
            f"not {value!r}: a bare number has no unit."
        )
    if parsed < timedelta(0):
        raise InvalidInput(f"{name} must not be negative, got {value!r}.")
    if parsed > _LONGEST:
        raise TooLong(name, value)
    return parsed


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


def _parse(text: str, name: str) -> timedelta:
    parts = _PART.findall(text)
    if not parts or len(text) > 40 or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInput(
            f"{name} {text[:40]!r} is not a duration. "
            "Write numbers with units ms, s, m, h, d or w: '30s', '1h30m', '7d'."
        )
    try:
        return sum(
            (timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta(0)
        )
    except OverflowError:
        raise TooLong(name, text) from None
