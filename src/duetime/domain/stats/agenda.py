"""What comes next, whatever it is; a recipient's week; and what a spec would do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Literal

import msgspec

from duetime.domain import effort
from duetime.domain.reasons import Reason
from duetime.domain.reminders.quiet import Quiet, defer
from duetime.domain.schedules.cron import parse_zone, to_wall
from duetime.domain.schedules.preview import preview
from duetime.domain.schedules.schedule import Schedule
from duetime.domain.schedules.timetable import Timetable
from duetime.errors import InvalidSchedule

AgendaKind = Literal["schedule", "reminder", "job", "flow"]
Position = tuple[datetime, int, int, str]
"""Where an item stands: its time, then its kind, then its id or its name."""

_RANKS: Mapping[AgendaKind, int] = {"schedule": 0, "reminder": 1, "job": 2, "flow": 2}
AFTER_ALL = 3
"""In a position: after everything at that time."""
_STEPS = 200_000
_STEPS_OF_ONE = 20_000
_TOO_MANY = "too many steps"
_MOMENT = timedelta(microseconds=1)


class AgendaItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that comes at a time."""

    at: datetime
    kind: AgendaKind
    """`schedule`: a tick. `reminder`: one that is sent. `job`: one that runs. `flow`: a run that
    starts or goes on."""
    name: str
    """The schedule, the subject of the reminder, the task, or the flow."""
    detail: str
    """When the schedule ticks, the rule of the reminder, the queue of the job."""
    id: int | None = None
    """Of the reminder, the job or the run."""
    recipient: str | None = None
    job_id: int | None = None


class QuietSpan(msgspec.Struct, frozen=True):
    """Quiet hours, once."""

    since: datetime
    until: datetime


class EndedReminder(msgspec.Struct, frozen=True, kw_only=True):
    """A reminder that a recipient got, or that could not be sent to them."""

    id: int
    at: datetime
    """When it was sent, or failed."""
    subject: str
    rule: str
    status: Literal["sent", "failed"]


class RecipientWeek(msgspec.Struct, frozen=True, kw_only=True):
    """What `app.stats.recipient_week()` returns."""

    recipient: str
    tz: str
    since: datetime
    until: datetime
    quiet: str | None
    quiet_spans: tuple[QuietSpan, ...]
    reminders: tuple[AgendaItem, ...]
    """Those that are armed, in order."""
    ended: tuple[EndedReminder, ...]
    """Those that were sent or failed, newest first."""
    complete: bool
    """Whether these are all: at most 500 of each are read."""


class SpecTick(msgspec.Struct, frozen=True, kw_only=True):
    """A tick that a spec would have."""

    at: datetime
    local: datetime
    """On the clock of its time zone."""
    other: datetime | None
    """On the clock of the other zone."""
    excluded: Reason | None
    notes: tuple[str, ...]
    """What clock changes do to it, in its own zone."""
    other_notes: tuple[str, ...]
    """Whether clocks change in the other zone before it."""
    collides_with: tuple[str, ...]
    """Schedules that tick at about the same time."""


class SpecPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What `app.stats.preview()` returns."""

    when: str
    tz: str
    other_tz: str | None
    ticks: tuple[SpecTick, ...]
    complete: bool
    """Whether all other schedules were compared: at most 500 are, and not for too long."""


def position_of(item: AgendaItem) -> Position:
    """Return where an item stands in the agenda."""
    return (item.at, _RANKS[item.kind], item.id or 0, "" if item.id else item.name)


def ticks_of(
    schedules: Sequence[tuple[datetime, str, Callable[[], Timetable | None]]],
    after: datetime,
    until: datetime | None,
) -> Iterator[AgendaItem]:
    """Yield the ticks of all schedules from `after` on, in order.

    Each is given with its next run, before which it does not tick, the earliest first, and its
    name: its timetable is read only when that is reached. None: it cannot be read.
    """
    waiting = deque(schedules)
    heap: list[tuple[datetime, str, AgendaItem, Iterator[AgendaItem]]] = []
    plans: dict[Timetable, _Ticks] = {}
    while waiting or heap:
        while waiting and (not heap or max(waiting[0][0], after) <= heap[0][0]):
            _, name, read = waiting.popleft()
            timetable = read()
            if timetable is not None:
                plan = plans.get(timetable)
                if plan is None:
                    plan = plans[timetable] = _Ticks(timetable, after, until)
                _push_next(heap, plan.of(name))
        if heap:
            _, _, item, ticks = heappop(heap)
            yield item
            _push_next(heap, ticks)


def _push_next(
    heap: list[tuple[datetime, str, AgendaItem, Iterator[AgendaItem]]], ticks: Iterator[AgendaItem]
) -> None:
    item = next(ticks, None)
    if item is not None:
        heappush(heap, (item.at, item.name, item, ticks))


class _Ticks:
    """The ticks of a timetable, computed once: many schedules have the same."""

    def __init__(self, timetable: Timetable, after: datetime, until: datetime | None) -> None:
        self._detail = timetable.describe()
        self._found: list[datetime] = []
        self._coming = _times_of(timetable, after, until)

    def of(self, name: str) -> Iterator[AgendaItem]:
        """Yield them as those of one schedule."""
        for place in count():
            if place == len(self._found):
                at = next(self._coming, None)
                if at is None:
                    return
                self._found.append(at)
            at = self._found[place]
            yield AgendaItem(at=at, kind="schedule", name=name, detail=self._detail)


def _times_of(timetable: Timetable, after: datetime, until: datetime | None) -> Iterator[datetime]:
    ticks = timetable.ticks(after - _MOMENT)
    while True:
        try:
            with effort.limited(_STEPS_OF_ONE, _TOO_MANY):
                tick = next(ticks, None)
        except InvalidSchedule:
            return
        if tick is None or (until is not None and tick.at > until):
            return
        if tick.excluded is None:
            yield tick.at


def quiet_spans(quiet: Quiet, since: datetime, until: datetime) -> list[QuietSpan]:
    """Return when the quiet hours are, between two times."""
    zone = parse_zone(quiet.tz)
    spans: list[QuietSpan] = []
    at = since
    while at < until:
        if quiet.covers(to_wall(at, zone).time()):
            end = min(defer(at, quiet), until)
            spans.append(QuietSpan(at, end))
            at = end
        else:
            at = _next_start(at, quiet, until)
    return spans


def _next_start(at: datetime, quiet: Quiet, until: datetime) -> datetime:
    """The first moment after `at` at which the clock shows a quiet time; to a quarter of an hour
    where clocks change."""
    zone = parse_zone(quiet.tz)
    wall = to_wall(at, zone)
    start = datetime.combine(wall, quiet.start)
    ahead = (start if start > wall else start + timedelta(days=1)) - wall
    guess = at + ahead
    if to_wall(guess, zone).time() == quiet.start:
        return min(guess, until)
    step = at
    while step < until and not quiet.covers(to_wall(step, zone).time()):
        step += timedelta(minutes=15)
    return min(step, until)


def preview_spec(
    timetable: Timetable,
    after: datetime,
    n: int,
    *,
    other_tz: str | None,
    others: Sequence[Schedule],
    within: timedelta,
    all_others: bool,
) -> SpecPreview:
    """Return the first ticks of a timetable, and which of the `others` tick `within` that time."""
    rows = preview(timetable, after, n)
    zone = None if other_tz is None else parse_zone(other_tz)
    collisions: dict[datetime, list[str]] = {row.at: [] for row in rows}
    times = [row.at for row in rows if row.excluded is None]
    near: dict[Timetable, list[datetime]] = {}
    """Many schedules have the same timetable."""
    complete = all_others
    try:
        with effort.limited(_STEPS, _TOO_MANY):
            for other in others:
                if not other.readable or other.paused_at is not None:
                    continue
                if other.timetable not in near:
                    near[other.timetable] = [
                        at for at in times if _ticks_near(other.timetable, at, within)
                    ]
                for at in near[other.timetable]:
                    collisions[at].append(other.name)
    except InvalidSchedule:
        complete = False
    ticks = []
    before = after
    for row in rows:
        there = None if zone is None else row.at.astimezone(zone)
        notes: tuple[str, ...] = ()
        if zone is not None and there is not None:
            was = before.astimezone(zone).utcoffset()
            if was != there.utcoffset():
                notes = (f"clocks change in {zone.key} before this",)
        ticks.append(
            SpecTick(
                at=row.at.astimezone(UTC),
                local=row.local,
                other=there,
                excluded=row.excluded,
                notes=row.notes,
                other_notes=notes,
                collides_with=tuple(collisions[row.at]),
            )
        )
        before = row.at
    return SpecPreview(
        when=timetable.describe(),
        tz=timetable.tz,
        other_tz=None if zone is None else zone.key,
        ticks=tuple(ticks),
        complete=complete,
    )


def _ticks_near(timetable: Timetable, at: datetime, within: timedelta) -> bool:
    found = next(iter(timetable.ticks(at - within - _MOMENT)), None)
    return found is not None and found.at <= at + within and found.excluded is None
