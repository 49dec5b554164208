"""A schedule's values, and its policies: what becomes of a tick. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, Literal, get_args

import msgspec

from duetime.domain.duration import format_duration, parse_duration
from duetime.domain.job import check_name
from duetime.domain.timetable import Timetable
from duetime.errors import InvalidSchedule

ARMED_AHEAD = 2
"""How many future ticks wait in `due` as jobs: firing one is nothing but a claim."""
DEFAULT_GRACE = timedelta(seconds=10)
UNDECIDED_WAIT = timedelta(milliseconds=200)
RETRY_WAIT = timedelta(seconds=5)
"""A run that waits for another looks again after this time, if nothing tells it before."""

_MOST_LOOKED_AT = 2000
_MOST_MASKED = 100
"""How many excluded ticks in a row are written down ahead of their time."""

CatchUp = Literal["skip", "latest", "all"]
Overlap = Literal["skip", "buffer_one", "buffer_all", "allow", "cancel_other"]


class TickStatus(StrEnum):
    """What became of a tick. The first two are still open."""

    ARMED = "armed"
    WAITING = "waiting"
    FIRED = "fired"
    CAUGHT_UP = "caught_up"
    TRIGGERED = "triggered"
    BACKFILLED = "backfilled"
    COALESCED = "coalesced"
    SKIPPED = "skipped"


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule does when things do not go as planned."""

    catch_up: CatchUp = "latest"
    max_runs: int | None = None
    max_age: timedelta | None = None
    pace: timedelta = timedelta(0)
    grace: timedelta = DEFAULT_GRACE
    overlap: Overlap = "skip"
    max_concurrent_runs: int = 1
    burst_allowed: bool = False
    after: str | None = None
    within: timedelta = timedelta(hours=1)
    wait: timedelta | None = None
    pause_after: int | None = None
    expires: timedelta | None = None
    shadow: bool = False

    @property
    def at_once(self) -> int | None:
        """How many runs may be open at once; None: any number."""
        return None if self.overlap == "allow" else self.max_concurrent_runs

    @property
    def plain(self) -> bool:
        """Whether a tick on time needs no more than a look at the runs before it."""
        return self.after is None and not self.shadow


def make_policy(given: Mapping[str, Any]) -> Policy:
    """Return a policy from options as people write them; raise `InvalidSchedule`."""
    known = Policy.__struct_fields__
    if unknown := sorted(set(given) - set(known)):
        raise InvalidSchedule(
            f"A schedule has no option {unknown[0]!r}. It has: {', '.join(known)}."
        )
    read: dict[str, Any] = {}
    for name, value in given.items():
        read[name] = value
        if name in _SPANS and value is not None:
            read[name] = parse_duration(value, name=name)
    for name, choices in (("catch_up", get_args(CatchUp)), ("overlap", get_args(Overlap))):
        if name in read and read[name] not in choices:
            raise InvalidSchedule(f"{name} must be one of {choices}, got {read[name]!r}.")
    for name in ("max_runs", "max_concurrent_runs", "pause_after"):
        value = read.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000
        ):
            raise InvalidSchedule(f"{name} must be a whole number from 1 on, got {value!r}.")
    for name in ("burst_allowed", "shadow"):
        if not isinstance(read.get(name, False), bool):
            raise InvalidSchedule(f"{name} must be True or False, got {read[name]!r}.")
    if read.get("after") is not None:
        check_name(read["after"], what="schedule to come after")
    elif "within" in read or read.get("wait") is not None:
        raise InvalidSchedule("within= and wait= need after=, the schedule to come after.")
    return Policy(**{name: value for name, value in read.items() if value is not None})


def check_policy(policy: Policy) -> Policy:
    """Return a policy that was stored, if its numbers can be used; raise `InvalidSchedule`."""
    for name in _SPANS:
        span = getattr(policy, name)
        if span is not None and not timedelta(0) <= span <= _LONGEST_SPAN:
            raise InvalidSchedule(f"{name} must be from 0 s to 100 years, got {span}.")
    for name in ("max_runs", "max_concurrent_runs", "pause_after"):
        value = getattr(policy, name)
        if value is not None and not 1 <= value <= 1_000_000:
            raise InvalidSchedule(f"{name} must be a whole number from 1 on, got {value}.")
    return policy


