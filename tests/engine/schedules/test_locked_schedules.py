"""A schedule that another transaction has locked: another worker's, or a person's long change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import psycopg

from duetime import Context, Duetime
from tests.waiting import until, until_true


async def test_a_locked_schedule_keeps_no_other_schedule_waiting(
    pg_app: Duetime, pg_url: str
) -> None:
    """Two ticks are armed ahead. What follows them is planned by a transaction that locks the
    schedules of many runs: it must leave out the one that is locked."""
    ran: Counter[str] = Counter()

    @pg_app.task(name="note")
    async def note(name: str, ctx: Context) -> None:
        ran[name] += 1

    names = ("free", "locked")
    await pg_app.schedules.apply(
        pg_app.schedules.define(name, note, "* * * * * *", args={"name": name}, overlap="allow")
        for name in names
    )

    async def recorded() -> int:
        return sum(row.succeeded is True for row in await pg_app.schedules["locked"].history())

    async with pg_app.worker():
        await until_true(lambda: ran["locked"] and ran["free"])
        async with await psycopg.AsyncConnection.connect(pg_url) as other:
            await other.execute("select from duetime.schedule where name = 'locked' for update")
            before = ran["free"]
            await until_true(lambda: ran["free"] >= before + 5)
            most_while_locked = ran["locked"]
        await until_true(lambda: ran["locked"] > most_while_locked)
        at_release = await recorded()
        await until(lambda: _more(recorded, at_release))

    assert ran["free"] >= before + 5


async def test_a_worker_does_not_wait_for_a_schedule_that_was_deleted_while_it_was_locked(
    pg_app: Duetime, pg_url: str
) -> None:
    """What follows a run that has just begun could not be written yet."""
    ran: list[int] = []

    @pg_app.task(name="note")
    async def note() -> None:
        ran.append(1)

    await pg_app.schedules.put("gone", note, "* * * * * *", overlap="allow")
    async with asyncio.timeout(20):
        async with pg_app.worker(grace="30s"):
            await until_true(lambda: ran)
            async with await psycopg.AsyncConnection.connect(pg_url) as other:
                await other.execute("select from duetime.schedule where name = 'gone' for update")
                before = len(ran)
                await until_true(lambda: len(ran) > before)
                await pg_app.schedules["gone"].delete(tx=other)

    assert await pg_app.schedules.list() == []


async def _more(recorded: Callable[[], Awaitable[int]], than: int) -> bool:
    return await recorded() > than
