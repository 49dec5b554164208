"""A reminder whose handler starts a flow, in the transaction that records the send."""

from __future__ import annotations

from datetime import UTC, datetime

from duetime import Constant, Context, Duetime, Flow, Reminder

NOW = "2026-03-08T08:00Z"
DUE = datetime(2026, 3, 9, 8, tzinfo=UTC)


async def test_a_reminder_starts_a_run_once_however_often_its_handler_runs(app: Duetime) -> None:
    collected: list[str] = []
    attempts: list[str] = []

    @app.flow(name="collect")
    async def collect(flow: Flow, invoice: str) -> str:
        paid = await flow.wait_for("paid", timeout="3d", default=False)
        collected.append(invoice)
        return "paid" if paid else "overdue"

    @app.on_reminder(retry=Constant("1m", max_attempts=3))
    async def begin(reminder: Reminder, ctx: Context) -> None:
        attempts.append(ctx.key)
        async with ctx.transaction() as connection:
            start = collect.using(key=reminder.key, tx=connection).start
            await start(invoice=reminder.subject)
            if len(attempts) == 1:
                raise RuntimeError("the first attempt fails after the start")

    async with app.testing(now=NOW) as world:
        await app.subjects.put("invoice:7", due=DUE, remind=["-1h", "+1h"])
        await world.advance("23h30m")
        [first] = await app.flows.list()
        [reminder] = await app.reminders.list(subject="invoice:7", status="sent")
        assert len(attempts) == 2
        assert (first.state, first.key) == ("waiting", reminder.key)

        # Each reminder of the subject starts a run of its own.
        await world.advance("3h")
        assert len(await app.flows.list()) == 2
        await app.flows[first.id].signal("paid", True)
        await world.advance("4d")
        results = [await app.flows[run.id].result() for run in await app.flows.list()]

    assert sorted(results) == ["overdue", "paid"]
    assert collected == ["invoice:7"] * 2
