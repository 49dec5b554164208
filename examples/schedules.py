"""Schedules: on time, with a ledger that says why not. `python examples/schedules.py`."""

import asyncio

from duetime import Context, Duetime

app = Duetime()  # DUETIME_DATABASE, or else sqlite:///duetime.db


@app.schedule("* * * * * *", name="pulse")  # six fields: every second
@app.task
async def pulse(ctx: Context) -> None:
    late = await app.now() - ctx.tick
    print(f"pulse of {ctx.tick:%H:%M:%S}, {late.total_seconds() * 1000:.0f} ms after its time")


@app.schedule("0 9 * * 1-5", name="digest", tz="America/New_York")
@app.task
async def digest(ctx: Context) -> None: ...


async def main() -> None:
    async with app.worker():  # it stores what is declared above
        await asyncio.sleep(3)
        await app.schedules["pulse"].pause(reason="enough", by="the example")
        print("\nThe next digests, in New York:")
        for row in await app.schedules["digest"].preview(3):
            print(" ", row.local.strftime("%a %d %b %H:%M"), "=", row.at.strftime("%H:%M UTC"))
        print()
        for name in ("pulse", "digest"):
            print((await app.schedules[name].explain()).sentence)
        ran = await app.schedules["pulse"].history(status="fired")
        print(f"\nThe ledger has {len(ran)} pulses; the last one was job {ran[0].job_id}.")
        for schedule in await app.schedules.list():
            await app.schedules[schedule.name].delete()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