_LONGEST_SPAN = timedelta(days=36525)
_SPANS = frozenset({"max_age", "pace", "grace", "within", "wait", "expires"})


class Schedule(msgspec.Struct, kw_only=True):
    """A stored schedule."""

    id: int
    name: str
    kind: str
    target: str
    args: str
    queue: str | None
    priority: int | None
    max_attempts: int | None
    timeout: timedelta | None
    timetable: Timetable
    policy: Policy
    planned_until: datetime
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_enqueued_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    paused_until: datetime | None
    failures: int
    broken: str | None
    declared: bool
    revision: int
    created_at: datetime
    updated_at: datetime


class OpenRun(msgspec.Struct, frozen=True):
    """A tick whose job has not ended. `runs_as` is its status once it runs; `begun`: the job left
    `due`, or was tried before."""

    schedule_id: int
    tick: datetime
    run_at: datetime
    status: TickStatus
    runs_as: TickStatus
    job_id: int
    begun: bool


class PlannedTick(msgspec.Struct, frozen=True):
    """A new row of the ledger; one that is armed has a job."""

    tick: datetime
    run_at: datetime
    status: TickStatus = TickStatus.ARMED
    runs_as: TickStatus = TickStatus.FIRED
    reason: str | None = None


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
    missed: str | None = None,
    most: int = 2000,
) -> Plan:
    """Return what follows the last planned tick: the missed are judged, the next two armed.

    `armed` ticks lie ahead already; `caught_up` were planned just before. `missed`: the reason for
    which every tick up to now is skipped (the schedule was paused).
    """
    found: list[PlannedTick] = []
    until = schedule.planned_until
    judge = LateJudge(schedule, now)
    ahead = _ahead(schedule, now)
    masked = 0
    for tick in schedule.timetable.ticks(until):
        if tick.at > ahead and armed >= ARMED_AHEAD:
            return Plan(found, until, caught_up)
        masked += tick.at > now and tick.excluded is not None
        if len(found) >= most or masked > _MOST_MASKED:
            return Plan(found, until, caught_up, more=True)
        run_at = schedule.timetable.run_at(schedule.name, tick.at)
        status, runs_as, reason = TickStatus.ARMED, TickStatus.FIRED, None
        if tick.excluded is not None:
            status, reason = TickStatus.SKIPPED, tick.excluded
        elif tick.at <= now and missed is not None:
            status, reason = TickStatus.SKIPPED, missed
        elif is_late(schedule, run_at, now):
            status, reason = judge.judge(tick.at, run_at)
            if status is TickStatus.CAUGHT_UP:
                status, runs_as = TickStatus.ARMED, TickStatus.CAUGHT_UP
                run_at = now + caught_up * schedule.policy.pace
                caught_up += 1
        elif tick.at > now:
            armed += 1
        found.append(PlannedTick(tick.at, run_at, status, runs_as, reason))
        until = tick.at
    return Plan(found, until, caught_up)


def _ahead(schedule: Schedule, now: datetime) -> datetime:
    """Up to when all ticks must be armed: with a long jitter, a later tick may run earlier. The
    next plan comes with the next run, at most a jitter after the next tick.
    """
    jitter = schedule.timetable.jitter
    if not jitter:
        return now
    ticks = islice(schedule.timetable.ticks(now), _MOST_LOOKED_AT)
    first = next((tick.at for tick in ticks if tick.excluded is None), None)
    return now if first is None else first + jitter


def is_late(schedule: Schedule, run_at: datetime, now: datetime) -> bool:
    """Whether the time for a start on time is over. A tick on time fires under every policy."""
    return now - run_at > schedule.policy.grace


