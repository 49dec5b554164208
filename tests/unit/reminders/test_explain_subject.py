"""Why a subject reminds somebody, or nobody; and which rules hold in a scope."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime.domain.reasons import Explanation, Reason
from duetime.domain.reminders.arming import Level
from duetime.domain.reminders.explain_scope import explain_scope
from duetime.domain.reminders.explain_subject import explain_subject
from duetime.domain.reminders.recurrence import parse_repeats
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject
from duetime.domain.reminders.rule_text import parse_rules

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DUE = NOW + 2 * HOUR
RULES = parse_rules(["-1h"])
SUBJECT = Subject(
    ref="game", scope="channel", due_at=DUE, tz="UTC", status="open", rules=None, data={},
    recipients=("ann",),
)  # fmt: skip
LEVELS = [Level("game", None), Level("channel", None), Level("guild", RULES)]
ARMED = Reminder(
    id=1, subject="game", scope="channel", due_at=DUE, rule=RULES[0], time=DUE - HOUR,
    recipient="ann", run_at=DUE - HOUR, status=ReminderStatus.ARMED, reason=None, job_id=7,
    tz="UTC", data={}, channel=None, external_id=None, delivery=None, ended_at=None,
)  # fmt: skip
MUTED = Reason.of("muted_all", recipient="ann")
REPEATS = parse_repeats("0 9 * * *", "UTC")


def ended(status: ReminderStatus, code: str | None = None, **changes: Any) -> Reminder:
    reason = None if code is None else Reason(code, {"time": "noon", "text": "too long"})
    return msgspec.structs.replace(ARMED, status=status, reason=reason, run_at=None, **changes)


def explain(
    *reminders: Reminder,
    levels: list[Level] = LEVELS,
    muted: tuple[Reason, ...] = (),
    next_due: datetime | None = None,
    **subject: Any,
) -> Explanation:
    return explain_subject(
        msgspec.structs.replace(SUBJECT, **subject),
        levels=levels,
        reminders=reminders,
        muted=muted,
        next_due=next_due,
        now=NOW,
    )


@pytest.mark.parametrize(
    ("subject", "code", "sentence"),
    [
        ({}, "not_due", "is due at 2026-03-08T13:00:00Z, as job 7: -1h, to ann."),
        ({"status": "done"}, "completed", "is done, so it reminds nobody."),
        ({"stale": True}, "stale", "a worker has yet to arm its reminders again."),
        ({"due_at": None}, "no_due", "has no due time"),
        ({"levels": [Level("game", None)]}, "no_rules", "neither it nor a scope around it"),
        (
            {"levels": [Level("game", RULES), Level("guild", None, locked=True)]},
            "rules_hidden",
            "'guild' is locked and has no rules",
        ),
        ({"levels": [Level("game", ())]}, "no_reminders", "'game' has an empty list of rules."),
        ({"muted": (MUTED,)}, "muted", "all recipients of its next reminders have muted them."),
    ],
)
def test_of_a_subject_with_an_armed_reminder(
    subject: dict[str, Any], code: str, sentence: str
) -> None:
    explanation = explain(ARMED, **subject)

    assert explanation.code == code
    assert sentence in explanation.sentence
    assert "'game'" in explanation.sentence


def test_a_reminder_that_is_due_names_its_job() -> None:
    explanation = explain(msgspec.structs.replace(ARMED, run_at=NOW))

    assert explanation.code == "due"
    assert "`duetime jobs explain 7`" in explanation.sentence


def test_one_recipient_who_is_reached_is_enough() -> None:
    other = msgspec.structs.replace(ARMED, id=2, recipient="bob")

    assert explain(ARMED, other, muted=(MUTED,)).code == "not_due"


@pytest.mark.parametrize(
    ("reminders", "code"),
    [
        ((), "nothing_armed"),
        ((ended(ReminderStatus.SKIPPED, "past_skipped"),), "past"),
        ((ended(ReminderStatus.SKIPPED, "muted_all"),), "finished"),
        ((ended(ReminderStatus.SENT), ended(ReminderStatus.SKIPPED, "past_skipped")), "finished"),
        ((ended(ReminderStatus.SUPERSEDED, "not_computable"),), "not_computable"),
        ((ended(ReminderStatus.SUPERSEDED, "subject_moved"),), "nothing_armed"),
        ((ended(ReminderStatus.SENT, due_at=NOW),), "nothing_armed"),
    ],
)
def test_of_a_subject_with_nothing_armed(reminders: tuple[Reminder, ...], code: str) -> None:
    assert explain(*reminders).code == code


@pytest.mark.parametrize(("next_due", "code"), [(None, "ended"), (DUE, "not_planned")])
def test_of_a_subject_that_repeats(next_due: datetime | None, code: str) -> None:
    sent = ended(ReminderStatus.SENT, due_at=NOW)

    assert explain(sent, due_at=None, repeats=REPEATS, next_due=next_due).code == code


def test_one_without_a_due_time_says_what_is_wrong_with_its_row() -> None:
    problem = Reason.of("due_unreadable", due="soon")
    explanation = explain(due_at=None, problem=problem)

    assert explanation.code == "no_due"
    assert explanation.sentence.endswith(
        "Part of its row cannot be used: its due time 'soon' is neither ISO 8601 nor a number."
    )


def test_the_steps_say_where_the_rules_come_from_and_what_became_of_reminders() -> None:
    sent = [ended(ReminderStatus.SENT, id=3), ended(ReminderStatus.SENT, "sent_before", id=2)]
    explanation = explain(ARMED, *sent, recipients=(), problem="no zone")

    assert [step.code for step in explanation.steps] == [
        "level_inherits", "level_inherits", "level_rules", "no_recipients", "outcome",
        "row_problem",
    ]  # fmt: skip
    assert [str(step) for step in explanation.steps[2:]] == [
        "'guild' sets -1h.",
        "It has no recipients: each reminder is sent once, to nobody in particular.",
        "2 of its reminders are sent.",
        "Part of its row cannot be used: no zone.",
    ]
    assert explanation.facts["rules_from"] == "guild"


@pytest.mark.parametrize(
    ("levels", "code", "sentence", "steps"),
    [
        (
            [Level("channel", RULES)],
            "own_rules",
            "The scope 'channel' sets its own rules: -1h.",
            ["level_rules"],
        ),
        (
            [Level("channel", RULES, locked=True), Level("guild", ())],
            "own_rules",
            "The scope 'channel' sets its own rules: -1h, and is locked.",
            ["level_rules"],
        ),
        (
            [Level("channel", None), Level("guild", RULES)],
            "inherited_rules",
            "The scope 'channel' inherits the rules of 'guild': -1h.",
            ["level_inherits", "level_rules"],
        ),
        (
            [Level("channel", ()), Level("guild", None, locked=True), Level("all", RULES)],
            "overruled",
            "not in effect, because 'guild' is locked. The rules of 'all' apply: -1h.",
            ["level_overruled", "level_inherits", "level_rules"],
        ),
        (
            [Level("channel", None), Level("guild", ())],
            "no_reminders",
            "'guild' has an empty list of rules.",
            ["level_inherits", "level_empty"],
        ),
        (
            [Level("channel", None)],
            "no_rules",
            "neither it nor a scope around it has rules.",
            ["level_inherits"],
        ),
        (
            [Level("channel", RULES), Level("guild", None, locked=True)],
            "rules_hidden",
            "'guild' is locked and has no rules",
            ["level_overruled", "level_inherits"],
        ),
    ],
)
def test_of_a_scope(levels: list[Level], code: str, sentence: str, steps: list[str]) -> None:
    explanation = explain_scope(levels)

    assert explanation.code == code
    assert sentence in explanation.sentence
    assert [step.code for step in explanation.steps] == steps


@pytest.mark.parametrize(
    ("subject", "passed"),
    [
        ({"status": "done"}, [False] + [None] * 6),
        ({"levels": [Level("game", None)]}, [True] * 3 + [False] + [None] * 3),
        ({"muted": (MUTED,)}, [True] * 5 + [False, None]),
        ({}, [True] * 6 + [False]),
    ],
)
def test_the_chain_goes_up_to_what_keeps_it_from_reminding(
    subject: dict[str, Any], passed: list[bool | None]
) -> None:
    found = explain(ARMED, **subject)

    assert [check.passed for check in found.checks] == passed
    told = [check.sentence for check in found.checks if check.sentence is not None]
    assert not [text for text in told if "(" in text], "A fact of a sentence is missing."
