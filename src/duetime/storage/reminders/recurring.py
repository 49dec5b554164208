"""How far the occurrences of subjects that repeat are armed: what `_rearm` asks and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from duetime.domain.reminders.plan_recurrence import Plan, is_behind, look_back, plan, rules_of
from duetime.domain.reminders.reminder import ReminderStatus, Subject
from duetime.domain.reminders.rule import Rule

SHARED_FROM = timedelta(hours=6)
"""A job for a time so far ahead is shared: no transaction stays open that long."""


def repeating(subject: Subject) -> bool:
    """Whether it has occurrences to be armed."""
    return subject.repeats is not None and subject.status == "open"


def repeats_or_did(subject: Subject) -> bool:
    """Whether there is a plan to make or to forget."""
    return subject.repeats is not None or subject.planned is not None


def falls_behind(subject: Subject, rules: Sequence[Rule], now: datetime) -> bool:
    """Whether a worker was to go on with it, and has not."""
    if subject.repeats is None or subject.planned is None:
        return False
    return is_behind(subject.repeats, rules, now, subject.planned)


def since_document(subject: Subject, rules: Sequence[Rule], now: datetime) -> dict[str, Any]:
    """Which of its reminders matter now: those of years ago are not read."""
    return {"id": subject.id, "since": look_back(rules, now, subject.planned)}


def plan_subject(
    subject: Subject,
    rules: Sequence[Rule],
    known: Mapping[Any, Any],
    now: datetime,
    behind_since: datetime | None,
) -> Plan | None:
    """What to arm of a subject that repeats; None if no rule holds. `known`: place → reminder."""
    if subject.repeats is None or not rules:
        return None
    armed = [place[0] for place, (_, status, _) in known.items() if status == ReminderStatus.ARMED]
    return plan(
        subject.repeats,
        rules,
        now,
        planned=subject.planned,
        oldest_armed=min(armed, default=None),
        behind_since=behind_since,
    )


def due_times(
    subject: Subject, rules: Sequence[Rule], planned: Plan | None
) -> list[tuple[datetime, Sequence[Rule]]]:
    """When a subject is due, each time with the rules that hold then."""
    if subject.status != "open":
        return []
    if subject.repeats is None:
        return [] if subject.due_at is None else [(subject.due_at, rules)]
    found = planned.occurrences if planned else []
    return [(one.due, rules_of(subject.repeats, rules, one.due)) for one in found]


def planned_documents(
    subjects: Sequence[Subject], plans: Mapping[int, Plan | None]
) -> list[dict[str, Any]]:
    """What to note of those that repeat, and of those that did."""
    found = []
    for subject in subjects:
        made = plans.get(subject.id)
        if made is not None:
            subject.planned = (made.since, made.until)
        elif subject.planned is None:
            continue
        else:
            subject.planned = None
        since, until = subject.planned or (None, None)
        found.append(
            {
                "id": subject.id,
                "planned_from": since,
                "planned_until": until,
                "rearm_at": made and made.look_at,
            }
        )
    return found
