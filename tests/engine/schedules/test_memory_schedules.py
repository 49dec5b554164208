"""Schedules in memory: nothing is stored but their jobs, and each tick still runs once."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Context, Duetime
from duetime.domain.duration import parse_duration
from duetime.errors import InvalidInput, InvalidSchedule
from duetime.schedules.memory import MemorySchedules
from tests.conftest import Backend
from tests.log_events import events_of
from tests.waiting import until, until_true

START = datetime(2026, 3, 2, tzinfo=UTC)


def make_app(url: str, ran: list[datetime], *, stored: bool = False, **settings: Any) -> Duetime:
    app = Duetime(url, migrate=True, **settings)

    @app.schedule("* * * * * *", name="each second", stored=stored)
    @app.task(name="note")
    async def note(ctx: Context) -> None:
        assert ctx.tick <= await app.now()
        ran.append(ctx.tick)

    return app


async def test_ten_workers_run_each_tick_once(backend: Backend) -> None:
    ran: list[datetime] = []
    apps = [make_app(backend.url, ran) for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        for app in apps:
            for _ in range(5):
                group.create_task(work(app, 3.6))
    stored = await apps[0].schedules.list()
    for app in apps:
        await app.close()

    assert stored == []
    assert len(ran) >= 3
    assert sorted(ran) == [min(ran) + timedelta(seconds=n) for n in range(len(ran))]


async def work(app: Duetime, seconds: float) -> None:
    async with app.worker():
        await asyncio.sleep(seconds)


async def test_they_tick_beside_stored_ones(backend: Backend) -> None:
    ran: list[datetime] = []
    app = make_app(backend.url, ran)
    seen: list[str] = []

    @app.schedule("* * * * *", name="stored")
    @app.schedule("*/2 * * * *", name="remembered", stored=False)
    @app.task(name="both")
    async def both(ctx: Context) -> None:
        assert ctx.schedule is not None
        seen.append(ctx.schedule)

    app.schedules._declared.pop("each second")
    async with app.testing(now=START) as world:
        await world.advance("4m")

    assert sorted(seen) == ["remembered"] * 2 + ["stored"] * 4


@pytest.mark.parametrize(("expires", "late"), [(None, "2m"), ("3h", "4h")])
async def test_a_tick_that_passes_while_no_worker_runs_is_gone(
    backend: Backend, expires: str | None, late: str
) -> None:
    app = Duetime(backend.url, migrate=True)
    ran: list[datetime] = []

    @app.schedule("0 9 * * *", name="daily", stored=False, expires=expires)
    @app.task(name="note")
    async def note(ctx: Context) -> None:
        ran.append(ctx.tick)

    store = await app.store()
    await store.drive_clock(START)
    ticker = MemorySchedules(store)
    ticker.schedules = app.schedules.declared
    await ticker.arm()
    [waiting] = await app.jobs.list()
    nine = START + timedelta(hours=9)
    await store.drive_clock(nine + parse_duration(late, name="late"))
    async with app.worker():

        async def ended() -> bool:
            return (await app.jobs.get(waiting.id)).state != "pending"

        await until(ended)
    first = await app.jobs.get(waiting.id)
    await store.drive_clock(None)
    await app.close()

    assert ran == []
    assert first.state == "expired"


async def test_a_schedule_in_memory_has_no_policies_and_is_not_applied(backend: Backend) -> None:
    ran: list[datetime] = []
    app = make_app(backend.url, ran)

    with pytest.raises(InvalidSchedule, match="has no history, so it does not support overlap"):
        app.schedules.define("s", "note", "@hourly", stored=False, overlap="allow")
    with pytest.raises(InvalidInput, match="has stored=False"):
        await app.schedules.apply([app.schedules.define("s", "note", "@hourly", stored=False)])


async def test_declared_schedules_fall_back_to_memory_and_return(
    pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "duetime.events")
    ran: list[datetime] = []
    app = make_app(pg_url, ran, stored=True, schedule_fallback=True)
    async with app.worker():
        await until_true(lambda: len(ran) >= 2)
        await asyncio.to_thread(move_table, pg_url, "schedule", "schedule_away")
        broken = time.monotonic()
        await until_true(lambda: "schedule_fallback_started" in events_of(caplog))
        count = len(ran)
        await until_true(lambda: len(ran) >= count + 3)
        await asyncio.to_thread(move_table, pg_url, "schedule_away", "schedule")
        await until_true(lambda: "schedule_fallback_ended" in events_of(caplog))
        count = len(ran)
        await until_true(lambda: len(ran) >= count + 3)
    await app.close()

    assert time.monotonic() - broken < 30
    assert len(ran) == len(set(ran)), "a tick ran twice"


def move_table(url: str, name: str, to: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"alter table duetime.{name} rename to {to}".encode())
