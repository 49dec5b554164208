"""A mark tells whether anything has changed, without reading what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from duetime import Duetime
from tests.conftest import Backend
from tests.waiting import until


async def test_every_kind_of_change_changes_the_mark(backend: Backend) -> None:
    app = Duetime(backend.url)

    @app.task
    async def greet() -> None: ...

    job = await greet.using(delay="1h").enqueue()
    due = await app.now() + timedelta(days=1)

    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "job": lambda: app.jobs.cancel(job.id),
        "queue": lambda: app.queues.pause("mail"),
        "schedule": lambda: app.schedules.put("nightly", greet, "0 2 * * *"),
        "subject": lambda: app.subjects.put("game:1", due=due, remind=["-1h"]),
        "recipient": lambda: app.recipients.put("ann", quiet="22:00-07:00"),
    }
    for change in changes.values():
        before = await app.stats.change_mark()
        await change()

        async def differs(before: object = before) -> bool:
            return bool(await app.stats.change_mark() != before)

        await until(differs)
    await app.close()


async def test_reading_does_not_change_the_mark(backend: Backend) -> None:
    app = Duetime(backend.url)
    await app.queues.pause("mail")
    last: object = None

    async def settled() -> bool:
        nonlocal last
        before, last = last, await app.stats.change_mark()
        await asyncio.sleep(0.2)
        return bool(before == last)

    await until(settled)
    await app.queues.list()
    await app.stats.now()

    assert await app.stats.change_mark() == last
    await app.close()
