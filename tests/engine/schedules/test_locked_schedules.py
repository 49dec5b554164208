"""A schedule that another transaction has locked: another worker's, or a person's long change."""

from __future__ import annotations

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


async def _more(recorded: Callable[[], Awaitable[int]], than: int) -> bool:
    return await recorded() > than
