"""Timetables: what a schedule may say, and when it ticks."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from duetime.domain.reasons import Reason
from duetime.domain.schedules.presets import PRESETS, find_preset
from duetime.domain.schedules.preview import preview
from duetime.domain.schedules.timetable import Timetable, timetable
from duetime.errors import InvalidInput, InvalidSchedule
from tests.waiting import cpu_at_most

NEW_YORK = "America/New_York"
MARCH = datetime(2026, 3, 7, tzinfo=UTC)


def first_ticks(table: Timetable, n: int = 3, after: datetime = MARCH) -> list[str]:
    """The first ticks as `07T14:00`, with a `!` if excluded."""
    ticks = islice(table.ticks(after), n)
    return [f"{tick.at:%dT%H:%M}" + ("!" if tick.excluded else "") for tick in ticks]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


SPECS: list[Any] = [
    "0 9 * * 1-5",
    "*/10 * * * * *",
    "@daily",
    "@every 10m",
    timedelta(hours=7),
    {"every": "90m", "start": "2026-03-01T00:10:00Z"},
    "RRULE:FREQ=WEEKLY;BYDAY=MO",
    {"rrule": "FREQ=HOURLY;INTERVAL=5", "start": datetime(2026, 1, 1, tzinfo=UTC)},
    datetime(2026, 5, 4, 9, tzinfo=timezone(timedelta(hours=2))),
    {"at": "2026-05-05T09:00:00+02:00"},
    "2026-05-06T09:00Z",
]
ZONES = ["UTC", NEW_YORK, "Australia/Lord_Howe", "Africa/Casablanca"]
TABLES = st.builds(
    lambda specs, tz, exclude, start, jitter: timetable(
        *specs, tz=tz, exclude=exclude, start=start, jitter=jitter
    ),
    st.lists(st.sampled_from(SPECS), min_size=1, max_size=4),
    st.sampled_from(ZONES),
    st.lists(st.sampled_from(["2026-12-25", date(2026, 3, 8), "* * * * 6,0"]), max_size=3),
    st.sampled_from([None, instant("2026-03-08T06:30:00Z")]),
    st.sampled_from([None, "5m"]),
)
MOMENTS = st.datetimes(datetime(2026, 3, 1), datetime(2026, 11, 10), timezones=st.just(UTC))


@given(TABLES, MOMENTS)
def test_ticks_ascend_and_go_on_from_any_of_them(table: Timetable, after: datetime) -> None:
    ticks = list(islice(table.ticks(after), 12))

    assert all(earlier.at < later.at for earlier, later in pairwise(ticks))
    assert all(tick.at > after and tick.at.tzinfo is UTC for tick in ticks)
    if len(ticks) > 6:
        assert list(islice(table.ticks(ticks[5].at), 6)) == ticks[6:]


@given(TABLES)
def test_what_is_stored_is_read_back(table: Timetable) -> None:
    text = msgspec.json.encode(table.to_json())

    assert Timetable.from_json(msgspec.json.decode(text)) == table
    assert Timetable.from_json(text).to_json() == table.to_json()
    assert pickle.loads(pickle.dumps(table)) == table


@given(st.permutations(SPECS))
def test_the_order_of_specs_does_not_matter(specs: list[Any]) -> None:
    table = timetable(*specs, specs[0], exclude=["@daily", "2026-01-01"])

    assert table == timetable(*SPECS, exclude=["2026-01-01", "0  0 * * *"])
    assert hash(table) == hash(timetable(*SPECS, exclude=["2026-01-01", "0  0 * * *"]))


def test_specs_merge_and_equal_instants_tick_once() -> None:
    table = timetable("0 9 * * *", "0 */9 * * *", {"at": "2026-03-07T09:00Z"})

    assert first_ticks(table, 4) == ["07T09:00", "07T18:00", "08T00:00", "08T09:00"]


def test_an_interval_counts_from_the_epoch_unless_it_has_a_start() -> None:
    assert first_ticks(timetable("@every 7h"))[0] == "07T01:00"
    assert (instant("2026-03-07T01:00Z").timestamp() / 3600) % 7 == 0
    assert first_ticks(timetable({"every": "7h", "start": "2026-03-07T01:30Z"}), 2) == [
        "07T01:30",
        "07T08:30",
    ]
    assert first_ticks(timetable("@every 7h", start=instant("2026-03-07T01:30Z")), 2) == [
        "07T01:30",
        "07T08:30",
    ]


def test_start_is_inclusive_and_end_is_not() -> None:
    table = timetable("0 9 * * *", start="2026-03-08T09:00Z", end="2026-03-10T09:00Z")

    assert first_ticks(table, 9) == ["08T09:00", "09T09:00"]
    assert first_ticks(table, 9, after=instant("2026-03-10T09:00Z")) == []


def test_exclusions_mask_local_days_and_what_cron_matches() -> None:
    table = timetable("0 22 * * *", tz=NEW_YORK, exclude=["2026-03-09", "* 12-23 * * sat"])

    ticks = list(islice(table.ticks(MARCH + timedelta(hours=12)), 4))

    assert [tick.excluded for tick in ticks] == [
        Reason("excluded_mask", {"mask": "* 12-23 * * SAT"}),
        None,
        Reason("excluded_date", {"date": "2026-03-09"}),
        None,
    ]
    assert str(ticks[0].excluded) == "excluded by '* 12-23 * * SAT'"


def test_a_thousand_exclusions_are_looked_up_quickly() -> None:
    days = [date(2026, 1, 1) + timedelta(days=day) for day in range(999)]
    table = timetable("0 9 * * *", exclude=[*days, "* * * * 0"])

    assert sum(tick.excluded is None for tick in islice(table.ticks(MARCH), 1000)) == 57


def test_jitter_is_stable_spread_and_below_its_bound() -> None:
    table = timetable("@daily", jitter="2s")
    ticks = [tick.at for tick in islice(table.ticks(MARCH), 300)]

    delays = [table.run_at("digest", tick) - tick for tick in ticks]

    assert delays == [table.run_at("digest", tick.astimezone()) - tick for tick in ticks]
    assert delays != [table.run_at("other", tick) - tick for tick in ticks]
    assert min(delays) >= timedelta(0)
    assert max(delays) < timedelta(seconds=2)
    assert all(delay % timedelta(milliseconds=1) == timedelta(0) for delay in delays)
    assert len(set(delays)) > 200
    assert timetable("@daily").run_at("digest", ticks[0]) == ticks[0]


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30", ["07T07:30", "08T07:00", "09T06:30"]),
        ("RRULE:FREQ=HOURLY;INTERVAL=12", ["07T05:00", "07T17:00", "08T05:00"]),
        ("FREQ=MINUTELY;INTERVAL=20;BYHOUR=9;BYDAY=MO", ["09T13:00", "09T13:20", "09T13:40"]),
        ("DTSTART:20260101T180000\nRRULE:FREQ=MONTHLY;BYDAY=2TU", ["10T22:00", "14T22:00"]),
        ("DTSTART;TZID=America/New_York:20251231T090000 RRULE:FREQ=MONTHLY", ["31T13:00"]),
        ("DTSTART:20260301T090000\nRRULE:FREQ=DAILY;COUNT=8", ["07T14:00", "08T13:00"]),
        ("RRULE:FREQ=DAILY;UNTIL=20260308", ["07T05:00", "08T05:00"]),
        ("RRULE:FREQ=DAILY;UNTIL=20260308T050000Z", ["07T05:00", "08T05:00"]),
        ("RRULE:FREQ=DAILY;UNTIL=20260308T050000", ["07T05:00", "08T05:00"]),
        ("RRULE:FREQ=DAILY;UNTIL=20260307T235959", ["07T05:00"]),
    ],
)
def test_rules_follow_the_wall_clock_by_the_day_and_elapsed_time_by_the_hour(
    text: str, ticks: list[str]
) -> None:
    assert first_ticks(timetable(text, tz=NEW_YORK))[: len(ticks)] == ticks


PARTS = [
    "BYDAY=MO,WE,SA",
    "BYMONTH=2,7,12",
    "BYMONTHDAY=1,15,-1",
    "BYHOUR=3,9,21",
    "BYMINUTE=0,20",
    "BYSETPOS=1,-1",
    "WKST=SU",
]


@pytest.mark.parametrize(
    ("frequency", "days"),
    [
        ("YEARLY", 3000),
        ("MONTHLY", 3000),
        ("WEEKLY", 500),
        ("DAILY", 500),
        ("HOURLY", 100),
        ("MINUTELY", 3),
    ],
)
@settings(max_examples=30)
@given(
    st.integers(1, 5),
    st.lists(st.sampled_from(PARTS), unique=True, max_size=4),
    st.datetimes(datetime(2024, 1, 1), datetime(2025, 6, 1)),
    st.floats(-1, 1),
)
def test_rules_agree_with_dateutil_from_their_start(
    frequency: str, days: int, interval: int, parts: list[str], start: datetime, passed: float
) -> None:
    start = start.replace(microsecond=0)
    after = start + timedelta(days=days * passed)
    text = ";".join([f"FREQ={frequency}", f"INTERVAL={interval}", *parts])
    if frequency == "WEEKLY" and "BYSETPOS=1,-1" in parts:
        # dateutil counts positions in the first week from the start on.
        after = max(after, start + timedelta(days=7))
    try:
        table = timetable({"rrule": text, "start": start.replace(tzinfo=UTC)})
    except InvalidSchedule:
        return  # A start and an interval that never meet the BY parts.

    found = [tick.at for tick in islice(table.ticks(after.replace(tzinfo=UTC)), 3)]

    wanted = islice(rrulestr(text, dtstart=start).xafter(after), 3)
    assert found == [wall.replace(tzinfo=UTC) for wall in wanted]


WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


@settings(max_examples=60)
@given(
    start=st.datetimes(datetime(2024, 1, 1), datetime(2025, 12, 31)),
    days=st.lists(st.sampled_from(WEEKDAYS), unique=True, max_size=4),
    position=st.sampled_from([1, 2, -1, -2]),
    interval=st.integers(1, 3),
    first=st.sampled_from(["MO", "SU", "WE"]),
)
def test_positions_are_those_in_the_whole_week(
    start: datetime, days: list[str], position: int, interval: int, first: str
) -> None:
    start = start.replace(microsecond=0)
    days = days or [WEEKDAYS[start.weekday()]]
    text = f"FREQ=WEEKLY;INTERVAL={interval};BYSETPOS={position};WKST={first}"
    text += f";BYDAY={','.join(days)}" if len(days) > 1 else ""
    days = days if len(days) > 1 else [WEEKDAYS[start.weekday()]]
    wanted = []
    week = start - timedelta(days=(start.weekday() - WEEKDAYS.index(first)) % 7)
    for number in range(0, 60, interval):
        whole = [week + timedelta(days=7 * number + day) for day in range(7)]
        chosen = [day for day in whole if WEEKDAYS[day.weekday()] in days]
        with suppress(IndexError):
            wanted.append(chosen[position - 1 if position > 0 else position])
    wanted = [day.replace(tzinfo=UTC) for day in wanted if day >= start]

    try:
        table = timetable({"rrule": text, "start": start.replace(tzinfo=UTC)})
    except InvalidSchedule:
        assert wanted == []  # There are fewer days than that position.
        return

    after = start.replace(tzinfo=UTC) - timedelta(microseconds=1)
    assert [tick.at for tick in islice(table.ticks(after), 10)] == wanted[:10]


@settings(max_examples=60)
@given(
    start=st.datetimes(datetime(2024, 1, 1), datetime(2030, 12, 31)),
    week=st.integers(1, 53),
    day=st.sampled_from([None, *WEEKDAYS]),
)
def test_a_numbered_week_has_the_weekday_of_the_start(
    start: datetime, week: int, day: str | None
) -> None:
    start = start.replace(microsecond=0)
    text = f"FREQ=YEARLY;BYWEEKNO={week}" + (f";BYDAY={day}" if day else "")
    weekday = start.weekday() if day is None else WEEKDAYS.index(day)
    wanted = []
    for number in range(366 * 12):
        at = start + timedelta(days=number)
        if at.isocalendar().week == week and at.weekday() == weekday:
            wanted.append(at.replace(tzinfo=UTC))

    table = timetable({"rrule": text, "start": start.replace(tzinfo=UTC)})

    after = start.replace(tzinfo=UTC) - timedelta(microseconds=1)
    found = [tick.at for tick in islice(table.ticks(after), 2)]
    assert found == wanted[:2]


@pytest.mark.parametrize("until", ["99991231", "99991231T235959", "99991231T235959Z"])
@pytest.mark.parametrize("zone", [NEW_YORK, "Asia/Tokyo", "UTC"])
def test_an_end_at_the_end_of_the_calendar_is_none(until: str, zone: str) -> None:
    ended = timetable(f"RRULE:FREQ=DAILY;UNTIL={until}", tz=zone)

    assert first_ticks(ended) == first_ticks(timetable("RRULE:FREQ=DAILY", tz=zone))


@pytest.mark.parametrize("zone", [NEW_YORK, "Asia/Tokyo", "UTC"])
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=YEARLY;INTERVAL=8029;BYMONTH=12;BYMONTHDAY=31;BYHOUR=23",
        "FREQ=YEARLY;INTERVAL=4000",
        "FREQ=MONTHLY;INTERVAL=9999;BYMONTHDAY=-1;BYHOUR=0,23",
        "FREQ=WEEKLY;INTERVAL=9999;BYDAY=MO,SU;BYHOUR=0,23",
        "FREQ=DAILY;INTERVAL=9999",
    ],
)
def test_the_end_of_the_calendar_is_no_error(rule: str, zone: str) -> None:
    ticks = list(timetable(f"RRULE:{rule}", tz=zone).ticks(instant("2026-01-01T00:00Z")))

    assert all(tick.at.year < 9000 for tick in ticks)


@pytest.mark.parametrize(
    "zone", [NEW_YORK, "Australia/Lord_Howe", "Asia/Beirut", "America/Havana", "Antarctica/Troll"]
)
def test_a_rule_by_the_minute_reads_days_and_hours_on_the_local_clock(zone: str) -> None:
    start = instant("2026-01-01T00:10Z")
    rule = "FREQ=MINUTELY;INTERVAL=25;BYHOUR=0,1,2,3,23;BYDAY=SA,SU"
    table = timetable({"rrule": rule, "start": start}, tz=zone)
    count = timedelta(days=400) // timedelta(minutes=25)
    instants = [start + index * timedelta(minutes=25) for index in range(count)]

    found = [
        tick.at for tick in takewhile(lambda tick: tick.at <= instants[-1], table.ticks(start))
    ]

    local = [(at, at.astimezone(ZoneInfo(zone))) for at in instants[1:]]
    assert found == [
        at for at, wall in local if wall.hour in (0, 1, 2, 3, 23) and wall.weekday() in (5, 6)
    ]


def test_a_rule_by_the_second_skips_other_days_quickly() -> None:
    table = timetable("RRULE:FREQ=SECONDLY;INTERVAL=7;BYHOUR=9;BYMONTH=3;BYDAY=MO")
    with cpu_at_most(0.5):
        tick = next(table.ticks(instant("2026-03-30T10:00Z"))).at

    assert tick - instant("2027-03-01T09:00Z") < timedelta(seconds=7)
    assert tick.timestamp() % 7 == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("RRULE:FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("RRULE:FREQ=SECONDLY;BYHOUR=23;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("RRULE:FREQ=SECONDLY;INTERVAL=3600;BYMINUTE=30", "never fires"),
        ("RRULE:FREQ=DAILY;UNTIL=19600101", "never fires"),
        ("RRULE:FREQ=DAILY;INTERVAL=0", "INTERVAL=0"),
        ("RRULE:FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY=0"),
        ("RRULE:FREQ=DAILY;BYHOUR=24", "BYHOUR=24"),
        ("RRULE:FREQ=MONTHLY;BYDAY=9MO", "out of range"),
        ("RRULE:FREQ=WEEKLY;BYDAY=1MO", "requires FREQ=MONTHLY"),
        ("RRULE:FREQ=HOURLY;BYSETPOS=1", "BYSETPOS"),
        ("RRULE:FREQ=YEARLY;BYWEEKNO=20", "has no weekday and no start to take it from"),
        ("RRULE:FREQ=MONTHLY;BYWEEKNO=20;BYDAY=MO", "BYWEEKNO, which needs FREQ=YEARLY"),
        ("RRULE:FREQ=HOURLY;BYWEEKNO=20", "BYWEEKNO, which needs FREQ=YEARLY"),
        ("RRULE:FREQ=YEARLY;INTERVAL=2;BYWEEKNO=1;BYDAY=MO", "and no INTERVAL"),
        ("RRULE:FREQ=YEARLY;BYWEEKNO=20;BYDAY=1MO", "weekdays without numbers"),
        ("DTSTART:99991231T000000\nRRULE:FREQ=DAILY", "must start before the year 9000"),
        ("RRULE:FREQ=DAILY;FREQ=DAILY", "repeated part"),
        ("RRULE:FREQ=DAILY;BYEASTER=0", "unknown or repeated"),
        ("rrule:freq=daily;byEaster=0", "'freq=daily;byEaster=0' has .* part 'byEaster=0'"),
        ("rrule:freq=daily;byhour=24", "'freq=daily;byhour=24' has an .* value in 'byhour=24'"),
        ("rrule:freq=weekly;byday=1mo", "'freq=weekly;byday=1mo' has a weekday with a number"),
        ("RRULE:BYDAY=MO", "no FREQ"),
        ("RRULE:FREQ=DAILY;COUNT=3", "requires a start"),
        ("RRULE:FREQ=DAILY RRULE:FREQ=WEEKLY", "several specs"),
        ("DTSTART:20260101T090000\nEXDATE:20260102T090000\nRRULE:FREQ=DAILY", "exclude="),
        ("DTSTART;TZID=Europe/Berlin:20260101T090000\nRRULE:FREQ=DAILY", "'Europe/Berlin'"),
        ("DTSTART:20261399T090000\nRRULE:FREQ=DAILY", "'20261399T090000' is not a valid time"),
        ("RRULE:FREQ=DAILY;UNTIL=20260230", "is not a valid time"),
        ("RRULE:" + "FREQ=DAILY;" * 100, "at most 500"),
    ],
)
def test_a_rule_that_cannot_be_read_or_never_fires_is_refused_quickly(
    text: str, reason: str
) -> None:
    with cpu_at_most(0.5), pytest.raises(InvalidSchedule, match=reason):
        timetable(text)


def test_a_rule_may_be_written_in_lower_case() -> None:
    lower = timetable("rrule:freq=weekly;byday=mo,we;until=20270101t000000z")

    assert lower == timetable("RRULE:FREQ=WEEKLY;BYDAY=MO,WE;UNTIL=20270101T000000Z")


def test_rules_without_dateutil_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dateutil.rrule", None)

    with pytest.raises(InvalidSchedule, match=r"pip install 'duetime\[rrule\]'"):
        timetable("RRULE:FREQ=DAILY;BYHOUR=11;BYMINUTE=11")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: timetable(), "1 to 50 specs"),
        (lambda: timetable(*["@daily"] * 51), "1 to 50 specs"),
        (lambda: timetable("@daily", exclude=["2026-01-01"] * 1001), "at most 1000"),
        (lambda: timetable("@daily", exclude=["2026-02-30"]), "no date 2026-02-30"),
        (lambda: timetable("@daily", exclude=[MARCH]), "date or a cron"),
        (lambda: timetable("@daily", exclude="* * * * *"), "masks every tick"),
        (lambda: timetable("@daily", tz="Europe/Berln"), "'Europe/Berlin'"),
        (lambda: timetable("@daily", tz=["UTC"]), "time zone"),  # type: ignore[arg-type]
        (lambda: timetable("@every 999ms"), "at least 1s"),
        (lambda: timetable("@every 10"), "has no unit"),
        (lambda: timetable(timedelta(seconds=-5)), "negative"),
        (lambda: timetable({"every": True}), "number of seconds"),
        (lambda: timetable(datetime(2026, 1, 1)), "no time zone"),
        (lambda: timetable("2026-01-01T09:00"), "no time zone"),
        (lambda: timetable("2026-01-01"), "no time zone"),
        (lambda: timetable("2026-13-01T09:00Z"), "not a time"),
        (lambda: timetable({"at": "1969-12-31T23:59Z"}), "1970"),
        (lambda: timetable({"cron": "@daily", "at": "now"}), "A spec is"),
        (lambda: timetable(3.5), "A spec is"),  # type: ignore[arg-type]
        (lambda: timetable("@daily", jitter="25h"), "jitter must be at most 1d, got '25h'"),
        (lambda: timetable("@daily", jitter="99999d"), "jitter must be at most 1d, got '99999d'"),
        (lambda: timetable("@daily", start=MARCH, end=MARCH), "must be later"),
        (lambda: timetable("@yearly", start=MARCH, end="2026-04-01T00:00Z"), "never fires"),
        (lambda: timetable("*/5 2 * 3 0#2", tz=NEW_YORK), "never fires in America/New_York"),
        (lambda: timetable("@daily").ticks(datetime(2026, 1, 1)), "no time zone"),
    ],
)
def test_what_a_timetable_cannot_mean_is_refused(make: Any, reason: str) -> None:
    with pytest.raises(InvalidSchedule, match=reason):
        make()


@pytest.mark.parametrize(
    "value",
    [
        *[None, 1, "", "x", b"\xff", "[]", "[" * 100_000, "\ud800", [], {}, object()],
        {"specs": "@daily"},
        {"specs": []},
        {"specs": [None]},
        {"specs": [["@daily"]]},
        {"specs": [{"cron": 5}]},
        {"specs": ["@daily"], "tz": None},
        {"specs": ["@daily"], "tz": "../UTC"},
        {"specs": ["@daily"], "exclude": 5},
        {"specs": ["@daily"], "exclude": {"2026-01-01": 1}},
        {"specs": ["@daily"], "start": 0},
        {"specs": ["@daily"], "jitter": True},
        {"specs": ["@daily"], "when": "now"},
        {"specs": [{"rrule": "FREQ=DAILY", "start": "2026-01-01T00:00:00.5Z"}]},
        {"specs": [{"at": "9999-12-31T23:59:59-12:00"}]},
        '{"specs":["' + "*" * 600_000 + '"]}',
    ],
)
def test_a_stored_value_is_not_trusted(value: Any) -> None:
    with pytest.raises(InvalidSchedule) as error:
        Timetable.from_json(value)

    assert len(str(error.value)) < 300


def test_the_ends_of_the_calendar_are_quiet() -> None:
    table = timetable("@daily", "@every 10m", "* * * * * *", tz="Pacific/Kiritimati")

    assert next(table.ticks(datetime.min.replace(tzinfo=UTC))).at.year == 1970
    assert list(table.ticks(datetime.max.replace(tzinfo=UTC))) == []
    assert len(list(table.ticks(instant("8999-12-31T23:59:57Z")))) == 2


def test_a_timetable_describes_itself() -> None:
    table = timetable("0 9 * * 1-5", tz=NEW_YORK, exclude="2026-12-25", jitter="5m")

    assert table.describe() == (
        "cron 0 9 * * 1-5 (America/New_York), except 2026-12-25, up to 5m later"
    )
    assert timetable({"every": "10m", "start": "2026-01-01T00:00Z"}).describe() == (
        "every 10m from 2026-01-01T00:00:00Z"
    )


def test_a_preview_explains_clock_changes() -> None:
    spring = preview(timetable("15,45 2 * * *", tz=NEW_YORK), instant("2026-03-07T12:00Z"), 2)
    autumn = preview(timetable("30 * * * *", tz=NEW_YORK), instant("2026-11-01T05:00Z"), 3)
    rule = timetable("RRULE:FREQ=DAILY;BYHOUR=2", tz=NEW_YORK)

    assert spring[0].notes == (
        "clocks go forward 1h before this",
        "moved out of the gap from 02:15, 02:45",
    )
    assert f"{spring[0].local:%H:%M}" == "03:00"
    assert spring[1].notes == ()
    assert [row.notes for row in autumn] == [
        ("first of two 01:30",),
        ("clocks go back 1h before this", "second of two 01:30"),
        (),
    ]
    assert preview(rule, instant("2026-03-08T00:00Z"), 1)[0].notes[1:] == (
        "moved out of the gap from 02:00",
    )


def test_a_preview_shows_excluded_ticks() -> None:
    rows = preview(timetable("@daily", exclude=["2026-03-08"]), MARCH, 2)

    assert [str(row.excluded) for row in rows] == ["excluded date 2026-03-08", "None"]


@pytest.mark.parametrize("n", [0, -1, 1001, True, "5"])
def test_a_preview_has_a_bounded_number_of_rows(n: Any) -> None:
    with pytest.raises(InvalidInput, match="1 to 1000"):
        preview(timetable("@daily"), MARCH, n)


def test_presets_are_timetables_and_found_by_name() -> None:
    assert all(timetable(preset.spec) for preset in PRESETS)
    assert len({preset.name.casefold() for preset in PRESETS}) == len(PRESETS)
    assert find_preset("  EVERY  15 minutes ").spec == "*/15 * * * *"
    with pytest.raises(InvalidSchedule, match="'Weekdays 9 AM'"):
        find_preset("weekday 9am")
    with pytest.raises(InvalidSchedule, match="no preset"):
        find_preset("x" * 10_000)
