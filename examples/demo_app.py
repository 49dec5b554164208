"""The tasks of the demo: an app as you would write your own. `demo.py` tells the story."""

import asyncio

from duetime import Constant, Context, Duetime, Reminder, Sent

# DUETIME_DATABASE says where. A demo is impatient: a dead worker is noticed after 2 s, not 30 s.
app = Duetime(lease="2s")


@app.task
async def remind(text: str) -> str:
    return text


@app.task(retry=Constant("700ms", max_attempts=5))
async def charge(ctx: Context, order: int) -> str:
    if ctx.attempt < 3:
        raise ConnectionError("the payment provider does not answer")
    return f"order {order} is paid"


@app.task(queue="reports")
async def build_report(ctx: Context, month: str) -> str:
    if ctx.attempt == 1:
        await asyncio.sleep(600)  # Long enough to be killed in the middle.
    return f"the report for {month}"


@app.task
async def export_everything() -> None:
    await asyncio.sleep(600)


@app.on_reminder
async def tell_players(reminder: Reminder) -> Sent:
    return Sent(external_id=f"message-{reminder.id}")
