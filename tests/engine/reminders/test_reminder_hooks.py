"""Hooks hold for every job: also for those of reminders and schedules."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from duetime import CallNext, Constant, Context, Duetime, Reminder, Sent
from duetime.domain.reminders.reminder import REMIND_TASK
from tests.conftest import Backend

START = datetime(2026, 3, 8, tzinfo=UTC)


async def test_middleware_errors_and_log_labels_reach_reminders_and_schedules(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = Duetime(backend.url)
    told: list[tuple[str, ...]] = []

    @app.middleware
    async def watch(ctx: Context, call_next: CallNext) -> object:
        told.append(("before", ctx.job.task))
        result = await call_next()
        told.append(("after", ctx.job.task))
        return result

    @app.on_error
    async def report(ctx: Context, error: BaseException, will_retry: bool) -> None:
        told.append(("failed", ctx.job.task, str(error)))

    @app.on_reminder(retry=Constant("1m"))
    async def send(reminder: Reminder, ctx: Context) -> Sent:
        logging.getLogger("shop").info("sending")
        if ctx.attempt == 1:
            raise ConnectionError("no line")
        return Sent()

    @app.schedule("0 1 * * *", name="daily")
    @app.task(name="daily")
    async def daily() -> None: ...

    async with app.testing(now=START) as world:
        await app.subjects.put(
            "game", due=START + timedelta(hours=1), remind="-30m", recipients=["ann"]
        )
        await world.advance("90m")
        completed = [ran.task for ran in world.completed]
    await app.close()

    assert completed == [REMIND_TASK, "daily"]
    assert told == [
        ("before", REMIND_TASK),
        ("failed", REMIND_TASK, "no line"),
        ("before", REMIND_TASK),
        ("after", REMIND_TASK),
        ("before", "daily"),
        ("after", "daily"),
    ]
    labels = [r.__dict__["duetime_task"] for r in caplog.records if r.getMessage() == "sending"]
    assert labels == [REMIND_TASK, REMIND_TASK]
