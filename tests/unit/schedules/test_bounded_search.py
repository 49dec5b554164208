"""No timetable, however it is written, makes a search go on for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetime.api.schedules import ticks_between
from duetime.domain.reminders.plan_recurrence import plan
from duetime.domain.reminders.recurrence import parse_repeats
from duetime.domain.schedules.plan import _last, plan_ticks
from duetime.domain.schedules.preview import preview
from duetime.domain.schedules.schedule import Schedule, make_policy
from duetime.domain.schedules.timetable import Timetable, timetable
from duetime.errors import InvalidInput, InvalidSchedule

NOW = datetime(2026, 12, 1, tzinfo=UTC)
HALVES = ["* * 0-11 * * *", "* * 12-23 * * *"]
EVERYTHING: list[tuple[tuple[str, ...], list[str]]] = [
    (("* * * * * *",), ["* 0-11 * * *", "* 12-23 * * *"]),
    (("* * * * * *",), ["0-29 * * * *", "30-59 * * * *"]),
    (("* * * * * *",), ["0-29 * * * * *", "30-59 * * * * *"]),
    (("*/5 * * * *",), ["*/5 * * * *"]),
    (("@every 1s",), ["* * * * 0-3", "* * * * 4-6"]),
    (("0 0 1 1 *",), ["* * * 1 *"]),
    (("0 0 29 2 *",), ["* * 29 2 *"]),
    (("RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",), ["* * 29 * *"]),
    (("RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO",), ["* * 29 * *"]),
    (("* * * * * *", "@every 7s", "*/3 * * * *"), [f"{n} * * * *" for n in range(60)]),
    (("* * * * * *",), [f"{n % 60} {n // 60} * * *" for n in range(999)] + HALVES),
]


@contextmanager
def quickly(seconds: float = 4.0) -> Iterator[None]:
    """It takes a fraction of that; without a bound, minutes or for ever."""
    before = time.thread_time()
    yield
    assert time.thread_time() - before < seconds


@pytest.mark.parametrize("case", EVERYTHING, ids=lambda case: f"{case[0][0]} except {case[1][0]}")
def test_exclusions_that_cover_every_tick_are_refused(case: tuple[Any, list[str]]) -> None:
    specs, exclude = case
    with quickly():
        with pytest.raises(InvalidSchedule, match=r"exclusions"):
            timetable(*specs, tz="Europe/Berlin", exclude=exclude)
        with pytest.raises(InvalidSchedule, match=r"exclusions"):
            parse_repeats({"specs": list(specs), "exclude": exclude}, "Europe/Berlin")


MASKS = st.lists(
    st.sampled_from(
        [
            "* 0-11 * * *", "* 12-23 * * *", "*/2 * * * *", "* * * * 0", "* * * * 1-5",
            "* * 1-15 * *", "30-59 * * * * *", "0 2 * * *", "* 2 * * *",
            "2026-10-25", "2026-03-29", "2026-03-30",
        ]
    ),
    min_size=1, max_size=4,
)  # fmt: skip
SPECS = st.lists(
    st.sampled_from(
        ["*/47 * * * * *", "*/3 * * * *", "30 2 * * *", "0 */3 * * *", "@every 37m", "0 0 * * 1#2"]
    ),
    min_size=1, max_size=2,
)  # fmt: skip
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe"])
BEGIN = st.sampled_from(
    [
        datetime(2026, 3, 28, 22, tzinfo=UTC),
        datetime(2026, 10, 24, 22, tzinfo=UTC),
        datetime(2026, 10, 31, 22, tzinfo=UTC),
        datetime(2026, 4, 4, 12, tzinfo=UTC),
    ]
)


@settings(max_examples=50)
@given(specs=SPECS, exclude=MASKS, tz=ZONES, begin=BEGIN)
def test_runs_are_the_ticks_that_are_not_excluded(
    specs: list[str], exclude: list[str], tz: str, begin: datetime
) -> None:
    try:
        times = timetable(*specs, tz=tz, exclude=exclude)
    except InvalidSchedule:
        return
    end = begin + timedelta(hours=20)

    walked = [
        tick.at
        for tick in takewhile(lambda tick: tick.at < end, times.ticks(begin))
        if tick.excluded is None
    ]

    assert list(times.runs(begin, end - timedelta(microseconds=1))) == walked


def test_runs_go_straight_over_what_is_excluded() -> None:
    """A tick each second, and only in the first hour of a year."""
    times = timetable("* * * * * *", exclude=["* * * 2-12 *", "* * 2-31 1 *", "* 1-23 1 1 *"])

    with quickly():
        first, second = islice(times.runs(NOW), 2)

    assert first == datetime(2027, 1, 1, tzinfo=UTC)
    assert second == first + timedelta(seconds=1)


def schedule(times: Timetable, since: datetime, **policy: Any) -> Schedule:
    return Schedule(
        id=1, name="s", kind="task", target="t", args="{}", queue=None, priority=None,
        max_attempts=None, timeout=None, timetable=times, policy=make_policy(policy),
        planned_until=since, next_run_at=None, last_run_at=None, last_enqueued_at=None,
        paused_at=None, paused_by=None, pause_reason=None, paused_until=None, failures=0,
        broken=None, declared=False, revision=1, created_at=since, updated_at=since,
    )  # fmt: skip


@pytest.mark.parametrize(
    "policy", [{"catch_up": "latest"}, {"catch_up": "all", "max_runs": 5}, {"catch_up": "skip"}]
)
def test_an_outage_is_planned_quickly_though_its_end_is_excluded(policy: dict[str, Any]) -> None:
    """Ticks each second in January; workers come back in December."""
    times = timetable("* * * * * *", exclude="* * * 2-12 *")
    since = datetime(2026, 1, 10, tzinfo=UTC)

    with quickly(10.0):
        found = plan_ticks(schedule(times, since, **policy), now=NOW, armed=0)

    assert found.more
    assert found.ticks[0].tick == since + timedelta(seconds=1)


@given(
    times=st.lists(st.integers(0, 3_000_000), unique=True, max_size=400),
    dense=st.integers(0, 3_000_000),
    most=st.integers(1, 50),
)
def test_the_last_times_are_found_from_the_end(times: list[int], dense: int, most: int) -> None:
    every = sorted({*times, *range(dense, dense + 500)})
    since, until = NOW, NOW + timedelta(seconds=3_000_000)

    def after(start: datetime) -> Iterator[datetime]:
        found = (since + timedelta(seconds=second) for second in every)
        return (at for at in found if start < at <= until)

    assert _last(after, since, until, most) == list(after(since))[-most:]


RARE = "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: preview(timetable(RARE), NOW, 1000),
        lambda: preview(timetable(*[f"{RARE};BYMINUTE={n}" for n in range(5)]), NOW, 1000),
        lambda: parse_repeats(RARE).first(NOW, 1000),
        lambda: timetable(*[f"{RARE};BYMINUTE={n}" for n in range(50)]),
    ],
)  # fmt: skip
def test_what_is_rare_cannot_be_asked_for_without_end(ask: Callable[[], Any]) -> None:
    with quickly(10.0), pytest.raises(InvalidInput, match=r"too rarely|too long"):
        ask()


def test_what_is_rare_can_be_asked_for_sparingly() -> None:
    assert len(preview(timetable(RARE), NOW, 10)) == 10
    assert len(parse_repeats(RARE).first(NOW, 10)) == 10


def test_a_backfill_does_not_walk_through_what_is_excluded() -> None:
    times = timetable("* * * * * *", exclude=["* 1-23 * * *", "1-59 * * * *", "2-59 * * * * *"])
    with quickly():
        ticks = ticks_between(times, NOW - timedelta(days=100), NOW)

    assert len(ticks) == 200


def test_a_rare_recurrence_is_planned_within_the_bound() -> None:
    rules = [f"FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO;BYHOUR={n}" for n in range(8)]
    recurrence = parse_repeats({"specs": [{"rrule": rule} for rule in rules]})

    with quickly(20.0):
        found = plan(recurrence, [], NOW)

    assert [one.due.year for one in found.occurrences] == [2044, 2044]
