"""A tea shop with something on every page of the dashboard: `python examples/demo_service.py`.

It lives through an hour in a few seconds, with the clock of the testing kit, and then serves the
dashboard and runs jobs until Ctrl-C. The database is DUETIME_DATABASE, or else duetime.db in the
current folder; one that has jobs is served as it is. `make demo` ends with this.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

import msgspec

from duetime import Constant, Context, Discard, Duetime, Flow, Reminder, Sent

# No worker serves the queue "gpu".
app = Duetime(queues=["default", "orders", "mail", "photos"], grace="1s", migrate=True)
log = logging.getLogger("shop")


# Jobs


@app.schedule("*/20 * * * * *", name="orders")  # six fields: every 20 seconds
@app.task(queue="orders")
async def take_order(ctx: Context) -> int:
    order = int(ctx.tick.timestamp()) // 20 % 1000
    await charge_card.using(key=f"charge:{order}").enqueue(order=order)
    await send_mail.enqueue(to=f"guest-{order % 7}@example.org", subject=f"Order {order}")
    return order


@app.task(queue="orders", retry=Constant("2s", max_attempts=3))
async def charge_card(ctx: Context, order: int) -> str:
    log.info("charging order %d", order)
    if order % 25 == 13:
        raise PermissionError(f"the card of order {order} is blocked")
    if order % 5 == 2 and ctx.attempt == 1:
        raise ConnectionError("the payment provider does not answer")
    return f"payment-{order}"


@app.task(queue="mail")
async def send_mail(to: str, subject: str) -> None: ...


@app.task(queue="photos")
async def resize_photo(photo: str) -> None: ...


@app.task(queue="gpu")
async def predict_demand(month: str) -> None: ...


@app.task
async def import_prices(ctx: Context, rows: int = 5000) -> None:
    for done in range(0, rows, 10):
        await ctx.progress({"done": done, "of": rows})
        await asyncio.sleep(1)


# Schedules


@app.schedule("* * * * *", name="stock")
@app.task
async def count_stock(ctx: Context) -> int:
    if ctx.tick.minute % 20 == 7:
        raise Discard("the scales are not connected")
    return 400 - ctx.tick.minute


@app.schedule("30 2 * * *", name="nightly-report", tz="Europe/Berlin")
@app.task
async def build_report(ctx: Context) -> None: ...


@app.schedule("0 9 * * 1-5", name="digest", tz="America/New_York")
@app.task
async def send_digest(ctx: Context) -> None: ...


# Flows


class Payment(msgspec.Struct):
    id: str
    amount: int


async def charge(order: int, amount: int) -> Payment:
    return Payment(f"payment-{order}", amount)


async def refund(payment: Payment) -> None: ...


async def ship(order: int) -> str:
    return f"parcel-{order}"


@app.flow(timeout="30d")
async def large_order(flow: Flow, order: int, amount: int) -> str:
    payment = await flow.step(charge, order, amount)
    flow.on_failure(refund, payment)
    approved: bool = await flow.wait_for("approved", timeout="7d", default=False)
    if not approved:
        raise Discard("it was declined")
    return await flow.step(ship, order)


wedding = app.graph("wedding", timeout="30d")


@wedding.step
async def reserve(guests: int) -> int:
    return guests * 3


@wedding.map(over="teas", after=[reserve])
async def blend(tea: str) -> str:
    return f"a tin of {tea}"


wedding.signal("tasted", timeout="14d", default=False)


@wedding.step
async def deliver(blend: list[str], tasted: bool) -> str:
    return f"{len(blend)} tins"


# Reminders


@app.on_reminder
async def tell_guest(reminder: Reminder) -> Sent:
    return Sent(external_id=f"message-{reminder.id}")


async def put_reminders() -> None:
    now = await app.now()
    await app.recipients.put(
        "ann", tz="Europe/Berlin", quiet="22:00-07:00", max_per_hour=30, by="ann"
    )
    await app.recipients.put("bob", tz="Asia/Tokyo", quiet="21:00-08:00", by="bob")
    await app.recipients.put("cleo", tz="America/New_York", muted=["scope:courses"], by="cleo")
    await app.scopes.put("shop", remind=["-1d", "-10m"], by="ann")
    await app.scopes.put("tastings", parent="shop", by="ann")
    await app.scopes.put("courses", parent="shop", remind=["-1h"], by="bob")
    guests = ["ann", "bob", "cleo"]
    for number in range(12):
        await app.subjects.put(
            f"tasting:{number + 1}",
            due=now + timedelta(minutes=11 * number + 15),
            scope="tastings",
            recipients=guests[: number % 3 + 1],
            data={"title": ("Green tea", "Black tea", "White tea", "Oolong")[number % 4]},
            by="ann",
        )
    await app.subjects.put(
        "course:tea-ceremony",
        repeats="0 18 * * 2",
        tz="Asia/Tokyo",
        scope="courses",
        recipients=["bob", "cleo"],
        by="bob",
    )


async def change_reminders() -> None:
    """A guest's tasting moves, and one is called off."""
    moved = await app.subjects.get("tasting:9")
    await app.subjects.put(
        "tasting:9",
        due=await app.now() + timedelta(hours=30),
        scope="tastings",
        recipients=moved.recipients,
        data={"title": "Green tea"},
        by="bob",
    )
    await app.subjects.complete("tasting:10", reason="the room is flooded", by="ann")


# An hour


async def fill(app: Duetime) -> None:
    """Let the shop live through the last hour, unless there are jobs already."""
    if await app.jobs.list(limit=1):
        return
    start = await app.now() - timedelta(hours=1)
    async with app.testing(now=start, isolated=False) as world:
        await put_reminders()
        declined = await large_order.start(order=1001, amount=900)
        shipped = await large_order.start(order=1002, amount=450)
        await large_order.start(order=1003, amount=700)
        tasted = await wedding.start(guests=40, teas=["oolong", "assam"])
        await wedding.start(guests=120, teas=["sencha", "darjeeling", "earl grey"])
        await world.advance("20m")
        await declined.signal("approved", False, by="ann")
        await shipped.signal("approved", True, by="ann")
        await tasted.signal("tasted", True, by="bob")
        await world.advance("30m")
        await app.queues.pause("photos", reason="the disk is nearly full", by="ann")
        await app.queues.limit("mail", rate=60, period="1m", by="bob")
        for photo in range(8):
            await resize_photo.enqueue(photo=f"cup-{photo}.jpg")
        await change_reminders()
        await world.advance("10m")
    await app.schedules.pause(
        "digest", reason="the mailing list moves to another provider", by="bob"
    )
    # Now: a world's own worker would run these at once.
    await predict_demand.using(at=await app.now() - timedelta(minutes=15)).enqueue(month="December")
    await import_prices.enqueue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill a database and serve its dashboard.")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    port = parser.parse_args().port
    # Failures are what the dashboard is there to show: not in the terminal, too.
    logging.getLogger("duetime").addHandler(logging.NullHandler())
    with suppress(KeyboardInterrupt):
        app.sync(fill(app))
        app.serve(port=port, greet=lambda address: print(f"Duetime is at {address}", flush=True))


if __name__ == "__main__":
    main()
