"""Cron expressions and time zones, and what becomes of them when clocks change."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from duetime.domain.schedules.cron import ALIASES, next_change, parse_cron, parse_zone, to_instant
from duetime.domain.schedules.cron_fields import nearest_weekday
from duetime.errors import InvalidSchedule
from tests.chaos.clock_changes import expected_ticks
from tests.waiting import cpu_at_most

NEW_YORK = "America/New_York"
INSTANTS = st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))


def local_ticks(text: str, zone: str, day: str, hours: int = 24) -> list[str]:
    """The ticks of a local day, as that day's clock shows them, with the offset's hours."""
    start = to_instant(datetime.fromisoformat(day), parse_zone(zone))
    ticks = parse_cron(text).ticks(parse_zone(zone), start - timedelta(seconds=1))
    within = takewhile((start + timedelta(hours=hours)).__gt__, ticks)
    return [f"{tick.astimezone(parse_zone(zone)):%H:%M%z}"[:-2] for tick in within]


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("30 2 * * *", ["03:00-04"]),
        ("15,45 2 * * *", ["03:00-04"]),
        ("0,30 2,3 * * *", ["03:00-04", "03:30-04"]),
        ("30 1-3 * * *", ["01:30-05", "03:00-04", "03:30-04"]),
        ("0 30 2 * * *", ["03:00-04"]),
        ("0/15 2 * * *", ["03:00-04"]),
        ("0 1-3/1 * * *", ["01:00-05", "03:00-04"]),
        ("*/15 2 * * *", []),
        ("30 */2 * * *", ["00:30-05", *[f"{hour:02}:30-04" for hour in range(4, 24, 2)]]),
        ("0 0 1 1 *", []),
    ],
)
def test_a_fixed_time_in_a_gap_runs_once_right_after_it(text: str, ticks: list[str]) -> None:
    assert local_ticks(text, NEW_YORK, "2026-03-08", 23) == ticks


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("30 1 * * *", ["01:30-04"]),
        ("0 1,2 * * *", ["01:00-04", "02:00-05"]),
        ("0 30 1 * * *", ["01:30-04"]),
        ("0/30 1 * * *", ["01:00-04", "01:30-04"]),
        ("*/30 1 * * *", ["01:00-04", "01:30-04", "01:00-05", "01:30-05"]),
        ("0 */12 * * *", ["00:00-04", "12:00-05"]),
    ],
)
def test_a_repeated_hour_runs_fixed_times_once_and_elapsed_ones_twice(
    text: str, ticks: list[str]
) -> None:
    assert local_ticks(text, NEW_YORK, "2026-11-01", 25) == ticks


def test_lord_howe_shifts_by_half_an_hour() -> None:
    zone = "Australia/Lord_Howe"

    assert local_ticks("15 2 * * *", zone, "2026-10-04") == ["02:30+11"]
    assert local_ticks("45 1 * * *", zone, "2026-04-05", 25) == ["01:45+11"]
    assert local_ticks("45 * * * *", zone, "2026-04-05", 3) == ["00:45+11", "01:45+11", "01:45+10"]


def test_a_gap_at_midnight_moves_midnight() -> None:
    assert local_ticks("0 0 * * *", "America/Santiago", "2026-09-06", 23) == ["01:00-03"]


def test_a_skipped_day_runs_when_the_next_one_begins() -> None:
    apia = parse_zone("Pacific/Apia")
    ticks = parse_cron("0 12 * * *").ticks(apia, datetime(2011, 12, 28, 23, tzinfo=UTC))

    shown = [f"{tick.astimezone(apia):%d %H:%M}" for tick in islice(ticks, 3)]

    assert shown == ["29 12:00", "31 00:00", "31 12:00"]


@pytest.mark.parametrize("zone", [NEW_YORK, "Australia/Lord_Howe", "Antarctica/Troll"])
@pytest.mark.parametrize("text", ["30 1 * * *", "0-59 1 * * *", "*/7 * * * *", "15,30 * * * * *"])
def test_ticks_advance_from_anywhere_in_a_repeated_hour(text: str, zone: str) -> None:
    info, cron = parse_zone(zone), parse_cron(text)
    change = next_change(info, datetime(2026, 6, 1, tzinfo=UTC), datetime(2027, 6, 1, tzinfo=UTC))
    assert change is not None

    for minutes in range(-130, 130, 3):
        after = change + timedelta(minutes=minutes)
        ticks = [after, *islice(cron.ticks(info, after), 4)]
        assert all(earlier < later for earlier, later in pairwise(ticks))


@given(
    st.sampled_from(["30 2 * * *", "*/20 1-3 * * *", "0 0 L * *", "5 0 29 2 *", "0 0 * * 5#2"]),
    st.sampled_from([NEW_YORK, "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Gaza", "UTC"]),
    INSTANTS,
)
def test_looking_from_a_tick_gives_the_one_after_it(text: str, zone: str, after: datetime) -> None:
    cron, info = parse_cron(text), parse_zone(zone)

    first, second, third = islice(cron.ticks(info, after), 3)

    assert after < first < second < third
    assert next(cron.ticks(info, first)) == second
    assert next(cron.ticks(info, second - timedelta(microseconds=1))) == second
    assert cron.fixed or cron.matches(first.astimezone(info))


FIELDS = st.tuples(
    st.sampled_from(["0", "*", "*/20", "5,50", "59"]),
    st.sampled_from(["0", "*", "*/7", "10-20/3", "0,59", "30"]),
    st.sampled_from(["*", "0", "*/5", "9-17", "23", "2,3"]),
    st.sampled_from(["*", "1", "L", "LW", "28-31", "*/9"]),
    st.sampled_from(["*", "2", "*/5", "6-8", "JAN"]),
    st.sampled_from(["*", "0", "MON-FRI", "7", "5#2", "3L"]),
)


@given(FIELDS, INSTANTS)
def test_without_clock_changes_ticks_are_those_of_cronsim(
    fields: tuple[str, ...], after: datetime
) -> None:
    text = " ".join(fields)

    ticks = parse_cron(text).ticks(parse_zone("UTC"), after)

    wanted = CronSim(text, after.replace(tzinfo=None))
    assert [tick.replace(tzinfo=None) for tick in islice(ticks, 5)] == list(islice(wanted, 5))


@pytest.mark.parametrize(
    "text", ["0 0 28-31 * *", "0 0 29 2 *", "0 0 31 * *", "30 6 29 2 0", "0 0 29 2 */7"]
)
@pytest.mark.parametrize("year", [2026, 2028, 2032])
def test_month_ends_and_leap_days_are_found_by_walking_too(text: str, year: int) -> None:
    start, end = datetime(year, 2, 25, tzinfo=UTC), datetime(year, 4, 2, tzinfo=UTC)

    ticks = parse_cron(text).ticks(ZoneInfo("UTC"), start - timedelta(seconds=1))

    assert list(takewhile(end.__gt__, ticks)) == expected_ticks(text, "UTC", start, end)


@pytest.mark.parametrize(
    ("text", "day"),
    [("0 0 L * *", 29), ("0 0 LW * *", 29), ("0 0 * 2 TUE#5", 29), ("0 0 * * 5L", 25)],
)
def test_the_last_days_of_a_leap_february(text: str, day: int) -> None:
    after = datetime(2028, 2, 20, tzinfo=UTC)

    assert next(parse_cron(text).ticks(parse_zone("UTC"), after)) == datetime(
        2028, 2, day, tzinfo=UTC
    )


WEDNESDAY = datetime(2026, 3, 4, tzinfo=UTC)


def days(text: str, n: int, after: datetime = WEDNESDAY) -> list[str]:
    ticks = parse_cron(text).ticks(parse_zone("UTC"), after)
    return [f"{tick:%a %d %b}" for tick in islice(ticks, n)]


@pytest.mark.parametrize(
    ("wraps", "plain"),
    [
        ("0 9 * * FRI-SUN", "0 9 * * 5,6,0"),
        ("0 9 * * SAT-MON", "0 9 * * 6,0,1"),
        ("0 9 * * sat-mon", "0 9 * * 6,0,1"),
        ("0 9 * * 5-0", "0 9 * * 5,6,0"),
        ("0 9 * * 5-1", "0 9 * * 5,6,0,1"),
        ("0 9 * * 7-2", "0 9 * * 0,1,2"),
        ("0 9 * * THU-TUE/2", "0 9 * * 4,6,1"),
        ("0 9 * * FRI-SUN,WED", "0 9 * * 5,6,0,3"),
        ("0 9 1 NOV-MAR *", "0 9 1 11,12,1,2,3 *"),
        ("0 9 1 11-3 *", "0 9 1 11,12,1,2,3 *"),
        ("0 9 1 OCT-APR/3 *", "0 9 1 10,1,4 *"),
        ("0 22-3 * * *", "0 22,23,0,1,2,3 * * *"),
        ("0 22-3/2 * * *", "0 22,0,2 * * *"),
        ("0 23-0 * * *", "0 23,0 * * *"),
        ("50-10/5 * * * *", "50,55,0,5,10 * * * *"),
        ("58-1 * * * * *", "58,59,0,1 * * * * *"),
        ("0 9 ? * MON-FRI", "0 9 * * MON-FRI"),
        ("0 9 15 * ?", "0 9 15 * *"),
        ("0 0 9 ? * ?", "0 0 9 * * *"),
        ("0 9 ? * FRI#2", "0 9 * * FRI#2"),
        ("0 9 * * FRIL", "0 9 * * 5L"),
    ],
)
def test_what_people_write_is_what_they_mean(wraps: str, plain: str) -> None:
    written, meant = parse_cron(wraps), parse_cron(plain)

    assert written.text == wraps.upper()
    assert written.fixed == meant.fixed
    assert list(islice(written.ticks(parse_zone(NEW_YORK), WEDNESDAY), 200)) == list(
        islice(meant.ticks(parse_zone(NEW_YORK), WEDNESDAY), 200)
    )


def test_the_weekday_nearest_to_a_date() -> None:
    assert days("0 9 15W * *", 8) == [
        "Mon 16 Mar", "Wed 15 Apr", "Fri 15 May", "Mon 15 Jun", "Wed 15 Jul", "Fri 14 Aug",
        "Tue 15 Sep", "Thu 15 Oct",
    ]  # fmt: skip
    assert days("0 9 1W * *", 6) == [
        "Wed 01 Apr", "Fri 01 May", "Mon 01 Jun", "Wed 01 Jul", "Mon 03 Aug", "Tue 01 Sep",
    ]  # fmt: skip
    # Months without a 31st have none; the 31st of May is a Sunday.
    assert days("0 9 31W * *", 3) == ["Tue 31 Mar", "Fri 29 May", "Fri 31 Jul"]
    assert days("0 9 1W,15,LW * *", 5) == [
        "Sun 15 Mar", "Tue 31 Mar", "Wed 01 Apr", "Wed 15 Apr", "Thu 30 Apr",
    ]  # fmt: skip
    assert parse_cron("* * 15W * *").matches(datetime(2026, 3, 16, 12))
    assert not parse_cron("* * 15W * *").matches(datetime(2026, 3, 15, 12))


@given(st.dates(min_value=date(1970, 1, 1), max_value=date(2200, 1, 1)), st.integers(1, 31))
def test_the_nearest_weekday_is_a_weekday_of_that_month(month: date, day: int) -> None:
    found = nearest_weekday(month.year, month.month, day)
    last = monthrange(month.year, month.month)[1]

    if day > last:
        assert found is None
        return
    weekdays = [n for n in range(1, last + 1) if date(month.year, month.month, n).weekday() < 5]
    assert found in weekdays
    assert abs(found - day) == min(abs(n - day) for n in weekdays)


def test_day_of_month_and_day_of_week_are_either_unless_one_is_a_star() -> None:
    assert days("0 9 13 * FRI", 3) == ["Fri 06 Mar", "Fri 13 Mar", "Fri 20 Mar"]
    assert days("0 9 15 * MON", 3) == ["Mon 09 Mar", "Sun 15 Mar", "Mon 16 Mar"]
    assert days("0 9 */2 * MON", 3) == ["Mon 09 Mar", "Mon 23 Mar", "Mon 13 Apr"]


def test_names_and_aliases_are_read_in_any_case() -> None:
    assert parse_cron("0 9 * jan mon-Fri").text == "0 9 * JAN MON-FRI"
    assert parse_cron(" @Annually ") is not None
    assert {parse_cron(alias).text for alias in ALIASES} == set(ALIASES.values())


def test_six_fields_begin_with_the_seconds() -> None:
    ticks = parse_cron("10,50 30 9 * * *").ticks(
        parse_zone("UTC"), datetime(2026, 1, 1, tzinfo=UTC)
    )

    assert [tick.second for tick in islice(ticks, 3)] == [10, 50, 10]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("*/0 * * * *", r"bad minute field, '\*/0'"),
        ("0 */0 * * * *", r"bad minute field"),
        ("61 * * * *", "bad minute field, '61'"),
        ("* 24 * * *", "bad hour field"),
        ("* * * * 8", "bad day-of-week field"),
        ("* * 5-1 * *", "wraps around the end of the month. Write 5-31,1-1"),
        ("* * 32W * *", "bad day-of-month field.*15W"),
        ("* * 1-5W * *", "bad day-of-month field"),
        ("* * 15W/2 * *", "bad day-of-month field"),
        ("* * W * *", "bad day-of-month field"),
        ("* * * * 15W", "bad day-of-week field"),
        ("0 0 31W 4,6 *", "never fires"),
        ("0 9 ? * 2", "Use names: MON-FRI"),
        ("0 9 ? * 2-6", "Use names: MON-FRI"),
        ("0 9 ? * 6L", "Use names: MON-FRI"),
        ("? 9 * * *", "bad minute field"),
        ("0 ? * * *", "bad hour field"),
        ("0 9 * ? *", "bad month field"),
        ("0 9 1,? * *", "bad day-of-month field"),
        ("0 9 * * FRI-SUN/0", "bad day-of-week field"),
        ("70-3 * * * *", "bad minute field"),
        ("* * * * FRI-FOO", "bad day-of-week field"),
        ("* * * * MONL-2", "bad day-of-week field"),
        ("0 0 9 ? * MON 2026", "no field for years"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6 *", "never fires"),
        ("0 0 */40 * MON#5", "never fires"),
        ("0 0 32 2 *", "bad day-of-month field"),
        ("0 0 30 13 *", "bad month field"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("", "must not be empty"),
        ("   ", "must not be empty"),
        ("*", "has 1 field\\."),
        ("* * * *\x00*", "characters"),
        ("* * * * ٣", "characters"),
        ("0 ⓪ * * *", "characters"),
        ("@fortnightly", "'@every 10m'"),
        ("* " * 5000, "at most 200 characters, got 10000"),
        ("1" * 190 + " * * * *", "bad minute field"),
    ],
)
def test_what_cannot_be_read_or_never_fires_is_refused_quickly(text: str, reason: str) -> None:
    with cpu_at_most(0.5), pytest.raises(InvalidSchedule, match=reason):
        parse_cron(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0 9 * * mon-foo", "'0 9 * * mon-foo' has a bad day-of-week field, 'mon-foo'"),
        ("0 9 * jann *", "'0 9 * jann *' has a bad month field, 'jann'"),
        ("0 x 9 * * Mon", "'0 x 9 * * Mon' has a bad minute field, 'x'"),
        ("0 9  * mon", "'0 9  * mon' has 4 fields"),
        ("0 0 30 feb *", "'0 0 30 feb *' never fires"),
        ("0 9 ? jan 1-5", "'0 9 ? jan 1-5' has a ? and numeric weekdays"),
        ("0 9 25-5 jan *", "'0 9 25-5 jan *': the range"),
    ],
)
def test_an_error_shows_the_text_as_it_was_written(text: str, shown: str) -> None:
    with pytest.raises(InvalidSchedule, match=re.escape(shown)):
        parse_cron(text)


@pytest.mark.parametrize("text", ["0 0 29 2 *", "0 0 29 2 1", "0 0 29 2 */7", "0 0 30 2 MON"])
def test_what_fires_rarely_is_accepted(text: str) -> None:
    assert parse_cron(text).text == text


@given(st.text(alphabet="0123456789*/-,#LWlw @MONJAN\t\x00é", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cron = parse_cron(text)
    except InvalidSchedule:
        return

    assert next(cron.ticks(parse_zone(NEW_YORK), datetime(2026, 1, 1, tzinfo=UTC)), None)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "'Europe/Berlin'"),
        ("europe/berlin", "'Europe/Berlin'"),
        ("America/NewYork", "'America/New_York'"),
        ("Europe", "Did you mean"),
        ("Nowhere/Atall", "IANA name"),
        ("../../etc/passwd", "not the name"),
        ("/etc/passwd", "not the name"),
        ("Europe/../UTC", "not the name"),
        ("", "not the name"),
        ("UTC\x00", "not the name"),
        ("x" * 10_000, "not the name"),
        ("right/UTC", "no time zone"),
        ("localtime", "no time zone"),
        ("tzdata.zi", "not the name"),
    ],
)
def test_an_unknown_zone_is_refused_with_near_names(name: str, hint: str) -> None:
    with pytest.raises(InvalidSchedule, match=hint) as error:
        parse_zone(name)

    assert len(str(error.value)) < 250


def test_a_mask_matches_the_whole_minute_and_six_fields_the_second() -> None:
    wall = datetime(2026, 5, 4, 9, 30, 15)

    assert parse_cron("30 9 * * 1").matches(wall)
    assert parse_cron("15 30 9 * * 1").matches(wall)
    assert not parse_cron("0 30 9 * * 1").matches(wall)
    assert not parse_cron("30 9 * * 2").matches(wall)
