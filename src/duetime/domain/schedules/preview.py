"""The next ticks as people read them: in UTC, on the local clock, with notes at clock changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import msgspec

from duetime.domain import effort
from duetime.domain.duration import format_duration
from duetime.domain.reasons import Reason
from duetime.domain.schedules.cron import parse_cron, parse_zone
from duetime.domain.schedules.timetable import CronTimes, RuleTimes, Times, Timetable, rule_walls
from duetime.errors import InvalidInput

MAX_ROWS = 1000
_MAX_STEPS = 4_000_000
_MOMENT = timedelta(microseconds=1)
_MAX_SHOWN = 3


class PreviewRow(msgspec.Struct, frozen=True):
    """A tick in UTC and on the local clock, why it is excluded, and what is odd about it."""

    at: datetime
    local: datetime
    excluded: Reason | None
    notes: tuple[str, ...]


def preview(timetable: Timetable, after: datetime, n: int) -> list[PreviewRow]:
    """Return the first `n` ticks after `after`, the excluded ones too.

    >>> from datetime import UTC
    >>> from duetime.domain.schedules.timetable import timetable
    >>> daily = timetable("30 2 * * *", tz="America/New_York")
    >>> [row] = preview(daily, datetime(2026, 3, 8, tzinfo=UTC), 1)
    >>> print(row.local, *row.notes, sep="; ")
    2026-03-08 03:00:00-04:00; clocks go forward 1h before this; moved out of the gap from 02:30
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_ROWS:
        raise InvalidInput(f"A preview must have 1 to {MAX_ROWS} rows, got {n!r}.")
    with effort.limited(
        _MAX_STEPS,
        f"'{timetable.describe()}' fires too rarely to compute {n} ticks. Request fewer.",
    ):
        return _rows(timetable, after, n)


def _rows(timetable: Timetable, after: datetime, n: int) -> list[PreviewRow]:
    zone = parse_zone(timetable.tz)
    rows = []
    for tick in islice(timetable.ticks(after), n):
        notes = (
            *_clock_change(after.astimezone(zone), tick.at.astimezone(zone)),
            *_moved(timetable, tick.at, zone),
            *_repeated(tick.at.astimezone(zone)),
        )
        rows.append(PreviewRow(tick.at, tick.at.astimezone(zone), tick.excluded, notes))
        after = tick.at
    return rows


def _clock_change(before: datetime, local: datetime) -> Iterator[str]:
    shift = _offset(local) - _offset(before)
    if shift:
        way = "forward" if shift > timedelta(0) else "back"
        yield f"clocks go {way} {format_duration(abs(shift))} before this"


def _moved(timetable: Timetable, at: datetime, zone: ZoneInfo) -> Iterator[str]:
    before, after = (at - _MOMENT).astimezone(zone), at.astimezone(zone)
    if _offset(before) < _offset(after):
        start, end = _wall(before), _wall(after)
        walls = {
            wall
            for spec in timetable.specs
            if next(spec.ticks(zone, at - _MOMENT, timetable.start), None) == at
            for wall in takewhile(end.__gt__, _fixed_walls(spec, zone, start, timetable.start))
        }
        if walls:
            shown = [_clock(wall) for wall in sorted(walls)[:_MAX_SHOWN]]
            shown += ["…"] if len(walls) > _MAX_SHOWN else []
            yield f"moved out of the gap from {', '.join(shown)}"


def _repeated(local: datetime) -> Iterator[str]:
    if _offset(local.replace(fold=0)) > _offset(local.replace(fold=1)):
        yield f"{'second' if local.fold else 'first'} of two {_clock(local)}"


def _fixed_walls(
    spec: Times, zone: ZoneInfo, after: datetime, anchor: datetime | None
) -> Iterator[datetime]:
    """Yield the wall times of a spec that a gap moves; elapsed ones have none."""
    match spec:
        case CronTimes() if parse_cron(spec.cron).fixed:
            return parse_cron(spec.cron).walls(after)
        case RuleTimes():
            return rule_walls(spec, zone, after, anchor)
        case _:
            return iter(())


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)


def _wall(local: datetime) -> datetime:
    return local.replace(tzinfo=None, fold=0)


def _clock(wall: datetime) -> str:
    return f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"
