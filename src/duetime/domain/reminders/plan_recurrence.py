"""How far ahead the occurrences of a recurring subject are armed, and when to continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from duetime.domain import effort
from duetime.domain.reminders.recurrence import Occurrence, Recurrence
from duetime.domain.reminders.reminder import ReminderStatus, Subject
from duetime.domain.reminders.rule import Rule

HORIZON = timedelta(days=14)
"""Reminders that fall within it are armed, if there are not too many."""
MIN_AHEAD = 2
MAX_AHEAD = 100
SOON = timedelta(days=1)
"""Reminders that fall within it are armed, however many they are."""
MAX_AT_ONCE = 10_000
_MAX_STEPS = 20_000_000
_MOMENT = timedelta(microseconds=1)
_NONE = timedelta(0)
_WALL_REACH = timedelta(days=2)
_SHARED = timedelta(hours=1)
SHARED_FROM = timedelta(hours=6)
"""A job for a time so far ahead is shared: no transaction stays open that long."""


class Plan(NamedTuple):
    """What to arm of a recurrence now."""

    occurrences: list[Occurrence]
    fresh_from: datetime
    """What is due before has been planned before: of that, only times to come may be added."""
    since: datetime
    until: datetime
    """What is due before is planned."""
    look_at: datetime | None
    """When to plan again; None: there is nothing more."""


def falls_behind(subject: Subject, rules: Sequence[Rule], now: datetime) -> bool:
    """Whether a worker should have continued with it, and has not."""
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


def planned_documents(
    subjects: Sequence[Subject], plans: Mapping[int, Plan | None]
) -> list[dict[str, Any]]:
    """How far the occurrences of subjects are armed now; None for those that no longer repeat."""
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


def look_back(
    rules: Iterable[Rule], now: datetime, planned: tuple[datetime, datetime] | None
) -> datetime:
    """Return the due time from which on occurrences may still have something to be armed."""
    if planned is None:
        return now
    # Not before the subject was there; by a clock that was set back since, it is there now.
    return max(min(now - _reach(rules)[1], planned[1]), min(now, planned[0]))


def is_behind(
    recurrence: Recurrence,
    rules: Sequence[Rule],
    now: datetime,
    planned: tuple[datetime, datetime],
) -> bool:
    """Whether a reminder may have come due of an occurrence that is not planned yet; or may yet
    come due of one before all that is planned, since the clock was set back."""
    if planned[1] - _reach(rules)[0] <= now or now < planned[0]:
        return True
    fixed = (_first_due(recurrence, rule.at) for rule in rules if rule.at is not None)
    return any(at <= now and due is not None and due >= planned[1] for at, due in fixed)


def plan(
    recurrence: Recurrence,
    rules: Sequence[Rule],
    now: datetime,
    *,
    planned: tuple[datetime, datetime] | None = None,
    oldest_armed: datetime | None = None,
    behind_since: datetime | None = None,
) -> Plan:
    """Choose the occurrences whose reminders are armed now, and when to continue.

    `planned`: since when, and until when, occurrences are planned already; None: never before.
    What became due since then, while no worker was there, is among them. `oldest_armed`: the due
    time of the oldest reminder that is still armed; it stays true. `behind_since`: when this was
    to be asked. Raises `InvalidInput` if the times cannot be found in a few seconds.
    """
    with effort.limited(_MAX_STEPS, "its times take too long to compute: simplify them"):
        return _plan(recurrence, rules, now, planned, oldest_armed, behind_since)


def _plan(
    recurrence: Recurrence,
    rules: Sequence[Rule],
    now: datetime,
    planned: tuple[datetime, datetime] | None,
    oldest_armed: datetime | None,
    behind_since: datetime | None,
) -> Plan:
    since = now if planned is None else min(now, planned[0])
    fresh_from = now if planned is None else min(now, planned[1])
    start = look_back(rules, now, planned)
    if oldest_armed is not None:
        start = min(start, oldest_armed)
    before = _reach(rules)[0]
    fixed = [_first_due(recurrence, rule.at) for rule in rules if rule.at is not None]
    found: list[Occurrence] = []
    ahead = 0
    for one in recurrence.occurrences(start):
        early = min([one.due - before, *(at for at, due in fixed if due == one.due)])
        if one.due >= now:
            near = early <= now + SOON or ahead < MIN_AHEAD
            if not near and (ahead >= MAX_AHEAD or early > now + HORIZON):
                return Plan(found, fresh_from, since, one.due, _half_way(now, early))
            ahead += 1
        if len(found) >= MAX_AT_ONCE:
            # Behind by so many: at once again, as if it were still as late.
            at = behind_since or now if one.due <= now else _half_way(now, early)
            return Plan(found, fresh_from, since, one.due, at)
        found.append(one)
    last = found[-1].due + _MOMENT if found else now
    return Plan(found, fresh_from, since, max(now, last), None)


def rules_of(recurrence: Recurrence, rules: Sequence[Rule], due: datetime) -> list[Rule]:
    """Those of the rules that hold for one occurrence: a fixed moment belongs to the next one."""
    return [rule for rule in rules if rule.at is None or _first_due(recurrence, rule.at)[1] == due]


def _first_due(recurrence: Recurrence, at: datetime) -> tuple[datetime, datetime | None]:
    """A fixed moment, and the due time of the occurrence that it belongs to."""
    first = next(recurrence.occurrences(at), None)
    return at, None if first is None else first.due


def _reach(rules: Iterable[Rule]) -> tuple[timedelta, timedelta]:
    """How long before and after a due time its reminders may be, at most."""
    before = after = _NONE
    for rule in rules:
        if rule.within is not None:
            before = max(before, rule.within)
        elif rule.at is None:
            margin = _NONE if rule.wall is None else _WALL_REACH
            before, after = max(before, margin - rule.offset), max(after, margin + rule.offset)
    return before, after


def _half_way(now: datetime, early: datetime) -> datetime:
    """When to plan again: long before it is needed, at a time of the hour that many share, and at
    which hardly a reminder is due: those of a subject that is planned wait for it."""
    at = now + max((early - now) / 2, timedelta(minutes=1))
    shared = at.replace(minute=7, second=30, microsecond=0)
    return shared if now + _SHARED < shared <= at else at
