"""A reminder's values: a subject, what is armed for it, and what became of that."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from duetime.domain.rule import Rule, say_moment

REMIND_TASK = "duetime.remind"
KEY_PREFIX = "reminder:"


class ReminderStatus(StrEnum):
    """What became of a reminder. The first is still open."""

    ARMED = "armed"
    SENT = "sent"
    SKIPPED = "skipped"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Subject(msgspec.Struct, kw_only=True):
    """What people are reminded of."""

    id: int = 0
    ref: str
    scope: str | None
    due_at: datetime | None
    tz: str
    status: str
    rules: tuple[Rule, ...] | None
    data: dict[str, Any]
    recipients: tuple[str, ...]
    revision: int = 1

    def material(self) -> tuple[Any, ...]:
        """What reminders depend on: a change of anything else never sends one again."""
        return self.scope, self.due_at, self.tz, self.status, self.rules, self.recipients


class Reminder(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one recipient, at one time of one rule."""

    id: int
    subject: str
    scope: str | None
    due_at: datetime
    rule: Rule
    time: datetime
    recipient: str
    run_at: datetime | None
    status: ReminderStatus
    reason: str | None
    job_id: int | None
    tz: str
    data: dict[str, Any]
    channel: str | None
    external_id: str | None
    delivery: str | None
    ended_at: datetime | None

    @property
    def key(self) -> str:
        """The idempotency key: the same in every attempt, and for no other reminder."""
        return reminder_key(self.subject, self.due_at, self.rule, self.time, self.recipient)


def reminder_key(subject: str, due_at: datetime, rule: Rule, time: datetime, recipient: str) -> str:
    """The stable key of a reminder: subject, occurrence, rule, time and recipient."""
    parts = (subject, say_moment(due_at), rule.id, say_moment(time), recipient)
    return KEY_PREFIX + "|".join(parts)


def explain_reminder(reminder: Reminder, *, now: datetime) -> str:
    """Say in one sentence what became of it."""
    what = f"Reminder {reminder.id} ({reminder.rule.text} of {reminder.subject!r}"
    what += f", to {reminder.recipient})" if reminder.recipient else ")"
    match reminder.status:
        case ReminderStatus.ARMED if reminder.run_at is not None and reminder.run_at > now:
            return f"{what} is due at {say_moment(reminder.run_at)}, as job {reminder.job_id}."
        case ReminderStatus.ARMED:
            return (
                f"{what} is due, as job {reminder.job_id}; "
                f"`duetime jobs explain {reminder.job_id}` says what that waits for."
            )
        case ReminderStatus.SENT:
            by = f" by {reminder.channel}" if reminder.channel else ""
            known = f", there known as {reminder.external_id}" if reminder.external_id else ""
            at = say_moment(reminder.ended_at) if reminder.ended_at else "an unknown time"
            return f"{what} was sent{by} at {at}{known}."
        case status:
            return f"{what} was not sent: {status}, {reminder.reason or 'without a reason'}."
