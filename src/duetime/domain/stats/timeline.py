"""What schedules did and will do, on one axis of time; and when in the week one of them ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise

import msgspec

from duetime.domain import effort
from duetime.domain.schedules.cron import parse_zone
from duetime.domain.schedules.schedule import Schedule, TickStatus
from duetime.errors import InvalidInput, InvalidSchedule

MAX_SHOWN = 100
"""If a schedule has more ticks in the window, they are counted for parts of it."""
MAX_FUTURE = 100
PARTS = 48
MAX_SPAN = timedelta(days=100)
HEAT_MAP_MAX_DAYS = 90
_STEPS = 200_000
_TOO_MANY = "too many steps"


class TimelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A tick that was due, and what became of it."""

    tick: datetime
    outcome: str
    """`fired`, `caught_up`, `triggered`, `backfilled`: it succeeded as such. `failed`, `cancelled`,
    `coalesced`, `skipped`. `running`, `waiting`, `due`: it has not ended."""
    started_at: datetime | None
    finished_at: datetime | None
    job_id: int | None
    overlaps: bool = False
    """Whether it started while an earlier run of the schedule was running."""


class TimelinePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the window, if there are too many ticks to show each."""

    since: datetime
    until: datetime
    outcomes: dict[str, int]


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule."""

    schedule: str
    when: str | None
    """Its timetable in words. None: it cannot be read."""
    tz: str
    target: str
    kind: str
    """What it starts: a `task` or a `flow`."""
    paused: bool
    broken: bool
    runs: tuple[TimelineRun, ...]
    """The oldest first. Empty if there are more than 100: see `parts`."""
    parts: tuple[TimelinePart, ...]
    complete_since: datetime
    """Ticks before it were not read: there are too many."""
    future: tuple[datetime, ...]
    """The ticks that lie ahead; none of a paused or broken schedule."""
    more_future: bool
    """Whether there are more than those."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What `app.stats.timeline()` returns."""

    since: datetime
    until: datetime
    now: datetime
    rows: tuple[TimelineRow, ...]
    next: str | None
    """The cursor of the schedules after these."""


class HeatCell(msgspec.Struct, frozen=True, kw_only=True):
    """The ticks of one hour of one day."""

    day: date
    hour: int
    outcomes: dict[str, int]


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """What `app.stats.heat_map()` returns."""

    schedule: str
    tz: str
    first_day: date
    last_day: date
    cells: tuple[HeatCell, ...]
    """Hours in which nothing was due are left out."""
    outcomes: dict[str, int]
    complete: bool
    """Whether all ticks were read."""


def outcome_of(
    status: str, *, begun: bool, finished: bool, succeeded: bool | None, started: bool
) -> str:
    """Return what became of a tick, in one word.

    >>> outcome_of("fired", begun=True, finished=True, succeeded=False, started=True)
    'failed'
    >>> outcome_of("caught_up", begun=True, finished=True, succeeded=True, started=True)
    'caught_up'
    """
    match status:
        case TickStatus.SKIPPED | TickStatus.COALESCED | TickStatus.WAITING:
            return str(status)
        case TickStatus.ARMED:
            return "due"
    if not finished:
        return "running" if begun else "due"
    if not started:
        return "skipped"
    return {True: str(status), False: "failed", None: "cancelled"}[succeeded]


def check_span(since: datetime, until: datetime) -> None:
    """Raise `InvalidInput` if so long a window cannot be shown."""
    if not timedelta(minutes=1) <= until - since <= MAX_SPAN:
        raise InvalidInput(
            f"A timeline must be 1 minute to {MAX_SPAN.days} days long, got {since.isoformat()} to "
            f"{until.isoformat()}."
        )


def make_row(
    schedule: Schedule,
    runs: Sequence[TimelineRun],
    *,
    since: datetime,
    until: datetime,
    now: datetime,
    complete_since: datetime,
) -> TimelineRow:
    """Make the row of a schedule from its ticks, the oldest first."""
    many = len(runs) > MAX_SHOWN
    future: list[datetime] = []
    more = False
    if schedule.readable and schedule.paused_at is None:
        future, more = _future(schedule, max(now, since), until)
    return TimelineRow(
        schedule=schedule.name,
        when=schedule.timetable.describe() if schedule.readable else None,
        tz=schedule.timetable.tz,
        target=schedule.target,
        kind=schedule.kind,
        paused=schedule.paused_at is not None,
        broken=not schedule.readable,
        runs=() if many else tuple(_mark_overlaps(runs, now)),
        parts=tuple(_parts(runs, since, until)) if many else (),
        complete_since=complete_since,
        future=tuple(future),
        more_future=more,
    )


def _future(schedule: Schedule, after: datetime, until: datetime) -> tuple[list[datetime], bool]:
    """The ticks after a time, and whether there are more of them."""
    found: list[datetime] = []
    try:
        with effort.limited(_STEPS, _TOO_MANY):
            for tick in schedule.timetable.ticks(after):
                if tick.at > until:
                    return found, False
                if tick.excluded is not None:
                    continue
                if len(found) == MAX_FUTURE:
                    return found, True
                found.append(tick.at)
    except InvalidSchedule:
        return found, True
    return found, False


def _mark_overlaps(runs: Sequence[TimelineRun], now: datetime) -> Iterator[TimelineRun]:
    busy_until: datetime | None = None
    for run in runs:
        if run.started_at is None:
            yield run
            continue
        overlaps = busy_until is not None and run.started_at < busy_until
        yield msgspec.structs.replace(run, overlaps=overlaps)
        end = run.finished_at or now
        busy_until = end if busy_until is None else max(busy_until, end)


def _parts(runs: Sequence[TimelineRun], since: datetime, until: datetime) -> Iterator[TimelinePart]:
    step = (until - since) / PARTS
    edges = [since + step * place for place in range(PARTS)] + [until]
    counts = [Counter[str]() for _ in range(PARTS)]
    for run in runs:
        counts[min(int((run.tick - since) / step), PARTS - 1)][run.outcome] += 1
    for (start, end), outcomes in zip(pairwise(edges), counts, strict=True):
        if outcomes:
            yield TimelinePart(since=start, until=end, outcomes=dict(outcomes))


def make_heat_map(
    schedule: str,
    ticks: Sequence[tuple[datetime, str, int]],
    *,
    tz: str,
    first_day: date,
    last_day: date,
    complete: bool,
) -> HeatMap:
    """Make it from (time, outcome, count), the times in UTC and to a quarter of an hour."""
    zone = parse_zone(tz)
    cells: dict[tuple[date, int], Counter[str]] = {}
    total: Counter[str] = Counter()
    for at, outcome, count in ticks:
        local = at.astimezone(zone)
        if first_day <= local.date() <= last_day:
            cells.setdefault((local.date(), local.hour), Counter())[outcome] += count
            total[outcome] += count
    return HeatMap(
        schedule=schedule,
        tz=tz,
        first_day=first_day,
        last_day=last_day,
        cells=tuple(
            HeatCell(day=day, hour=hour, outcomes=dict(outcomes))
            for (day, hour), outcomes in sorted(cells.items())
        ),
        outcomes=dict(total),
        complete=complete,
    )
