"""Reasons: codes and facts, and the sentences that are made of them."""

from __future__ import annotations

import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from duetime.domain.flows.explain import FLOW_SENTENCES
from duetime.domain.jobs.explain import JOB_SENTENCES
from duetime.domain.jobs.explain_queue import QUEUE_SENTENCES
from duetime.domain.reasons import (
    REASONS,
    Explanation,
    Reason,
    describe_error,
    make_explanation,
    read_attempt_reason,
    read_reason,
    write_reason,
)
from duetime.domain.reminders.explain import REMINDER_SENTENCES
from duetime.domain.reminders.explain_scope import LEVEL_SENTENCES, SCOPE_SENTENCES
from duetime.domain.reminders.explain_subject import SUBJECT_SENTENCES
from duetime.domain.schedules.explain import SCHEDULE_SENTENCES, TICK_SENTENCES
from duetime.domain.stats.problems import PROBLEM_SENTENCES

TABLES = {
    "reasons": REASONS,
    "jobs": JOB_SENTENCES,
    "flows": FLOW_SENTENCES,
    "schedules": SCHEDULE_SENTENCES,
    "ticks": TICK_SENTENCES,
    "reminders": REMINDER_SENTENCES,
    "queues": QUEUE_SENTENCES,
    "subjects": SUBJECT_SENTENCES,
    "scopes": SCOPE_SENTENCES,
    "levels": LEVEL_SENTENCES,
    "problems": PROBLEM_SENTENCES,
}
KINDS = {"", "span", "utc", "list", "reason", "reasons", "if"}


def test_facts_are_stored_as_json_has_them() -> None:
    why = Reason.of("muted_all", recipient="ann")
    reason = Reason.of(
        "digest_failed",
        digest=7,
        at=datetime(2026, 3, 2, tzinfo=UTC),
        late=timedelta(minutes=1),
        half=timedelta(milliseconds=500),
        why=why,
        nothing=None,
    )

    assert reason.facts == {
        "digest": 7,
        "at": "2026-03-02T00:00:00Z",
        "late": 60,
        "half": 0.5,
        "why": {"code": "muted_all", "facts": {"recipient": "ann"}},
    }
    assert read_reason(write_reason(reason)) == reason


def test_a_part_without_its_fact_is_left_out() -> None:
    assert str(Reason.of("schedule_paused", by="ann", text="holiday")) == "paused by ann: holiday"
    assert str(Reason.of("schedule_paused", by="ann")) == "paused by ann"


def test_the_words_of_a_person_are_never_taken_for_a_template() -> None:
    reason = Reason.of("schedule_paused", by="{by}", text="[{gone}] {0} {}")

    assert str(reason) == "paused by {by}: [{gone}] {0} {}"


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ('{"code":"frozen_by_moon"}', "frozen by moon"),
        ('{"code":"frozen","facts":{"by":"ann","days":3}}', "frozen (by: ann, days: 3)"),
        ('{"code":"late_max_age","facts":{"late":5}}', "late max age (late: 5)"),
        ('{"code":"late","facts":{"late":"5 s"}}', "5 s late"),
        ('{"code":"late","facts":{"late":5},"since":"0.9"}', "5s late"),
        ('{"code":"in_digest","facts":{"digest":null}}', "in digest (digest: None)"),
        ("not JSON", "unreadable reason (text: not JSON)"),
        ('{"facts":{}}', 'unreadable reason (text: {"facts":{}})'),
    ],
)
def test_what_another_version_stored_still_reads(stored: str, sentence: str) -> None:
    assert str(read_reason(stored)) == sentence


def test_a_reason_inside_another_one_does_not_end_the_sentence() -> None:
    why = Reason.of("failed", text="no such number.")

    assert str(Reason.of("not_reached", recipient="ann", why=why, expires_at="noon")) == (
        "ann was not reached: no such number, and it had to start before noon"
    )


def test_an_attempt_says_the_words_of_its_handler_or_the_sentence_of_its_code() -> None:
    assert describe_error("ValueError", None, "no line") == "no line"
    assert describe_error("cancelled", None, "not wanted") == "not wanted"
    assert describe_error("cancelled", None, None) == "cancelled"
    assert describe_error(None, None, None) is None


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (
            ("dead", "ValueError", "no line", None),
            Reason("failed", {"error_code": "ValueError", "text": "no line"}),
        ),
        (("dead", "no_sender", None, None), Reason("no_sender")),
        (("cancelled", "cancelled", "no", None), Reason("cancelled", {"text": "no"})),
        (
            ("superseded", "subject_moved", None, '{"to":"noon"}'),
            Reason("subject_moved", {"to": "noon"}),
        ),
        (("completed", None, None, None), Reason("job_ended", {"outcome": "completed"})),
    ],
)
def test_why_an_attempt_ended_is_read_from_its_columns(
    attempt: tuple[str, str | None, str | None, str | None], reason: Reason
) -> None:
    assert read_attempt_reason(*attempt) == reason


@pytest.mark.parametrize("name", TABLES)
def test_every_sentence_can_be_filled(name: str) -> None:
    for code, template in TABLES[name].items():
        assert code == code.lower()
        assert code.isidentifier()
        _check_template(template)


def _check_template(template: str) -> None:
    plain = template.replace("[", "").replace("]", "")
    for _, fact, kind, _ in string.Formatter().parse(plain):
        assert fact is None or fact.isidentifier(), template
        assert (kind or "") in KINDS or (kind or "").count("/") == 1, template


def test_a_number_has_the_singular_or_the_plural() -> None:
    sentences = {"alive": "{count:live worker serves/live workers serve} it."}

    made = [str(make_explanation(sentences, "alive", {"count": count})) for count in (0, 1, 2)]

    assert made == [
        "0 live workers serve it.",
        "1 live worker serves it.",
        "2 live workers serve it.",
    ]


def test_a_sentence_shows_moments_in_whole_seconds() -> None:
    reason = Reason.of("subject_moved", to=datetime(2026, 3, 7, 18, 0, 0, 714729, tzinfo=UTC))

    assert str(reason) == "the subject moved to 2026-03-07T18:00:00Z"
    assert reason.facts == {"to": "2026-03-07T18:00:00.714729Z"}


def test_steps_are_explanations_too() -> None:
    sentences: Mapping[str, str] = {"late": "It is late."}
    inner = Explanation("due", "It is due.", {})
    made = make_explanation(sentences, "late", {}, steps=[inner, None, Reason("shadow")])

    assert [step.code for step in made.steps] == ["due", "shadow"]
    assert str(made) == "It is late."
