"""`app.stats.timeline()` and `heat_map()`: what schedules did and will do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

import pytest

from duetime import Duetime, Task
from duetime.errors import InvalidInput, ScheduleNotFound
from tests.conftest import Backend, query

NOW = datetime(2026, 3, 8, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


@pytest.fixture
def backup(app: Duetime) -> Task[..., None]:
    failing = iter([False, True])

    @app.task(name="backup", max_attempts=1)
    async def backup() -> None:
        if next(failing, False):
            raise OSError("no space")

    return backup


async def test_past_runs_and_future_ticks(app: Duetime, backup: Task[..., None]) -> None:
    async with app.testing(now=NOW) as world:
        await app.schedules.put("hourly", backup, "0 * * * *", tz="Europe/Berlin")
        await app.schedules.put("weekly", backup, "0 8 * * 1")
        await world.advance("3h")
        await app.schedules.pause("weekly", by="ann")

        timeline = await app.stats.timeline()

    assert (timeline.now, timeline.since) == (NOW + 3 * HOUR, NOW - 9 * HOUR)
    assert timeline.until == timeline.now + 6 * HOUR
    hourly, weekly = timeline.rows
    assert [(run.tick, run.outcome) for run in hourly.runs] == [
        (NOW + HOUR, "fired"),
        (NOW + 2 * HOUR, "failed"),
        (NOW + 3 * HOUR, "fired"),
    ]
    assert all(run.started_at == run.tick and run.job_id is not None for run in hourly.runs)
    assert hourly.future == tuple(NOW + n * HOUR for n in range(4, 10))
    assert (hourly.when, hourly.target, hourly.kind) == (
        "cron 0 * * * * (Europe/Berlin)",
        "backup",
        "task",
    )
    assert (weekly.paused, weekly.runs, weekly.future) == (True, (), ())


async def test_what_was_missed_is_caught_up_coalesced_or_skipped(
    app: Duetime, backup: Task[..., None]
) -> None:
    async with app.testing(now=NOW) as world:
        await app.schedules.put("latest", backup, "0 * * * *", catch_up="latest")
        await app.schedules.put("skips", backup, "0 * * * *", catch_up="skip")
        await world.outage("150m")
        await world.advance("1s")

        latest, skips = (await app.stats.timeline()).rows

    assert [run.outcome for run in latest.runs] == ["coalesced", "caught_up"]
    assert [run.outcome for run in skips.runs] == ["skipped", "skipped"]


async def test_many_ticks_are_counted_for_parts_of_the_window(
    app: Duetime, backup: Task[..., None], backend: Backend
) -> None:
    store = await app.store()
    await store.drive_clock(NOW)
    await app.schedules.put("often", backup, "* * * * *")
    fill_ledger(backend, NOW, minutes=300)

    [row] = (await app.stats.timeline(since=NOW - 4 * HOUR)).rows
    [short] = (await app.stats.timeline(since=NOW - HOUR, until=NOW + HOUR)).rows

    assert row.runs == ()
    assert sum(part.outcomes["fired"] for part in row.parts) == 241
    assert row.parts[0].since == NOW - 4 * HOUR
    assert row.complete_since == NOW - 4 * HOUR
    assert (len(row.future), row.more_future) == (100, True)
    assert (len(short.runs), short.parts) == (61, ())
    assert (len(short.future), short.more_future) == (60, False)


async def test_runs_that_overlap_are_marked(
    app: Duetime, backup: Task[..., None], backend: Backend
) -> None:
    store = await app.store()
    await store.drive_clock(NOW)
    await app.schedules.put("slow", backup, "0 * * * *")
    fill_ledger(backend, NOW, minutes=3, seconds=90)

    [row] = (await app.stats.timeline()).rows

    assert [run.overlaps for run in row.runs] == [False, True, True]


async def test_schedules_come_in_pages(app: Duetime, backup: Task[..., None]) -> None:
    for name in ("a", "b", "c"):
        await app.schedules.put(name, backup, "0 * * * *")

    first = await app.stats.timeline(limit=2)
    second = await app.stats.timeline(limit=2, after=first.next)
    named = await app.stats.timeline(schedules=["c", "a", "gone"])

    assert [row.schedule for row in first.rows] == ["a", "b"]
    assert ([row.schedule for row in second.rows], second.next) == (["c"], None)
    assert [row.schedule for row in named.rows] == ["a", "c"]


async def test_a_heat_map_has_the_days_and_hours_of_a_zone(
    app: Duetime, backup: Task[..., None]
) -> None:
    async with app.testing(now=NOW) as world:
        await app.schedules.put("hourly", backup, "*/30 * * * *", tz="Asia/Kolkata")
        await world.advance("16h")

        local = await app.stats.heat_map("hourly", days=2)
        utc = await app.stats.heat_map("hourly", days=2, tz="UTC")
        short = await app.stats.heat_map("hourly", days=1, tz="UTC")

    assert (local.tz, local.last_day) == ("Asia/Kolkata", date(2026, 3, 9))
    by_hour = {(cell.day, cell.hour): cell.outcomes for cell in local.cells}
    # 09:30 UTC is 15:00 there.
    assert by_hour[date(2026, 3, 8), 15] == {"fired": 1, "failed": 1}
    assert by_hour[date(2026, 3, 9), 6] == {"fired": 2}
    assert local.outcomes == utc.outcomes == {"fired": 31, "failed": 1}
    assert {(cell.day, cell.hour) for cell in utc.cells} == {
        ((NOW + n * HOUR).date(), (NOW + n * HOUR).hour) for n in range(17)
    }
    assert {cell.day for cell in short.cells} == {date(2026, 3, 9)}
    assert local.complete


async def test_bad_windows_are_refused(app: Duetime, backup: Task[..., None]) -> None:
    with pytest.raises(InvalidInput, match="timeline must be"):
        await app.stats.timeline(since=NOW, until=NOW - HOUR)
    with pytest.raises(InvalidInput, match="timeline must be"):
        await app.stats.timeline(since=NOW, until=NOW + timedelta(days=400))
    with pytest.raises(InvalidInput, match="days"):
        await app.stats.heat_map("hourly", days=91)
    with pytest.raises(ScheduleNotFound):
        await app.stats.heat_map("hourly")


def fill_ledger(backend: Backend, now: datetime, *, minutes: int, seconds: int = 1) -> None:
    """A run of the only schedule for each of the last minutes, each of so many seconds."""
    if backend.is_postgres:
        text = f"""
        insert into duetime.schedule_tick
            (schedule_id, tick, run_at, status, begun_at, started_at, finished_at, succeeded)
        select s.id, t, t, 'fired', t, t, t + interval '{seconds} seconds', true
        from duetime.schedule as s cross join generate_series(
            '{now}'::timestamptz - interval '{minutes - 1} minutes', '{now}',
            interval '1 minute') as t
        """
    else:
        us = int(now.timestamp()) * 1_000_000
        text = f"""
        with recursive t(at) as (
            select {us} union all
            select at - 60000000 from t where at > {us - (minutes - 1) * 60_000_000})
        insert into duetime.schedule_tick
            (schedule_id, tick, run_at, status, begun_at, started_at, finished_at, succeeded)
        select s.id, at, at, 'fired', at, at, at + {seconds} * 1000000, 1
        from duetime.schedule as s cross join t
        """
    query(backend, text)