class LateJudge:
    """Says what becomes of a late tick, which depends on nothing but the clock and the policy."""

    def __init__(self, schedule: Schedule, now: datetime) -> None:
        self._schedule = schedule
        self._policy = schedule.policy
        self._now = now
        self._first: datetime | None = None

    def judge(self, tick: datetime, run_at: datetime) -> tuple[TickStatus, str | None]:
        """`run_at`: when it was to run, which a person may have moved."""
        policy = self._policy
        late = f"{format_duration(_whole(self._now - run_at))} late"
        if policy.catch_up == "skip":
            return TickStatus.SKIPPED, f"too late: {late}, and catch_up is skip"
        if policy.max_age is not None and self._now - run_at > policy.max_age:
            limit = format_duration(policy.max_age)
            return TickStatus.SKIPPED, f"too late: {late}, and max_age is {limit}"
        if policy.catch_up == "latest":
            later = self._next(tick)
            if later is not None:
                return TickStatus.COALESCED, f"coalesced into a later run: {late}"
        elif policy.max_runs is not None and self._before_last(tick, policy.max_runs):
            return (
                TickStatus.SKIPPED,
                f"too late: {late}, and only the last {policy.max_runs} missed runs are caught up",
            )
        return TickStatus.CAUGHT_UP, late

    def _next(self, tick: datetime) -> datetime | None:
        """The next tick that is already due."""
        return next(self._missed_after(tick), None)

    def _before_last(self, tick: datetime, runs: int) -> bool:
        """Whether `tick` is older than the last `runs` missed ones; those on time are not."""
        if self._first is not None:
            return tick < self._first
        # Looked for from the end: there may be a great many.
        span = timedelta(minutes=1)
        while self._now - span > tick:
            last = self._late_after(self._now - span)
            if len(last) >= runs:
                self._first = last[-runs]
                return tick < self._first
            span *= 4
        return len(self._late_after(tick)) >= runs

    def _late_after(self, tick: datetime) -> list[datetime]:
        schedule = self._schedule
        return [
            later
            for later in self._missed_after(tick)
            if is_late(schedule, schedule.timetable.run_at(schedule.name, later), self._now)
        ]

    def _missed_after(self, tick: datetime) -> Iterator[datetime]:
        for later in self._schedule.timetable.ticks(tick):
            if later.at > self._now:
                return
            if later.excluded is None:
                yield later.at


class Decision(msgspec.Struct, frozen=True):
    """What a claimed run does: `run`, `skip` for good, or `wait` (look again at `at`)."""

    action: Literal["run", "skip", "wait"]
    status: TickStatus
    reason: str | None = None
    at: datetime | None = None
    runs_as: TickStatus | None = None
    cancel: tuple[int, ...] = ()
    """Jobs to be cancelled first."""


def decide(
    schedule: Schedule,
    run: OpenRun,
    *,
    now: datetime,
    others: Sequence[OpenRun],
    succeeded_at: datetime | None,
) -> Decision:
    """Return what a due run of the schedule does. `others` are its open runs beside this one;
    `succeeded_at` is the last success of the schedule that this one comes after.
    """
    policy, runs_as, reason = schedule.policy, run.runs_as, None
    if runs_as is TickStatus.TRIGGERED:
        return Decision("run", runs_as)
    in_turn = runs_as in (TickStatus.FIRED, TickStatus.CAUGHT_UP)
    open_still = run.status in (TickStatus.ARMED, TickStatus.WAITING)
    if in_turn and open_still and schedule.paused_at is not None:
        return Decision("skip", TickStatus.SKIPPED, paused_reason(schedule))
    on_time = not is_late(schedule, run.run_at, now)
    if runs_as is TickStatus.FIRED and run.status is TickStatus.ARMED and not on_time:
        runs_as, reason = LateJudge(schedule, now).judge(run.tick, run.run_at)
        if runs_as is not TickStatus.CAUGHT_UP:
            return Decision("skip", runs_as, reason)
    if policy.shadow:
        return Decision("skip", runs_as, "shadow: recorded, and not run")
    if policy.after is not None and (succeeded_at is None or now - succeeded_at > policy.within):
        return _without_predecessor(schedule, run, runs_as, now, succeeded_at)
    running = [other for other in others if counts_for(schedule, run, other, now)]
    before = [
        other
        for other in others
        if other.status is TickStatus.WAITING and not other.begun and other.tick < run.tick
    ]
    if policy.at_once is None or len(running) + len(before) < policy.at_once:
        return Decision("run", runs_as, reason)
    waiting = [other for other in others if other.status is TickStatus.WAITING]
    return _overlap(policy, run, runs_as, now, running, before, waiting)


