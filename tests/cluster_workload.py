"""The application of `tests.workload`, with a tick each second and reminders, for workers before a
cluster that fails over."""

from __future__ import annotations

import asyncio
import sys
import time

from duetime import Constant, Context, Reminder, Sent
from tests import ledger
from tests.workload import app, effect_sql, work

SENT = "sent"


@app.schedule(
    "* * * * * *", name="each_second", catch_up="all", overlap="allow", burst_allowed=True
)
@app.task(name="tick", retry=Constant("0s", max_attempts=200))
async def tick(ctx: Context) -> None:
    """Leave an effect whose number is the tick's second, negative."""
    assert ctx.tick is not None
    async with ctx.transaction() as connection:
        values = (-int(ctx.tick.timestamp()), ctx.id, ctx.token, ctx.worker, time.time())
        await connection.execute(effect_sql(connection), values)


@app.on_reminder(retry=Constant("0s", max_attempts=200))
async def send(reminder: Reminder) -> Sent:
    """Leave a line in the ledger, which is outside of the database."""
    ledger.write(SENT, int(reminder.subject.partition(":")[2]), "reminder")
    return Sent(external_id=reminder.subject)


if __name__ == "__main__":
    asyncio.run(work(**dict(argument.split("=", 1) for argument in sys.argv[1:])))
