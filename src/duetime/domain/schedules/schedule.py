"""A schedule's values: its policy, its open runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, Protocol, TypedDict, get_args

import msgspec

from duetime.domain.checks import check_name
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.reasons import Reason
from duetime.domain.schedules.timetable import Timetable
from duetime.errors import InvalidSchedule

DEFAULT_GRACE = timedelta(seconds=10)
ENGINE_ACTOR = "duetime"
"""Who changed something, if no person did."""

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


TickStatusLike = (
    TickStatus
    | Literal[
        "armed", "waiting", "fired", "caught_up", "triggered", "backfilled", "coalesced", "skipped"
    ]
)


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
    def in_order(self) -> bool:
        """Whether all missed runs come one after the other, before what is due after them."""
        return self.catch_up == "all" and self.at_once is not None

    @property
    def oldest(self) -> timedelta | None:
        """What is more late than this does not run; None: there is no limit."""
        return min((age for age in (self.max_age, self.expires) if age is not None), default=None)

    @property
    def paced(self) -> bool:
        """Whether missed runs keep a distance from each other."""
        return self.catch_up == "all" and self.pace > timedelta(0)

    @property
    def plain(self) -> bool:
        """Whether a tick on time only needs a check of the runs before it."""
        return self.after is None and not self.shadow


class PolicyArguments(TypedDict, total=False):
    """The keyword arguments that say what a schedule does when things do not go as planned."""

    catch_up: CatchUp
    max_runs: int | None
    max_age: Duration | None
    pace: Duration
    grace: Duration
    overlap: Overlap
    max_concurrent_runs: int
    burst_allowed: bool
    after: str | None
    within: Duration
    wait: Duration | None
    pause_after: int | None
    expires: Duration | None
    shadow: bool


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
    if read.get("expires") == timedelta(0):
        raise InvalidSchedule("expires must be greater than zero: else no run could start.")
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
        if span is not None and not timedelta(0) <= span <= _MAX_SPAN:
            raise InvalidSchedule(f"{name} must be from 0 s to 100 years, got {span}.")
    for name in ("max_runs", "max_concurrent_runs", "pause_after"):
        value = getattr(policy, name)
        if value is not None and not 1 <= value <= 1_000_000:
            raise InvalidSchedule(f"{name} must be a whole number from 1 on, got {value}.")
    return policy


_MAX_SPAN = timedelta(days=36525)
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
    broken: Reason | None
    declared: bool
    revision: int
    created_at: datetime
    updated_at: datetime
    owner: str | None = None
    """The service whose code declares it."""
    unreadable: str | None = None
    """Why this process cannot read it, though others can: it is left to them."""

    @property
    def readable(self) -> bool:
        return self.broken is None and self.unreadable is None


class OpenRun(msgspec.Struct, frozen=True):
    """A tick whose job has not ended. `runs_as` is its status once it runs; `begun`: the job left
    `due`, or was tried before, so that it takes a place."""

    schedule_id: int
    tick: datetime
    run_at: datetime
    status: TickStatus
    runs_as: TickStatus
    job_id: int
    begun: bool
    begun_at: datetime | None = None
    """When its handler started, as the ledger has it."""


def check_order(after: Mapping[str, str | None], names: Iterable[str]) -> None:
    """Raise `InvalidSchedule` if one of these schedules comes after an unknown one, or itself.

    `after` has every schedule, with the one that it comes after.

    >>> check_order({"a": "b", "b": "c", "c": "a"}, ["a"])
    Traceback (most recent call last):
    duetime.errors.InvalidSchedule: Schedules cannot wait for each other: a after b after c after a.
    """
    for name in names:
        path = [name]
        while (before := after.get(path[-1])) is not None and before not in path[1:]:
            if before not in after and path == [name]:
                raise InvalidSchedule(
                    f"The schedule {name!r} comes after {before!r}, which does not exist. Add that "
                    "one first or with it, or correct after=."
                )
            path.append(before)
            if before == name:
                raise InvalidSchedule(
                    f"Schedules cannot wait for each other: {' after '.join(path)}."
                )


class Paused(Protocol):
    """What is read of a schedule that is paused."""

    @property
    def paused_by(self) -> str | None: ...
    @property
    def pause_reason(self) -> str | None: ...
    @property
    def failures(self) -> int: ...


def paused_reason(schedule: Paused) -> Reason:
    by = schedule.paused_by or "unknown"
    if by == ENGINE_ACTOR and not schedule.pause_reason:
        return Reason.of("schedule_failing", by=by, failures=schedule.failures)
    return Reason.of("schedule_paused", by=by, text=schedule.pause_reason or None)
