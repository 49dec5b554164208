"""What is looked for and cannot be there: the same clear answer on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from duetime import Duetime
from duetime.errors import InvalidInput, ReminderNotFound, ScheduleNotFound
from tests.conftest import Backend
from tests.operating import pause_queue

Look = Callable[[Duetime, Any], Awaitable[Any]]

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


def _entity(name: Any) -> Any:
    return f"schedule:{name}" if isinstance(name, str) else name


BY_NAME: dict[str, Look] = {
    "jobs of a queue": lambda app, name: app.jobs.list(queue=name),
    "jobs of a task": lambda app, name: app.jobs.list(task=name),
    "jobs with a key": lambda app, name: app.jobs.list(key=name),
    "requeue a queue": lambda app, name: app.jobs.requeue_many(queue=name),
    "queue": lambda app, name: app.queues.get(name),
    "schedule": lambda app, name: app.schedules.get(name),
    "audit of a schedule": lambda app, name: app.schedules.audit(name),
    "pause a schedule": lambda app, name: app.schedules.pause(name),
    "resume a schedule": lambda app, name: app.schedules.resume(name),
    "trigger a schedule": lambda app, name: app.schedules.trigger(name),
    "reschedule a schedule": lambda app, name: app.schedules.reschedule(name, "1h"),
    "delete a schedule": lambda app, name: app.schedules.delete(name),
    "delete a preset": lambda app, name: app.schedules.presets.delete(name),
    "subject": lambda app, name: app.subjects.get(name),
    "complete a subject": lambda app, name: app.subjects.complete(name),
    "delete a subject": lambda app, name: app.subjects.delete(name),
    "skip an occurrence": lambda app, name: app.subjects.skip(name, MOMENT),
    "move an occurrence": lambda app, name: app.subjects.move(name, MOMENT, MOMENT),
    "restore an occurrence": lambda app, name: app.subjects.restore(name, MOMENT),
    "subjects of a scope": lambda app, name: app.subjects.list(scope=name),
    "reminders of a subject": lambda app, name: app.reminders.list(subject=name),
    "recipient": lambda app, name: app.recipients.get(name),
    "delete a recipient": lambda app, name: app.recipients.delete(name),
    "audit of anything": lambda app, name: app.audit.list(entity=_entity(name)),
}
NOT_NAMES = {"nothing": "", "NUL": "a\x00b", "a surrogate": "a\udcff", "a number": 7, "bytes": b"a"}
WITH_REASON: dict[str, Look] = {
    "cancel": lambda app, reason: app.jobs.cancel(1, reason=reason),
    "pause a queue": lambda app, reason: app.queues.pause("mail", reason=reason),
    "pause": lambda app, reason: app.schedules["daily"].pause(reason=reason),
    "trigger": lambda app, reason: app.schedules["daily"].trigger(reason=reason),
    "delete": lambda app, reason: app.schedules["daily"].delete(reason=reason),
}


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


@pytest.mark.parametrize("name", NOT_NAMES)
async def test_what_is_no_name_is_refused(app: Duetime, name: str) -> None:
    for look in BY_NAME.values():
        with pytest.raises(InvalidInput):
            await look(app, NOT_NAMES[name])


@pytest.mark.parametrize("reason", ["NUL", "a surrogate", "a number"])
async def test_what_is_no_reason_is_refused(app: Duetime, reason: str) -> None:
    await app.schedules.put("daily", "shop.send", "0 9 * * *")

    for change in WITH_REASON.values():
        with pytest.raises(InvalidInput, match="The reason"):
            await change(app, NOT_NAMES[reason])


async def test_a_key_longer_than_a_name_may_be_looked_for(app: Duetime) -> None:
    assert await app.jobs.list(key="schedule:" + "n" * 200 + ":2030") == []


async def test_what_was_stored_under_blanks_can_be_removed(app: Duetime) -> None:
    store = await app.store()
    await pause_queue(store, "  ", by="ann", reason="")

    paused = await app.queues.get("  ")
    await app.queues.resume("  ")

    assert paused.paused_by == "ann"
    assert await app.queues.list() == []
    with pytest.raises(ScheduleNotFound):
        await app.schedules["  "].delete()


async def test_deliveries_of_a_reminder_that_is_not_there(app: Duetime) -> None:
    with pytest.raises(ReminderNotFound, match="There is no reminder 999"):
        await app.reminders.deliveries(999)
