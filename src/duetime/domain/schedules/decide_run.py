"""What a claimed run of a schedule does: run, wait, or be skipped. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from duetime.domain.reasons import Reason
from duetime.domain.schedules.plan import LateJudge, is_late
from duetime.domain.schedules.schedule import (
    OpenRun,
    Policy,
    Schedule,
    TickStatus,
    paused_reason,
)

UNDECIDED_WAIT = timedelta(milliseconds=200)
RETRY_WAIT = timedelta(seconds=5)
"""A run that waits for another is checked again after this time, if nothing releases it before."""
_RECORDED_WITHIN = timedelta(seconds=1)
"""That a run has begun is in the ledger so soon."""
_MISSED_AFTER = timedelta(seconds=1)
"""A run that is claimed so late was not waited for at its time."""


class Decision(msgspec.Struct, frozen=True):
    """What a claimed run does: `run`, `skip` for good, or `wait` (check again at `at`)."""

    action: Literal["run", "skip", "wait"]
    status: TickStatus
    reason: Reason | None = None
    at: datetime | None = None
    runs_as: TickStatus | None = None
    cancel: tuple[int, ...] = ()
    """Jobs to be cancelled first."""
    run_at: datetime | None = None
    """Its new time, if it has one: a missed run that is caught up."""


def decide(
    schedule: Schedule,
    run: OpenRun,
    *,
    now: datetime,
    others: Sequence[OpenRun],
    succeeded_at: datetime | None,
    paced_until: datetime | None = None,
) -> Decision:
    """Return what a due run of the schedule does, which has not begun. `others` are the open runs
    beside it; `succeeded_at` is the last success of the schedule that this one comes after;
    `paced_until`: before then no missed run is caught up.
    """
    policy, runs_as, reason, run_at = schedule.policy, run.runs_as, None, None
    if runs_as is TickStatus.TRIGGERED:
        return Decision("run", runs_as)
    in_turn = runs_as in (TickStatus.FIRED, TickStatus.CAUGHT_UP)
    if in_turn and schedule.paused_at is not None:
        return Decision("skip", TickStatus.SKIPPED, paused_reason(schedule))
    running = [other for other in others if counts_for(schedule, run, other, now)]
    before = [other for other in others if _waits_before(run, other, now)]
    full = policy.at_once is not None and len(running) + len(before) >= policy.at_once
    missed = full and now - run.run_at > _MISSED_AFTER and _is_behind(policy, run, running, before)
    late = is_late(schedule, run.run_at, now) or missed
    if runs_as is TickStatus.FIRED and run.status is not TickStatus.WAITING and late:
        runs_as, reason = LateJudge(schedule, now).judge(run.tick, run.run_at)
        if runs_as is not TickStatus.CAUGHT_UP:
            return Decision("skip", runs_as, reason)
        if policy.paced:
            run_at = max(now, paced_until or now, *_paces_before(policy, run, others))
            if run_at > now:
                return Decision("wait", TickStatus.ARMED, reason, run_at, runs_as, run_at=run_at)
    if policy.shadow:
        return Decision("skip", runs_as, Reason("shadow"))
    if policy.after is not None and (succeeded_at is None or now - succeeded_at > policy.within):
        return _without_predecessor(schedule, run, runs_as, now, succeeded_at)
    if not full:
        return Decision("run", runs_as, reason, run_at=run_at)
    waiting = [other for other in others if other.status is TickStatus.WAITING]
    return _overlap(policy, run, runs_as, now, running, before, waiting)


def _is_behind(
    policy: Policy, run: OpenRun, running: Sequence[OpenRun], before: Sequence[OpenRun]
) -> bool:
    """Whether missed runs are in the way of one that was due before they began: it was missed with
    them, if only by a little."""
    in_the_way = [*running, *before]
    return (
        policy.in_order
        and any(other.runs_as is TickStatus.CAUGHT_UP for other in in_the_way)
        and all(other.begun_at is None or run.run_at < other.begun_at for other in in_the_way)
    )


def _paces_before(policy: Policy, run: OpenRun, others: Sequence[OpenRun]) -> list[datetime]:
    return [
        other.run_at + policy.pace
        for other in others
        if other.runs_as is TickStatus.CAUGHT_UP and other.tick < run.tick
    ]


def _without_predecessor(
    schedule: Schedule,
    run: OpenRun,
    runs_as: TickStatus,
    now: datetime,
    succeeded_at: datetime | None,
) -> Decision:
    policy = schedule.policy
    if succeeded_at is None:
        reason = Reason.of("dependency_never", after=policy.after)
    else:
        facts = {"within": policy.within, "last": succeeded_at}
        reason = Reason.of("dependency", after=policy.after, **facts)
    if policy.wait is not None and now < run.run_at + policy.wait:
        at = min(now + RETRY_WAIT, run.run_at + policy.wait)
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
    reason = Reason.of("overlap", tick=first.tick)
    wait = Decision("wait", TickStatus.WAITING, reason, now + RETRY_WAIT, runs_as)
    if runs_as in (TickStatus.CAUGHT_UP, TickStatus.BACKFILLED):
        # Each of these was requested: they come one after the other, or all together.
        return Decision("run", runs_as) if policy.burst_allowed else wait
    match policy.overlap:
        case "buffer_one" if run.status is not TickStatus.WAITING and waiting:
            full = Reason.of("overlap_full", tick=first.tick)
            return Decision("skip", TickStatus.SKIPPED, full)
        case "buffer_one" | "buffer_all":
            return wait
        case "cancel_other":
            jobs = _in_the_way(policy, running, before)
            reason = Reason.of("overlap", tick=first.tick, cancelled=jobs or None)
            return Decision("wait", TickStatus.WAITING, reason, wait.at, runs_as, jobs)
        case _ if run.status is TickStatus.WAITING:
            # It waited for another reason (a dependency), and waits on.
            return wait
        case _ if running and all(other.status is TickStatus.ARMED for other in running):
            # Another worker decides on those just now: they may not run after all.
            return Decision("wait", TickStatus.ARMED, None, now + UNDECIDED_WAIT)
        case _:
            return Decision("skip", TickStatus.SKIPPED, reason)


def _in_the_way(
    policy: Policy, running: Sequence[OpenRun], before: Sequence[OpenRun]
) -> tuple[int, ...]:
    """The jobs of the oldest runs, as many as have to end for this run and those before it."""
    too_many = len(running) + len(before) + 1 - policy.max_concurrent_runs
    oldest = sorted((other for other in running if other.begun), key=_turn)
    return tuple(other.job_id for other in oldest[:too_many])


def counts_for(schedule: Schedule, run: OpenRun, other: OpenRun, now: datetime) -> bool:
    """Whether `other` takes a place from `run`: it has begun, or comes before it and will.

    Of two that are claimed at the same moment the earlier goes first, whichever is checked first.
    The check before a run (`schedule_gate`) uses the same order.
    """
    if other.status is TickStatus.WAITING:
        return other.begun and other.tick < run.tick
    if other.status is not TickStatus.ARMED or other.runs_as is TickStatus.TRIGGERED:
        return other.begun
    if _turn(other) > _turn(run):
        return False
    # One that a worker holds may have started at the last moment, and not be recorded yet.
    recorded = now - _RECORDED_WITHIN if other.begun else now
    return (
        other.runs_as is not TickStatus.FIRED
        or not is_late(schedule, other.run_at, recorded)
        or LateJudge(schedule, now).judge(other.tick, other.run_at)[0] is TickStatus.CAUGHT_UP
    )


def _turn(run: OpenRun) -> tuple[datetime, datetime]:
    """What orders the runs of a schedule: a person may have moved one behind a later tick."""
    return run.run_at, run.tick


def _waits_before(run: OpenRun, other: OpenRun, now: datetime) -> bool:
    return (
        other.status is TickStatus.WAITING
        and not other.begun
        and other.tick < run.tick
        and other.run_at <= now
    )
