"""What is Duetime's own, no application takes: tasks, keys of runs, jobs of reminders."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from duetime import Duetime, Reminder, Sent
from duetime.domain.jobs.job import JobState, NewJob
from duetime.errors import InvalidInput
from tests.engine.jobs.test_worker import reaches


def test_a_task_cannot_take_the_name_of_one_of_ours(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match="reserved"):
        app.task(name="duetime.remind")


def test_a_key_of_a_run_cannot_be_taken(app: Duetime) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match="reserved"):
        work.using(key="tick:nightly@2026-11-16T03:00:00Z")


async def test_a_schedule_cannot_run_a_task_of_ours(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match="reserved"):
        await app.schedules.put("sly", "duetime.remind", "* * * * *", args={"reminder": 1})


@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
async def test_a_job_that_is_not_the_reminders_own_sends_nothing(app: Duetime) -> None:
    sent: list[int] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        sent.append(reminder.id)
        return Sent()

    due = await app.now() + timedelta(days=1)
    await app.subjects.put("game:1", due=due, recipients=["ann"], remind=["-1h"])
    [reminder] = await app.reminders.list(subject="game:1")
    async with app.worker():
        body = msgspec.Raw(msgspec.json.encode({"reminder": reminder.id}))
        [forged] = await (await app.store()).enqueue([NewJob(task="duetime.remind", args=body)])
        await reaches(app, forged.job_id, JobState.CANCELLED)

    info = await app.jobs.get(forged.job_id)
    assert sent == []
    assert f"is sent by job {reminder.job_id}" in (info.error or "")
