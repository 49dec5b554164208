"""Recurrences: what they may say, when they are due, how far ahead they are planned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetime.domain.reminders.plan_recurrence import (
    HORIZON,
    MAX_AHEAD,
    MAX_AT_ONCE,
    plan,
    rules_of,
)
from duetime.domain.reminders.recurrence import MAX_EXCEPTIONS, Recurrence, parse_repeats
from duetime.domain.reminders.rule import rule_times
from duetime.domain.reminders.rule_text import parse_rules
from duetime.errors import InvalidInput
from tests.waiting import cpu_at_most

NOW = datetime(2026, 3, 2, tzinfo=UTC)  # A Monday.
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-{text}+00:00")


def next_ones(recurrence: Recurrence, n: int, since: datetime = NOW) -> list[str]:
    return [f"{one.due:%dT%H:%M}" for one in islice(recurrence.occurrences(since), n)]


SPECS: list[Any] = [
    "0 9 * * 1-5",
    "@every 6h",
    timedelta(hours=7),
    ["0 9 * * *", {"at": "2026-03-05T12:00:00Z"}],
    {"rrule": "FREQ=WEEKLY;BYDAY=MO,FR", "start": "2026-03-02T09:00:00Z"},
    {"cron": "30 2 * * *", "start": NOW + DAY, "until": NOW + 40 * DAY, "exclude": ["2026-03-08"]},
]
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
RULES = st.lists(
    st.sampled_from(["-10m", "-3d", "+2h", "0s", "-1d at 09:00", "every 6h within the last 2d"]),
    min_size=1,
    max_size=3,
    unique=True,
)


@given(st.sampled_from(SPECS), ZONES, st.data())
def test_what_is_stored_is_read_back(spec: Any, tz: str, data: st.DataObject) -> None:
    recurrence = parse_repeats(spec, tz)
    for one in islice(recurrence.occurrences(NOW), 5):
        other: list[Any] = [None, "skip", "done", one.due + timedelta(minutes=17)]
        exception = data.draw(st.sampled_from(other))
        recurrence = recurrence.changed(one.original, exception, NOW)
    text = msgspec.json.encode(recurrence.to_json()).decode()

    again = Recurrence.from_json(text, tz)

    assert again == recurrence
    assert again.to_json() == recurrence.to_json()
    due = [one.due for one in islice(again.occurrences(NOW), 20)]
    assert all(earlier <= later for earlier, later in pairwise(due))
    assert due == [one.due for one in islice(recurrence.occurrences(NOW), 20)]


def test_exceptions_leave_out_and_move() -> None:
    recurrence = parse_repeats(
        {
            "cron": "0 9 * * *",
            "exceptions": {
                at("03T09:00"): None,
                at("04T09:00"): "done",
                at("05T09:00"): at("09T08:00"),
            },
        }
    )

    assert next_ones(recurrence, 7) == [
        *("02T09:00", "06T09:00", "07T09:00", "08T09:00"),
        *("09T08:00", "09T09:00", "10T09:00"),
    ]
    assert recurrence.find(at("09T08:00")) == at("05T09:00")
    assert recurrence.find(at("03T09:00")) == at("03T09:00")
    assert parse_repeats({"cron": "0 9 * * *", "exceptions": [at("03T09:00")]}).exceptions == {
        at("03T09:00"): "skip"
    }


def test_exceptions_of_what_never_was_are_ignored() -> None:
    recurrence = parse_repeats(
        {"cron": "0 9 * * *", "exceptions": {at("03T09:30"): at("03T11:00")}}
    )

    assert next_ones(recurrence, 2) == ["02T09:00", "03T09:00"]


def test_the_end_may_be_an_occurrence_and_dates_are_excluded() -> None:
    recurrence = parse_repeats(
        {
            "cron": "0 9 * * *",
            "start": at("03T09:00"),
            "until": at("06T09:00"),
            "exclude": ["2026-03-04"],
        }
    )

    assert next_ones(recurrence, 9) == ["03T09:00", "05T09:00", "06T09:00"]


def test_old_exceptions_are_forgotten_and_their_number_is_bounded() -> None:
    recurrence = parse_repeats({"cron": "0 9 * * *", "exceptions": {}})
    moment, now = at("02T09:00"), NOW
    for _ in range(400):
        moment += DAY
        now += DAY
        recurrence = recurrence.changed(moment, "done", now)

    assert len(recurrence.exceptions or {}) == 367
    with pytest.raises(InvalidInput, match="at most 2,000"):
        parse_repeats(
            {"cron": "* * * * *", "exceptions": [NOW + n * DAY for n in range(MAX_EXCEPTIONS + 1)]}
        )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("2026-05-01T09:00Z", "Use due= instead of repeats="),
        ("* * * * * *", "at most once a minute"),
        ("FREQ=SECONDLY", "at most once a minute"),
        ("61 * * * *", "bad minute field"),
        ({"cron": "0 9 * * *", "starts": NOW}, "A spec is"),
        ({"specs": ["0 9 * * *"], "cron": "0 9 * * *"}, "has no option 'cron'"),
        ({"cron": "0 9 * * *", "start": "2026-03-02"}, "has no time zone"),
        ({"cron": "0 9 * * *", "start": 7}, "must be a datetime"),
        ({"cron": "0 9 * * *", "until": "soon"}, "is not a time"),
        ({"cron": "0 9 * * *", "exceptions": "2026-03-02T09:00Z"}, "exceptions must be a mapping"),
        ({"cron": "0 9 * * *", "exceptions": {NOW: "never"}}, "'skip', 'done' or a time"),
        ({"rrule": "FREQ=DAILY", "start": NOW.replace(microsecond=1)}, "whole second"),
        (7, "A spec is"),
        ([], "1 to 50 specs"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(given: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        parse_repeats(given)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"specs": 7}', '{"specs": ["x"]}', "{" * 900])
def test_what_anyone_stored_is_checked(text: str) -> None:
    with pytest.raises(InvalidInput):
        Recurrence.from_json(text, "UTC")


# Planning


@settings(max_examples=150)
@given(
    st.sampled_from(SPECS),
    ZONES,
    RULES,
    st.lists(st.integers(0, 40 * 86400), max_size=8),
)
def test_plans_follow_each_other_without_a_gap(
    spec: Any, tz: str, rules: list[str], waits: list[int]
) -> None:
    """However late each next plan is made, all occurrences are in one, and in time if it can be."""
    recurrence, held = parse_repeats(spec, tz), parse_rules(rules)
    now, planned = NOW, None
    seen: dict[datetime, datetime] = {}
    looked = NOW
    for wait in [*waits, 0]:
        made = plan(recurrence, held, now, planned=planned)
        for one in made.occurrences:
            seen.setdefault(one.due, now)
        ahead = [one for one in made.occurrences if one.due >= now]
        assert len(ahead) <= max(MAX_AHEAD, 8 * HORIZON.days)
        planned = (made.since, made.until)
        looked = now
        if made.look_at is None:
            break
        assert made.look_at > now
        on_time = wait < 86400
        now = made.look_at + (timedelta(0) if on_time else timedelta(seconds=wait))

    assert planned is not None
    due = {one.due for one in islice(recurrence.occurrences(NOW), 500) if one.due < planned[1]}
    assert due <= set(seen)
    soon = looked + DAY
    for one in islice(recurrence.occurrences(looked), 300):
        early = min(time for rule in held for time in rule_times(rule, one.due, tz))
        if early <= soon and one.due >= looked:
            assert one.due in seen


def test_a_plan_is_bounded_and_goes_on_at_once() -> None:
    minutely, held = parse_repeats("* * * * *"), parse_rules(["-10m"])
    with cpu_at_most(5):
        first = plan(minutely, held, NOW)
        later = plan(minutely, held, NOW + 30 * DAY, planned=(NOW, first.until), behind_since=NOW)

    assert len(first.occurrences) == 24 * 60 + 11
    assert len(later.occurrences) == MAX_AT_ONCE
    assert later.look_at == NOW
    assert later.until == first.until + MAX_AT_ONCE * timedelta(minutes=1)


def test_a_fixed_moment_holds_for_one_occurrence() -> None:
    daily = parse_repeats("0 9 * * *")
    held = parse_rules(["-1h", at("05T10:00")])

    texts = [[rule.text for rule in rules_of(daily, held, at(f"{day:02}T09:00"))] for day in (5, 6)]

    assert texts == [["-1h"], ["-1h", "at 2026-03-05T10:00:00Z"]]
