"""The chain of checks behind a reminder: what passed, what failed, and what was not reached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime.domain.reasons import Check, Reason
from duetime.domain.reminders.explain import explain_reminder
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject
from duetime.domain.reminders.rule_text import parse_rules

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
[RULE] = parse_rules(["-1h"])
SUBJECT = Subject(
    ref="game", scope="channel", due_at=NOW + HOUR, tz="UTC", status="open", rules=None, data={},
    recipients=("ann",),
)  # fmt: skip
DUE = Reminder(
    id=1, subject="game", scope="channel", due_at=NOW + HOUR, rule=RULE, time=NOW,
    recipient="ann", run_at=NOW, status=ReminderStatus.ARMED, reason=None, job_id=7,
    tz="UTC", data={}, channel=None, external_id=None, delivery=None, ended_at=None,
)  # fmt: skip
QUIET = Reason.of("quiet_hours", local="Sun 13:00", tz="UTC", quiet="11:00-13:00", recipient="ann")


def chain(*, subject: Subject = SUBJECT, **changes: Any) -> tuple[Check, ...]:
    reminder = msgspec.structs.replace(DUE, **changes)
    return explain_reminder(reminder, now=NOW, subject=subject, source="guild").checks


@pytest.mark.parametrize(
    ("changes", "passed", "code"),
    [
        ({"stale": True}, 0, "subject_changed"),
        ({"time": NOW + HOUR, "run_at": NOW + HOUR}, 2, "time_ahead"),
        ({}, 3, "job_waits"),
        ({"run_at": NOW + HOUR, "reason": QUIET}, 4, "quiet_hours"),
    ],
)
def test_the_chain_of_an_armed_reminder_ends_at_what_it_waits_for(
    changes: dict[str, Any], passed: int, code: str
) -> None:
    checks = chain(**changes)

    assert [check.passed for check in checks] == [True] * passed + [False] + [None] * (5 - passed)
    assert checks[passed].code == code
    assert all((check.sentence is None) == (check.passed is None) for check in checks)


def test_the_chain_names_the_level_of_the_rule() -> None:
    assert chain()[1].sentence == "The rule -1h applies: 'guild' sets it."


def test_the_chain_says_that_the_subject_is_done() -> None:
    done = msgspec.structs.replace(SUBJECT, status="done")

    assert [check.passed for check in chain(subject=done)] == [False] + [None] * 5


@pytest.mark.parametrize(
    ("status", "reason", "question", "after"),
    [
        ("superseded", Reason("subject_moved", {"to": "noon"}), "Is its subject open", 5),
        ("superseded", Reason("rule_removed"), "Does its rule apply", 4),
        ("skipped", Reason("past_skipped", {"time": "noon"}), "Is it time", 3),
        ("skipped", Reason("muted_all", {"recipient": "ann"}), "Does its recipient", 1),
        ("failed", Reason("no_sender"), "Has it been sent?", 0),
        ("cancelled", None, "Has it been sent?", 0),
    ],
)
def test_the_chain_of_one_that_was_not_sent_begins_with_why(
    status: str, reason: Reason | None, question: str, after: int
) -> None:
    first, *rest = chain(status=ReminderStatus(status), reason=reason, run_at=None)

    assert first.question.startswith(question)
    assert first.passed is False
    assert [check.passed for check in rest] == [None] * after


def test_the_chain_of_one_that_was_sent_says_so() -> None:
    sent: dict[str, Any] = {
        "status": ReminderStatus.SENT,
        "run_at": None,
        "ended_at": NOW,
        "channel": "push",
    }
    seen: dict[str, Any] = {"acknowledged_at": NOW, "acknowledged_by": "ann"}

    assert [check.question for check in chain(**sent, **seen)] == [
        "Has it been sent?", "Has it been acknowledged?",
    ]  # fmt: skip
