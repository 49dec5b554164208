"""Schedules on every backend, under a driven clock: what becomes of each tick, and why."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from duetime import Context, Discard, Duetime, Exponential, JobState, Retry, Snooze, Task
from duetime.domain.jobs.job import JobFilter
from duetime.domain.reasons import Reason
from duetime.domain.schedules import rrule, timetable
from duetime.domain.schedules.schedule import Overlap, TickStatus
from duetime.errors import (
    InvalidArguments,
    InvalidInput,
    InvalidSchedule,
    MissingPackage,
    ScheduleNotFound,
)
from duetime.storage.schedules import runs
from duetime.storage.schedules.planning import Planning
from duetime.storage.schedules.rows import ClaimedRun, NewSchedule
from duetime.testing import World
from tests.conftest import Backend, query
from tests.counting import Counted
from tests.log_events import event_of, events_of
from tests.waiting import until, until_true

START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


class Recorder:
    """Tasks that note their ticks."""

    def __init__(self, app: Duetime) -> None:
        self.ticks: list[datetime] = []
        self.at: list[datetime] = []

        @app.task(name="note")
        async def note(ctx: Context, n: int = 0) -> None:
            self.ticks.append(ctx.tick)
            self.at.append(await app.now())

        @app.task(name="stuck", retry=Exponential("10m", factor=1, max_attempts=2))
        async def stuck(ctx: Context) -> None:
            """Open for ten minutes: it fails, and succeeds when it is tried again."""
            if ctx.attempt == 1:
                self.ticks.append(ctx.tick)
                raise ConnectionError("later")

        @app.task(name="bad", max_attempts=1)
        async def bad(ctx: Context) -> None:
            self.ticks.append(ctx.tick)
            raise ValueError("broken")

        self.note, self.stuck, self.bad = note, stuck, bad


@pytest.fixture
def tasks(app: Duetime) -> Recorder:
    return Recorder(app)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waits for another looks again now and then: here not hundreds of times."""
    monkeypatch.setattr("duetime.domain.schedules.decide_run.RETRY_WAIT", 4 * MINUTE)


async def ledger(app: Duetime, name: str = "s", limit: int = 200) -> dict[datetime, str]:
    """What became of each tick up to now, oldest first."""
    now = await app.now()
    rows = await app.schedules[name].history(limit=limit)
    return {row.tick: row.status.value for row in reversed(rows) if row.tick <= now}


def at(*minutes: float) -> list[datetime]:
    return [START + minute * MINUTE for minute in minutes]


# Fire


async def test_each_tick_runs_once_at_its_time(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "*/10 * * * *", args={"n": 7})
        await world.advance("1h")
        rows = await app.schedules["s"].history(limit=100)
        info = await app.schedules.get("s")

    assert tasks.ticks == tasks.at == at(10, 20, 30, 40, 50, 60)
    ran = [row for row in reversed(rows) if row.tick <= world.now]
    assert [row.status for row in ran] == [TickStatus.FIRED] * 6
    assert all(row.succeeded and row.claimed_by == "test world" for row in ran)
    assert len({row.job_id for row in rows}) == len(rows) == 8
    assert {run.args["n"] for run in world.ran} == {7}
    assert info.next_run_at == START + 70 * MINUTE
    assert info.last_run_at == START + 60 * MINUTE


