"""Rules: what may be written, when they are due, whose hold, what is armed, and quiet hours."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duetime.domain.reasons import Reason
from duetime.domain.reminders.arming import Armed, Level, arm, resolve_rules
from duetime.domain.reminders.quiet import Quiet, defer, parse_quiet
from duetime.domain.reminders.rule import MAX_OFFSET, Rule, rule_times
from duetime.domain.reminders.rule_text import parse_rule, parse_rules
from duetime.errors import InvalidInput, InvalidSchedule

NEW_YORK = "America/New_York"
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
DUE = datetime(2026, 5, 4, 18, tzinfo=UTC)


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def times(rule: Any, due: datetime = DUE, tz: str = "UTC") -> list[str]:
    return [f"{at:%m-%dT%H:%M}" for at in rule_times(parse_rule(rule), due, tz)]


# --- what may be written


@pytest.mark.parametrize(
    ("text", "canonical", "key"),
    [
        ("-7d", "-7d", "7d-before"),
        ("-1w", "-7d", "7d-before"),
        ("-1h", "-1h", "1h-before"),
        ("-1h30m", "-1h30m", "1h30m-before"),
        ("+30m", "+30m", "30m-after"),
        ("+1.5ms", "+1.5ms", "1.5ms-after"),
        ("0s", "0s", "at-due"),
        ("-0d", "0s", "at-due"),
        ("-1d at 09:00", "-1d at 09:00", "1d-before-at-0900"),
        ("  -1w2d  at  9:00 ", "-9d at 09:00", "9d-before-at-0900"),
        ("+1d at 23:59:30", "+1d at 23:59:30", "1d-after-at-235930"),
        ("at 09:00", "at 09:00", "on-day-at-0900"),
        ("-0d at 00:00", "at 00:00", "on-day-at-0000"),
        ("0d at 09:00", "at 09:00", "on-day-at-0900"),
        ("at 2026-05-01T09:00+02:00", "at 2026-05-01T07:00:00Z", "at-20260501T070000Z"),
        ("2026-05-01T07:00Z", "at 2026-05-01T07:00:00Z", "at-20260501T070000Z"),
        ("every 24h within the last 3d", "every 1d within the last 3d", "every-1d-in-last-3d"),
    ],
)
def test_a_text_has_one_canonical_form_and_a_pinned_id(text: str, canonical: str, key: str) -> None:
    rule = parse_rule(text)

    assert (rule.text, rule.id) == (canonical, key)
    assert parse_rule(canonical) == rule


def test_whose_clock_and_which_channels_are_part_of_the_id() -> None:
    given = {"rule": "-1d at 09:00", "zone": "recipient", "channels": ["sms", "email"]}
    turned = {**given, "channels": ("email", "sms")}

    assert parse_rule(given).id == "1d-before-at-0900~recipient~9350bbcb"
    assert parse_rule(turned).id == parse_rule(given).id
    assert parse_rule({**given, "channels": "sms"}).id != parse_rule(given).id


def test_how_it_is_sent_is_not_part_of_the_id() -> None:
    options = {"past": "send_now", "expires": "5m", "urgent": True, "template": "soon"}
    options |= {"escalate": "10m"}

    assert parse_rule({"rule": "-1h", **options}).id == parse_rule("-1h").id


def test_python_values_are_rules_too() -> None:
    moment = instant("2026-05-01T09:00+02:00")

    assert parse_rule(timedelta(hours=-1)) == parse_rule("-1h")
    assert parse_rule(60) == parse_rule("60") == parse_rule({"rule": 60}) == parse_rule("-1h")
    assert parse_rules([60, "-1h", 0]) == parse_rules(["-1h", "0s"])
    assert parse_rule(moment) == parse_rule({"rule": moment}) == parse_rule(f"at {moment}")
    assert parse_rule(parse_rule("-1h")) == parse_rule("-1h")


@pytest.mark.parametrize(
    ("rule", "expires"),
    [
        ("-1h", "at_due"),
        ("-1d at 09:00", "at_due"),
        ("at 09:00", "at_due"),
        ("every 1h within the last 1d", "at_due"),
        ("at 2026-05-01T09:00Z", "at_due"),
        ("0s", None),
        ("+30m", None),
        ("+1d at 09:00", None),
        ({"rule": "-1h", "expires": "10m"}, timedelta(minutes=10)),
        ({"rule": "-1h", "expires": HOUR}, HOUR),
        ({"rule": "-1h", "expires": "never"}, None),
        ({"rule": "-1h", "expires": None}, None),
        ({"rule": "+1h", "expires": "1d"}, DAY),
    ],
)
def test_what_comes_before_the_due_time_expires_then_unless_it_says_otherwise(
    rule: Any, expires: Any
) -> None:
    assert parse_rule(rule).expires == expires


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is not a valid rule. Write '-1h'"),
        ("tomorrow", "is not a valid rule"),
        ("- 1h", "is not a valid rule"),
        ("-1", "is not a valid rule"),
        ("-1y", "is not a valid rule"),
        ("-1e3s", "is not a valid rule"),
        ("-1h" * 50, "is not a valid rule"),
        ("-1\N{ARABIC-INDIC DIGIT ONE}h", "is not a valid rule"),
        (-60, "For a time after the due time, write '\\+60m'"),
        (True, "A rule must be a text such as '-1h', a whole number of minutes .*, got True"),
        (1.5, "must be a whole number of minutes before the due time, got 1.5. Write '-1m30s'"),
        (-1.5, "must be a whole number of minutes before the due time, got -1.5.$"),
        (1e-30, "must be a whole number of minutes before the due time, got 1e-30.$"),
        (float("nan"), "must be a whole number of minutes before the due time, got nan.$"),
        (float("inf"), "must be a whole number of minutes before the due time, got inf.$"),
        (10**30, "at most 10 years: write 5260320 or less"),
        pytest.param(10**5000, "at most 10 years: write 5260320 or less", id="huge"),
        pytest.param(-(10**5000), "at most 10 years: write 5260320 or less", id="huge negative"),
        (5260321, "at most 10 years: write 5260320 or less"),
        ("999999999", "at most 10 years: write 5260320 or less"),
        (None, "A rule must be a text such as '-1h'"),
        (b"-1h", "A rule must be a text such as '-1h'"),
        ([], "A rule must be a text such as '-1h'"),
        ("1h", "Write '-1h' for a time before the due time, or '\\+1h' for a time after"),
        ("1d at 09:00", "Write '-1d at 09:00' for a time before"),
        ("-11y", "is not a valid rule"),
        ("-3654d", "offset must be at most 10 years: write '3653d' or less, got '3654d'"),
        ("-99999d", "offset must be at most 10 years: write '3653d' or less, got '99999d'"),
        ("+100000d", "offset must be at most 10 years: write '3653d' or less, got '100000d'"),
        ("-" + "9" * 30 + "w", "offset must be at most 10 years: write '3653d' or less"),
        ("-99999d at 09:00", "offset must be at most 10 years: write '3653d' or less"),
        (timedelta.min, "at most 10 years"),
        ("-24h at 09:00", "whole days or weeks"),
        ("-1.5d at 09:00", "whole days or weeks"),
        ("-1d at 9", "is not a valid rule"),
        ("-1d at 24:00", "'24:00' is not a time of day"),
        ("-1d at 09:60", "is not a time of day"),
        ("at 09:00:00:00", "is not a time of day"),
        ("-1d at 2026-05-01T09:00Z", "is not a valid rule"),
        ("at 2026-05-01T09:00", "no time zone"),
        ("at 2026-05-01", "no time zone"),
        ("at 2026-02-30T09:00Z", "is not a time"),
        ("at 1950-01-01T00:00Z", "between the years"),
        ("at 1970-01-01T00:00+02:00", "between the years"),
        (datetime(2026, 5, 1), "no time zone"),
        ("every 0s within the last 3d", "every must be at least 1s"),
        ("every 500ms within the last 1s", "every must be at least 1s"),
        ("every 1h within the last 0s", "greater than 0s"),
        ("every 1d within the last 3654d", "at most 10 years"),
        ("every 99999d within the last 99999d", "at most 10 years: write '3653d' or less"),
        ("every 1h within the last 3", "A repeat's time '3' has no unit"),
        ("every 1h", "is not a valid rule"),
        ("every 1s within the last 1001s", "has 1,001 times, and the limit is 1,000"),
        ({}, 'must contain "rule"'),
        ({"rule": "-1h", "colour": "red"}, "no option 'colour'. The options are: past, expires"),
        ({"rule": "-1h", 7: 1}, "no option 7"),
        ({"rule": {"rule": "-1h"}}, "A rule must be a text such as '-1h'"),
        ({"rule": "-1h", "past": "now"}, "past must be one of"),
        ({"rule": "-1h", "past": []}, "past must be one of"),
        ({"rule": "at 09:00", "zone": "utc"}, "zone must be one of"),
        ({"rule": "-1h", "zone": "recipient"}, "has no wall time"),
        ({"rule": "-1h", "urgent": "yes"}, "urgent must be True or False"),
        ({"rule": "-1h", "expires": "0s"}, "greater than 0s"),
        ({"rule": "-1h", "expires": "4000d"}, "at most 10 years"),
        ({"rule": "-1h", "expires": "99999d"}, "expires must be at most 10 years"),
        ({"rule": "-1h", "escalate": "99999d"}, "escalate must be at most 10 years"),
        ({"rule": "-1h", "expires": "60"}, "expires '60' has no unit"),
        ({"rule": "+1h", "expires": "at_due"}, "cannot have expires='at_due'"),
        ({"rule": "0s", "expires": "at_due"}, "cannot have expires='at_due'"),
        ({"rule": "-1h", "channels": []}, "1 to 20 channels"),
        ({"rule": "-1h", "channels": ["a", "a"]}, "the same channel twice"),
        ({"rule": "-1h", "channels": [1]}, "channel must be a string"),
        ({"rule": "-1h", "channels": {"a": 1}}, "a list of names"),
        ({"rule": "-1h", "template": ""}, "template must have 1 to"),
        ({"rule": "-1h", "escalate": "0s"}, "escalate must be greater than 0s"),
        ({"rule": "-1h", "escalate": True}, "escalate must be a number of seconds"),
        ({"rule": "at 09:00", "zone": "recipient", "escalate": "1h"}, "one time for all"),
        (Rule(offset=HOUR, at=DUE), "one kind of time"),
        (Rule(wall=time(9, tzinfo=UTC)), "no zone"),
        (Rule(every=HOUR), "requires within"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(value: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_rule(value)


def test_the_largest_of_everything_is_accepted() -> None:
    assert parse_rule("-3653d").offset == -MAX_OFFSET
    assert len(rule_times(parse_rule("every 1s within the last 1000s"), DUE, "UTC")) == 1000
    assert len(parse_rules([f"-{n}m" for n in range(50)])) == 50


@given(st.text() | st.from_regex(r"\A[+-]?\d+[dhw]( at \d\d:\d\d)?\Z"))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InvalidInput:
        return
    assert parse_rule(rule.text) == rule


def test_a_list_says_each_rule_once() -> None:
    assert [rule.text for rule in parse_rules(["-1h", "-60m", timedelta(hours=-1)])] == ["-1h"]
    assert parse_rules("-1h") == parse_rules({"rule": "-1h"}) == parse_rules(["-1h"])
    assert parse_rules([]) == ()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["-1h", {"rule": "-1h", "urgent": True}], "The rule '-1h' is given twice"),
        ([f"-{n}m" for n in range(51)], "at most 50 rules"),
        (None, "Rules must be a list"),
        (b"-1h", "Rules must be a list"),
        (1.5, "must be a whole number of minutes before the due time, got 1.5. Write '-1m30s'"),
        (True, "a whole number of minutes before the due time, .*, got True"),
        (["-1h", "soon"], "'soon' is not a valid rule"),
    ],
)
def test_a_list_that_cannot_be_is_refused(values: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_rules(values)


# --- JSON

SPANS = st.timedeltas(min_value=-MAX_OFFSET, max_value=MAX_OFFSET)
DAYS = st.integers(-3653, 3653).map(lambda days: timedelta(days=days))
WALLS = st.times().map(lambda wall: wall.replace(microsecond=0))
MOMENTS = st.datetimes(
    min_value=datetime(1971, 1, 1), max_value=datetime(8999, 1, 1), timezones=st.just(UTC)
)
TIMES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"offset": SPANS}),
    st.fixed_dictionaries({"offset": DAYS, "wall": WALLS}),
    st.fixed_dictionaries({"at": MOMENTS}),
    st.builds(
        lambda every, count, rest: {"every": every, "within": every * count - rest * every},
        st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=3)),
        st.integers(1, 1000),
        st.floats(0, 0.9),
    ),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "past": st.sampled_from(["skip", "send_now"]),
        "expires": st.none()
        | st.timedeltas(min_value=timedelta(microseconds=1), max_value=MAX_OFFSET),
        "urgent": st.booleans(),
        "channels": st.lists(st.sampled_from("abcd"), min_size=1, unique=True).map(tuple),
        "template": st.sampled_from(["soon", "käse"]),
        "escalate": st.timedeltas(min_value=timedelta(microseconds=1), max_value=MAX_OFFSET),
    },
)
RULES = st.builds(lambda times, options: parse_rule(Rule(**times, **options)), TIMES, OPTIONS)


@given(RULES)
def test_json_is_read_back_and_equal_rules_have_equal_json(rule: Rule) -> None:
    stored = rule.to_json()

    assert Rule.from_json(stored) == rule
    assert Rule.from_json(json.dumps(stored)).to_json() == stored


@given(RULES, RULES)
def test_rules_are_equal_exactly_if_their_json_is(one: Rule, other: Rule) -> None:
    assert (one == other) is (one.to_json() == other.to_json())
    if one == other:
        assert one.id == other.id


def test_json_is_plain_for_sql() -> None:
    rule = parse_rule({"rule": "-1d at 09:00", "channels": ["sms"], "urgent": True})

    assert rule.to_json() == {
        "id": rule.id,
        "offset_us": -86_400_000_000,
        "wall_us": 32_400_000_000,
        "at": None,
        "every_us": None,
        "within_us": None,
        "past": "skip",
        "expires_us": None,
        "expires_at_due": True,
        "urgent": True,
        "zone": "subject",
        "channels": ["sms"],
        "template": None,
        "escalate_us": None,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": "other"}, "id is 'other'; it must be '1h-before'"),
        ({"offset_us": "1"}, "Expected `int`"),
        ({"offset_us": True}, "Expected `int`"),
        ({"offset_us": 10**18}, "at most 10 years"),
        ({"offset_us": 10**40}, "cannot be read"),
        ({"wall_us": 32_400_000_000}, "whole days or weeks"),
        ({"offset_us": 0, "wall_us": 86_400_000_000}, "within a day"),
        ({"offset_us": 0, "wall_us": -1}, "within a day"),
        ({"offset_us": 0, "wall_us": 1}, "whole seconds"),
        ({"at": "2026-05-01T09:00:00Z"}, "one kind of time"),
        ({"offset_us": 0, "at": "2026-05-01T09:00:00"}, "no time zone"),
        ({"offset_us": 0, "at": "soon"}, "cannot be read"),
        ({"every_us": 1}, "one kind of time"),
        ({"offset_us": 0, "every_us": 10**6}, "requires within"),
        ({"offset_us": 0, "every_us": -5, "within_us": 5}, "every must be at least 1s"),
        ({"expires_us": 1}, "cannot expire both"),
        ({"expires_us": -1, "expires_at_due": False}, "greater than 0s"),
        ({"past": "later"}, "cannot be read"),
        ({"zone": "recipient"}, "no wall time"),
        ({"channels": "sms"}, "cannot be read"),
        ({"channels": []}, "1 to 20 channels"),
        ({"template": "\0"}, "NUL"),
        ({"escalate_us": -1}, "greater than 0s"),
        ({"more": 1}, "cannot be read"),
    ],
)
def test_stored_json_is_not_trusted(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Rule.from_json({**parse_rule("-1h").to_json(), **changes})


def test_rules_that_were_stored_before_they_could_escalate_do_not() -> None:
    stored = parse_rule("-1h").to_json()
    del stored["escalate_us"]

    assert Rule.from_json(stored) == parse_rule("-1h")


@pytest.mark.parametrize(
    "value", ["", "[]", "{}", "null", b"\xff", None, 7, object(), "x" * 30_000]
)
def test_what_is_no_stored_rule_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        Rule.from_json(value)


# --- when it is due


def test_offsets_count_elapsed_time() -> None:
    after_change = instant("2026-03-08T12:00:00-04:00")

    assert times("-1h") == ["05-04T17:00"]
    assert times("+30m") == ["05-04T18:30"]
    assert times("0s") == ["05-04T18:00"]
    assert times("-1d", after_change, NEW_YORK) == ["03-07T16:00"]
    assert times("at 2026-05-01T09:00+02:00") == ["05-01T07:00"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("every 24h within the last 24h", ["05-03T18:00"]),
        ("every 24h within the last 3d", ["05-01T18:00", "05-02T18:00", "05-03T18:00"]),
        ("every 24h within the last 36h", ["05-03T06:00", "05-04T06:00"]),
        ("every 3d within the last 1h", ["05-04T17:00"]),
    ],
)
def test_a_repeat_begins_so_long_before_and_ends_before_the_due_time(
    rule: str, expected: list[str]
) -> None:
    assert times(rule) == expected


@given(st.integers(1, 100), st.integers(1, 1000))
def test_a_repeat_has_every_step_up_to_the_due_time(every: int, within: int) -> None:
    rule = parse_rule(f"every {every}m within the last {within}m")
    model = []
    at = DUE - within * MINUTE
    while at < DUE:
        model.append(at)
        at += every * MINUTE

    assert rule_times(rule, DUE, "UTC") == model


def test_a_wall_time_is_on_the_local_day_of_the_due_time() -> None:
    late = instant("2026-05-04T23:30:00-04:00")

    assert times("at 09:00", late, NEW_YORK) == ["05-04T13:00"]
    assert times("at 09:00", late, "UTC") == ["05-05T09:00"]
    assert times("-1d at 09:00", late, "Asia/Kathmandu") == ["05-04T03:15"]
    assert times("+1w at 09:00", late, NEW_YORK) == ["05-11T13:00"]


@pytest.mark.parametrize(
    ("rule", "due", "tz", "expected"),
    [
        ("at 02:30", "2026-03-08T18:00Z", NEW_YORK, "03-08T07:00"),
        ("-1d at 02:30", "2026-03-09T18:00Z", NEW_YORK, "03-08T07:00"),
        ("at 01:30", "2026-11-01T18:00Z", NEW_YORK, "11-01T05:30"),
        ("at 02:10", "2026-10-04T10:00Z", "Australia/Lord_Howe", "10-03T15:30"),
        ("at 00:00", "2026-09-06T18:00Z", "America/Santiago", "09-06T04:00"),
        ("-1d at 09:00", "2011-12-31T09:00Z", "Pacific/Apia", "12-30T10:00"),
    ],
)
def test_a_wall_time_that_does_not_come_once(rule: str, due: str, tz: str, expected: str) -> None:
    assert times(rule, instant(due), tz) == [expected]


def clock_changes(zones: list[str], first: int, last: int) -> list[tuple[str, datetime]]:
    """Each zone's clock changes, to the day: hypothesis looks around them."""
    found = []
    for tz in zones:
        zone = ZoneInfo(tz)
        at = datetime(first, 1, 1, tzinfo=UTC)
        while at.year <= last:
            if at.astimezone(zone).utcoffset() != (at + DAY).astimezone(zone).utcoffset():
                found.append((tz, at))
            at += DAY
    return found


