"""Why a schedule did or did not run: one sentence, and the facts behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol

import msgspec

from duetime.domain.reasons import (
    Check,
    Explanation,
    Question,
    Reason,
    make_checks,
    make_ended_checks,
    make_explanation,
)
from duetime.domain.schedules.schedule import Schedule, TickStatus, paused_reason

SCHEDULE_SENTENCES = {
    "broken": "Schedule {schedule!r} is broken and does not run: {reason:reason}.",
    "unreadable": "Schedule {schedule!r} cannot be read by this process: {text}",
    "paused": "Schedule {schedule!r} does not run: {reason:reason}, since {paused_at}"
    "[ until {paused_until}].",
    "ended": "Schedule {schedule!r} does not run again: its timetable has no further tick.",
    "no_worker": "Schedule {schedule!r} waits for a worker: no live one knows its task {task!r}. "
    "Its next run is due at {next_run_at}.",
    "due": "Schedule {schedule!r} has been due since {next_run_at}: it should start at any moment.",
    "not_due": "Schedule {schedule!r} runs next at {next_run_at}, in {wait:span}.",
    "shadow": "Schedule {schedule!r} is in shadow: its next tick, at {next_run_at}, in "
    "{wait:span}, is recorded, and does not run.",
    # What only the chain of checks tells.
    "readable": "Its timetable is {when}.",
    "active": "It is not paused.",
    "has_next": "Its next run is at {next_run_at}.",
    "known": "{count:live worker knows/live workers know} {task!r}.",
}
_QUESTIONS = (
    Question("Can its definition be used?", ["readable"], ["broken", "unreadable"]),
    Question("Is it active?", ["active"], ["paused"]),
    Question("Does its timetable have another tick?", ["has_next"], ["ended"]),
    Question("Does a live worker know its task?", ["known"], ["no_worker"]),
    Question("Is its next run due?", ["due"], ["not_due", "shadow"]),
)
TICK_SENTENCES = {
    "skipped": "The tick {tick} of {schedule!r} did not run[: {reason:reason}].",
    "coalesced": "The tick {tick} of {schedule!r} did not run[: {reason:reason}].",
    "not_run": "The tick {tick} of {schedule!r} did not run[: {reason:reason}].",
    "waiting": "The tick {tick} of {schedule!r} waits[: {reason:reason}].",
    "not_due": "The tick {tick} of {schedule!r} is armed: job {job} is due at {run_at}.",
    "due": "The tick {tick} of {schedule!r} has been due since {run_at}: job {job} is to start.",
    "about_to_run": "The tick {tick} of {schedule!r} may start as job {job}, and waits for a free "
    "runner[: {reason:reason}].",
    "running": "The tick {tick} of {schedule!r} has begun as job {job} on {worker}, and has not "
    "finished[: {reason:reason}].",
    "succeeded": "The tick {tick} of {schedule!r} ran as job {job}, {late:span} after its time"
    "[: {reason:reason}].",
    "cancelled": "The tick {tick} of {schedule!r} began as job {job}, and was cancelled"
    "[: {reason:reason}].",
    "failed": "The tick {tick} of {schedule!r} ran as job {job}, and failed[: {error}]",
    "unreadable": "The tick {tick} of {schedule!r} is not in the ledger, and its timetable cannot "
    "be read here: {text}",
    "no_tick": "The tick {tick} of {schedule!r} does not exist: the timetable has no tick at that "
    "time[; the next one is {next}].",
    "excluded": "The tick {tick} of {schedule!r} does not run: {reason:reason}.",
    "not_planned": "The tick {tick} of {schedule!r} is in the future and not armed yet: only the "
    "next two ticks are.",
    "paused": "The tick {tick} of {schedule!r} did not run: {reason:reason}.",
    "too_early": "The tick {tick} of {schedule!r} is before the schedule was created, at "
    "{created_at}.",
    "pruned": "The tick {tick} of {schedule!r} is no longer in the ledger: it was pruned.",
    # What only the chain of checks tells.
    "active": "The schedule is not paused.",
    "in_timetable": "The timetable of {schedule!r} has this tick.",
    "time_come": "Its time was {run_at:utc}.",
    "taken_up": "A worker has claimed it.",
    "not_too_late": "It was not too late to run.",
    "dependency_met": "{after!r} has succeeded in time.",
}
_ACTIVE = Question(
    "Is the schedule active?",
    ["active"],
    [
        "schedule_paused", "schedule_failing", "schedule_changed", "schedule_deleted",
        "schedule_broken", "schedule_renamed", "schedule_undeclared", "tick_closed", "shadow",
        "unreadable", "too_early",
    ],
)  # fmt: skip
_IN_TIMETABLE = Question(
    "Is the tick in its timetable, and not excluded?",
    ["in_timetable"],
    ["no_tick", "excluded_date", "excluded_mask"],
)
_TIME = Question("Has its time come?", ["time_come"], ["not_due", "not_planned"])
_TAKEN_UP = Question("Has a worker claimed it?", ["taken_up"], ["due"])
_NOT_TOO_LATE = Question(
    "Is it not too late?",
    ["not_too_late"],
    [
        "late_skipped", "late_max_age", "late_expires", "late_max_runs", "late_when_given",
        "coalesced", "expired",
    ],
)  # fmt: skip
_DEPENDENCY = Question(
    "Has the schedule that it comes after succeeded?",
    ["dependency_met"],
    ["dependency", "dependency_never"],
)
_OVERLAP = Question("Have the runs before it finished?", (), ["overlap", "overlap_full"])
_RUN = Question(
    "Has it run?",
    ["succeeded"],
    ["failed", "cancelled", "not_run", "running", "about_to_run", "pruned"],
)


class LedgerRow(Protocol):
    """What is read of a row of the ledger."""

    @property
    def tick(self) -> datetime: ...
    @property
    def run_at(self) -> datetime: ...
    @property
    def status(self) -> TickStatus: ...
    @property
    def reason(self) -> Reason | None: ...
    @property
    def job_id(self) -> int | None: ...
    @property
    def claimed_at(self) -> datetime | None: ...
    @property
    def claimed_by(self) -> str | None: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...
    @property
    def succeeded(self) -> bool | None: ...
    @property
    def error(self) -> str | None: ...


def explain_schedule(
    schedule: Schedule, *, now: datetime, last: LedgerRow | None, able: Sequence[str]
) -> Explanation:
    """Say whether and when it runs next, and what keeps it from that."""
    facts: dict[str, Any] = {
        "schedule": schedule.name,
        "when": schedule.timetable.describe() if schedule.readable else None,
        "now": now,
        "next_run_at": schedule.next_run_at,
        "last_tick": last and last.tick,
        "last_status": last and last.status.value,
    }

    def because(code: str, *steps: Reason | None, **more: Any) -> Explanation:
        found = make_explanation(SCHEDULE_SENTENCES, code, facts | more, steps=steps)
        known = facts | {"count": len(able), "task": schedule.target}
        # The facts of the questions before the one that it answers.
        last = next(place for place, one in enumerate(_QUESTIONS) if _answers(one, code))
        passed = [make_explanation(SCHEDULE_SENTENCES, code, known) for code in _PASSED[:last]]
        return msgspec.structs.replace(found, checks=make_checks(_QUESTIONS, [*passed, found]))

    if schedule.broken is not None:
        return because("broken", schedule.broken, reason=schedule.broken)
    if schedule.unreadable is not None:
        return because("unreadable", text=schedule.unreadable)
    if schedule.paused_at is not None:
        reason = paused_reason(schedule)
        times = {"paused_at": schedule.paused_at, "paused_until": schedule.paused_until}
        return because("paused", reason, reason=reason, paused_by=schedule.paused_by, **times)
    if schedule.next_run_at is None:
        return because("ended")
    if not able:
        return because("no_worker", task=schedule.target)
    if schedule.next_run_at <= now:
        return because("due", workers=list(able))
    wait = -(-(schedule.next_run_at - now) // _SECOND) * _SECOND
    code = "shadow" if schedule.policy.shadow else "not_due"
    return because(code, wait=wait, workers=list(able))


_PASSED = ("readable", "active", "has_next", "known")


def _answers(question: Question, code: str) -> bool:
    return code in question.passing or code in question.failing


def explain_tick(
    schedule: Schedule, tick: datetime, *, now: datetime, row: LedgerRow | None
) -> Explanation:
    """Say what became of one tick."""
    facts: dict[str, Any] = {"schedule": schedule.name, "tick": tick, "now": now}
    if row is None:
        return _unknown(schedule, tick, now, facts)
    facts |= {
        "status": row.status.value,
        "reason": row.reason,
        "job": row.job_id,
        "run_at": row.run_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "worker": row.claimed_by,
    }
    code = _code_of(row, now)
    if code == "failed":
        facts["error"] = row.error or "no error was kept"
    elif code == "succeeded" and row.started_at is not None:
        facts["late"] = (row.started_at - row.run_at) // _MILLISECOND * _MILLISECOND
    found = make_explanation(TICK_SENTENCES, code, facts, steps=[row.reason])
    return msgspec.structs.replace(found, checks=_make_chain(schedule, row, found))


def _questions_of(schedule: Schedule) -> list[Question]:
    dependency = [] if schedule.policy.after is None else [_DEPENDENCY]
    return [
        _ACTIVE, _IN_TIMETABLE, _TIME, _TAKEN_UP, _NOT_TOO_LATE, *dependency, _OVERLAP, _RUN,
    ]  # fmt: skip


def _make_chain(schedule: Schedule, row: LedgerRow, found: Explanation) -> tuple[Check, ...]:
    questions = _questions_of(schedule)
    given = found.facts | {"after": schedule.policy.after}

    def tell(*codes: str) -> list[Explanation | Reason]:
        return [make_explanation(TICK_SENTENCES, code, given) for code in codes]

    match found.code:
        case "skipped" | "coalesced" | "not_run":
            return make_ended_checks(questions, row.reason or found)
        case "not_due" | "due" if schedule.paused_at is not None:
            return make_checks(questions, [paused_reason(schedule)])
        case "not_due":
            return make_checks(questions, [*tell("active", "in_timetable"), found])
        case "due":
            return make_checks(questions, [*tell("active", "in_timetable", "time_come"), found])
        case "waiting" if row.reason is not None:
            passed = tell("time_come", "taken_up", "not_too_late")
            if row.reason.code in _OVERLAP.failing:
                passed += tell("dependency_met")
            return make_checks(questions[2:], [*passed, row.reason])
    return make_checks([_TIME, _RUN], [*tell("time_come"), found])


def _code_of(row: LedgerRow, now: datetime) -> str:
    match row.status:
        case TickStatus.SKIPPED | TickStatus.COALESCED | TickStatus.WAITING:
            return row.status.value
        case TickStatus.ARMED:
            return "not_due" if row.run_at > now else "due"
    if row.finished_at is None:
        return "about_to_run" if row.claimed_at is None else "running"
    if row.started_at is None:
        return "not_run"
    return {True: "succeeded", False: "failed", None: "cancelled"}[row.succeeded]


def _unknown(
    schedule: Schedule, tick: datetime, now: datetime, facts: dict[str, Any]
) -> Explanation:
    """Of a tick that has no row in the ledger."""

    def because(code: str, *steps: Reason | None, **more: Any) -> Explanation:
        told = make_explanation(TICK_SENTENCES, code, facts | more, steps=steps)
        why = next((step for step in steps if step is not None), told)
        questions = [_ACTIVE, _IN_TIMETABLE, _TIME, _RUN]
        return msgspec.structs.replace(told, checks=make_ended_checks(questions, why))

    if schedule.unreadable is not None:
        return because("unreadable", text=schedule.unreadable)
    found = list(islice(schedule.timetable.ticks(tick - timedelta(microseconds=1)), 1))
    if not found or found[0].at != tick:
        return because("no_tick", next=found[0].at if found else None)
    if found[0].excluded is not None:
        return because("excluded", found[0].excluded, reason=found[0].excluded)
    if tick > now:
        return because("not_planned")
    if schedule.paused_at is not None:
        reason = paused_reason(schedule)
        return because("paused", reason, reason=reason)
    if tick < schedule.created_at:
        return because("too_early", created_at=schedule.created_at)
    return because("pruned")


_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)
