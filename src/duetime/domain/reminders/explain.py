"""What became of a reminder, and why: a code, sentences, and the facts behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from duetime.domain.reasons import (
    Check,
    Explanation,
    Question,
    Reason,
    as_sentence,
    make_checks,
    make_ended_checks,
    make_explanation,
)
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
    "sent": f"{_WHAT} was sent[ by {{channel}}][ at {{sent_at}}][, under the id {{provider_id}}].",
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
    "repeats": "It belongs to the occurrence of {occurrence}; the subject repeats: {repeats}.",
    # What only the chain of checks tells.
    "subject_open": "The subject {subject!r} is open, and due at {due_at:utc}.",
    "subject_done": "The subject {subject!r} is done.",
    "rule_applies": "The rule {rule} applies[: {source!r} sets it].",
    "time_ahead": "It goes out at {run_at:utc}.",
    "time_come": "Its time was {time:utc}.",
    "job_waits": "Job {job} has yet to start.",
    "job_started": "A worker has claimed it.",
    "recipient_takes": "Nothing held it back when it was tried.",
}
_HELD = ("quiet_hours", "hourly_limit", "in_digest")
_SUBJECT = Question(
    "Is its subject open, and due then?",
    ["subject_open"],
    [
        "subject_done", "subject_completed", "subject_deleted", "subject_moved",
        "subject_without_due", "subject_changed", "recipient_removed", "zone_changed",
        "occurrence_skipped", "occurrence_completed", "occurrence_moved", "occurrence_gone",
        "not_computable",
    ],
)  # fmt: skip
_QUESTIONS = (
    _SUBJECT,
    Question("Does its rule apply?", ["rule_applies"], ["rule_removed", "rules_changed"]),
    Question(
        "Is it time to send it?",
        ["time_come"],
        ["time_ahead", "past_skipped", "past_expired", "past_replaced", "expired"],
    ),
    Question("Has a worker claimed it?", ["job_started"], ["job_waits"]),
    Question(
        "Does its recipient take messages now?",
        ["recipient_takes"],
        [*_HELD, "muted_all", "muted", "digest_waits", "digest_cancelled"],
    ),
    Question("Has it been sent?", (), ["tried_again"]),
)


def explain_reminder(
    reminder: Reminder,
    deliveries: Sequence[Delivery] = (),
    *,
    now: datetime,
    subject: Subject | None = None,
    source: str | None = None,
) -> Explanation:
    """Say what became of it, and what its channels did: its sentence is followed by those of its
    steps. `subject`: whose problem and recurrence are mentioned, too. `source`: the level that
    its rule comes from.
    """
    mine = [one for one in deliveries if one.round == reminder.snoozes]
    sent = next((one.sent_at for one in mine if one.status.accepted), reminder.ended_at)
    if reminder.reason is not None and reminder.reason.code == "sent_before":
        # Its last round was withdrawn: `ended_at` says when.
        before = [one for one in deliveries if one.sent_at is not None]
        sent = max(before, key=lambda one: one.round).sent_at if before else None
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
    sentence = " ".join([explanation.sentence, *(as_sentence(step.sentence) for step in shown)])
    checks = _make_chain(reminder, explanation, now, subject, source)
    return Explanation(code, sentence, explanation.facts, explanation.steps, checks)


def _make_chain(
    reminder: Reminder,
    found: Explanation,
    now: datetime,
    subject: Subject | None,
    source: str | None,
) -> tuple[Check, ...]:
    if reminder.status is ReminderStatus.SENT:
        return _make_chain_of_sent(found)
    if reminder.status is not ReminderStatus.ARMED:
        return make_ended_checks(_QUESTIONS, reminder.reason or found)
    if reminder.stale:
        return make_checks(_QUESTIONS, [Reason("subject_changed")])
    given = found.facts | {"time": reminder.time, "source": source}

    def tell(*codes: str) -> list[Explanation | Reason]:
        return [make_explanation(REMINDER_SENTENCES, code, given) for code in codes]

    if subject is not None and subject.status == "done":
        return make_checks(_QUESTIONS, tell("subject_done"))
    facts = tell("subject_open", "rule_applies")
    again = [step for step in found.steps if step.code == "tried_again"]
    reason = reminder.reason
    if again:
        facts += [*tell("time_come", "job_started", "recipient_takes"), *again]
    elif found.code == "not_due" and reason is not None and reason.code in _HELD:
        facts += [*tell("time_come", "job_started"), reason]
    elif found.code == "not_due":
        facts += tell("time_ahead")
    else:
        facts += tell("time_come", "job_waits")
    return make_checks(_QUESTIONS, facts)


def _make_chain_of_sent(found: Explanation) -> tuple[Check, ...]:
    chain = [Check("Has it been sent?", True, found.sentence, found.code)]
    for step in found.steps:
        if step.code == "delivered":
            chain.append(Check("Has it been delivered?", True, step.sentence, step.code))
        elif step.code == "acknowledged":
            chain.append(Check("Has it been acknowledged?", True, step.sentence, step.code))
    return tuple(chain)


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
