"""What follows the last planned tick of a schedule: the missed are judged, the next are armed.

Pure; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile

import msgspec

from duetime.domain import effort
from duetime.domain.duration import format_time
from duetime.domain.reasons import Reason
from duetime.domain.schedules.schedule import OpenRun, Schedule, TickStatus

ARMED_AHEAD = 2
"""How many future ticks wait in `due` as jobs: firing one is nothing but a claim."""
MAX_RECORDED = 10_000
"""Of more missed ticks than these, the older ones that do not run share one row of the ledger."""

_MOMENT = timedelta(microseconds=1)
_MAX_STEPS = 20_000_000
_MAX_CHECKED = 2000
_MAX_MASKED = 100
"""How many excluded ticks in a row are written down ahead of their time."""


class PlannedTick(msgspec.Struct, frozen=True):
    """A new row of the ledger; one that is armed has a job."""

    tick: datetime
    run_at: datetime
    status: TickStatus = TickStatus.ARMED
    runs_as: TickStatus = TickStatus.FIRED
    reason: Reason | None = None
    expires_from: datetime | None = None
    """When it was to run, if that is not `run_at`: its expiry counts from then."""
    again: bool = False
    """Also if it ran before, and ended without success."""


class Plan(msgspec.Struct):
    """What is to be written: the ticks up to `planned_until`."""

    ticks: list[PlannedTick]
    planned_until: datetime
    caught_up: int = 0
    """How many missed ones run, those of earlier plans in a row included."""
    more: bool = False
    """There is more to plan, from `planned_until` on: now if that is past, else then."""


def plan_ticks(
    schedule: Schedule,
    *,
    now: datetime,
    armed: int,
    caught_up: int = 0,
    behind: bool = False,
    known: Collection[datetime] = (),
    missed: Reason | None = None,
    most: int = 2000,
) -> Plan:
    """Return what follows the last planned tick: the missed are judged, the next two armed.

    `armed` ticks lie ahead already; `caught_up` runs keep their pace before these. `behind`: missed
    runs are still to be caught up, so what is past comes after them, however little late it is.
    Ticks that are `known` have their row. `missed`: the reason for which every tick up to now is
    skipped; then none is armed. Raises `InvalidSchedule` if the times cannot be found in a few
    seconds.
    """
    with effort.limited(_MAX_STEPS, "its times take too long to compute: simplify them"):
        return _plan_ticks(schedule, now, armed, caught_up, behind, known, missed, most)


def _plan_ticks(
    schedule: Schedule,
    now: datetime,
    armed: int,
    caught_up: int,
    behind: bool,
    known: Collection[datetime],
    missed: Reason | None,
    most: int,
) -> Plan:
    found: list[PlannedTick] = []
    until = schedule.planned_until
    judge = LateJudge(schedule, now)
    behind = schedule.policy.in_order and (behind or caught_up > 0)
    ahead = _ahead(schedule, now)
    masked = 0
    if (shared := _shared(schedule, judge, now, known, missed)) is not None:
        row, until = shared
        found.append(row)
    for tick in schedule.timetable.ticks(until):
        if tick.at > now if missed is not None else tick.at > ahead and armed >= ARMED_AHEAD:
            return Plan(found, until, caught_up)
        masked += tick.at > now and tick.excluded is not None
        if len(found) >= most or masked > _MAX_MASKED:
            return Plan(found, until, caught_up, more=True)
        until = tick.at
        if tick.at in known:
            continue
        run_at = schedule.timetable.run_at(schedule.name, tick.at)
        status, runs_as = TickStatus.ARMED, TickStatus.FIRED
        reason: Reason | None = None
        expires_from = None
        if tick.excluded is not None:
            status, reason = TickStatus.SKIPPED, tick.excluded
        elif missed is not None:
            status, reason = TickStatus.SKIPPED, missed
        elif is_late(schedule, run_at, now) or (behind and run_at <= now):
            status, reason = judge.judge(tick.at, run_at)
            if status is TickStatus.CAUGHT_UP:
                status, runs_as = TickStatus.ARMED, TickStatus.CAUGHT_UP
                run_at, expires_from = now + caught_up * schedule.policy.pace, run_at
                caught_up += 1
                behind = schedule.policy.in_order
        elif tick.at > now:
            armed += 1
        found.append(PlannedTick(tick.at, run_at, status, runs_as, reason, expires_from))
    return Plan(found, until, caught_up)


def count_armed(schedule: Schedule, opened: Sequence[OpenRun], now: datetime) -> int:
    """How many runs lie ahead at their own time: with one that was moved, nobody comes to plan."""
    return sum(
        run.tick > now
        and not run.begun
        and run.runs_as is TickStatus.FIRED
        and run.run_at == schedule.timetable.run_at(schedule.name, run.tick)
        for run in opened
    )


def count_paced(
    schedule: Schedule, opened: Sequence[OpenRun], now: datetime, paced_until: datetime | None
) -> int:
    """How many paces from now the next missed run comes: not before `paced_until`, and after those
    that were armed before they were missed and are not decided on yet.
    """
    pace = schedule.policy.pace
    if not schedule.policy.paced:
        return 0
    judge = LateJudge(schedule, now)
    undecided = sum(
        run.status is TickStatus.ARMED
        and run.runs_as is TickStatus.FIRED
        and is_late(schedule, run.run_at, now)
        and judge.judge(run.tick, run.run_at)[0] is TickStatus.CAUGHT_UP
        for run in opened
    )
    paces = 0 if paced_until is None else -((now - paced_until) // pace)
    return max(0, paces) + undecided


def is_behind(schedule: Schedule, opened: Sequence[OpenRun], now: datetime) -> bool:
    """Whether missed runs are still to be caught up, before any that comes after them."""
    return schedule.policy.in_order and any(
        not run.begun and will_be_caught_up(schedule, run, now) for run in opened
    )


def will_be_caught_up(schedule: Schedule, run: OpenRun, now: datetime) -> bool:
    """Whether an open run is one that was missed, be it decided yet or not."""
    if run.runs_as is not TickStatus.FIRED or run.status is not TickStatus.ARMED:
        return run.runs_as is TickStatus.CAUGHT_UP
    return (
        is_late(schedule, run.run_at, now)
        and LateJudge(schedule, now).judge(run.tick, run.run_at)[0] is TickStatus.CAUGHT_UP
    )


def next_run_at(opened: Sequence[OpenRun], plan: Plan, now: datetime) -> datetime | None:
    """When the schedule runs next; if that is not known, when to plan on."""
    times = [run.run_at for run in opened if not run.begun]
    times += [tick.run_at for tick in plan.ticks if tick.status is TickStatus.ARMED]
    if plan.more and plan.planned_until <= now:
        return plan.planned_until
    first = min((at for at in times if at > now), default=None)
    # Every tick that was checked is excluded: continue from there when the time comes.
    return plan.planned_until if first is None and plan.more else first


def is_late(schedule: Schedule, run_at: datetime, now: datetime) -> bool:
    """Whether the time for a start on time is over. A tick on time fires under every policy."""
    return now - run_at > schedule.policy.grace


def _ahead(schedule: Schedule, now: datetime) -> datetime:
    """Up to when all ticks must be armed: with a long jitter, a later tick may run earlier. The
    next plan comes with the next run, at most a jitter after the next tick.
    """
    jitter = schedule.timetable.jitter
    if not jitter:
        return now
    first = next(schedule.timetable.runs(now), None)
    return now if first is None else first + jitter


def plan_past_moments(
    schedule: Schedule, *, now: datetime, before: Collection[datetime] = (), new: bool = True
) -> list[PlannedTick]:
    """Return the single moments of the timetable that were past when it was given.

    One within `grace` runs: it was requested a moment too late. Others are skipped, whatever
    `catch_up` says, for nobody missed them; only of a `new` schedule is that written down. Moments
    that the timetable had `before` are known.
    """
    planned = []
    for moment in sorted(set(schedule.timetable.moments) - set(before)):
        ticks = schedule.timetable.ticks(moment - timedelta(microseconds=1))
        if moment > now or next(ticks, None) != (moment, None):
            continue
        run_at = schedule.timetable.run_at(schedule.name, moment)
        if not is_late(schedule, run_at, now):
            planned.append(PlannedTick(moment, run_at))
        elif new:
            reason = Reason.of("late_when_given", late=_whole(now - run_at))
            planned.append(PlannedTick(moment, run_at, TickStatus.SKIPPED, reason=reason))
    return planned


# Very many missed ticks


def _shared(
    schedule: Schedule,
    judge: LateJudge,
    now: datetime,
    known: Collection[datetime],
    missed: Reason | None,
) -> tuple[PlannedTick, datetime] | None:
    """One row for the oldest of very many missed ticks, and up to when it stands for them."""
    until = _shared_until(schedule, now, missed)
    if until is None:
        return None
    runs = schedule.timetable.runs(schedule.planned_until, until - _MOMENT)
    for at in islice(runs, _MAX_CHECKED):
        if at not in known:
            run_at = schedule.timetable.run_at(schedule.name, at)
            status, reason = (TickStatus.SKIPPED, missed) if missed else judge.judge(at, run_at)
            shared = Reason(reason.code, reason.facts | {"until_tick": format_time(until)})
            return PlannedTick(at, run_at, status, reason=shared), until
    return None


def stands_for(reason: Reason | None, tick: datetime) -> bool:
    """Whether a row of an earlier tick, with that reason, is also the row of this one."""
    until = None if reason is None else reason.facts.get("until_tick")
    try:
        return until is not None and tick <= datetime.fromisoformat(until)
    except (ValueError, TypeError):
        return False


def _shared_until(schedule: Schedule, now: datetime, missed: Reason | None) -> datetime | None:
    """The last tick that shares a row: none of those up to it runs, and many come after it that
    were missed, too."""
    policy, jitter = schedule.policy, schedule.timetable.jitter
    latest = now
    if missed is None:
        latest = now - policy.grace - jitter
        if policy.catch_up == "all" and (policy.max_runs or MAX_RECORDED + 1) > MAX_RECORDED:
            if policy.oldest is None:
                return None
            latest = min(latest, now - policy.oldest - jitter)

    def missed_after(after: datetime) -> Iterator[datetime]:
        times = schedule.timetable
        if missed is None:
            return times.runs(after, latest - _MOMENT)
        return takewhile(latest.__gt__, (tick.at for tick in times.ticks(after)))

    since, most = schedule.planned_until, MAX_RECORDED + 1
    if len(list(islice(missed_after(since), most))) < most:
        return None
    return _last(missed_after, since, latest, most)[0]


def _last(
    times: Callable[[datetime], Iterator[datetime]], since: datetime, until: datetime, most: int
) -> list[datetime]:
    """The last `most` of the times after `since`; `until` is not before any of them.

    There may be a great many, and long spans without any. So they are searched from the end, and
    only so many in each part.
    """
    many: datetime | None = None
    few, span = until, timedelta(minutes=1)
    while True:
        if many is None:
            start = max(since, until - span)
            span *= 4
        else:
            start = many + (few - many) / 2
        found = list(islice(times(start), 2 * most + 100))
        if len(found) == 2 * most + 100:
            many = start
        elif len(found) >= most or start <= since:
            return found[-most:]
        else:
            few = start


class LateJudge:
    """Says what becomes of a late tick, which depends on nothing but the clock and the policy."""

    def __init__(self, schedule: Schedule, now: datetime) -> None:
        self._schedule = schedule
        self._policy = schedule.policy
        self._now = now
        self._first: datetime | None = None
        self._newest: datetime | None = None

    def judge(self, tick: datetime, run_at: datetime) -> tuple[TickStatus, Reason]:
        """`run_at`: when it was to run, which a person may have moved. One that is not late was
        missed with others, and is caught up with them."""
        policy = self._policy
        late = _whole(self._now - run_at)
        if not is_late(self._schedule, run_at, self._now):
            return TickStatus.CAUGHT_UP, Reason.of("late", late=late)
        if policy.catch_up == "skip":
            return TickStatus.SKIPPED, Reason.of("late_skipped", late=late)
        if policy.max_age is not None and self._now - run_at > policy.max_age:
            return TickStatus.SKIPPED, Reason.of("late_max_age", late=late, limit=policy.max_age)
        if policy.expires is not None and self._now - run_at > policy.expires:
            return TickStatus.SKIPPED, Reason.of("late_expires", late=late, limit=policy.expires)
        # A run that was moved comes at its new time, after the ticks that were due before that.
        timetable = self._schedule.timetable
        moved = run_at != timetable.run_at(self._schedule.name, tick)
        comes = max(tick, run_at) if moved else tick
        if policy.catch_up == "latest":
            if self._is_before_newest(comes):
                return TickStatus.COALESCED, Reason.of("coalesced", late=late)
        elif policy.max_runs is not None and self._before_last(comes, policy.max_runs):
            return TickStatus.SKIPPED, Reason.of("late_max_runs", late=late, limit=policy.max_runs)
        return TickStatus.CAUGHT_UP, Reason.of("late", late=late)

    def _is_before_newest(self, comes: datetime) -> bool:
        """Whether a tick after `comes` is already due."""
        if self._newest is None:
            last = _last(self._missed_after, comes, self._now, 1)
            if not last:
                return False
            self._newest = last[0]
        return comes < self._newest

    def _before_last(self, comes: datetime, runs: int) -> bool:
        """Whether `comes` is before the last `runs` missed ticks; those on time are not missed."""
        if self._first is None:
            last = _last(self._late_after, comes, self._now, runs)
            if len(last) < runs:
                return False
            self._first = last[0]
        return comes < self._first

    def _late_after(self, after: datetime) -> Iterator[datetime]:
        schedule = self._schedule
        return (
            later
            for later in self._missed_after(after)
            if is_late(schedule, schedule.timetable.run_at(schedule.name, later), self._now)
        )

    def _missed_after(self, after: datetime) -> Iterator[datetime]:
        return self._schedule.timetable.runs(after, self._now)


def _whole(span: timedelta) -> timedelta:
    return timedelta(seconds=int(span.total_seconds()))
