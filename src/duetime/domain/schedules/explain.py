"""Why a schedule did or did not run: one sentence, and the facts behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol

from duetime.domain.duration import format_duration
from duetime.domain.jobs.explain import Explanation
from duetime.domain.schedules.schedule import Schedule, TickStatus, paused_reason


class LedgerRow(Protocol):
    """What is read of a row of the ledger."""

    @property
    def tick(self) -> datetime: ...
    @property
    def run_at(self) -> datetime: ...
    @property
    def status(self) -> TickStatus: ...
    @property
    def reason(self) -> str | None: ...
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
        "when": schedule.timetable.describe() if schedule.readable else "unreadable",
        "now": now.isoformat(),
        "next_run_at": schedule.next_run_at and schedule.next_run_at.isoformat(),
        "last_tick": last and f"{_say(last.tick)}: {last.status}",
    }

    def because(reason: str, sentence: str, **more: Any) -> Explanation:
        return Explanation(reason, f"Schedule {schedule.name!r} {sentence}", facts | more)

    if schedule.broken is not None:
        return because("broken", f"is set aside, and does not run: {schedule.broken}")
    if schedule.unreadable is not None:
        return because("unreadable", f"cannot be read by this process: {schedule.unreadable}")
    if schedule.paused_at is not None:
        until = f" until {_say(schedule.paused_until)}" if schedule.paused_until else ""
        return because(
            "paused",
            f"does not run: {paused_reason(schedule)}, since {_say(schedule.paused_at)}{until}.",
            paused_by=schedule.paused_by,
        )
    if schedule.next_run_at is None:
        return because("ended", "does not run again: its timetable has no further tick.")
    if not able:
        return because(
            "no_worker",
            f"will be late: no live worker knows its task {schedule.target!r}. Its next run is due "
            f"at {_say(schedule.next_run_at)}.",
        )
    if schedule.next_run_at <= now:
        return because(
            "due", f"is due since {_say(schedule.next_run_at)}: it starts any moment.", workers=able
        )
    wait = format_duration(timedelta(seconds=-(-(schedule.next_run_at - now) // _SECOND)))
    shadow = " In shadow: it is recorded, and does not run." if schedule.policy.shadow else ""
    return because(
        "not_due", f"runs next at {_say(schedule.next_run_at)}, in {wait}.{shadow}", workers=able
    )


def explain_tick(
    schedule: Schedule, tick: datetime, *, now: datetime, row: LedgerRow | None
) -> Explanation:
    """Say what became of one tick."""
    facts: dict[str, Any] = {"tick": _say(tick), "now": now.isoformat()}

    def because(reason: str, sentence: str, **more: Any) -> Explanation:
        text = f"The tick {_say(tick)} of {schedule.name!r} {sentence}"
        return Explanation(reason, text, facts | more)

    if row is None:
        return _unknown(schedule, tick, now, because)
    facts |= {
        "status": row.status.value,
        "reason": row.reason,
        "job": row.job_id,
        "run_at": _say(row.run_at),
        "started_at": row.started_at and _say(row.started_at),
        "finished_at": row.finished_at and _say(row.finished_at),
        "worker": row.claimed_by,
    }
    why = f": {row.reason}" if row.reason else ""
    if row.status in (TickStatus.SKIPPED, TickStatus.COALESCED):
        return because(row.status.value, f"did not run: {row.reason or row.status}.")
    if row.status is TickStatus.WAITING:
        return because("waiting", f"waits{why}.")
    if row.status is TickStatus.ARMED:
        if row.run_at > now:
            return because("not_due", f"is armed: job {row.job_id} is due at {_say(row.run_at)}.")
        return because("due", f"is due since {_say(row.run_at)}: job {row.job_id} is to start.")
    if row.finished_at is None and row.claimed_at is None:
        return because("due", f"may start as job {row.job_id}, and waits for a free runner{why}.")
    if row.finished_at is None:
        return because(
            "running", f"has begun as job {row.job_id} on {row.claimed_by}, and not ended{why}."
        )
    if row.started_at is None:
        return because(row.status.value, f"did not run{why}.")
    late = format_duration(_milliseconds(row.started_at - row.run_at))
    if row.succeeded:
        return because("succeeded", f"ran as job {row.job_id}, {late} after its time{why}.")
    return because("failed", f"ran as job {row.job_id}, and failed: {row.error or 'no error kept'}")


def _unknown(schedule: Schedule, tick: datetime, now: datetime, because: Any) -> Explanation:
    if schedule.unreadable is not None:
        unreadable: Explanation = because(
            "unreadable",
            f"is not in the ledger, and its timetable cannot be read here: {schedule.unreadable}",
        )
        return unreadable
    found = list(islice(schedule.timetable.ticks(tick - timedelta(microseconds=1)), 1))
    explanation: Explanation
    if not found or found[0].at != tick:
        near = f"; the next one is {_say(found[0].at)}" if found else ""
        explanation = because("no_tick", f"is not one: its timetable has none then{near}.")
    elif found[0].excluded is not None:
        explanation = because("excluded", f"does not run: {found[0].excluded}.")
    elif tick > now:
        explanation = because("not_planned", "lies ahead, and is armed when it is one of the next.")
    elif schedule.paused_at is not None:
        explanation = because("paused", f"did not run: {paused_reason(schedule)}.")
    elif tick < schedule.created_at:
        explanation = because(
            "before", f"lies before the schedule was made, at {_say(schedule.created_at)}."
        )
    else:
        explanation = because("pruned", "is no longer in the ledger: it was pruned.")
    return explanation


_SECOND = timedelta(seconds=1)


def _say(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _milliseconds(span: timedelta) -> timedelta:
    return span // timedelta(milliseconds=1) * timedelta(milliseconds=1)
