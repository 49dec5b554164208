"""The policies of schedules, each beside a plain model: a loop over all ticks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, permutations, product
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duetime.domain.keys import read_run_key, run_key
from duetime.domain.reasons import Reason
from duetime.domain.schedules.decide_run import (
    RETRY_WAIT,
    UNDECIDED_WAIT,
    Decision,
    counts_for,
    decide,
)
from duetime.domain.schedules.plan import (
    ARMED_AHEAD,
    LateJudge,
    PlannedTick,
    count_armed,
    count_paced,
    plan_ticks,
    stands_for,
)
from duetime.domain.schedules.schedule import (
    ENGINE_ACTOR,
    CatchUp,
    OpenRun,
    Overlap,
    Policy,
    Schedule,
    TickStatus,
    make_policy,
    paused_reason,
)
from duetime.domain.schedules.timetable import Timetable, timetable
from duetime.errors import InvalidSchedule

START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ARMED, WAITING, FIRED = TickStatus.ARMED, TickStatus.WAITING, TickStatus.FIRED
CAUGHT_UP, COALESCED, SKIPPED = TickStatus.CAUGHT_UP, TickStatus.COALESCED, TickStatus.SKIPPED
BACKFILLED, TRIGGERED = TickStatus.BACKFILLED, TickStatus.TRIGGERED
PAUSED = Reason("schedule_paused", {"by": "ann"})
OVERLAPS: tuple[Overlap, ...] = ("skip", "buffer_one", "buffer_all", "allow", "cancel_other")


def make_schedule(
    times: Timetable | None = None,
    *,
    planned_until: datetime = START,
    paused_at: datetime | None = None,
    paused_by: str | None = None,
    pause_reason: str | None = None,
    **policy: Any,
) -> Schedule:
    return Schedule(
        id=1, name="s", kind="task", target="note", args="{}", queue=None, priority=None,
        max_attempts=None, timeout=None, timetable=times or timetable("@hourly"),
        policy=make_policy(policy), planned_until=planned_until, next_run_at=None,
        last_run_at=None, last_enqueued_at=None, paused_at=paused_at, paused_by=paused_by,
        pause_reason=pause_reason, paused_until=None, failures=0, broken=None, declared=False,
        revision=1, created_at=START, updated_at=START,
    )  # fmt: skip


def at(*minutes: float) -> list[datetime]:
    return [START + minute * MINUTE for minute in minutes]


# The plan


class Due(NamedTuple):
    """A tick as the model sees it."""

    at: datetime
    run_at: datetime
    excluded: bool


class Case(NamedTuple):
    """A schedule that was last planned at START, a clock, and every tick of some days."""

    schedule: Schedule
    now: datetime
    ticks: list[Due]

    @property
    def past(self) -> list[Due]:
        return [tick for tick in self.ticks if tick.at <= self.now]

    @property
    def late(self) -> list[Due]:
        grace = self.schedule.policy.grace
        return [due for due in self.past if not due.excluded and self.now - due.run_at > grace]

    @property
    def on_time(self) -> list[Due]:
        return [due for due in self.past if not due.excluded and due not in self.late]


SPANS = st.sampled_from([4 * MINUTE, 7 * MINUTE, 20 * MINUTE, 50 * MINUTE, 2 * HOUR])
POLICIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "catch_up": st.sampled_from(["skip", "latest", "all"]),
        "grace": st.sampled_from([timedelta(0), 10 * SECOND, 3 * MINUTE, HOUR]),
    },
    optional={
        "max_runs": st.integers(1, 6),
        "max_age": st.sampled_from([timedelta(0), 5 * MINUTE, HOUR, 3 * HOUR]),
        "pace": st.sampled_from([SECOND, 5 * MINUTE]),
        "expires": st.sampled_from([SECOND, 20 * MINUTE]),
    },
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    every = draw(st.lists(SPANS, min_size=1, max_size=2))
    excluded = draw(st.sampled_from([0, 0, 10, 30]))
    end = START + draw(st.sampled_from([1, 5])) * HOUR
    jitter = draw(st.sampled_from([None, 30 * SECOND, 10 * MINUTE]))
    times = timetable(*({"every": span, "start": START} for span in every), end=end, jitter=jitter)
    if excluded:
        # Not checked: it may mask every tick.
        times = msgspec.structs.replace(times, exclude=(f"0-{excluded - 1} * * * *",))
    schedule = make_schedule(times, **draw(POLICIES))
    moments = {START + n * span for span in every for n in range(1, 5 * HOUR // span + 1)}
    ticks = [
        Due(moment, times.run_at("s", moment), moment.minute < excluded)
        for moment in sorted(moments)
        if moment < end
    ]
    # Any time, or one at which some tick comes to be due, late or too old.
    policy = schedule.policy
    spans = [timedelta(0), policy.grace, policy.max_age or timedelta(0), jitter or timedelta(0)]
    edges = st.builds(
        lambda due, span, more: due.run_at + span + more * MICROSECOND,
        st.sampled_from(ticks or [Due(START, START, False)]),
        st.sampled_from(spans),
        st.integers(-1, 1),
    )
    anywhen = st.integers(0, 4 * 3600).map(lambda seconds: START + seconds * SECOND)
    return Case(schedule, max(START, draw(st.one_of(edges, anywhen))), ticks)


def model_plan(case: Case, *, armed: int = 0, missed: Reason | None = None) -> list[PlannedTick]:
    """What the ledger gets: each tick up to now, then the next ones until two are armed.

    With a jitter, all that may run before the first of them are.
    """
    rows = []
    jitter = case.schedule.timetable.jitter
    ahead = [
        due.at + jitter for due in case.ticks if due.at > case.now and jitter and not due.excluded
    ]
    until = ahead[0] if ahead else case.now
    caught_up = [due.at for due in (*model_caught_up(case), *model_behind(case))]
    caught_up.sort()
    for due in case.ticks:
        expires_from = None
        if due.at > case.now if missed else due.at > until and armed >= ARMED_AHEAD:
            break
        status, runs_as, run_at = ARMED, FIRED, due.run_at
        if due.excluded or missed is not None:
            status = SKIPPED
        elif due in case.late and due.at not in caught_up:
            too_old = is_too_old(case, due)
            latest = case.schedule.policy.catch_up == "latest"
            status = COALESCED if latest and not too_old else SKIPPED
        elif due.at in caught_up:
            runs_as, expires_from = CAUGHT_UP, due.run_at
            run_at = case.now + caught_up.index(due.at) * case.schedule.policy.pace
        elif due.at > case.now:
            armed += 1
        rows.append(PlannedTick(due.at, run_at, status, runs_as, expires_from=expires_from))
    return rows


def model_caught_up(case: Case) -> list[Due]:
    policy = case.schedule.policy
    late = [due for due in case.late if not is_too_old(case, due)]
    if policy.catch_up == "skip":
        return []
    if policy.catch_up == "latest":
        newest = max(due.at for due in case.past if not due.excluded) if late else None
        return [due for due in late if due.at == newest]
    return [due for due in late if due in case.late[-(policy.max_runs or len(case.late)) :]]


def model_behind(case: Case) -> list[Due]:
    """Those on time that were missed after others, which all come before them."""
    caught_up = model_caught_up(case)
    if case.schedule.policy.catch_up != "all" or not caught_up:
        return []
    return [due for due in case.on_time if due.at > caught_up[0].at and due.run_at <= case.now]


def is_too_old(case: Case, due: Due) -> bool:
    policy = case.schedule.policy
    ages = [age for age in (policy.max_age, policy.expires) if age is not None]
    return any(case.now - due.run_at > age for age in ages)


def without_reasons(ticks: Iterable[PlannedTick]) -> list[PlannedTick]:
    return [msgspec.structs.replace(tick, reason=None) for tick in ticks]


def plan_all(
    schedule: Schedule, now: datetime, *, most: int = 2000, armed: int = 0
) -> list[PlannedTick]:
    """Plan until there is no more, as the store does."""
    found: list[PlannedTick] = []
    caught_up = 0
    for _ in range(10_000):
        plan = plan_ticks(schedule, now=now, armed=armed, caught_up=caught_up, most=most)
        assert len(plan.ticks) <= most
        assert plan.planned_until >= schedule.planned_until
        assert not plan.more or plan.planned_until > schedule.planned_until
        found += plan.ticks
        armed += count_ahead(plan.ticks, now)
        caught_up = plan.caught_up
        schedule = msgspec.structs.replace(schedule, planned_until=plan.planned_until)
        if not plan.more:
            return found
    raise AssertionError("The plan never ends.")


def count_ahead(ticks: Iterable[PlannedTick], now: datetime) -> int:
    return sum(tick.tick > now and tick.status is ARMED for tick in ticks)


@settings(max_examples=400)
@given(cases(), st.sampled_from([0, 1, 2]))
def test_the_plan_is_that_of_the_model(case: Case, armed: int) -> None:
    plan = plan_ticks(case.schedule, now=case.now, armed=armed)

    assert without_reasons(plan.ticks) == model_plan(case, armed=armed)
    assert plan.planned_until == max([START, *(tick.tick for tick in plan.ticks)])
    assert not plan.more


@given(cases())
def test_every_tick_up_to_now_has_one_row_and_every_row_that_does_not_run_a_reason(
    case: Case,
) -> None:
    rows = plan_ticks(case.schedule, now=case.now, armed=0).ticks

    assert [row.tick for row in rows if row.tick <= case.now] == [due.at for due in case.past]
    assert all(row.status in (ARMED, COALESCED, SKIPPED) for row in rows)
    assert all(row.reason for row in rows if row.status is not ARMED)
    ahead = sum(due.at > case.now and not due.excluded for due in case.ticks)
    assert count_ahead(rows, case.now) >= min(ARMED_AHEAD, ahead)


@given(cases())
def test_a_tick_on_time_is_armed_under_every_policy_and_no_run_is_early(case: Case) -> None:
    rows = {row.tick: row for row in plan_ticks(case.schedule, now=case.now, armed=0).ticks}

    for due in set(case.on_time) - set(model_behind(case)):
        assert rows[due.at] == PlannedTick(due.at, due.run_at)
    jitter = case.schedule.timetable.jitter
    for row in rows.values():
        assert row.run_at >= row.tick
        if row.status is ARMED and row.runs_as is FIRED:
            assert row.run_at - row.tick <= jitter


@given(cases())
def test_what_is_caught_up_keeps_to_the_policy(case: Case) -> None:
    policy = case.schedule.policy
    rows = plan_ticks(case.schedule, now=case.now, armed=0).ticks
    caught_up = [row for row in rows if row.runs_as is CAUGHT_UP]

    late = [due.at for due in case.late]
    behind = [due.at for due in model_behind(case)]
    assert {row.tick for row in caught_up} <= {*late, *behind}
    assert [row.run_at for row in caught_up] == [
        case.now + n * policy.pace for n in range(len(caught_up))
    ]
    if policy.catch_up == "skip":
        assert caught_up == []
    if policy.catch_up == "latest":
        assert [row.tick for row in caught_up] in ([], late[-1:])
    if policy.catch_up == "all" and policy.max_runs is not None:
        assert len(caught_up) - len(behind) <= policy.max_runs
    if policy.max_age is not None:
        run_at = {due.at: due.run_at for due in case.ticks}
        assert all(case.now - run_at[row.tick] <= policy.max_age for row in caught_up)


@given(cases(), st.integers(1, 5))
def test_a_plan_in_chunks_is_the_plan_in_one_go(case: Case, most: int) -> None:
    assert plan_all(case.schedule, case.now, most=most) == plan_all(case.schedule, case.now)


@given(cases())
def test_planning_twice_changes_nothing(case: Case) -> None:
    first = plan_ticks(case.schedule, now=case.now, armed=0)
    planned = msgspec.structs.replace(case.schedule, planned_until=first.planned_until)
    again = plan_ticks(planned, now=case.now, armed=count_ahead(first.ticks, case.now))

    assert again.ticks == []
    assert again.planned_until == first.planned_until


@given(cases(), st.lists(st.integers(0, 200), max_size=6))
def test_plans_one_after_the_other_leave_no_gap_and_repeat_nothing(
    case: Case, minutes: list[int]
) -> None:
    moments = sorted({case.now, *(START + minute * MINUTE for minute in minutes)})
    schedule = case.schedule
    rows: list[PlannedTick] = []
    for now in moments:
        plan = plan_ticks(schedule, now=now, armed=count_ahead(rows, now))
        rows += plan.ticks
        schedule = msgspec.structs.replace(schedule, planned_until=plan.planned_until)

    ticks = [row.tick for row in rows]
    assert ticks == [due.at for due in case.ticks][: len(ticks)]
    assert set(ticks) >= {due.at for due in case.ticks if due.at <= moments[-1]}


@given(cases())
def test_missed_in_a_pause_means_skipped_with_its_reason(case: Case) -> None:
    plan = plan_ticks(case.schedule, now=case.now, armed=0, missed=PAUSED)

    assert without_reasons(plan.ticks) == model_plan(case, missed=PAUSED)
    excluded = [due.at for due in case.ticks if due.excluded]
    for row in plan.ticks:
        if row.tick not in excluded:
            assert (row.status, row.reason) == (SKIPPED, PAUSED)


@given(cases(), st.sets(st.integers(0, 80)))
def test_a_tick_that_the_ledger_has_is_not_planned_again(case: Case, numbers: set[int]) -> None:
    known = {due.at for number, due in enumerate(case.ticks) if number in numbers}
    rows = plan_ticks(case.schedule, now=case.now, armed=0, known=known).ticks

    ticks = [row.tick for row in rows]
    assert not known & set(ticks)
    assert set(ticks) | known >= {due.at for due in case.past}
    ahead = [due for due in case.ticks if due.at > case.now and not due.excluded]
    unknown = sum(due.at not in known for due in ahead)
    assert count_ahead(rows, case.now) >= min(ARMED_AHEAD, unknown)


@given(cases(), st.integers(1, 12), st.booleans())
def test_very_many_missed_ticks_that_do_not_run_share_a_row(
    case: Case, most: int, missed: bool
) -> None:
    reason = PAUSED if missed else None
    whole = plan_ticks(case.schedule, now=case.now, armed=0, missed=reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duetime.domain.schedules.plan.MAX_RECORDED", most)
        plan = plan_ticks(case.schedule, now=case.now, armed=0, missed=reason)

    rows = {row.tick: row for row in plan.ticks}
    left_out = [row for row in whole.ticks if row.tick not in rows]
    shared = [row for row in plan.ticks if stands_for(row.reason, row.tick)]
    assert [row for row in whole.ticks if row.status is ARMED] == [
        row for row in plan.ticks if row.status is ARMED
    ]
    assert (plan.planned_until, plan.more) == (whole.planned_until, whole.more)
    assert len(shared) == bool(left_out)
    for row in left_out:
        assert row.status in (SKIPPED, COALESCED)
        assert row.tick > shared[0].tick or str(row.reason).startswith("excluded")
        assert stands_for(shared[0].reason, row.tick)
    if left_out:
        assert sum(tick <= case.now for tick in rows) > most
        assert not stands_for(shared[0].reason, case.now + MICROSECOND)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ({"catch_up": "latest"}, 10_000 + 10),
        ({"catch_up": "skip"}, 10_000 + 10),
        ({"catch_up": "all", "max_runs": 5}, 10_000 + 10),
        ({"catch_up": "all", "max_age": "4h"}, 10_000 + 4 * 3600),
        ({"catch_up": "latest", "grace": "5h"}, 10_000 + 5 * 3600),
    ],
    ids=str,
)
def test_a_week_of_seconds_is_a_plan_like_any_other(policy: dict[str, Any], kept: int) -> None:
    schedule = make_schedule(timetable("* * * * * *"), **policy)
    now = START + timedelta(days=7) + HOUR / 7

    plan = plan_ticks(schedule, now=now, armed=0, most=10**6)

    missed = [row.tick for row in plan.ticks if row.tick <= now]
    assert missed[0] == START + SECOND
    assert kept <= len(missed) - 1 <= kept + 1
    assert missed[1] == now.replace(microsecond=0) - (len(missed) - 2) * SECOND


@given(cases())
def test_an_excluded_tick_is_never_run_and_says_why(case: Case) -> None:
    rows = plan_ticks(case.schedule, now=case.now, armed=0).ticks

    codes = {row.tick: row.reason.code for row in rows if row.reason and row.status is not ARMED}
    for due in case.past:
        assert due.excluded == (codes.get(due.at) == "excluded_mask")


@given(cases())
def test_the_judge_says_of_each_late_tick_what_the_plan_does(case: Case) -> None:
    """A tick armed before the outage is judged when it is claimed, one at a time."""
    rows = {row.tick: row for row in plan_ticks(case.schedule, now=case.now, armed=0).ticks}

    for due in case.late:
        status, reason = LateJudge(case.schedule, case.now).judge(due.at, due.run_at)
        row = rows[due.at]
        assert status is (row.runs_as if row.status is ARMED else row.status)
        assert row.reason in (None, reason) if status is CAUGHT_UP else row.reason == reason


def test_a_moved_run_is_coalesced_only_into_ticks_after_its_new_time() -> None:
    now = START + 190 * MINUTE

    def judge(tick: float, run_at: float, **options: Any) -> TickStatus:
        schedule = make_schedule(timetable("@hourly", **options))
        return LateJudge(schedule, now).judge(START + tick * MINUTE, START + run_at * MINUTE)[0]

    # From the tick at 60; the newest that is due is the one at 180.
    assert judge(60, 60) is COALESCED
    assert judge(60, 170) is COALESCED
    assert judge(60, 185) is CAUGHT_UP
    assert judge(60, 185, jitter="10m") is CAUGHT_UP
    # To an earlier time: it is still the newest.
    assert judge(180, 100) is CAUGHT_UP


def test_max_runs_counts_a_moved_run_by_its_new_time() -> None:
    schedule = make_schedule(catch_up="all", max_runs=1)
    judge = LateJudge(schedule, START + 190 * MINUTE)

    assert judge.judge(START + HOUR, START + HOUR)[0] is SKIPPED
    assert judge.judge(START + HOUR, START + 185 * MINUTE)[0] is CAUGHT_UP


def test_reasons_name_the_policy_and_how_late_it_is() -> None:
    now = START + 5 * HOUR + 30 * MINUTE

    def reasons(**policy: Any) -> list[str]:
        rows = plan_ticks(make_schedule(**policy), now=now, armed=0).ticks
        return [str(row.reason) for row in rows if row.tick <= now][-2:]

    assert reasons(catch_up="skip")[1] == "30m late, and catch_up is skip"
    assert reasons(catch_up="latest")[0] == "coalesced into a later run: 1h30m late"
    assert reasons(catch_up="all", max_age="1h")[0] == "1h30m late, and max_age is 1h"
    assert reasons(catch_up="all", max_runs=1)[0] == (
        "1h30m late, and only the last 1 missed runs are caught up"
    )


def test_a_timetable_that_has_ended_plans_nothing_more() -> None:
    schedule = make_schedule(timetable(START + HOUR))
    plan = plan_ticks(schedule, now=START, armed=0)
    done = msgspec.structs.replace(schedule, planned_until=plan.planned_until)

    assert [tick.tick for tick in plan.ticks] == at(60)
    assert plan_ticks(done, now=START + 9 * HOUR, armed=0).ticks == []


def test_pace_goes_on_over_chunks() -> None:
    schedule = make_schedule(catch_up="all", pace="5m")
    now = START + 5 * HOUR + MINUTE

    chunks = plan_all(schedule, now, most=3)

    caught_up = [row.run_at for row in chunks if row.runs_as is CAUGHT_UP]
    assert caught_up == [now + n * 5 * MINUTE for n in range(5)]


def test_pace_goes_on_behind_runs_that_were_armed_before() -> None:
    schedule = make_schedule(catch_up="all", pace="5m")
    now = START + 5 * HOUR + MINUTE
    armed = [make_run(60), make_run(120)]

    assert count_paced(schedule, [], now, None) == 0
    assert count_paced(schedule, armed, now, None) == 2
    assert count_paced(schedule, armed, now, now + 12 * MINUTE) == 3 + 2
    assert count_paced(schedule, [], now, now - MINUTE) == 0
    assert count_paced(make_schedule(catch_up="all"), armed, now, now) == 0


def test_a_missed_run_keeps_its_pace_when_it_is_claimed() -> None:
    schedule = make_schedule(catch_up="all", pace="5m")
    now = START + 5 * HOUR + MINUTE
    run = make_run(120)

    def decide_paced(*others: OpenRun, until: datetime | None) -> Decision:
        return decide(schedule, run, now=now, others=others, succeeded_at=None, paced_until=until)

    at_once = decide_paced(until=None)
    later = decide_paced(until=now + MINUTE)
    behind = decide_paced(make_run(60, ARMED, CAUGHT_UP, run_at=now), until=None)
    assert (at_once.action, at_once.status, at_once.run_at) == ("run", CAUGHT_UP, now)
    assert later.at == later.run_at == now + MINUTE
    assert behind.at == behind.run_at == now + 5 * MINUTE
    assert (behind.action, behind.status, behind.runs_as) == ("wait", ARMED, CAUGHT_UP)


def test_a_run_that_was_moved_is_not_counted_as_armed() -> None:
    schedule = make_schedule()
    own, moved = make_run(60, begun=False), make_run(120, begun=False, run_at=START + 9 * HOUR)

    assert count_armed(schedule, [own, moved], START) == 1


def test_max_runs_counts_missed_ticks_alone() -> None:
    """The tick of 3:00 is five seconds old and runs; of those missed, the last is caught up."""
    schedule = make_schedule(catch_up="all", max_runs=1)
    rows = plan_ticks(schedule, now=START + 3 * HOUR + 5 * SECOND, armed=0).ticks

    armed = [(row.tick, row.runs_as) for row in rows if row.status is ARMED]
    assert armed[:2] == list(zip(at(120, 180), [CAUGHT_UP, CAUGHT_UP], strict=True))


@pytest.mark.parametrize(
    "exclude",
    [
        [],
        ["0-29 * * * *"],
    ],
    ids=["none", "half an hour"],
)
def test_jitter_longer_than_the_interval_delays_no_run_beyond_its_time(exclude: list[str]) -> None:
    """A worker plans at each run. What is due before the next plan must be armed by then."""
    times = timetable({"every": "1m", "start": START}, jitter="10m", exclude=exclude)
    schedule = make_schedule(times)
    now, runs = START, list[tuple[datetime, datetime]]()
    waiting: list[PlannedTick] = []
    while now < START + 9 * HOUR:
        plan = plan_ticks(schedule, now=now, armed=count_ahead(waiting, now))
        schedule.planned_until = plan.planned_until
        waiting += [tick for tick in plan.ticks if tick.status is ARMED]
        now = min(tick.run_at for tick in waiting)
        runs += [(tick.tick, now) for tick in waiting if tick.run_at <= now]
        waiting = [tick for tick in waiting if tick.run_at > now]

    assert {tick: at for tick, at in runs if tick < START + 8 * HOUR} == {
        tick.at: times.run_at("s", tick.at)
        for tick in islice(times.ticks(START), 8 * 60 - 1)
        if tick.excluded is None
    }


def test_excluded_ticks_ahead_are_planned_in_small_steps() -> None:
    """All of them are excluded, and there is no end."""
    times = msgspec.structs.replace(timetable("0 9 * * *"), exclude=("* 9 * * *",))
    schedule = make_schedule(times)
    plan = plan_ticks(schedule, now=START, armed=0)

    assert plan.more
    assert len(plan.ticks) == 100
    assert plan.planned_until == plan.ticks[-1].tick > START


# The decision


def make_run(
    minute: float,
    status: TickStatus = ARMED,
    runs_as: TickStatus | None = None,
    *,
    begun: bool = True,
    run_at: datetime | None = None,
) -> OpenRun:
    """A run of that minute. A claimed one has begun: its job has left `due`."""
    tick = START + minute * MINUTE
    runs_as = runs_as or (FIRED if status in (ARMED, WAITING) else status)
    return OpenRun(1, tick, run_at or tick, status, runs_as, int(minute * 60), begun)


def decide_at(
    schedule: Schedule,
    run: OpenRun,
    *others: OpenRun,
    now: datetime | None = None,
    succeeded_at: datetime | None = None,
) -> Decision:
    return decide(schedule, run, now=now or run.run_at, others=others, succeeded_at=succeeded_at)


def after_waiting(run: OpenRun, decision: Decision) -> OpenRun:
    """The run as it is claimed again."""
    return msgspec.structs.replace(run, status=WAITING, runs_as=decision.runs_as or run.runs_as)


def model_action(policy: Policy, run: OpenRun, running: int, waiting: int) -> str:
    """`waiting` came before the run."""
    if policy.overlap == "allow" or running + waiting < policy.max_concurrent_runs:
        return "run"
    if run.runs_as in (CAUGHT_UP, BACKFILLED):
        return "run" if policy.burst_allowed else "wait"
    if run.status is WAITING:
        return "wait"
    if policy.overlap == "skip" or (policy.overlap == "buffer_one" and waiting):
        return "skip"
    return "wait"


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("max_concurrent_runs", [1, 2, 3])
def test_every_overlap_policy_decides_as_the_model(
    overlap: Overlap, max_concurrent_runs: int
) -> None:
    for burst, status, runs_as, running, waiting in product(
        (False, True), (ARMED, WAITING), (FIRED, CAUGHT_UP, BACKFILLED), range(4), range(3)
    ):
        schedule = make_schedule(
            overlap=overlap, max_concurrent_runs=max_concurrent_runs, burst_allowed=burst
        )
        run = make_run(60, status, runs_as)
        if overlap == "skip" and waiting and not running:
            continue  # See test_a_run_that_finds_no_place_because_others_wait_is_skipped.
        begun = [make_run(minute, FIRED) for minute in range(running)]
        before = [make_run(minute, WAITING, begun=False) for minute in range(10, 10 + waiting)]
        decision = decide_at(schedule, run, *begun, *before)

        action = model_action(schedule.policy, run, running, waiting)
        assert decision.action == action
        assert decision.status is {"run": runs_as, "wait": WAITING, "skip": SKIPPED}[action]
        assert (decision.at is None) == (action != "wait")
        if action == "wait":
            assert decision.at == run.run_at + RETRY_WAIT
            assert after_waiting(run, decision).runs_as is runs_as
        if action != "run":
            assert decision.reason is not None
            assert decision.reason.code in ("overlap", "overlap_full")
            assert decision.reason.facts["tick"].startswith("2026-03-02T00:")
        cancels = overlap == "cancel_other" and action == "wait" and runs_as is FIRED
        too_many = running + waiting + 1 - max_concurrent_runs
        oldest = tuple(other.job_id for other in begun[:too_many])
        assert decision.cancel == (oldest if cancels else ())


def test_cancel_other_cancels_nothing_that_has_not_begun() -> None:
    schedule = make_schedule(overlap="cancel_other")
    due = make_run(0, ARMED, begun=False)
    triggered = make_run(0, ARMED, TRIGGERED, begun=False)

    assert decide_at(schedule, make_run(60, run_at=due.run_at), due).cancel == ()
    assert decide_at(schedule, make_run(60, run_at=due.run_at), triggered).action == "run"


def test_a_run_moved_behind_a_later_tick_gives_way_to_it() -> None:
    schedule = make_schedule(grace="1h")
    moved, next_one = make_run(60, run_at=START + 130 * MINUTE), make_run(120)
    now = START + 130 * MINUTE

    assert decide_at(schedule, next_one, moved, now=now).action == "run"
    assert decide_at(schedule, moved, next_one, now=now).action == "wait"


def test_a_run_that_finds_no_place_because_others_wait_is_skipped() -> None:
    waiting = make_run(0, WAITING, CAUGHT_UP, begun=False)

    assert decide_at(make_schedule(), make_run(60), waiting).action == "skip"


def test_a_run_in_its_place_pays_no_heed_to_what_comes_after_it() -> None:
    schedule = make_schedule()
    later = [
        make_run(120, ARMED),
        make_run(180, ARMED, begun=False),
        make_run(240, WAITING, begun=False),
        make_run(300, WAITING),
    ]

    assert decide_at(schedule, make_run(60), *later).action == "run"


@pytest.mark.parametrize("status", [FIRED, CAUGHT_UP, BACKFILLED, TRIGGERED])
def test_a_run_that_has_begun_takes_a_place_whatever_its_tick(status: TickStatus) -> None:
    schedule = make_schedule()

    for minute in (0, 120):
        assert decide_at(schedule, make_run(60), make_run(minute, status)).action == "skip"


def test_what_is_given_back_before_it_began_takes_no_place() -> None:
    given_back = make_run(0, FIRED, begun=False)

    assert decide_at(make_schedule(), make_run(60), given_back).action == "run"


def test_a_triggered_run_runs_whatever_else_is() -> None:
    schedule = make_schedule(
        paused_at=START, shadow=True, after="a", overlap="skip", catch_up="skip"
    )
    run = make_run(60, ARMED, TRIGGERED)
    decision = decide_at(schedule, run, make_run(0, FIRED), now=START + 9 * HOUR)

    assert decision == Decision("run", TRIGGERED)


def test_a_paused_schedule_skips_what_was_claimed_and_says_who_paused_it() -> None:
    schedule = make_schedule(paused_at=START, paused_by="ann", pause_reason="holiday")

    decision = decide_at(schedule, make_run(60))
    schedule.pause_reason = None
    by_ann = paused_reason(schedule)
    schedule.paused_by = None
    by_nobody = paused_reason(schedule)
    schedule.paused_by, schedule.failures = ENGINE_ACTOR, 3
    failing = paused_reason(schedule)

    why = Reason("schedule_paused", {"by": "ann", "text": "holiday"})
    assert decision == Decision("skip", SKIPPED, why)
    assert str(why) == "paused by ann: holiday"
    assert (str(by_ann), str(by_nobody)) == ("paused by ann", "paused by unknown")
    assert failing == Reason("schedule_failing", {"by": "duetime", "failures": 3})
    assert str(failing) == "paused by duetime: 3 runs failed in a row"


def test_a_run_that_was_let_start_and_did_not_is_judged_again() -> None:
    """No runner was free for it."""
    schedule = make_schedule(catch_up="skip")
    run = make_run(60, FIRED)
    late = decide_at(schedule, run, now=run.run_at + 11 * SECOND)
    schedule.paused_at = START
    paused = decide_at(schedule, run)

    assert (late.action, late.reason) == ("skip", Reason("late_skipped", {"late": 11}))
    assert paused.action == "skip"


def test_a_late_run_that_a_worker_holds_may_have_begun_a_moment_ago() -> None:
    schedule = make_schedule(timetable("* * * * * *"), catch_up="skip", grace="1s")
    held, waiting = make_run(60), make_run(60, begun=False)
    run = make_run(60 + 2 / 60)
    behind = [decide_at(schedule, run, other) for other in (held, waiting)]
    later = decide_at(schedule, run, held, now=run.run_at + SECOND / 2)

    assert [decision.action for decision in behind] == ["wait", "run"]
    assert behind[0].at == run.run_at + UNDECIDED_WAIT
    assert later.action == "run"


@pytest.mark.parametrize("runs_as", [FIRED, CAUGHT_UP, BACKFILLED])
def test_shadow_records_and_runs_nothing(runs_as: TickStatus) -> None:
    decision = decide_at(make_schedule(shadow=True), make_run(60, ARMED, runs_as))

    assert decision == Decision("skip", runs_as, Reason("shadow"))


@given(cases())
def test_a_claimed_run_that_is_late_does_what_the_model_of_the_plan_says(case: Case) -> None:
    caught_up = model_caught_up(case)
    for due in case.past:
        if due.excluded:
            continue
        run = OpenRun(1, due.at, due.run_at, ARMED, FIRED, 1, True)
        decision = decide_at(case.schedule, run, now=case.now)

        if due not in case.late:
            assert decision == Decision("run", FIRED)
        elif due in caught_up:
            assert (decision.action, decision.status) == ("run", CAUGHT_UP)
        else:
            latest = case.schedule.policy.catch_up == "latest" and not is_too_old(case, due)
            assert decision.action == "skip"
            assert decision.status is (COALESCED if latest else SKIPPED)
            assert decision.reason


@pytest.mark.parametrize(
    "run",
    [make_run(60, WAITING), make_run(60, ARMED, CAUGHT_UP), make_run(60, ARMED, BACKFILLED)],
    ids=["waiting", "caught_up", "backfilled"],
)
def test_what_was_decided_once_is_not_judged_late(run: OpenRun) -> None:
    schedule = make_schedule(catch_up="skip", max_age="1m")

    assert decide_at(schedule, run, now=START + 9 * HOUR) == Decision("run", run.runs_as)


# Runs claimed at the same moment


def decide_one_by_one(
    schedule: Schedule, claimed: Sequence[OpenRun], opened: Sequence[OpenRun], now: datetime
) -> dict[int, Decision]:
    """Decide on claimed runs in the order given, each seeing what became of those before it.

    One that gives way to a run on which nobody has decided is claimed again soon after.
    """
    state = {run.job_id: run for run in [*opened, *claimed]}
    decisions: dict[int, Decision] = {}
    queue = list(claimed)
    for turn in range(100):
        if not queue:
            return decisions
        run = queue.pop(0)
        del state[run.job_id]
        others = sorted(state.values(), key=lambda other: other.tick)
        decision = decide(schedule, run, now=now, others=others, succeeded_at=None)
        decisions[run.job_id] = decision
        if decision.action == "run":
            state[run.job_id] = msgspec.structs.replace(run, status=decision.status)
        elif decision.status is WAITING:
            state[run.job_id] = msgspec.structs.replace(after_waiting(run, decision), begun=False)
        elif decision.action == "wait":
            assert turn < len(claimed)
            state[run.job_id] = run
            queue.append(run)
    raise AssertionError("They give way to each other for ever.")


class Crowd(NamedTuple):
    """Runs claimed at the same moment, beside others that run or wait."""

    schedule: Schedule
    claimed: list[OpenRun]
    running: list[OpenRun]
    waiting: list[OpenRun]
    now: datetime

    def decide(self, order: Sequence[OpenRun]) -> dict[int, str]:
        opened = [*self.running, *self.waiting]
        decisions = decide_one_by_one(self.schedule, order, opened, self.now)
        return {job_id: decision.action for job_id, decision in decisions.items()}

    @property
    def by_tick(self) -> list[OpenRun]:
        return sorted(self.claimed, key=lambda run: run.tick)

    @property
    def places(self) -> int:
        policy = self.schedule.policy
        return 99 if policy.overlap == "allow" else policy.max_concurrent_runs


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    """The waiting are older than the claimed; those that run, older or newer."""
    schedule = make_schedule(
        timetable("* * * * *"),
        overlap=draw(st.sampled_from(OVERLAPS)),
        max_concurrent_runs=draw(st.integers(1, 3)),
        burst_allowed=draw(st.booleans()),
        grace="10m",
    )
    minutes = draw(st.permutations(range(100, 110)))
    claimed = [
        make_run(minute, ARMED, draw(st.sampled_from([FIRED, FIRED, CAUGHT_UP, BACKFILLED])))
        for minute in minutes[: draw(st.integers(1, 4))]
    ]
    running = [
        make_run(minute, draw(st.sampled_from([FIRED, CAUGHT_UP, BACKFILLED])))
        for minute in minutes[5 : 5 + draw(st.integers(0, 3))]
    ]
    waiting = [
        make_run(minute, WAITING, draw(st.sampled_from([FIRED, CAUGHT_UP])), begun=False)
        for minute in range(90, 90 + draw(st.integers(0, 2)))
    ]
    # See test_a_run_that_finds_no_place_because_others_wait_is_skipped.
    assume(schedule.policy.overlap != "skip" or running or not waiting)
    return Crowd(schedule, claimed, running, waiting, START + 110 * MINUTE)


def model_actions(crowd: Crowd) -> dict[int, str]:
    """Places go by tick: to what waits already, then to the claimed."""
    running, waiting = len(crowd.running), len(crowd.waiting)
    actions = {}
    for run in crowd.by_tick:
        action = model_action(crowd.schedule.policy, run, running, waiting)
        running += action == "run"
        waiting += action == "wait"
        actions[run.job_id] = action
    return actions


@given(crowds())
def test_runs_of_one_moment_are_decided_by_their_ticks(crowd: Crowd) -> None:
    assert crowd.decide(crowd.by_tick) == model_actions(crowd)


@given(crowds())
def test_whoever_decides_first_the_same_runs_begin(crowd: Crowd) -> None:
    policy = crowd.schedule.policy
    # A burst begins at once, and so before an earlier run that is decided on later. Of those
    # that find no place, the first that looks is the one that is buffered.
    assume(not policy.burst_allowed and policy.overlap != "buffer_one")

    for order in permutations(crowd.claimed):
        assert crowd.decide(order) == model_actions(crowd)


@given(crowds())
def test_whoever_decides_first_no_more_begin_than_there_are_places(crowd: Crowd) -> None:
    policy = crowd.schedule.policy
    free = max(0, crowd.places - len(crowd.running) - len(crowd.waiting))
    for order in permutations(crowd.claimed):
        actions = crowd.decide(order)
        bursts = [run for run in order if policy.burst_allowed and run.runs_as is not FIRED]
        in_turn = [run for run in order if run not in bursts]

        assert all(actions[run.job_id] == "run" for run in bursts)
        began = sum(actions[run.job_id] == "run" for run in in_turn)
        assert began <= free
        assert bursts or began == min(free, len(in_turn))


@given(crowds())
def test_whoever_decides_first_what_was_asked_for_is_never_skipped(crowd: Crowd) -> None:
    for order in permutations(crowd.claimed):
        actions = crowd.decide(order)

        assert all(actions[run.job_id] != "skip" for run in order if run.runs_as is not FIRED)
        assert set(actions.values()) != {"skip"} or crowd.running or crowd.waiting


@given(
    st.sampled_from(["skip", "latest", "all"]),
    st.sampled_from(OVERLAPS),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_runs_armed_before_an_outage_are_decided_alike_in_any_order(
    catch_up: CatchUp, overlap: Overlap, places: int, claimed: int, later: int
) -> None:
    """`later`: how many more ticks were missed, and have no run."""
    schedule = make_schedule(
        timetable("* * * * *"), catch_up=catch_up, overlap=overlap, max_concurrent_runs=places
    )
    runs = [make_run(minute) for minute in range(100, 100 + claimed)]
    crowd = Crowd(schedule, runs, [], [], runs[-1].tick + later * MINUTE + 30 * SECOND)

    caught_up = {"skip": 0, "latest": int(not later), "all": claimed}[catch_up]
    places = 99 if overlap == "allow" else places
    expected = ["skip"] * (claimed - caught_up)
    expected += ["run"] * min(places, caught_up) + ["wait"] * max(0, caught_up - places)
    for order in permutations(runs):
        actions = crowd.decide(order)
        assert [actions[run.job_id] for run in runs] == expected


@given(crowds(), st.sampled_from([timedelta(0), 20 * MINUTE]))
def test_of_two_runs_at_most_one_gives_way_to_the_other(crowd: Crowd, later: timedelta) -> None:
    now = crowd.now + later
    for run, other in permutations(crowd.claimed, 2):
        gives_way = counts_for(crowd.schedule, run, other, now)
        is_given_way = counts_for(crowd.schedule, other, run, now)

        assert not (gives_way and is_given_way)
        assert not gives_way or other.tick < run.tick
        if not later:
            assert gives_way or is_given_way


def test_buffer_one_lets_one_wait_whoever_decides_first() -> None:
    schedule = make_schedule(timetable("* * * * *"), overlap="buffer_one", grace="1h")
    crowd = Crowd(schedule, [make_run(2), make_run(1)], [make_run(0, FIRED)], [], START + HOUR)

    for order in permutations(crowd.claimed):
        assert sorted(crowd.decide(order).values()) == ["skip", "wait"]


@pytest.mark.parametrize("catch_up", ["skip", "latest"])
def test_two_runs_claimed_at_once_are_not_both_skipped_while_the_grace_ends(
    catch_up: CatchUp,
) -> None:
    """The later one is decided on just before the grace of the earlier one ends."""
    schedule = make_schedule(timetable("*/5 * * * * *"), catch_up=catch_up)
    first, second = make_run(60), make_run(60 + 5 / 60)
    before = decide_at(schedule, second, first, now=first.tick + 9.9 * SECOND)
    earlier = decide_at(schedule, first, now=first.tick + 10.1 * SECOND)
    later = decide_at(schedule, second, now=first.tick + 10.2 * SECOND)

    assert before.at == first.tick + 9.9 * SECOND + UNDECIDED_WAIT
    assert [before.status, earlier.action, later.action] == [ARMED, "skip", "run"]


# Dependencies


SUCCESSES = st.one_of(st.none(), st.integers(-300, 0).map(lambda m: START + HOUR + m * MINUTE))


@given(
    SUCCESSES,
    st.sampled_from([None, timedelta(0), 3 * SECOND, MINUTE, 3 * HOUR]),
    st.sampled_from([MINUTE, HOUR, 4 * HOUR]),
    st.sampled_from([timedelta(0), 30 * SECOND, 2 * HOUR]),
)
def test_a_run_waits_for_its_dependency_as_long_as_it_may(
    succeeded_at: datetime | None, wait: timedelta | None, within: timedelta, late: timedelta
) -> None:
    options: dict[str, Any] = {} if wait is None else {"wait": wait}
    schedule = make_schedule(after="a", within=within, grace="3h", **options)
    run = make_run(60)
    now = run.tick + late
    decision = decide_at(schedule, run, now=now, succeeded_at=succeeded_at)

    if succeeded_at is not None and now - succeeded_at <= within:
        assert decision == Decision("run", FIRED)
        return
    assert decision.reason is not None
    assert decision.reason.code == ("dependency_never" if succeeded_at is None else "dependency")
    assert decision.reason.facts["after"] == "a"
    if wait is None or late >= wait:
        assert (decision.action, decision.status) == ("skip", SKIPPED)
    else:
        assert (decision.action, decision.status) == ("wait", WAITING)
        assert decision.at == min(now + RETRY_WAIT, run.tick + wait)


@given(st.integers(0, 40), st.sampled_from([None, 3, 7, 12, 25]))
def test_a_run_that_waits_looks_until_the_dependency_succeeds_or_time_is_up(
    wait: int, success: int | None
) -> None:
    """`success`: so many seconds after the tick."""
    schedule = make_schedule(after="a", wait=wait * SECOND)
    run = make_run(60)
    now, looks = run.tick, 0
    while True:
        succeeded_at = None if success is None else run.tick + success * SECOND
        known = succeeded_at if succeeded_at is not None and succeeded_at <= now else None
        decision = decide_at(schedule, run, now=now, succeeded_at=known)
        if decision.at is None:
            break
        assert decision.at > now
        run, now, looks = after_waiting(run, decision), decision.at, looks + 1

    waited = now - make_run(60).tick
    assert looks <= wait / RETRY_WAIT.total_seconds() + 1
    if success is not None and success <= wait:
        assert decision.action == "run"
        assert success * SECOND <= waited < success * SECOND + RETRY_WAIT
    else:
        assert decision.action == "skip"
        assert waited == wait * SECOND


def test_a_dependency_comes_before_a_place() -> None:
    schedule = make_schedule(after="a", overlap="skip")
    run, running = make_run(60), make_run(0, FIRED)
    without = decide_at(schedule, run, running)
    succeeded = decide_at(schedule, run, running, succeeded_at=START + 30 * MINUTE)

    assert without.reason == Reason("dependency_never", {"after": "a"})
    assert succeeded.reason is not None
    assert succeeded.reason.code == "overlap"


def test_a_run_that_waited_for_its_dependency_waits_on_for_a_place() -> None:
    """Under overlap="skip", too: it was there before."""
    schedule = make_schedule(after="a", wait="30m")
    run = make_run(60, WAITING)
    decision = decide_at(schedule, run, make_run(0, FIRED), succeeded_at=START + HOUR)

    assert decision.action == "wait"


def test_a_run_caught_up_after_its_dependency_is_recorded_as_caught_up() -> None:
    schedule = make_schedule(after="a", wait="5h", catch_up="all")
    run, now = make_run(60), START + 2 * HOUR
    wait = decide_at(schedule, run, now=now)
    run = after_waiting(run, wait)
    decision = decide_at(schedule, run, now=now + MINUTE, succeeded_at=now)

    assert wait.action == "wait"
    assert decision == Decision("run", CAUGHT_UP)


# Values


@given(
    st.sampled_from(["s", "nightly report", "a@b", "tick:x", "@", "größe"]),
    st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
)
def test_the_key_of_a_run_says_which_schedule_and_tick(name: str, tick: datetime) -> None:
    assert read_run_key(run_key(name, tick)) == (name, tick)


@pytest.mark.parametrize("key", [None, "", "order:7", "tick:", "tick:s", "tick:s@soon", "tick@"])
def test_any_other_key_is_no_run(key: str | None) -> None:
    assert read_run_key(key) is None


@pytest.mark.parametrize(
    ("overlap", "at_once"),
    [("skip", 3), ("buffer_one", 3), ("buffer_all", 3), ("cancel_other", 3), ("allow", None)],
)
def test_every_overlap_policy_but_allow_bounds_the_runs_at_once(
    overlap: Overlap, at_once: int | None
) -> None:
    assert Policy(overlap=overlap, max_concurrent_runs=3).at_once == at_once


@pytest.mark.parametrize(
    "options",
    [
        {"catch_up": "some"},
        {"overlap": None},
        {"max_runs": 0},
        {"max_runs": True},
        {"max_concurrent_runs": 1.5},
        {"pause_after": -1},
        {"burst_allowed": "yes"},
        {"shadow": 1},
        {"within": "1h"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule):
        make_policy(options)


@given(POLICIES)
def test_a_policy_is_read_back_as_it_was_stored(options: dict[str, Any]) -> None:
    policy = make_policy(options)

    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy
    assert make_policy(dict.fromkeys(("max_runs", "max_age", "after", "wait"))) == Policy()


def test_runs_that_could_never_start_are_refused() -> None:
    with pytest.raises(InvalidSchedule, match="expires must be greater than zero"):
        make_policy({"expires": 0})