def _without_predecessor(
    schedule: Schedule,
    run: OpenRun,
    runs_as: TickStatus,
    now: datetime,
    succeeded_at: datetime | None,
) -> Decision:
    policy = schedule.policy
    last = "it never has" if succeeded_at is None else f"the last time at {_say(succeeded_at)}"
    reason = (
        f"dependency: {policy.after!r} has not succeeded within "
        f"{format_duration(policy.within)} ({last})"
    )
    if policy.wait is not None and now < run.tick + policy.wait:
        at = min(now + RETRY_WAIT, run.tick + policy.wait)
        return Decision("wait", TickStatus.WAITING, reason, at, runs_as)
    return Decision("skip", TickStatus.SKIPPED, reason)


def _overlap(
    policy: Policy,
    run: OpenRun,
    runs_as: TickStatus,
    now: datetime,
    running: Sequence[OpenRun],
    before: Sequence[OpenRun],
    waiting: Sequence[OpenRun],
) -> Decision:
    first = [*running, *before][0]
    reason = f"overlap: the run of {_say(first.tick)} has not ended"
    wait = Decision("wait", TickStatus.WAITING, reason, now + RETRY_WAIT, runs_as)
    if runs_as in (TickStatus.CAUGHT_UP, TickStatus.BACKFILLED):
        # Each of these was asked for: they come one after the other, or all together.
        return Decision("run", runs_as) if policy.burst_allowed else wait
    match policy.overlap:
        case "buffer_one" if run.status is not TickStatus.WAITING and waiting:
            return Decision("skip", TickStatus.SKIPPED, f"{reason}, and one run waits already")
        case "buffer_one" | "buffer_all":
            return wait
        case "cancel_other":
            jobs = tuple(other.job_id for other in running)
            reason = f"{reason}: it is cancelled"
            return Decision("wait", TickStatus.WAITING, reason, wait.at, runs_as, jobs)
        case _ if run.status is TickStatus.WAITING:
            # It waited for another reason (a dependency), and waits on.
            return wait
        case _ if running and all(other.status is TickStatus.ARMED for other in running):
            # Another worker decides on those just now: they may not run after all.
            return Decision("wait", TickStatus.ARMED, None, now + UNDECIDED_WAIT)
        case _:
            return Decision("skip", TickStatus.SKIPPED, reason)


def counts_for(schedule: Schedule, run: OpenRun, other: OpenRun, now: datetime) -> bool:
    """Whether `other` takes a place from `run`: it has begun, or comes before it and will.

    Of two that are claimed at the same moment the earlier goes first, whoever looks first.
    """
    if other.status is TickStatus.WAITING:
        return other.begun and other.tick < run.tick
    if other.status is not TickStatus.ARMED:
        return other.begun
    if other.tick >= run.tick or not (other.begun or other.run_at <= run.run_at):
        return False
    return (
        not is_late(schedule, other.run_at, now)
        or LateJudge(schedule, now).judge(other.tick, other.run_at)[0] is TickStatus.CAUGHT_UP
    )


def paused_reason(schedule: Schedule) -> str:
    why = f": {schedule.pause_reason}" if schedule.pause_reason else ""
    return f"paused by {schedule.paused_by or 'unknown'}{why}"


def run_key(name: str, tick: datetime) -> str:
    """The stable key of a run, the same for all workers."""
    return f"{KEY_PREFIX}{name}@{_say(tick)}"


def read_run_key(key: str | None) -> tuple[str, datetime] | None:
    """The schedule and the tick of a run's key; None: it is no run.

    >>> read_run_key("tick:nightly@2026-11-16T03:00:00Z")
    ('nightly', datetime.datetime(2026, 11, 16, 3, 0, tzinfo=datetime.timezone.utc))
    """
    if key is None or not key.startswith(KEY_PREFIX):
        return None
    name, _, tick = key.removeprefix(KEY_PREFIX).rpartition("@")
    try:
        return name, datetime.fromisoformat(tick)
    except ValueError:
        return None


KEY_PREFIX = "tick:"


def _say(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _whole(span: timedelta) -> timedelta:
    return timedelta(seconds=int(span.total_seconds()))