CHANGES = [
    *clock_changes(
        [
            NEW_YORK,
            "Europe/Berlin",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
            "Antarctica/Troll",
            "America/Santiago",
            "America/Havana",
            "Asia/Beirut",
        ],
        2025,
        2027,
    ),
    *clock_changes(["Pacific/Apia", "Asia/Pyongyang"], 2011, 2018),
    ("UTC", DUE),
    ("Asia/Kathmandu", DUE),
]
AROUND = st.integers(-3 * 1440, 3 * 1440).map(lambda minutes: minutes * MINUTE)
NIGHT = st.integers(0, 4 * 60 - 1) | st.integers(0, 1439)
WALL_MINUTES = NIGHT.map(lambda minutes: time(minutes // 60, minutes % 60))


def walk_to(wall: datetime, tz: str) -> datetime:
    """The first minute at which the clock shows `wall` or later, looking at every one in turn."""
    zone = ZoneInfo(tz)
    at = wall.replace(tzinfo=UTC) - 15 * HOUR
    assert at.astimezone(zone).replace(tzinfo=None) < wall
    while at.astimezone(zone).replace(tzinfo=None) < wall:
        at += MINUTE
    return at


@settings(max_examples=150)
@given(st.sampled_from(CHANGES), AROUND, st.integers(-3, 3), WALL_MINUTES)
def test_wall_times_agree_with_a_walk_through_real_time(
    change: tuple[str, datetime], around: timedelta, days: int, wall: time
) -> None:
    tz, at = change
    due = at + around
    local_day = due.astimezone(ZoneInfo(tz)).date() + timedelta(days=days)

    found = rule_times(parse_rule(f"{days:+d}d at {wall:%H:%M}"), due, tz)

    assert found == [walk_to(datetime.combine(local_day, wall), tz)]


@given(RULES, MOMENTS.filter(lambda due: due.year > 2000), st.sampled_from(CHANGES))
def test_times_are_unique_ascending_and_utc(
    rule: Rule, due: datetime, change: tuple[str, datetime]
) -> None:
    found = rule_times(rule, due, change[0])

    assert found
    assert found == sorted(set(found))
    assert all(at.tzinfo is UTC for at in found)


def test_a_due_time_needs_a_zone_and_a_zone_must_exist() -> None:
    with pytest.raises(InvalidInput, match="due has no time zone"):
        rule_times(parse_rule("-1h"), datetime(2026, 5, 4), "UTC")
    with pytest.raises(InvalidSchedule, match="Did you mean 'Europe/Berlin'"):
        rule_times(parse_rule("-1h"), DUE, "Europe/Berlim")


# --- whose rules hold

WEEK, HOURLY, NOW = (parse_rules([text]) for text in ("-7d", "-1h", "0s"))


@pytest.mark.parametrize(
    ("chain", "rules", "source"),
    [
        ([], (), None),
        ([("game", None, False), ("guild", None, False)], (), None),
        ([("game", WEEK, False), ("channel", HOURLY, False), ("guild", NOW, False)], WEEK, "game"),
        ([("game", None, False), ("channel", HOURLY, False)], HOURLY, "channel"),
        ([("game", None, False), ("channel", None, False), ("guild", NOW, False)], NOW, "guild"),
        ([("game", (), False), ("channel", HOURLY, False)], (), "game"),
        (
            [("game", WEEK, False), ("channel", HOURLY, True), ("guild", NOW, False)],
            HOURLY,
            "channel",
        ),
        ([("game", WEEK, False), ("channel", HOURLY, True), ("guild", NOW, True)], NOW, "guild"),
        ([("game", WEEK, False), ("channel", (), True), ("guild", NOW, False)], (), "channel"),
        ([("game", WEEK, True), ("channel", HOURLY, False)], WEEK, "game"),
        ([("game", WEEK, False), ("channel", None, True), ("guild", NOW, False)], NOW, "guild"),
        ([("game", WEEK, False), ("guild", None, True)], (), None),
    ],
)
def test_the_nearest_level_wins_unless_an_outer_one_is_locked(
    chain: list[Any], rules: tuple[Rule, ...], source: str | None
) -> None:
    assert resolve_rules(chain) == (rules, source)
    assert resolve_rules([Level(*level) for level in chain]) == (rules, source)


# --- what is armed


def armed(rule: Any, before_due: timedelta, **options: Any) -> list[Armed]:
    return arm(parse_rules(rule), DUE, "UTC", DUE - before_due, **options)


def test_a_future_time_is_armed_at_its_time() -> None:
    [one] = armed("-1h", DAY)

    assert (one.time, one.run_at, one.status, one.reason) == (DUE - HOUR, DUE - HOUR, "armed", None)
    assert one.expires_at == DUE


def test_a_time_of_this_very_moment_is_not_past() -> None:
    [one] = armed("-1h", HOUR)

    assert (one.status, one.run_at) == ("armed", DUE - HOUR)


def test_a_past_time_is_skipped_with_the_reason() -> None:
    [one] = armed("-1h", 30 * MINUTE)

    assert (one.status, one.run_at) == ("skipped", None)
    assert one.reason == Reason("past_skipped", {"time": "2026-05-04T17:00:00Z"})


def test_a_past_time_is_sent_now_if_its_rule_says_so() -> None:
    [one] = armed({"rule": "-1h", "past": "send_now"}, 30 * MINUTE)

    assert (one.status, one.time, one.run_at) == ("armed", DUE - HOUR, DUE - 30 * MINUTE)


@pytest.mark.parametrize(
    ("options", "before_due", "status"),
    [
        ({}, MINUTE, "armed"),
        ({}, timedelta(0), "expired"),
        ({}, -DAY, "expired"),
        ({"expires": "10m"}, 51 * MINUTE, "armed"),
        ({"expires": "10m"}, 50 * MINUTE, "expired"),
        ({"expires": "never"}, -DAY, "armed"),
    ],
)
def test_what_has_expired_is_not_sent_now(
    options: dict[str, Any], before_due: timedelta, status: str
) -> None:
    [one] = armed({"rule": "-1h", "past": "send_now", **options}, before_due)

    assert one.status == status
    assert (one.run_at is None) is (status == "expired")
    if status == "expired":
        assert "and it had to start before 2026-05-04T1" in str(one.reason)


def test_a_wall_time_after_the_due_time_does_not_expire_at_due() -> None:
    [one] = armed("at 20:00", DAY)

    assert (one.status, one.run_at, one.expires_at) == ("armed", DUE + 2 * HOUR, None)


def test_of_a_repeat_only_the_newest_past_time_is_sent_now() -> None:
    rule = {"rule": "every 24h within the last 3d", "past": "send_now"}
    found = armed(rule, timedelta(hours=30))

    assert [one.status for one in found] == ["skipped", "armed", "armed"]
    assert [one.run_at for one in found] == [None, DUE - timedelta(hours=30), DUE - DAY]
    assert "a later time of the rule is sent in its place" in str(found[0].reason)


def test_due_in_the_next_day_and_once_a_day() -> None:
    """A subject that is put within its last 24 h has one reminder, which is sent at once."""
    rule = {"rule": "every 24h within the last 24h", "past": "send_now"}

    assert [one.run_at for one in armed(rule, 3 * DAY)] == [DUE - DAY]
    assert [one.run_at for one in armed(rule, 5 * HOUR)] == [DUE - 5 * HOUR]
    assert [one.status for one in armed(rule, timedelta(0))] == ["expired"]


def test_a_wall_time_may_be_the_recipients() -> None:
    rules = ["-1d at 09:00", {"rule": "-1d at 09:00", "zone": "recipient"}, "-1h"]
    found = armed(rules, 7 * DAY, recipient_tz="Asia/Tokyo")

    # It is the day after in Tokyo by then, so the day before is another one as well.
    assert [f"{one.time:%dT%H:%M} {one.rule.zone}" for one in found] == [
        "03T09:00 subject",
        "04T00:00 recipient",
        "04T17:00 subject",
    ]
    assert [one.time for one in armed(rules[1], 7 * DAY)] == [DUE - timedelta(hours=33)]


@given(st.lists(RULES, max_size=4), AROUND, AROUND, st.sampled_from(CHANGES))
@example([parse_rule("-1h")] * 2, timedelta(0), -DAY, ("UTC", DUE))
def test_there_is_one_entry_per_rule_and_time(
    rules: list[Rule], due_around: timedelta, now_around: timedelta, change: tuple[str, datetime]
) -> None:
    tz, at = change
    due, now = at + due_around, at + now_around

    found = arm(rules, due, tz, now)

    wanted = {(rule, time) for rule in rules for time in rule_times(rule, due, tz)}
    assert {(one.rule, one.time) for one in found} == wanted
    assert len(found) == len(wanted)
    assert found == sorted(found, key=lambda one: one.time)
    for one in found:
        assert (one.run_at is not None) is (one.status == "armed")
        assert one.time < now or one.run_at == one.time
        if one.run_at is not None:
            assert one.run_at == max(one.time, now)
            assert one.expires_at is None or one.run_at < one.expires_at
    for rule in rules:
        late = [one for one in found if one.rule == rule and one.time < now and one.run_at]
        assert len(late) <= (rule.past == "send_now")


# --- quiet hours


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("22:00-07:00", "21:59", "04T21:59"),
        ("22:00-07:00", "22:00", "05T07:00"),
        ("22:00-07:00", "23:30", "05T07:00"),
        ("22:00-07:00", "00:00", "04T07:00"),
        ("22:00-07:00", "06:59", "04T07:00"),
        ("22:00-07:00", "07:00", "04T07:00"),
        ("12:00-13:30", "12:15", "04T13:30"),
        ("12:00-13:30", "11:59", "04T11:59"),
        ("18:00-24:00", "20:00", "05T00:00"),
        ("00:00 – 23:59", "00:01", "04T23:59"),
    ],
)
def test_what_is_due_in_quiet_hours_waits_for_their_end(text: str, at: str, expected: str) -> None:
    found = defer(instant(f"2026-05-04T{at}Z"), parse_quiet(text, "UTC"))

    assert f"{found:%dT%H:%M}" == expected


