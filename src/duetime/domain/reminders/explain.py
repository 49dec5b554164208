"""What became of a reminder, and why: a code, sentences, and the facts behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from duetime.domain.reasons import Explanation, Reason, make_explanation
from duetime.domain.reminders.delivery import (
    Delivery,
    DeliveryStatus,
    explain_failures,
    explain_receipt,
)
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject

_WHAT = "Reminder {reminder} ({rule} of {subject!r}[, to {recipient}])"
_NOT_SENT = "was not sent[ again{snoozes:if}]: {status}[, {reason:reason}]."
REMINDER_SENTENCES = {
    "not_due": f"{_WHAT} is due[ again{{snoozes:if}}] at {{run_at}}, as job {{job}}.",
    "due": f"{_WHAT} is due[ again{{snoozes:if}}], as job {{job}}; `duetime jobs explain {{job}}` "
    "says what that waits for.",
    "sent": f"{_WHAT} was sent[ by {{channel}}][ at {{sent_at}}]"
    "[, there known as {provider_id}].",
    "skipped": f"{_WHAT} {_NOT_SENT}",
    "expired": f"{_WHAT} {_NOT_SENT}",
    "superseded": f"{_WHAT} {_NOT_SENT}",
    "cancelled": f"{_WHAT} {_NOT_SENT}",
    "failed": f"{_WHAT} {_NOT_SENT}",
    # Its steps, after the stored reason and what channels did.
    "failed_before": "Before that, {channels:reasons}.",
    "tried_again": "{channel} is tried again at {next_at}.",
    "acknowledged": "It was acknowledged by {by} at {at}.",
    "delivered": "It was delivered.",
    "row_problem": "Part of its row cannot be used: {reason:reason}.",
    "repeats": "It is of the occurrence of {occurrence}; the subject repeats: {repeats}.",
}


def explain_reminder(
    reminder: Reminder,
    deliveries: Sequence[Delivery] = (),
    *,
    now: datetime,
    subject: Subject | None = None,
) -> Explanation:
    """Say what became of it, and what its channels did: its sentence is followed by those of its
    steps. `subject`: whose problem and recurrence are mentioned, too.
    """
    mine = [one for one in deliveries if one.round == reminder.snoozes]
    sent = next((one.sent_at for one in mine if one.status.accepted), reminder.ended_at)
    facts: dict[str, Any] = {
        "reminder": reminder.id,
        "subject": reminder.subject,
        "rule": reminder.rule.text,
        "recipient": reminder.recipient or None,
        "status": reminder.status.value,
        "reason": reminder.reason,
        "due_at": reminder.due_at,
        "run_at": reminder.run_at,
        "job": reminder.job_id,
        "snoozes": reminder.snoozes or None,
        "channel": reminder.channel,
        "provider_id": reminder.provider_id,
        "sent_at": sent if reminder.status is ReminderStatus.SENT else None,
        "now": now,
    }
    code = reminder.status.value
    if reminder.status is ReminderStatus.ARMED:
        is_due = reminder.run_at is None or reminder.run_at <= now
        code = "due" if is_due else "not_due"
    steps = [*_steps(reminder, mine, now, code), *_steps_of_subject(reminder, subject)]
    explanation = make_explanation(REMINDER_SENTENCES, code, facts, steps=steps)
    shown = explanation.steps[1:] if _tells_reason(code) and reminder.reason else explanation.steps
    sentence = " ".join([explanation.sentence, *(_as_sentence(step.sentence) for step in shown)])
    return Explanation(code, sentence, explanation.facts, explanation.steps)


def _tells_reason(code: str) -> bool:
    """Whether the sentence of the code has the reason in it."""
    return "{reason:reason}" in REMINDER_SENTENCES[code]


def _steps(
    reminder: Reminder, deliveries: Sequence[Delivery], now: datetime, code: str
) -> Iterator[Reason | Explanation]:
    failures = explain_failures(deliveries)
    if reminder.reason is not None and (
        _tells_reason(code) or (code != "due" and not _repeats(reminder.reason, deliveries))
    ):
        yield reminder.reason
    if code == "sent":
        yield from _steps_after(reminder, deliveries, failures)
        return
    if code != "failed":
        yield from failures
    if reminder.status is ReminderStatus.ARMED:
        for delivery in deliveries:
            if delivery.status is DeliveryStatus.PENDING and (delivery.next_at or now) > now:
                again = {"channel": delivery.channel, "next_at": delivery.next_at}
                yield make_explanation(REMINDER_SENTENCES, "tried_again", again)


def _steps_after(
    reminder: Reminder, deliveries: Sequence[Delivery], failures: Sequence[Reason]
) -> Iterator[Reason | Explanation]:
    """What failed before it was sent, and what receipts reported since."""
    if failures and any(one.status.accepted for one in deliveries):
        before = {"channels": list(failures)}
        yield make_explanation(REMINDER_SENTENCES, "failed_before", before)
    else:
        yield from failures
    if reminder.acknowledged_at is not None:
        seen = {"by": reminder.acknowledged_by, "at": reminder.acknowledged_at}
        yield make_explanation(REMINDER_SENTENCES, "acknowledged", seen)
    elif reminder.delivery == "delivered":
        yield make_explanation(REMINDER_SENTENCES, "delivered", {})


def _steps_of_subject(reminder: Reminder, subject: Subject | None) -> Iterator[Explanation]:
    if subject is not None and subject.problem is not None:
        problem = {"reason": subject.problem}
        yield make_explanation(REMINDER_SENTENCES, "row_problem", problem)
    if subject is not None and subject.repeats is not None:
        which = {"occurrence": reminder.due_at, "repeats": subject.repeats.describe()}
        yield make_explanation(REMINDER_SENTENCES, "repeats", which)


def _repeats(reason: Reason, deliveries: Sequence[Delivery]) -> bool:
    """Whether a reason says what is said of a delivery anyway."""
    return any(reason == explain_receipt(one.channel, one.status) for one in deliveries)


def _as_sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."
