"""Why a subject reminds somebody, or nobody: a code, one sentence, and the facts behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.reasons import (
    Explanation,
    Question,
    Reason,
    make_checks,
    make_explanation,
)
from duetime.domain.reminders.arming import Level, resolve_rules
from duetime.domain.reminders.explain_scope import explain_levels, hidden_by
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject

SUBJECT_SENTENCES = {
    # Why nobody is reminded.
    "completed": "The subject {subject!r} is done, so it reminds nobody. Put it again to open it.",
    "stale": "The subject {subject!r} has changed, and a worker has yet to arm its reminders "
    "again.",
    "no_due": "The subject {subject!r} has no due time, so it reminds nobody.[ Part of its row "
    "cannot be used: {problem:reason}.]",
    "no_rules": "The subject {subject!r} reminds nobody: neither it nor a scope around it has "
    "rules.",
    "rules_hidden": "The subject {subject!r} reminds nobody: {locked_by!r} is locked and has no "
    "rules, so the rules inside it are not in effect.",
    "no_reminders": "The subject {subject!r} reminds nobody: {rules_from!r} has an empty list of "
    "rules.",
    "muted": "The subject {subject!r} reminds nobody: all recipients of its next reminders have "
    "muted them.",
    "not_computable": "The subject {subject!r} reminds nobody: its reminders cannot be computed[: "
    "{text}].",
    "past": "The subject {subject!r} reminds nobody: the times of all {count} reminders had passed "
    "when it was put.",
    "finished": "The subject {subject!r} has no reminder left to send: all {count} are finished.",
    "nothing_armed": "The subject {subject!r} has no reminders[. It is due at {due_at}].",
    "ended": "The subject {subject!r} reminds nobody any more: its last occurrence has passed.",
    "not_planned": "The subject {subject!r} is due next at {next_due}. The reminders of that "
    "occurrence are armed closer to its time.",
    # Who is reminded next.
    "not_due": "The next reminder of the subject {subject!r} is due at {run_at}, as job {job}: "
    "{rule}[, to {recipient}].",
    "due": "A reminder of the subject {subject!r} is due, as job {job}: {rule}[, to {recipient}]. "
    "`duetime jobs explain {job}` says what that waits for.",
    # Its steps, after what the levels set and who has muted it.
    "no_recipients": "It has no recipients: each reminder is sent once, to nobody in particular.",
    "outcome": "{count:of its reminders is/of its reminders are} {status}[: {reason:reason}].",
    "row_problem": "Part of its row cannot be used: {reason:reason}.",
    # What only the chain of checks tells.
    "open": "It is open.",
    "up_to_date": "Its reminders reflect its current state.",
    "has_due": "[It is due at {due_at}.][It repeats: {repeats}.]",
    "rules_apply": "{rules:list}, set by {rules_from!r}.",
    "armed": "{count:reminder is/reminders are} armed.",
    "wanted": "[{count:recipient has/recipients have} muted it, others have not.]"
    "[Nobody has muted it{nobody:if}.]",
}
_QUESTIONS = (
    Question("Is it open?", ["open"], ["completed"]),
    Question("Are its reminders up to date?", ["up_to_date"], ["stale"]),
    Question("Does it have a due time?", ["has_due"], ["no_due"]),
    Question(
        "Do rules apply to it?", ["rules_apply"], ["no_rules", "rules_hidden", "no_reminders"]
    ),
    Question(
        "Is a reminder armed?",
        ["armed"],
        ["not_computable", "past", "finished", "nothing_armed", "ended", "not_planned"],
    ),
    Question("Does a recipient accept it?", ["wanted"], ["muted"]),
    Question("Is it time to send it?", ["due"], ["not_due"]),
)
_PASSED = ("open", "up_to_date", "has_due", "rules_apply", "armed", "wanted")


def explain_subject(
    subject: Subject,
    *,
    levels: Sequence[Level],
    reminders: Sequence[Reminder],
    muted: Sequence[Reason],
    next_due: datetime | None,
    now: datetime,
) -> Explanation:
    """Return the first reason for which nobody is reminded, or who is reminded next.

    `levels`: the subject, and the scopes around it outwards. `reminders`: in the order of their
    times. `muted`: why recipients of armed reminders would not get them. `next_due`: when a
    subject that repeats is due next. Its steps are what each level sets, who has muted it, and
    what became of its other reminders.
    """
    resolved = resolve_rules(levels)
    facts: dict[str, Any] = {
        "subject": subject.ref,
        "status": subject.status,
        "due_at": subject.due_at,
        "repeats": subject.repeats and subject.repeats.describe(),
        "next_due": next_due,
        "rules": [rule.text for rule in resolved.rules],
        "rules_from": resolved.source,
        "locked_by": hidden_by(levels),
        "recipients": list(subject.recipients),
        "now": now,
    }
    code, more = _find_code(subject, resolved.source, facts["rules"], reminders, muted, facts)
    if code == "armed":
        first = next(one for one in reminders if one.status is ReminderStatus.ARMED)
        code = "not_due" if first.run_at is not None and first.run_at > now else "due"
        more = {
            "reminder": first.id, "rule": first.rule.text, "run_at": first.run_at,
            "job": first.job_id, "recipient": first.recipient or None,
        }  # fmt: skip
    steps: list[Explanation | Reason] = [*explain_levels(levels), *muted]
    steps += _steps(subject, reminders)
    found = make_explanation(SUBJECT_SENTENCES, code, facts | more, steps=steps)
    armed = sum(one.status is ReminderStatus.ARMED for one in reminders)
    counts = {
        "armed": {"count": armed},
        "wanted": {"count": len(muted)} if muted else {"nobody": True},
    }
    last = next(
        place for place, one in enumerate(_QUESTIONS) if code in one.failing or code in one.passing
    )
    passed = [
        make_explanation(SUBJECT_SENTENCES, name, facts | counts.get(name, {}))
        for name in _PASSED[:last]
    ]
    return msgspec.structs.replace(found, checks=make_checks(_QUESTIONS, [*passed, found]))


def _find_code(
    subject: Subject,
    source: str | None,
    rules: Sequence[str],
    reminders: Sequence[Reminder],
    muted: Sequence[Reason],
    facts: dict[str, Any],
) -> tuple[str, dict[str, Any]]:
    if subject.status == "done":
        return "completed", {}
    if subject.stale:
        return "stale", {}
    if subject.due_at is None and subject.repeats is None:
        return "no_due", {"problem": subject.problem}
    if not rules:
        if source is not None:
            return "no_reminders", {}
        return "no_rules" if facts["locked_by"] is None else "rules_hidden", {}
    armed = {one.recipient for one in reminders if one.status is ReminderStatus.ARMED}
    if armed:
        return ("muted" if len(muted) == len(armed) else "armed"), {}
    return _find_code_of_ended(subject, reminders, facts["next_due"])


def _find_code_of_ended(
    subject: Subject, reminders: Sequence[Reminder], next_due: datetime | None
) -> tuple[str, dict[str, Any]]:
    """Nothing is armed."""
    last = max(reminders, key=lambda one: one.id, default=None)
    if last is not None and last.reason is not None and last.reason.code == "not_computable":
        return "not_computable", {"text": last.reason.facts.get("text")}
    if subject.repeats is not None:
        return "ended" if next_due is None else "not_planned", {}
    mine = [
        one
        for one in reminders
        if one.due_at == subject.due_at and one.status is not ReminderStatus.SUPERSEDED
    ]
    if not mine:
        return "nothing_armed", {}
    past = all(one.reason is not None and one.reason.code in _PAST for one in mine)
    return "past" if past else "finished", {"count": len(mine)}


_PAST = ("past_skipped", "past_expired", "past_replaced")


def _steps(subject: Subject, reminders: Sequence[Reminder]) -> Iterator[Explanation]:
    if not subject.recipients:
        yield make_explanation(SUBJECT_SENTENCES, "no_recipients", {})
    ended = [one for one in reminders if one.status is not ReminderStatus.ARMED]
    for status, count in Counter(one.status for one in ended).items():
        last = max((one for one in ended if one.status is status), key=lambda one: one.id)
        outcome = {"count": count, "status": status.value, "reason": last.reason}
        yield make_explanation(SUBJECT_SENTENCES, "outcome", outcome)
    if subject.problem is not None:
        problem = {"reason": subject.problem}
        yield make_explanation(SUBJECT_SENTENCES, "row_problem", problem)
