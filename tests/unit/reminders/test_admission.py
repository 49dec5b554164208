"""Whether a due reminder goes out now: pure decisions, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime.domain.jobs.outcome import Skip
from duetime.domain.reminders.admission import (
    Send,
    Uses,
    Wait,
    decide,
    digest_time,
    gather,
    leave_out_quiet,
    routes_of,
)
from duetime.domain.reminders.digest import Digest, in_order
from duetime.domain.reminders.recipient import Disabled, Recipient, Route, make_recipient
from duetime.domain.reminders.reminder import Reminder, ReminderStatus
from duetime.domain.reminders.rule_text import parse_rule
from duetime.errors import InvalidInput

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def reminder(rule: Any = "0s", *, due: datetime = NOON, **more: Any) -> Reminder:
    parsed = parse_rule(rule)
    values: dict[str, Any] = {
        "id": 1, "subject": "game:42", "scope": "channel:9", "due_at": due, "rule": parsed,
        "time": due + parsed.offset, "recipient": "ann", "run_at": due, "reason": None,
        "status": ReminderStatus.ARMED, "job_id": 1, "tz": "UTC", "data": {}, "channel": None,
        "external_id": None, "delivery": None, "ended_at": None,
    }  # fmt: skip
    return Reminder(**values | more)


def ann(**options: Any) -> Recipient:
    return make_recipient("ann", **options)


@pytest.mark.parametrize(
    ("muted", "reason"),
    [
        (True, "ann has muted everything"),
        ("scope:channel:9", "ann has muted scope channel:9"),
        ("scope:guild:1", "ann has muted scope guild:1"),
        ("subject:game:42", "ann has muted subject game:42"),
        ("rule:-60m", "ann has muted rule -1h"),
        ("channel:push", None),
        ("scope:guild:2", None),
        ("subject:game:4", None),
        ("rule:-2h", None),
    ],
)
def test_what_is_muted_is_skipped(muted: Any, reason: str | None) -> None:
    decision = decide(
        ann(muted=muted), reminder("-1h"), NOON, around={"guild:1"}, channels=["push", "email"]
    )

    assert (str(decision.reason) if isinstance(decision, Skip) else None) == reason


def test_an_urgent_rule_is_muted_too() -> None:
    decision = decide(ann(muted=True), reminder({"rule": "0s", "urgent": True}), NOON)

    assert isinstance(decision, Skip)


def test_routes_follow_the_recipient_and_the_rule_in_the_rules_order() -> None:
    to = ann(channels={"push": "token", "email": "ann@example.org", "call": None})
    rule = parse_rule({"rule": "0s", "channels": ["call", "fax", "push"]})

    assert routes_of(to, ["email"]) == (
        Route("push", "token"),
        Route("email", "ann@example.org"),
        Route("call", "ann"),
    )
    assert routes_of(to, ["email"], rule) == (Route("call", "ann"), Route("push", "token"))
    assert routes_of(ann(), ["a", "b"]) == (Route("a", "ann"), Route("b", "ann"))
    assert routes_of(ann(), ["a", "b"], rule) == tuple(
        Route(name, "ann") for name in ("call", "fax", "push")
    )
    assert routes_of(Recipient(ref=""), ["a"]) == (Route("a", None),)


def test_no_route_left_says_why() -> None:
    gone = Disabled("email", "ann@example.org", "410 Gone", NOON)
    to = Recipient(
        ref="ann",
        channels=(Route("push", "token"), Route("email", "ann@example.org")),
        muted=("channel:push",),
        disabled=(gone,),
    )
    sms = parse_rule({"rule": "0s", "channels": ["sms"]})

    why = "no channel of ann is left: push is muted; email is disabled (410 Gone)"
    assert str(routes_of(to, ["push", "email"])) == why
    assert str(routes_of(to, ["sms"], sms)) == "ann has none of the rule's channels: sms"


def test_another_address_is_not_disabled() -> None:
    gone = Disabled("email", "old@example.org", "410 Gone", NOON)
    to = Recipient(ref="ann", channels=(Route("email", "new@example.org"),), disabled=(gone,))

    assert routes_of(to, None) == (Route("email", "new@example.org"),)


NIGHT = datetime(2026, 3, 2, 23, tzinfo=UTC)


def test_quiet_hours_are_on_the_recipients_clock_else_on_the_subjects() -> None:
    here = decide(ann(quiet="22:00-07:00"), reminder(), NIGHT, channels=["a"])
    there = decide(
        ann(quiet="22:00-07:00", tz="America/New_York"), reminder(), NIGHT, channels=["a"]
    )
    subjects = decide(ann(quiet="22:00-07:00"), reminder(tz="Asia/Tokyo"), NIGHT, channels=["a"])

    assert isinstance(here, Wait)
    assert here.until == datetime(2026, 3, 3, 7, tzinfo=UTC)
    assert (
        str(here.reason)
        == "it waits until 07:00 (UTC) because of the quiet hours 22:00-07:00 of ann"
    )
    assert isinstance(there, Send)
    assert isinstance(subjects, Send)


def test_urgent_ignores_quiet_hours_and_the_limit() -> None:
    to = ann(quiet="22:00-07:00", max_per_hour=1)
    urgent = reminder({"rule": "0s", "urgent": True})

    assert decide(to, urgent, NIGHT, channels=["a"], uses=Uses(9)) == Send((Route("a", "ann"),))


def test_what_would_expire_in_quiet_hours_is_sent_and_says_so() -> None:
    to = ann(quiet="22:00-07:00")
    due = datetime(2026, 3, 3, 7, tzinfo=UTC)
    before, after = reminder("-8h", due=due), reminder("-8h", due=due + MINUTE)
    sent = decide(to, before, NIGHT, channels=["a"])

    assert isinstance(sent, Send)
    assert sent.reason is not None
    assert "it would have expired at 2026-03-03T07:00:00Z" in str(sent.reason)
    assert isinstance(decide(to, after, NIGHT, channels=["a"]), Wait)


@pytest.mark.parametrize(
    ("uses", "sent"),
    [(Uses(0), True), (Uses(4), True), (Uses(5, NOON + MINUTE), False), (Uses(9, NOON), False),
     (Uses(5, NOON + MINUTE, admitted=True), True)],
)  # fmt: skip
def test_the_limit_counts_what_others_used(uses: Uses, sent: bool) -> None:
    decision = decide(ann(max_per_hour=5), reminder(), NOON, channels=["a"], uses=uses)

    assert isinstance(decision, Send) is sent
    if isinstance(decision, Wait):
        assert (decision.held, decision.until) == ("limit", uses.frees_at)


def test_a_place_that_frees_in_quiet_hours_is_used_after_them() -> None:
    to = ann(max_per_hour=1, quiet="12:30-15:00")
    decision = decide(to, reminder(), NOON, channels=["a"], uses=Uses(1, NOON + HOUR))

    assert isinstance(decision, Wait)
    assert decision.until == NOON + 3 * HOUR


def test_a_digest_waits_for_a_place_but_goes_before_one_would_expire() -> None:
    to = ann(max_per_hour=1)
    lasting = reminder()
    soon = reminder("-30m", due=NOON + 30 * MINUTE)
    full = Uses(1, NOON + HOUR)

    assert digest_time(to, [lasting], NOON, full) == NOON + HOUR
    assert digest_time(to, [lasting, soon], NOON, full) == NOON + 29 * MINUTE
    assert digest_time(to, [lasting, soon], NOON, Uses(0)) == NOON
    assert digest_time(to, [soon], NOON + 29 * MINUTE, full) <= NOON + 29 * MINUTE
    assert digest_time(ann(), [lasting], NOON, full) == NOON


def test_a_digest_keeps_the_quiet_hours_of_the_recipients_clock_else_of_the_subjects() -> None:
    """23:00 in UTC is 8:00 in Tokyo and 18:00 in New York."""
    night, morning = {"quiet": "22:00-07:00"}, datetime(2026, 3, 3, 7, tzinfo=UTC)
    in_tokyo, here = reminder(tz="Asia/Tokyo"), reminder()

    assert digest_time(ann(**night), [here], NIGHT, Uses(0)) == morning
    assert digest_time(ann(**night), [in_tokyo], NIGHT, Uses(0)) == NIGHT
    new_york = ann(**night, tz="America/New_York")
    assert digest_time(new_york, [here], NIGHT, Uses(0)) == NIGHT
    assert digest_time(ann(**night, tz="UTC"), [in_tokyo], NIGHT, Uses(0)) == morning


def test_a_digest_that_is_to_go_at_once_waits_a_little_for_more() -> None:
    late = reminder("-30m", due=NOON)

    assert gather(NOON, reminder(), NOON) == NOON + timedelta(seconds=2)
    assert gather(NOON + HOUR, reminder(), NOON) == NOON + HOUR
    assert gather(NOON - HOUR, late, NOON - timedelta(seconds=1)) < NOON


def test_a_digest_lists_what_is_due_first() -> None:
    members = [
        reminder(id=n, subject=f"game:{n}", due=NOON + n * MINUTE, data={"title": f"Game {n}"})
        for n in (2, 1, 3)
    ]
    digest = Digest(
        id=7, key="digest:7", recipient="ann", to=ann(tz="Europe/Berlin"),
        reminders=in_order(members),
    )  # fmt: skip

    assert digest.title == "3 reminders"
    assert digest.body.splitlines()[0] == "- Mon 2026-03-02 13:01 (Europe/Berlin)  Game 1"
    assert [one["subject"] for one in digest.data["reminders"]] == ["game:1", "game:2", "game:3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tz": "Mars/Olympus"}, "Mars"),
        ({"quiet": "at night"}, "22:00-07:00"),
        ({"quiet": "22:00-22:00"}, "same time"),
        ({"channels": "email"}, "mapping"),
        ({"channels": {"email": 7}}, "address"),
        ({"channels": [("email", "a", "b")]}, "pair"),
        ({"channels": ["email", ("email", "a")]}, "the same channel twice"),
        ({"channels": {f"c{n}": None for n in range(21)}}, "at most 20"),
        ({"muted": "everything"}, "cannot be muted"),
        ({"muted": ["scope:"]}, "scope"),
        ({"muted": ["rule:soon"]}, "soon"),
        ({"muted": 7}, "list"),
        ({"max_per_hour": 0}, "1 to 1000"),
        ({"max_per_hour": True}, "1 to 1000"),
        ({"max_per_hour": "5"}, "1 to 1000"),
    ],
)
def test_bad_recipients_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_recipient("ann", **options)


def test_a_digest_waits_for_quiet_hours_on_the_recipients_clock_else_on_the_subjects() -> None:
    """23:00 UTC is quiet in London, and neither in New York nor in Tokyo."""
    tokyo, london = reminder(tz="Asia/Tokyo"), reminder(tz="Europe/London")
    morning = datetime(2026, 3, 3, 7, tzinfo=UTC)

    def at(to: Recipient, *waiting: Reminder) -> datetime:
        return digest_time(to, waiting, NIGHT, Uses(0))

    quiet = ann(quiet="22:00-07:00")
    assert at(ann(quiet="22:00-07:00", tz="America/New_York"), london) == NIGHT
    assert at(ann(quiet="22:00-07:00", tz="Europe/London"), tokyo) == morning
    assert at(quiet, london) == morning
    assert at(quiet, london, tokyo) == at(quiet, tokyo, london) == NIGHT


def test_a_digest_leaves_out_what_is_of_a_zone_where_it_is_quiet() -> None:
    """23:00 UTC is quiet in London, but not in Tokyo."""
    tokyo, london = reminder(tz="Asia/Tokyo"), reminder(tz="Europe/London")
    soon = reminder("-8h", due=datetime(2026, 3, 3, 7, tzinfo=UTC), tz="Europe/London")
    quiet = ann(quiet="22:00-07:00")

    assert leave_out_quiet(quiet, [london, tokyo, soon], NIGHT) == [tokyo, soon]
    assert leave_out_quiet(quiet, [london, soon], NIGHT) == [london, soon]
    assert leave_out_quiet(quiet, [london, tokyo], NOON) == [london, tokyo]
    assert leave_out_quiet(ann(), [london, tokyo], NIGHT) == [london, tokyo]


def test_a_digest_that_the_hour_lets_go_in_quiet_hours_waits_for_their_end() -> None:
    before = datetime(2026, 3, 2, 21, 30, tzinfo=UTC)
    to = ann(quiet="22:00-07:00", tz="UTC", max_per_hour=1)
    full = Uses(1, frees_at=before + 45 * MINUTE)

    assert digest_time(to, [reminder()], before, full) == datetime(2026, 3, 3, 7, tzinfo=UTC)
