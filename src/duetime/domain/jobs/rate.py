"""Rates as people write them: `"10/s"`, `"100/m"`, `"5/10s"`."""

from __future__ import annotations

import re
from datetime import timedelta

import msgspec

from duetime.domain.duration import format_duration, parse_duration
from duetime.errors import InvalidInput

MAX_COUNT = 100_000
MAX_PERIOD = timedelta(days=31)
_RATE = re.compile(r"(\d{1,9}) ?/ ?(\d[\d.a-z]*|[smhd]|ms)", re.ASCII)


class Rate(msgspec.Struct, frozen=True):
    """At most `count` within any span of `period`."""

    count: int
    period: timedelta

    def __str__(self) -> str:
        period = format_duration(self.period)
        return f"{self.count}/{period[1:] if period in ('1s', '1m', '1h', '1d') else period}"


def parse_rate(text: str) -> Rate:
    """Return the rate that a text says, or raise `InvalidInput`.

    >>> parse_rate("10/s"), str(parse_rate("5/10s"))
    (Rate(count=10, period=datetime.timedelta(seconds=1)), '5/10s')
    """
    found = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(
            f"{text!r:.60} is not a valid rate. Write it as '10/s', '100/m' or '5/10s'."
        )
    span = found[2] if found[2][0].isdigit() else f"1{found[2]}"
    rate = Rate(int(found[1]), parse_duration(span, name="A rate's period", most=MAX_PERIOD))
    if not 1 <= rate.count <= MAX_COUNT or not timedelta(0) < rate.period <= MAX_PERIOD:
        raise InvalidInput(
            f"A rate must be from 1 to {MAX_COUNT:,} per period of at most 31 days, "
            f"got {text!r:.60}. Leave it out for no limit."
        )
    return rate
