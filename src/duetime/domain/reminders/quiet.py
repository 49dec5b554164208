"""Quiet hours: when people are not to be disturbed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

import msgspec

from duetime.domain.checks import check_moment
from duetime.domain.reminders.rule import format_wall, parse_wall
from duetime.domain.schedules.cron import next_change, parse_zone, to_wall
from duetime.errors import InvalidInput

_DAY = timedelta(days=1)


class Quiet(msgspec.Struct, frozen=True):
    """From `start` up to, but not at, `end`, as the clocks of `tz` show it; over midnight if `end`
    is the earlier one. Made by `parse_quiet`.
    """

    start: time
    end: time
    tz: str

    @property
    def text(self) -> str:
        """The hours, as `parse_quiet` reads them back."""
        return f"{format_wall(self.start)}-{format_wall(self.end)}"

    def covers(self, wall: time) -> bool:
        """Whether a clock that shows `wall` shows a quiet time.

        >>> parse_quiet("22:00-07:00", "UTC").covers(time(6, 59))
        True
        """
        if self.start < self.end:
            return self.start <= wall < self.end
        return wall >= self.start or wall < self.end


def parse_quiet(text: str, tz: str) -> Quiet:
    """Return the quiet hours that "22:00-07:00" says, or raise `InvalidInput`.

    >>> parse_quiet("22:00-7:00", "Europe/Berlin").text
    '22:00-07:00'
    """
    found = (
        re.fullmatch(r"\s*([\d:]+)\s*[-–]\s*([\d:]+)\s*", text) if isinstance(text, str) else None
    )
    if found is None:
        raise InvalidInput(
            f"{text!r:.60} is not a valid range of quiet hours. Write it as '22:00-07:00'."
        )
    start, end = parse_wall(found[1]), parse_wall("00:00" if found[2] == "24:00" else found[2])
    if start == end:
        raise InvalidInput(
            f"The quiet hours {text!r} begin and end at the same time, so nothing would ever be "
            "sent. Use two different times, or leave them out."
        )
    return Quiet(start, end, parse_zone(tz).key)


def defer(run_at: datetime, quiet: Quiet) -> datetime:
    """Return the first moment (UTC) from `run_at` on at which the clock shows no quiet time.

    Also when clocks change: at that moment, the clock may leave the quiet hours, or enter them
    again. Urgent reminders do not wait; one that expires before that moment is not sent.

    >>> night = parse_quiet("22:00-07:00", "America/New_York")
    >>> defer(datetime(2026, 3, 8, 4, tzinfo=UTC), night).isoformat()
    '2026-03-08T11:00:00+00:00'
    """
    zone = parse_zone(quiet.tz)
    at = check_moment(run_at, name="run_at").astimezone(UTC)
    while quiet.covers((wall := to_wall(at, zone)).time()):
        end = datetime.combine(wall, quiet.end)
        ahead = (end if end > wall else end + _DAY) - wall
        at = next_change(zone, at, at + ahead) or at + ahead
    return at