@pytest.mark.parametrize(
    ("text", "at", "tz", "expected"),
    [
        ("22:00-07:00", "2026-03-08T04:00Z", NEW_YORK, "08T11:00"),
        ("22:00-07:00", "2026-11-01T04:00Z", NEW_YORK, "01T12:00"),
        ("22:00-02:30", "2026-03-08T06:00Z", NEW_YORK, "08T07:00"),
        ("22:00-01:30", "2026-11-01T04:00Z", NEW_YORK, "01T05:30"),
        ("22:00-01:30", "2026-11-01T06:10Z", NEW_YORK, "01T06:30"),
        ("01:30-02:00", "2026-11-01T05:45Z", NEW_YORK, "01T06:00"),
        ("01:30-02:00", "2026-11-01T06:45Z", NEW_YORK, "01T07:00"),
    ],
)
def test_quiet_hours_are_those_that_the_clock_shows(
    text: str, at: str, tz: str, expected: str
) -> None:
    assert f"{defer(instant(at), parse_quiet(text, tz)):%dT%H:%M}" == expected


@settings(max_examples=150)
@given(st.sampled_from(CHANGES), AROUND, WALL_MINUTES, WALL_MINUTES)
def test_quiet_hours_agree_with_a_walk_through_real_time(
    change: tuple[str, datetime], around: timedelta, start: time, end: time
) -> None:
    if start == end:
        return
    tz, at = change
    zone, run_at = ZoneInfo(tz), at + around
    quiet = {minute % 1440 for minute in range(minutes(start), minutes(end) + 1440)}
    if start < end:
        quiet = set(range(minutes(start), minutes(end)))
    model = run_at
    while minutes(model.astimezone(zone).time()) in quiet:
        model += MINUTE

    found = defer(run_at, Quiet(start, end, tz))

    assert found == model
    assert defer(found, Quiet(start, end, tz)) == found


def minutes(wall: time) -> int:
    return wall.hour * 60 + wall.minute


@pytest.mark.parametrize(
    ("text", "tz", "reason"),
    [
        ("22:00", "UTC", "Write it as '22:00-07:00'"),
        ("22-7", "UTC", "'22' is not a time of day"),
        ("24:00-07:00", "UTC", "'24:00' is not a time of day"),
        ("07:00-07:00", "UTC", "begin and end at the same time"),
        ("00:00-24:00", "UTC", "begin and end at the same time"),
        ("22:00-07:00", "Nowhere", "There is no time zone"),
        (None, "UTC", "is not a valid range of quiet hours"),
    ],
)
def test_quiet_hours_that_cannot_be_are_refused(text: Any, tz: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_quiet(text, tz)