async def test_two_ticks_are_armed_ahead_as_ordinary_jobs(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        armed = await world.enqueued("note")

    assert [job.run_at for job in armed] == at(60, 120)
    assert armed[0].key == "tick:s@2026-03-02T01:00:00Z"


async def test_a_declared_schedule_is_stored_when_a_worker_starts(app: Duetime) -> None:
    ran: list[datetime] = []

    @app.schedule("0 9 * * 1-5", tz="America/New_York")
    @app.task(name="digest")
    async def digest(ctx: Context) -> None:
        ran.append(await app.now())

    async with app.testing(now="2026-03-06T00:00Z") as world:
        await world.advance("5d")

    # Friday in winter time; the clocks change on Sunday; Monday and Tuesday in summer time.
    assert [f"{moment:%d %H}" for moment in ran] == ["06 14", "09 13", "10 13"]


async def test_several_schedules_use_one_task(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("a", tasks.note, "@hourly", args={"n": 1})
        await app.schedules.put("b", tasks.note, "@every 30m", args={"n": 2})
        await world.advance("1h")

    assert sorted(run.args["n"] for run in world.ran) == [1, 2, 2]


async def test_jitter_delays_the_run_and_not_the_tick(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", jitter="10m")
        await world.advance("5h")

    assert tasks.ticks == at(60, 120, 180, 240)
    lags = [moment - tick for moment, tick in zip(tasks.at, tasks.ticks, strict=True)]
    assert all(timedelta(0) <= lag < 10 * MINUTE for lag in lags)
    assert len(set(lags)) > 1


async def test_a_one_off_runs_once_and_ends(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, START + HOUR)
        await world.advance("3h")
        info = await app.schedules.get("s")
        why = await app.schedules["s"].explain()

    assert tasks.ticks == at(60)
    assert info.next_run_at is None
    assert why.code == "ended"


@pytest.mark.parametrize("how", ["add", "change"])
async def test_a_moment_that_has_just_passed_runs(app: Duetime, tasks: Recorder, how: str) -> None:
    async with app.testing(now=START) as world:
        if how == "change":
            await app.schedules.put("s", tasks.note, START + HOUR, catch_up="skip")
        moment = START - timedelta(milliseconds=5)
        await app.schedules.put("s", tasks.note, moment, catch_up="skip")
        await world.drain()
        rows = await app.schedules["s"].history()
        again = await app.schedules.put("s", tasks.note, moment, catch_up="skip")
        await world.drain()

    assert tasks.ticks == [moment]
    assert [row.status for row in rows] == [TickStatus.FIRED]
    assert again == "same"


@pytest.mark.parametrize("how", ["add", "change"])
async def test_a_moment_long_past_is_skipped_with_its_reason(
    app: Duetime, tasks: Recorder, how: str
) -> None:
    """Whatever `catch_up` says: a schedule that did not exist then has missed nothing."""
    async with app.testing(now=START) as world:
        if how == "change":
            await app.schedules.put("s", tasks.note, START + HOUR, catch_up="all")
        await app.schedules.put("s", tasks.note, START - HOUR, catch_up="all")
        await world.drain()
        [row] = await app.schedules["s"].history()
        explanation = await app.schedules["s"].explain(START - HOUR)

    assert tasks.ticks == []
    assert row.status is TickStatus.SKIPPED
    assert row.reason == Reason("late_when_given", {"late": 3600})
    assert "1h late" in explanation.sentence


async def test_a_moment_that_passed_in_a_pause_is_judged_by_the_pause(
    app: Duetime, tasks: Recorder
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, START + HOUR)
        await app.schedules["s"].pause()
        await world.advance("1h")
        await app.schedules["s"].resume()
        await world.drain()

    assert tasks.ticks == []


async def test_an_excluded_tick_is_in_the_ledger_with_its_reason(
    app: Duetime, tasks: Recorder
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "0 12 * * *", exclude=["2026-03-03", "* * * * 4"])
        await world.advance("4d")
        rows = await app.schedules["s"].history()

    assert [tick.day for tick in tasks.ticks] == [2, 4]
    skipped = {row.tick.day: str(row.reason) for row in rows if row.status is TickStatus.SKIPPED}
    assert skipped == {3: "excluded date 2026-03-03", 5: "excluded by '* * * * 4'"}


async def test_a_failed_run_is_retried_under_the_same_tick(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "@hourly")
        await world.advance("75m")
        [row] = await app.schedules["s"].history(status="fired")

    assert [run.outcome for run in world.ran] == ["retried", "completed"]
    assert row.succeeded
    assert row.tick == START + HOUR


async def test_a_failed_run_is_recorded_with_its_error(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.bad, "@hourly")
        await world.advance("1h")
        [row] = await app.schedules["s"].history(status="fired")
        why = await app.schedules["s"].explain(START + HOUR)

    assert row.succeeded is False
    assert row.error == "broken"
    assert "failed: broken" in why.sentence


# Catch up


async def down_for_a_day(app: Duetime, world: World, tasks: Recorder, **options: object) -> None:
    await app.schedules.put("s", tasks.note, "30 * * * *", **options)  # type: ignore[arg-type]
    await world.advance("40m")
    await world.outage("24h")
    await world.drain()
    await world.advance("1h")


async def test_latest_runs_the_last_missed_tick(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await down_for_a_day(app, world, tasks, catch_up="latest")
        found = await ledger(app)

    assert tasks.ticks == at(30, 24 * 60 + 30, 25 * 60 + 30)
    assert list(found) == at(*range(30, 26 * 60, 60))
    assert list(found.values()) == ["fired", *["coalesced"] * 23, "caught_up", "fired"]


async def test_skip_runs_none_of_the_missed(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await down_for_a_day(app, world, tasks, catch_up="skip")
        found = await ledger(app)
        why = await app.schedules["s"].explain(START + 90 * MINUTE)

    assert tasks.ticks == at(30, 25 * 60 + 30)
    assert list(found.values()) == ["fired", *["skipped"] * 24, "fired"]
    assert "23h10m late, and catch_up is skip" in why.sentence


async def test_all_runs_every_missed_tick_in_order(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await down_for_a_day(app, world, tasks, catch_up="all")
        found = await ledger(app)

    assert tasks.ticks == at(*range(30, 26 * 60, 60))
    assert list(found.values()) == ["fired", *["caught_up"] * 24, "fired"]


async def test_all_is_bounded_by_runs_age_and_pace(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await down_for_a_day(app, world, tasks, catch_up="all", max_runs=3, pace="5m")
        found = await ledger(app)

    assert tasks.ticks == at(*(30 + 60 * hour for hour in (0, 22, 23, 24, 25)))
    assert list(found.values()) == ["fired", *["skipped"] * 21, *["caught_up"] * 3, "fired"]
    back = START + 24 * HOUR + 40 * MINUTE
    assert tasks.at[1:4] == [back, back + 5 * MINUTE, back + 10 * MINUTE]


async def test_max_age_bounds_what_is_caught_up(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await down_for_a_day(app, world, tasks, catch_up="all", max_age="2h")

    assert tasks.ticks == at(*(30 + 60 * hour for hour in (0, 23, 24, 25)))


async def test_a_missed_tick_expires_by_its_own_time(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", catch_up="all", expires="90m")
        await world.outage("5h5m")
        await world.drain()
        rows = await app.schedules["s"].history(before=START + 181 * MINUTE)

    assert tasks.ticks == at(240, 300)
    assert [row.status for row in rows] == [TickStatus.SKIPPED] * 3
    assert rows[0].reason == Reason("late_expires", {"late": 7500, "limit": 5400})
    assert str(rows[0].reason) == "2h5m late, and expires is 1h30m"


async def test_a_missed_tick_that_expires_while_it_waits_for_its_turn_does_not_run(
    app: Duetime, tasks: Recorder
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", catch_up="all", expires="3h", pace="2h")
        await world.outage("3h5m")
        await world.advance("5h")
        found = await ledger(app)

    # That of 60 runs at 185; that of 120 would run at 305, and that of 180 at 425.
    assert [found[tick] for tick in at(60, 120, 180)] == ["caught_up", "skipped", "skipped"]


@pytest.mark.usefixtures("patient")
async def test_all_catches_up_what_is_behind_missed_ticks_however_little_late(
    app: Duetime, tasks: Recorder
) -> None:
    """Those within `grace` are not skipped for an overlap with the ones before them."""
    async with app.testing(now=START) as world:
        ticks = [START + number * timedelta(seconds=1) for number in range(1, 16)]
        await app.schedules.put("s", tasks.stuck, *ticks, catch_up="all")
        await world.outage("15s")
        await world.advance("3h")
        found = await ledger(app)

    assert found == dict.fromkeys(ticks, "caught_up")
    assert tasks.ticks == ticks


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_other"])
async def test_the_armed_ticks_of_an_outage_are_caught_up_together(
    app: Duetime, tasks: Recorder, overlap: Overlap
) -> None:
    """One is late, the other is not, and was missed all the same."""
    async with app.testing(now=START) as world:
        ticks = [START + number * timedelta(seconds=8) for number in (1, 2)]
        await app.schedules.put("s", tasks.stuck, *ticks, catch_up="all", overlap=overlap)
        await world.outage("19s")
        await world.advance("21m")
        found = await ledger(app)

    assert found == dict.fromkeys(ticks, "caught_up")
    assert tasks.ticks == ticks


@pytest.mark.usefixtures("patient")
async def test_a_tick_that_comes_while_missed_ones_run_overlaps_with_them(
    app: Duetime, tasks: Recorder
) -> None:
    """Else runs that take longer than their interval would never come to an end."""
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "@every 1m", catch_up="all")
        await world.outage("3m")
        await world.advance("1h")
        found = await ledger(app)

    assert [found[tick] for tick in at(1, 2, 3)] == ["caught_up", "caught_up", "caught_up"]
    assert [found[tick] for tick in at(4, 5, 6)] == ["skipped"] * 3
    assert "fired" in {found[tick] for tick in at(*range(30, 60))}


@pytest.mark.parametrize("catch_up", ["skip", "latest", "all"])
async def test_a_tick_on_time_fires_under_every_policy(
    app: Duetime, tasks: Recorder, catch_up: str
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", catch_up=catch_up)  # type: ignore[arg-type]
        await world.outage("3h")
        await world.outage("9s")
        await world.drain()
        found = await ledger(app)

    assert tasks.ticks[-1] == START + 3 * HOUR
    # All that were missed run in their order, and this one comes after them.
    assert found[START + 3 * HOUR] == ("caught_up" if catch_up == "all" else "fired")


# Overlap


async def test_overlap_skip_skips_while_a_run_is_open(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "*/4 * * * *")
        await world.advance("17m")
        found = await ledger(app)
        why = await app.schedules["s"].explain(START + 8 * MINUTE)

    # 4 runs until 14; 8 and 12 are skipped; 16 runs.
    assert list(found.values()) == ["fired", "skipped", "skipped", "fired"]
    assert why.code == "skipped"
    assert why.sentence == (
        "The tick 2026-03-02T00:08:00Z of 's' did not run: the run of 2026-03-02T00:04:00Z has not "
        "finished."
    )
    assert [step.code for step in why.steps] == ["overlap"]
    assert why.steps[0].facts == {"tick": "2026-03-02T00:04:00Z"}


async def test_overlap_allow_runs_beside(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "*/4 * * * *", overlap="allow")
        await world.advance("17m")

    assert tasks.ticks == at(4, 8, 12, 16)


async def test_max_concurrent_runs_allows_so_many(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "*/4 * * * *", max_concurrent_runs=2)
        await world.advance("17m")
        found = await ledger(app)

    assert list(found.values()) == ["fired", "fired", "skipped", "fired"]


async def test_overlap_buffer_one_keeps_one_for_later(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "*/4 * * * *", overlap="buffer_one")
        await world.advance("15m")
        found = await ledger(app)

    # 4 runs until 14, 8 waits for it, 12 finds one waiting.
    assert tasks.ticks == at(4, 8)
    assert list(found.values()) == ["fired", "fired", "skipped"]
    assert world.ran[2].at == START + 14 * MINUTE


async def test_overlap_buffer_all_runs_all_in_order(
    app: Duetime, tasks: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those that wait are told when a place is free; here they do not look hundreds of times, too.
    monkeypatch.setattr("duetime.domain.schedules.decide_run.RETRY_WAIT", 2 * MINUTE)
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "*/4 * * * *", overlap="buffer_all")
        await world.advance("45m")

    assert tasks.ticks == at(4, 8, 12, 16, 20)[: len(tasks.ticks)]
    assert len(tasks.ticks) == 5


async def test_overlap_cancel_other_ends_the_run_before(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "*/4 * * * *", overlap="cancel_other")
        await world.advance("9m")
        rows = await app.schedules["s"].history(status="fired")
        first = await app.jobs.get(rows[-1].job_id or 0)

    assert tasks.ticks == at(4, 8)
    assert first.state is JobState.CANCELLED


async def test_cancel_other_cancels_as_many_as_are_in_the_way(
    app: Duetime, tasks: Recorder
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put(
            "s", tasks.stuck, "*/4 * * * *", overlap="cancel_other", max_concurrent_runs=2
        )
        await world.advance("13m")
        rows = await app.schedules["s"].history(status="fired")
        states = [(await app.jobs.get(row.job_id or 0)).state for row in reversed(rows)]

    assert tasks.ticks == at(4, 8, 12)
    assert states == [JobState.CANCELLED, JobState.RETRYING, JobState.RETRYING]


# Runs that are requeued or backfilled after they failed


@pytest.fixture
def flaky(app: Duetime) -> Task[[], None]:
    """Fails the first time that a tick runs, and never again."""
    seen: set[datetime] = set()

    @app.task(name="flaky", max_attempts=1)
    async def flaky(ctx: Context) -> None:
        assert ctx.tick is not None
        if ctx.tick not in seen:
            seen.add(ctx.tick)
            raise ConnectionError("down")

    return flaky


async def test_a_requeued_run_that_succeeds_is_entered_in_the_ledger(
    app: Duetime, flaky: Task[[], None]
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", flaky, "0 1 * * *", pause_after=3)
        await world.advance("61m")
        [failed] = await app.schedules["s"].history(before=world.now)
        failures = (await app.schedules.get("s")).failures
        await app.jobs.requeue(failed.job_id or 0)
        await world.advance("1m")
        [row] = await app.schedules["s"].history(before=world.now)
        info = await app.schedules.get("s")

    assert (failed.succeeded, failed.error, failures) == (False, "down", 1)
    assert (row.status, row.succeeded, row.error) == (TickStatus.FIRED, True, None)
    assert row.finished_at == START + 61 * MINUTE
    assert (info.failures, info.last_run_at) == (0, START + 61 * MINUTE)


async def test_a_requeued_run_that_fails_again_counts_once(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.bad, "0 1 * * *", pause_after=2)
        await world.advance("61m")
        [failed] = await app.schedules["s"].history(before=world.now)
        await app.jobs.requeue(failed.job_id or 0)
        await world.advance("1m")
        [row] = await app.schedules["s"].history(before=world.now)
        info = await app.schedules.get("s")

    assert (row.succeeded, row.finished_at) == (False, START + 61 * MINUTE)
    assert (info.failures, info.paused_at) == (1, None)


async def test_a_skipped_run_that_is_requeued_is_entered_in_the_ledger(
    app: Duetime, tasks: Recorder
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "0 1 * * *", catch_up="skip")
        await world.outage("2h")
        await world.drain()
        [skipped] = await app.schedules["s"].history(before=world.now)
        await app.jobs.requeue(skipped.job_id or 0)
        await world.drain()
        [row] = await app.schedules["s"].history(before=world.now)

    assert skipped.status is TickStatus.SKIPPED
    assert (row.status, row.succeeded) == (TickStatus.FIRED, True)


async def test_a_schedule_that_waits_for_another_sees_its_requeued_run(
    app: Duetime, tasks: Recorder, flaky: Task[[], None]
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("import", flaky, "0 1 * * *")
        await app.schedules.put(
            "report", tasks.note, "10 1 * * *", after="import", within="1h", wait="1h"
        )
        await world.advance("75m")
        [failed] = await app.schedules["import"].history(before=world.now)
        await app.jobs.requeue(failed.job_id or 0)
        await world.drain()

    assert tasks.ticks == at(70)
    assert tasks.at == at(75)


async def test_a_later_success_counts_though_its_tick_is_not_the_last(
    app: Duetime, tasks: Recorder, flaky: Task[[], None]
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("import", flaky, "0 1 * * *")
        await world.advance("90m")
        [failed] = await app.schedules["import"].history(before=world.now)
        await app.schedules.put("import", tasks.note, "0 2 * * *")
        await world.advance("3h")
        await app.jobs.requeue(failed.job_id or 0)
        await app.schedules.put("report", tasks.note, "0 5 * * *", after="import", within="1h")
        await world.advance("2h")

    # At 4:30 that of 1:00 succeeded; that of 2:00 did so at its time.
    assert tasks.ticks == at(120, 300)


async def test_backfill_runs_what_failed_if_that_is_asked_for(
    app: Duetime, tasks: Recorder, flaky: Task[[], None]
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", flaky, "@hourly", catch_up="skip")
        schedule = app.schedules["s"]
        await world.advance("2h30m")
        await world.outage("1h")
        await world.drain()
        since = START + MINUTE
        plain = await schedule.backfill(since, world.now)
        await world.drain()
        statuses = await ledger(app)
        failed = await schedule.backfill(since, world.now, failed=True, by="ann")
        await world.drain()
        again = await schedule.backfill(since, world.now, failed=True)
        rows = (await schedule.history(before=world.now))[::-1]
        [event, *_] = [e for e in await app.schedules.audit("s") if e.actor == "ann"]

    assert (plain, failed, again) == (1, 3, 0)
    assert list(statuses.values()) == ["fired", "fired", "backfilled"]
    assert [(row.status.value, row.succeeded, row.error) for row in rows] == [
        ("backfilled", True, None)
    ] * 3
    assert event.after["failed"] is True


async def test_a_failed_run_that_was_requeued_is_not_backfilled_beside(
    app: Duetime, flaky: Task[[], None]
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", flaky, "0 1 * * *")
        await world.advance("61m")
        [failed] = await app.schedules["s"].history(before=world.now)
        await app.jobs.requeue(failed.job_id or 0)
        count = await app.schedules["s"].backfill(START, world.now, failed=True)
        await world.drain()
        [row] = await app.schedules["s"].history(before=world.now)

    assert count == 0
    assert (row.job_id, row.succeeded) == (failed.job_id, True)


async def test_a_backfilled_run_that_failed_before_waits_its_turn(app: Duetime) -> None:
    """Nothing is left of its first run, which had begun."""

    @app.task(name="mixed", max_attempts=2)
    async def mixed(ctx: Context) -> None:
        if ctx.tick == at(4)[0]:
            raise Discard("never")
        raise Retry("not yet", after=HOUR)

    async with app.testing(now=START) as world:
        await app.schedules.put("s", mixed, "*/4 * * * *")
        await world.advance("9m")
        count = await app.schedules["s"].backfill(at(4)[0], world.now, failed=True)
        await world.drain()
        row = (await app.schedules["s"].history(before=world.now))[-1]

    # The run of 8 is open.
    assert count == 1
    assert (row.tick, row.status, row.claimed_at) == (at(4)[0], TickStatus.WAITING, None)


# What one worker cannot read


@pytest.fixture
def without_dateutil() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A context in which python-dateutil is not installed."""

    def forget() -> None:
        timetable._stored.cache_clear()
        rrule.find_rule.cache_clear()

    @contextmanager
    def absent() -> Iterator[None]:
        forget()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "dateutil.rrule", None)
            yield
        forget()

    yield absent
    forget()


async def test_a_worker_leaves_to_others_what_it_lacks_a_package_for(
    app: Duetime,
    tasks: Recorder,
    without_dateutil: Callable[[], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "RRULE:FREQ=HOURLY", catch_up="all")
        await world.outage("5h30m")
        with without_dateutil():
            await world.drain()
            await world.advance("3s")
            info = await app.schedules.get("s")
            explanation = await app.schedules["s"].explain()
            with pytest.raises(MissingPackage, match="python-dateutil"):
                await app.schedules["s"].backfill(START, world.now)
            await app.schedules["s"].pause()
            with pytest.raises(MissingPackage, match="python-dateutil"):
                await app.schedules["s"].resume()
        ran_without = list(tasks.ticks)
        await app.schedules["s"].resume(missed=True)
        await world.advance("5s")
        events = await app.schedules.audit("s")

    assert ran_without == []
    assert (info.broken, info.when, explanation.code) == (None, "unreadable", "unreadable")
    assert tasks.ticks == at(60, 120, 180, 240, 300)
    assert {event.action for event in events} == {
        "schedule.add",
        "schedule.pause",
        "schedule.resume",
    }
    assert events_of(caplog) == ["schedule_unreadable"]


async def test_a_schedule_that_is_set_aside_is_an_error_event(
    app: Duetime, tasks: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    async with app.testing(now=START) as world:
        store = await app.store()
        await app.schedules.put("s", tasks.note, "@hourly")
        schedule = await app.schedules._find("s")
        planning = Planning(store.dialect)
        schedule.timetable = msgspec.structs.replace(schedule.timetable, tz="Mars/Base")
        await store.transact(planning._update(schedule))
        await world.outage("2h")
        await world.advance("2s")
        info = await app.schedules.get("s")

    assert info.broken is not None
    [record] = [r for r in caplog.records if event_of(r) == "schedule_broken"]
    assert record.levelname == "ERROR"
    assert "Mars/Base" in record.duetime["reason"]  # type: ignore[attr-defined]


# Very many missed ticks


@pytest.mark.parametrize("act", ["resume", "resume with the missed", "pause", "change", "repair"])
async def test_a_week_of_seconds_is_recorded_in_bounds(
    app: Duetime, tasks: Recorder, act: str
) -> None:
    """600,000 ticks were missed: each of the last has its row, and all before share one."""
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "* * * * * *", grace="0s")
        schedule = app.schedules["s"]
        if act.startswith("resume"):
            await schedule.pause()
        await world.outage("7d")
        if act.startswith("resume"):
            await schedule.resume(missed=act != "resume")
        elif act == "pause":
            await schedule.pause()
        elif act == "change":
            await app.schedules.put("s", tasks.note, "* * * * * *", args={"n": 1}, grace="0s")
        await world.drain()
        rows = await schedule.history(limit=10_000)
        rows += await schedule.history(limit=10_000, before=rows[-1].tick)
        now = await app.now()
        within = await schedule.explain(START + HOUR)

    missed = [row for row in rows if row.tick <= now]
    first, oldest = missed[-1].tick, missed[-4].tick
    assert 10_000 <= len(missed) <= 10_005
    assert first <= START + 3 * timedelta(seconds=1)
    assert oldest >= now - timedelta(seconds=10_002)
    assert within.code in ("skipped", "coalesced")
    assert "did not run" in within.sentence
    assert len(tasks.ticks) == {"resume": 0, "pause": 0}.get(act, 1)


# Dependencies and failures


async def test_a_dependency_that_did_not_succeed_skips(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("a", tasks.bad, "@hourly")
        await app.schedules.put("s", tasks.note, "5 * * * *", after="a", within="1h")
        await world.advance("2h")
        [row, *_] = await app.schedules["s"].history(status="skipped")

    assert str(row.reason) == "'a' has never succeeded"


async def test_a_dependency_that_succeeded_lets_it_run(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("a", tasks.note, "@hourly")
        await app.schedules.put("s", tasks.note, "5,50 * * * *", after="a", within="30m")
        await world.advance("119m")
        found = await ledger(app)

    assert list(found.values()) == ["skipped", "skipped", "fired", "skipped"]


async def test_a_dependency_can_be_waited_for(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("a", tasks.stuck, "@hourly")
        await app.schedules.put("s", tasks.note, "5 1 * * *", after="a", wait="30m")
        await world.advance("65m")
        waiting = await app.schedules["s"].explain(START + 65 * MINUTE)
        await world.advance("30m")

    assert waiting.code == "waiting"
    assert tasks.at == at(70)


async def test_a_run_that_was_moved_waits_from_its_new_time(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("a", tasks.note, "30 1 * * *")
        await app.schedules.put("s", tasks.note, "0 1 * * *", after="a", wait="20m")
        await app.schedules["s"].reschedule("75m")
        await world.advance("2h")

    assert tasks.ticks == at(90, 60)


async def test_a_schedule_pauses_after_failures_in_a_row(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.bad, "@hourly", pause_after=3)
        await world.advance("9h")
        info = await app.schedules.get("s")
        why = await app.schedules["s"].explain()

    assert len(tasks.ticks) == 3
    assert (info.paused_by, info.pause_reason, info.failures) == ("duetime", None, 3)
    assert why.steps[0].code == "schedule_failing"
    assert "paused by duetime: 3 runs failed in a row, since " in why.sentence


async def test_a_run_that_cannot_start_in_time_expires(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", expires="5m", catch_up="all")
        await app.queues.pause("default")
        await world.advance("65m")
        await world.advance("1s")
        await app.queues.resume("default")
        await world.drain()
        [row] = await app.schedules["s"].history(status="skipped")

    assert tasks.ticks == []
    assert row.reason is not None
    assert row.reason.code == "late_expires"


async def test_a_run_that_failed_and_whose_retry_expires_has_failed(app: Duetime) -> None:
    @app.task(retry=Exponential("10m", factor=1, max_attempts=3))
    async def broken() -> None:
        raise ConnectionError("down")

    async with app.testing(now=START) as world:
        await app.schedules.put("s", broken, "@hourly", expires="5m", pause_after=2)
        await world.advance("5h")
        rows = await app.schedules["s"].history()
        info = await app.schedules.get("s")
        backfilled = await app.schedules["s"].backfill(START + MINUTE, START + 150 * MINUTE)

    assert [run.outcome for run in world.ran] == ["retried", "expired"] * 2
    assert [(row.tick, row.status, row.succeeded, row.error) for row in reversed(rows)] == [
        (tick, TickStatus.FIRED, False, "down") for tick in at(60, 120)
    ]
    assert [row.started_at for row in reversed(rows)] == at(60, 120)
    assert (info.failures, info.paused_by) == (2, "duetime")
    assert backfilled == 0


async def test_a_run_that_was_snoozed_past_its_latest_start_is_skipped(app: Duetime) -> None:
    @app.task
    async def later() -> Snooze:
        return Snooze("10m")

    async with app.testing(now=START) as world:
        await app.schedules.put("s", later, "0 1 * * *", expires="5m")
        await world.advance("2h")
        [row] = await app.schedules["s"].history(before=world.now)
        info = await app.schedules.get("s")

    assert (row.status, row.succeeded, info.failures) == (TickStatus.SKIPPED, None, 0)
    assert row.reason is not None
    assert row.reason.code == "expired"


async def test_shadow_records_and_runs_nothing(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", shadow=True)
        await world.advance("2h")
        rows = await app.schedules["s"].history(status="fired")

    assert tasks.ticks == []
    assert [row.reason for row in rows] == [Reason("shadow")] * 2


# Operate


async def test_a_pause_tells_who_awaits_the_next_run(
    app: Duetime, tasks: Recorder, backend: Backend
) -> None:
    def watched() -> bool:
        return not backend.is_postgres or bool(query(backend, "select job_id from duetime.waiter"))

    try:
        await app.schedules.put("s", tasks.note, "@hourly")
        store = await app.store()
        run = (await store.find(JobFilter(task="note")))[-1]
        awaited = asyncio.create_task(store.wait_finished(run.id, 20))
        await until_true(watched)
        await app.schedules["s"].pause()
        job = await awaited
    finally:
        await app.close()

    assert job is not None
    assert job.state is JobState.SUPERSEDED


async def test_pause_and_resume_without_the_missed(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        await world.advance("1h")
        await app.schedules["s"].pause(reason="holiday", by="ann")
        assert await world.enqueued("note") == []
        why = await app.schedules["s"].explain()
        await world.advance("3h")
        await app.schedules["s"].resume(by="bob")
        await world.advance("1h")
        found = await ledger(app)
        events = await app.schedules.audit("s")

    assert "paused by ann: holiday" in why.sentence
    assert tasks.ticks == at(60, 300)
    assert list(found.values()) == ["fired", "skipped", "skipped", "skipped", "fired"]
    assert [(event.action, event.actor) for event in reversed(events)] == [
        ("schedule.add", "unknown"),
        ("schedule.pause", "ann"),
        ("schedule.resume", "bob"),
    ]
    assert events[0].before["reason"] == "holiday"


async def test_resume_with_the_missed_catches_up(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", catch_up="all")
        await app.schedules["s"].pause()
        await world.advance("3h")
        await app.schedules["s"].resume(missed=True)
        await world.drain()

    assert tasks.ticks == at(60, 120, 180)


async def test_a_pause_until_ends_by_itself(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", catch_up="skip")
        await app.schedules["s"].pause(until="150m")
        await world.advance("151m")
        await world.advance("1h")

    assert tasks.ticks == at(180)


async def test_trigger_runs_now_and_leaves_the_next_run(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        await world.advance("10m")
        job_id = await app.schedules["s"].trigger(by="ann")
        await world.drain()
        info = await app.schedules.get("s")
        [row] = await app.schedules["s"].history(status="triggered")

    assert tasks.ticks == at(10)
    assert row.job_id == job_id
    assert row.succeeded
    assert info.next_run_at == START + HOUR


async def test_reschedule_moves_the_next_run_alone(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        tick = await app.schedules["s"].reschedule("30m")
        info = await app.schedules.get("s")
        await world.advance("2h")

    assert tick == START + HOUR
    assert info.next_run_at == START + 30 * MINUTE
    assert tasks.at == at(30, 120)
    assert tasks.ticks == at(60, 120)


async def test_reschedule_moves_the_run_that_is_shown_as_the_next(
    app: Duetime, tasks: Recorder
) -> None:
    """A run that is overdue because its queue is paused keeps its place."""
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        await app.queues.pause("default")
        await world.advance("90m")
        before = await app.schedules.get("s")
        tick = await app.schedules["s"].reschedule("10m")
        after = await app.schedules.get("s")
        [event, *_] = await app.schedules["s"].audit()
        await app.queues.resume("default")
        await world.advance("2h")

    assert before.next_run_at == tick == START + 2 * HOUR
    assert after.next_run_at == START + 100 * MINUTE
    assert event.before == {"tick": "2026-03-02T02:00:00Z", "run_at": "2026-03-02T02:00:00Z"}
    assert list(zip(tasks.ticks, tasks.at, strict=True)) == list(
        zip(at(60, 120, 180), at(90, 100, 180), strict=True)
    )


async def test_reschedule_moves_an_overdue_run_if_it_is_shown_as_the_next(
    app: Duetime, tasks: Recorder
) -> None:
    """No worker has been there since, to plan on."""
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        await world.outage("65m")
        before = await app.schedules.get("s")
        tick = await app.schedules["s"].reschedule("10m")
        await world.advance("30m")

    assert before.next_run_at == tick == START + HOUR
    assert tasks.at == at(75)


async def test_reschedule_moves_an_overdue_run_if_there_is_no_other(
    app: Duetime, tasks: Recorder
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, START + HOUR)
        await app.queues.pause("default")
        await world.advance("90m")
        tick = await app.schedules["s"].reschedule("10m")
        await app.queues.resume("default")
        await world.advance("30m")

    assert tick == START + HOUR
    assert tasks.at == at(100)


async def test_a_moved_run_expires_as_its_task_says(app: Duetime, backend: Backend) -> None:
    """Also if the schedule was defined where the task is not known."""

    @app.task(name="brief", expires="10m")
    async def brief() -> None: ...

    async with app.testing(now=START) as world:
        await world.drain()
        await app.schedules.apply([Duetime(backend.url).schedules.define("s", "brief", "@hourly")])
        await app.schedules["s"].reschedule("90m")
        jobs = await app.jobs.list(task="brief")

    expiries = {job.run_at: job.expires_at for job in jobs}
    assert expiries[START + 90 * MINUTE] == START + 100 * MINUTE
    assert expiries[START + 120 * MINUTE] == START + 130 * MINUTE


async def test_a_run_that_cannot_be_moved_keeps_its_expiry(app: Duetime) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", "elsewhere", START + HOUR, expires="3h")
        await world.advance("90m")
        [parked] = await app.jobs.list(task="elsewhere")
        with pytest.raises(InvalidInput):
            await app.schedules["s"].reschedule("10h")
        [after] = await app.jobs.list(task="elsewhere")

    assert parked.state is JobState.PARKED
    assert parked.expires_at == after.expires_at == START + 4 * HOUR


async def test_a_run_moved_behind_a_later_tick_runs_however_late(
    app: Duetime, tasks: Recorder
) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        await app.schedules["s"].reschedule(START + 150 * MINUTE)
        await world.advance("149m")
        await app.queues.pause("default")
        await world.advance("3m")
        await app.queues.resume("default")
        await world.drain()
        statuses = await ledger(app)

    assert tasks.ticks == at(120, 60)
    assert list(statuses.values()) == ["caught_up", "fired"]


async def test_backfill_runs_what_has_not_run(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly", catch_up="skip")
        await world.advance("2h")
        await world.outage("3h")
        await world.outage("1m")
        await world.drain()
        ran_before = list(tasks.ticks)
        count = await app.schedules["s"].backfill(START - 2 * HOUR, world.now)
        again = await app.schedules["s"].backfill(START - 2 * HOUR, world.now)
        await world.drain()
        found = await ledger(app)

    assert ran_before == at(60, 120)
    assert (count, again) == (6, 0)
    assert tasks.ticks[2:] == at(-120, -60, 0, 180, 240, 300)
    assert list(found.values()) == ["backfilled"] * 3 + ["fired"] * 2 + ["backfilled"] * 3


async def test_delete_removes_what_is_armed(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        await app.schedules["s"].delete(by="ann")
        ran = await world.advance("3h")

        assert ran == 0
        with pytest.raises(ScheduleNotFound, match="no schedule named 's'"):
            await app.schedules.get("s")


# Change


async def test_a_changed_spec_changes_the_next_run(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        first = await app.schedules.put("s", tasks.note, "@hourly")
        same = await app.schedules.put("s", tasks.note, "0 * * * *")
        changed = await app.schedules.put("s", tasks.note, "30 * * * *", args={"n": 2})
        info = await app.schedules.get("s")
        await world.advance("1h")
        states = [job.state for job in await app.jobs.list(task="note")]

    assert (first, same, changed) == ("added", "same", "changed")
    assert info.next_run_at == START + 30 * MINUTE
    assert info.revision == 2
    assert [run.args["n"] for run in world.ran] == [2]
    assert states.count(JobState.SUPERSEDED) == 2


async def test_a_pause_survives_a_redeploy_and_a_change(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.note, "@hourly")
        await app.schedules["s"].pause(by="ann")
        await app.schedules.put("s", tasks.note, "30 * * * *")
        ran = await world.advance("2h")
        info = await app.schedules.get("s")

    assert ran == 0
    assert info.paused_by == "ann"
    assert info.when == "cron 30 * * * * (UTC)"


async def test_apply_is_declarative_and_prunes(app: Duetime, tasks: Recorder) -> None:
    define = app.schedules.define
    async with app.testing(now=START):
        await app.schedules.put("operator's", tasks.note, "@daily")
        one = await app.schedules.apply(
            [define("a", tasks.note, "@hourly"), define("b", tasks.note, "@hourly")], prune=True
        )
        two = await app.schedules.apply(
            [define("b", tasks.note, "@daily"), define("c", tasks.note, "@hourly")], prune=True
        )
        names = [info.name for info in await app.schedules.list()]

    assert one == {"a": "added", "b": "added"}
    assert two == {"a": "removed", "b": "changed", "c": "added"}
    assert names == ["b", "c", "operator's"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"catch_up": "some"}, "catch_up must be one of"),
        ({"overlap": "never"}, "overlap must be one of"),
        ({"max_runs": 0}, "max_runs must be a whole number"),
        ({"wait": "5m"}, "need after="),
        ({"after": "s"}, "cannot depend on itself"),
        ({"grace": "-5m"}, "not a duration"),
        ({"args": [1]}, "args must be a mapping"),
        ({"args": []}, "args must be a mapping"),
        ({"args": {1: 2}}, "args must be a mapping"),
        ({"args": {"n": "a\x00b"}}, "contains a NUL character"),
        ({"args": {"n": [{"a\x00b": 1}]}}, "contains a NUL character"),
        ({"colour": "red"}, "has no option 'colour'"),
        ({"tz": "../../etc/passwd"}, "passwd"),
    ],
)
async def test_a_bad_option_is_refused_and_nothing_changes(
    app: Duetime, tasks: Recorder, options: dict[str, object], message: str
) -> None:
    async with app.testing(now=START):
        with pytest.raises(InvalidInput, match=message):
            await app.schedules.put("s", tasks.note, "@hourly", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=message):
            await app.schedules.put("s", "elsewhere", "@hourly", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="argument 'n'"):
            await app.schedules.put("s", tasks.note, "@hourly", args={"n": "many"})
        with pytest.raises(InvalidSchedule):
            await app.schedules.put("s", tasks.note, "0 0 30 2 *")

        assert await app.schedules.list() == []


async def test_many_schedules_are_applied_by_few_statements(
    app: Duetime, tasks: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one part. What was armed under the old times is superseded, of each."""
    counted = Counted(await app.store(), monkeypatch)
    many = 600

    def define(hour: int, changed: int) -> list[NewSchedule]:
        return [
            app.schedules.define(f"s{n}", tasks.note, f"0 {hour if n < changed else 9} * * *")
            for n in range(many)
        ]

    async with app.testing(now=START):
        added = await app.schedules.apply(define(9, many))
        ran_to_add = counted.ran()
        changed = await app.schedules.apply(define(10, many - 1), by="ann")
        ran_to_change = counted.ran()
        stored = await app.schedules.list(limit=many)
        next_runs = {schedule.next_run_at for schedule in stored}
        armed = await app.jobs.list(state=JobState.PENDING, limit=5 * many)
        trail = await app.audit.list(entity="schedule:s0")

    assert set(added.values()) == {"added"}
    assert changed == {f"s{n}": "changed" if n < many - 1 else "same" for n in range(many)}
    assert next_runs == {START + 9 * HOUR, START + 10 * HOUR}
    assert len(armed) == 2 * many
    assert (trail[0].actor, trail[0].action) == ("ann", "schedule.change")
    assert ran_to_add < 150
    assert ran_to_change < 150


# Retention


async def test_runs_that_ended_long_ago_leave_the_ledger(
    app: Duetime, tasks: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In small parts: some schedules at a time, and again those that have more."""
    monkeypatch.setattr(runs, "_SCHEDULES", 2)
    looks: list[tuple[int, int]] = []
    async with app.testing(now=START) as world:
        for name in ("a", "b", "c"):
            await app.schedules.put(name, tasks.note, "@hourly")
        await world.advance("10h")
        store, after = await app.store(), 0
        while not looks or looks[-1][0] == 3 or after:
            look = runs.RunStatements(store.dialect).prune(5 * HOUR, after, batch=3)
            looks.append(await store.transact(look))
            after = looks[-1][1]
        left = {name: list(await ledger(app, name)) for name in ("a", "b", "c")}

    assert [gone for gone, _ in looks] == [3, 3, 2, 3, 1]
    assert left == {name: [START + n * HOUR for n in range(5, 11)] for name in "abc"}


async def test_what_has_not_ended_stays_in_the_ledger(app: Duetime, tasks: Recorder) -> None:
    async with app.testing(now=START) as world:
        await app.schedules.put("s", tasks.stuck, "@hourly", overlap="allow")
        await world.advance("2h5m")
        store = await app.store()
        look = runs.RunStatements(store.dialect).prune(timedelta(0), 0, batch=100)
        pruned = await store.transact(look)
        left = await ledger(app)

    assert pruned == (1, 0)
    assert left == {START + 2 * HOUR: "fired"}


async def test_a_worker_keeps_the_ledger_short(backend: Backend) -> None:
    app = Duetime(backend.url, retention={"tick": "1ms"}, prune_every="50ms")
    tasks = Recorder(app)
    await app.schedules.put("s", tasks.note, "* * * * * *")
    async with app.worker():
        await until(lambda: _ran_and_gone(app, tasks))
    await app.close()


async def _ran_and_gone(app: Duetime, tasks: Recorder) -> bool:
    history = await app.schedules["s"].history()
    return bool(tasks.ticks) and tasks.ticks[0] not in {row.tick for row in history}


async def test_nobody_waits_for_a_schedule_that_was_deleted(app: Duetime) -> None:
    """A run was claimed, and its schedule was deleted, before anybody could decide on it."""
    run = ClaimedRun(job_id=1, schedule_id=404, tick=START, clear=False)
    async with app.testing(now=START):
        store = await app.store()
        statements = runs.RunStatements(store.dialect)
        decisions = await store.transact(statements.decide([run], "w", waits=False))
        busy = await store.transact(statements.advance([run], "w", waits=False))

    assert decisions[1].action == "skip"
    assert busy == set()
