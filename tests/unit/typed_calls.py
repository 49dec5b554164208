"""Calls of the public API, right ones and wrong ones, for type checkers alone.

A comment says what is refused on its line: mypy and pyright must both name it there, or say that
no overload matches, and must accept every other line. `test_types.py` runs them.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_type

from duetime import (
    CallNext,
    Constant,
    Context,
    Digest,
    Duetime,
    Explanation,
    Flow,
    JobHandle,
    JobState,
    Reminder,
    Sent,
)
from duetime.channels.console import Console
from duetime.channels.email import Email
from duetime.channels.rabbitmq import RabbitMQ
from duetime.channels.webhook import Webhook

# The app and its settings

app = Duetime("sqlite:///typed.db", concurrency=5, lease=2.5, heartbeat="500ms", queues=["a", "b"])
Duetime(queues="a,b", poll=timedelta(seconds=1), retention={"completed": "1d"}, migrate=None)
Duetime(concurency=5)  # refused: concurency
Duetime(concurrency="five")  # refused: concurrency
Duetime(lease=["30s"])  # refused: lease
Duetime(retention={"compleeted": "1d"})  # refused: retention
Duetime(notify="maybe")  # refused: notify
Duetime(name="shop")  # refused: name

# Tasks


@app.task
async def plain(number: int) -> str:
    return str(number)


@app.task(queue="mail", priority=2, retry=Constant(5), timeout=10, expires="1h", keep_result=False)
async def mail(ctx: Context, to: str, *, copy: bool = False) -> None: ...


@app.task(quue="mail")  # refused: quue
async def wrong_queue() -> None: ...


@app.task(retry="60s")  # refused: retry
async def wrong_retry() -> None: ...


@app.task(timeout=[10])  # refused: timeout
async def wrong_timeout() -> None: ...


async def enqueue() -> None:
    job = await plain.enqueue(1)
    text: str = await job.result(timeout=5)
    number: int = await job.result()  # refused: str
    await plain.enqueue("one")  # refused: int
    await mail.enqueue("ann", copy=True)
    await mail.enqueue("ann", coppy=True)  # refused: coppy
    await mail.using(delay=1.5, key="k", on_conflict="reject", hold="1h").enqueue("ann")
    await mail.using(dellay=1.5).enqueue("ann")  # refused: dellay
    await mail.using(key="k", on_conflict="rejct").enqueue("ann")  # refused: rejct
    await mail.using(delay="5s").enqueue(5)  # refused: str
    await app.enqueue_many([mail.job("ann"), mail.using(queue="a").job("bob")])
    await app.enqueue_many([mail])  # refused: Task
    print(text, number)


# Calling a task, and its result


@app.task
def sync_task(number: int) -> date:
    return date(2026, 3, number)


@app.task(queue="mail")
async def async_task(number: int) -> Decimal:
    return Decimal(number)


async def results() -> None:
    day: date = sync_task(1)
    total: Decimal = await async_task(1)
    wrong_day: str = sync_task(1)  # refused: date
    wrong_total: str = await async_task(1)  # refused: Decimal
    async_task(1) + 1  # refused: Coroutine
    await async_task("one")  # refused: int
    sync_task(1).isoformat()
    handle: JobHandle[date] = await sync_task.enqueue(1)
    stored: date = app.sync(sync_task.enqueue_sync(1).result())
    wrong_handle: JobHandle[str] = await sync_task.enqueue(1)  # refused: JobHandle
    wrong_stored: Decimal = app.sync(sync_task.enqueue_sync(1).result())  # refused: date
    print(day, total, handle, stored, wrong_day, wrong_total, wrong_handle, wrong_stored)


# Hooks


@app.on_startup
async def start() -> None: ...


@app.on_shutdown
def stop() -> None: ...


@app.on_startup  # refused: LifeT
async def start_wrong(app: Duetime) -> None: ...


@app.middleware
async def around(ctx: Context, call_next: CallNext) -> object:
    print(ctx.args["to"])
    return await call_next()


@app.middleware  # refused: MiddlewareT
async def around_wrong(ctx: Context) -> object: ...


@app.on_error
def failed(ctx: Context, error: BaseException, will_retry: bool) -> None: ...


@app.on_error  # refused: ErrorT
async def failed_wrong(ctx: Context, error: str) -> None: ...


# Workers


async def work() -> None:
    async with app.worker(queues=["mail"], concurrency=2, lease="2s", name="w1"):
        pass
    async with app.worker(queue="mail"):  # refused: queue
        pass
    async with app.worker(concurrency="2"):  # refused: concurrency
        pass
    async with app.worker(database="sqlite:///other.db"):  # refused: database
        pass
    with app.worker_thread(grace=5, poll="1s"):
        pass
    with app.worker_thread(grce=5):  # refused: grce
        pass
    app.lifespan(worker=True, queues="mail")
    app.lifespan(wroker=True)  # refused: wroker


# What sends reminders


@app.on_reminder
async def send(reminder: Reminder) -> Sent:
    return Sent(external_id=reminder.key)


@app.on_reminder(timeout=30, max_attempts=5)
async def send_with_context(reminder: Reminder, ctx: Context) -> Sent:
    return Sent()


@app.on_reminder(timeuot=30)  # refused: timeuot
async def send_wrong(reminder: Reminder) -> Sent:
    return Sent()


@app.on_digest
async def send_digest(digest: Digest) -> Sent:
    return Sent()


app.add_channel(Console(), tries=3, rate="10/s", retry_for=3600, queue="mail")
app.add_channel(Console(), trys=3)  # refused: trys
app.add_channel("console")  # refused: Channel
app.template("soon", title="Soon", body="{{ data.title }}")
app.template("soon", text="…")  # refused: text
Webhook("https://example.org", secrets=["whsec_1"], timeout=5, allow_private=True)
Webhook("https://example.org", secret="whsec_1")  # refused: secret
Email("mail.example.org", sender="a@example.org", security="tls", timeout=30)
Email("mail.example.org", sender="a@example.org", security="ssl")  # refused: ssl
RabbitMQ("amqp://localhost", exchange="x", unroutable="retry", timeout=2.5)
RabbitMQ("amqp://localhost", unroutable="drop")  # refused: drop


async def receipts() -> None:
    await app.receipt("mail-1", "delivered", channel="email")
    await app.receipt("mail-1", "delivred")  # refused: delivred
    await app.receipt("mail-1", "sent")  # refused: sent
    await app.receipt("mail-1", "delivered", chanel="email")  # refused: chanel


# Schedules


@app.schedule("0 9 * * 1-5", tz="Europe/Berlin", catch_up="all", overlap="buffer_one", grace=30)
@app.schedule({"every": "10m"}, name="often", stored=False, expires=60, args={"number": 7})
@app.task
async def report(number: int = 1) -> None: ...


app.schedule("@daily", catchup="all")  # refused: catchup
app.schedule("@daily", catch_up="everything")  # refused: everything
app.schedule("@daily", overlap="skp")  # refused: skp
app.schedule("@daily", jitter=[5])  # refused: jitter
app.schedule("@daily", pause_after="3")  # refused: pause_after


async def schedule() -> None:
    await app.schedules.put("s", report, "@daily", pace="5s", after="other", within=3600, by="ann")
    await app.schedules.put("s", report, "@daily", timezone="UTC")  # refused: timezone
    await app.schedules.put("s", report, "@daily", max_runs="1")  # refused: max_runs
    await app.schedules["s"].pause(until="2h", reason="holiday", by="ann")
    await app.schedules["s"].pause(untill="2h")  # refused: untill
    await app.schedules["s"].history(status="fired", limit=5)
    await app.schedules["s"].history(status="fird")  # refused: fird
    app.schedules.define("s", "other.task", 60)  # refused: timedelta


# Jobs and queues


async def operate() -> None:
    await app.jobs.list(state="dead", queue="mail")
    await app.jobs.list(state=["dead", JobState.EXPIRED])
    await app.jobs.list(state="deed")  # refused: deed
    await app.jobs.list(state=["dead", "expird"])  # refused: expird
    await app.jobs.list(staet="dead")  # refused: staet
    await app.jobs.requeue_many(state="dead", by="ann")
    await app.jobs.cancel(7, resaon="old")  # refused: resaon
    await app.jobs.cancel(7, reason="old", by="ann", tx=None)
    await app.jobs.cancel(7, txn=None)  # refused: txn
    await app.jobs[7].reschedule(datetime.now(UTC), by="ann", tx=None)
    await app.jobs[7].reschedule("2h")  # refused: datetime
    await app.jobs[7].reprioritise(1, tx=None)
    await app.jobs[7].requeue(at=datetime.now(UTC), tx=None)
    await app.jobs.requeue(7, tranaction=None)  # refused: tranaction
    await app.queues["mail"].pause(reason="down", tx=None)
    await app.queues.resume("mail", bye="ann")  # refused: bye
    why: Explanation = await app.queues["mail"].explain()
    await app.queues.explain(7)  # refused: str
    print(why.code, why.sentence, why.facts, why.steps)
    await app.queues.limit("mail", rate=100, period=60)
    await app.queues.limit("mail", rat=100)  # refused: rat


# Subjects, scopes, recipients, reminders


async def remind() -> None:
    due = datetime.now(UTC)
    await app.scopes.put("guild:1", remind=["-1d at 09:00", {"rule": "-1h", "urgent": True}])
    await app.scopes.put("guild:1", lokced=True)  # refused: lokced
    wrong: str = await app.scopes["guild:1"].explain()  # refused: Explanation
    print((await app.subjects.explain("game")).code, wrong)
    print((await app.subjects["game"].explain()).sentense)  # refused: sentense
    await app.subjects.put("game", due=due, remind="-1h", recipients=["ann"], data={"title": "Go"})
    await app.subjects.put("game", repeats="0 9 * * 1", remind=[timedelta(hours=-1)])
    await app.subjects.put("game", repeats={"cron": "0 9 * * 1", "until": due})
    await app.subjects.put("game", due=due, rmind="-1h")  # refused: rmind
    await app.subjects.put("game", due=due, remind=1.5)  # refused: remind
    await app.recipients.put("ann", tz="UTC", channels={"email": "a@b.c"}, quiet="22:00-07:00")
    await app.recipients.put("ann", channels=["push", ("email", "a@b.c")], muted=True)
    await app.recipients.put("ann", chanels=["push"])  # refused: chanels
    await app.recipients.put("ann", channels=5)  # refused: channels
    await app.reminders.snooze(7, 600, by="ann")
    await app.reminders.snooze(7, span="10m", bye="ann")  # refused: bye
    await app.reminders.resend_many(status="expired", within=3600)
    await app.reminders.resend_many(status="sent")  # refused: sent
    await app.reminders.list(status="sent")
    await app.reminders.list(status="snet")  # refused: snet
    await app.subjects.list(status="open")
    await app.subjects.list(status="opne")  # refused: opne
    await app.subjects.import_ical(b"", scope="guild:1", dry_run=True)
    await app.subjects.import_ical(b"", dryrun=True)  # refused: dryrun


# Tables


async def track() -> None:
    await app.tables.put("games", id="id", due="starts_at", remind=["-1h"], when="open", by="ann")
    await app.tables.put("games", id="id", due="starts_at", scop="x")  # refused: scop
    await app.tables.put("games", due="starts")  # refused: id
    await app.tables.plan("games", id=["id"], due="starts_at", data=["title"])
    await app.tables.plan("games", id="id", due="starts_at", dta="x")  # refused: dta


# The testing kit


async def in_a_test() -> None:
    async with app.testing(now="2026-03-08T00:00Z", inline=True) as world:
        await world.advance(3600)
        await world.advance([3600])  # refused: list
        await world.assert_enqueued(mail, delay=60, args={"to": "ann"}, count=1)
        await world.assert_enqueued(mail, dely=60)  # refused: dely
        await world.assert_not_enqueued(mail, key="k")
        await world.assert_not_enqueued(mail, count=1)  # refused: count
    app.testing(inlien=True)  # refused: inlien


# Nouns and their handles


async def nouns() -> None:
    page = await app.jobs.list(state="dead", limit=10)
    cursor: str | None = page.next
    await app.jobs.list(after=cursor)
    await app.jobs.list(after=7)  # refused: after
    await app.jobs.list(before_id=7)  # refused: before_id
    async for job in app.jobs.iterate(state="dead", queue="mail"):
        print(job.id + 1)
    app.jobs.iterate(quue="mail")  # refused: quue
    print((await app.jobs[42].cancel(reason="withdrawn", by="ann")).finished)
    await app.jobs[42].cancel(resaon="withdrawn")  # refused: resaon
    app.jobs["42"]  # refused: int
    await app.queues["mail"].pause(by="ann")
    await app.queues["mail"].limit(runing=3)  # refused: runing
    await app.schedules["digest"].pause(reason="holiday", until="2h")
    await app.schedules["digest"].pause(untl="2h")  # refused: untl
    await app.schedules["digest"].history(status="fired", limit=5)
    await app.subjects["game:42"].complete(by="ann")
    await app.recipients["ann"].mute("all", by="ann")
    await app.reminders[7].snooze("10m")
    await app.reminders[7].snooze("10m", bye="ann")  # refused: bye
    await app.scopes["guild:1"].put(remind=["-1h"])
    await app.tables["games"].delete(by="ann")
    await app.audit.list(entity="job:42", by="ann")
    await app.audit.list(kind="jobb")  # refused: jobb


# Graphs

onboard = app.graph("onboard", timeout="30d")
app.graph("onboard", timeot="30d")  # refused: timeot


@onboard.step
async def create_account(email: str) -> int:
    return len(email)


@onboard.step(after=[create_account, "nap"], when=lambda create_account: create_account > 0)
def welcome(create_account: int) -> str:
    return str(create_account)


async def graphs() -> None:
    number: int = await create_account("a@b")
    text: str = welcome(create_account=number)
    welcome(creat_account=number)  # refused: creat_account
    onboard.sleep("nap", "1d", after=[create_account, welcome])
    onboard.sleep("nap", "1d", aftr=[welcome])  # refused: aftr
    onboard.signal("approved", timeout="7d", default=False)
    onboard.child("again", welcome)  # refused: FlowTask
    run = await onboard.using(key=text).start(email="a@b")
    result: dict[str, object] = await run.result()
    print(result["welcome"])
    await run.rerun(from_stp="welcome")  # refused: from_stp


# Flows


async def charge(order_id: int, *, note: str = "") -> Decimal:
    return Decimal(order_id)


def ship(order_id: int) -> date:
    return date(2026, 3, order_id)


@app.flow
async def invoice(flow: Flow, order_id: int) -> Decimal:
    return await flow.step(charge, order_id)


@app.flow(name="order", queue="orders", retry=Constant(5), retry_on=OSError, timeout="30d")
async def order(flow: Flow, order_id: int, note: str = "") -> date:
    assert_type(await flow.step(charge, order_id, note=note), Decimal)
    assert_type(await flow.step(ship, order_id), date)
    assert_type(await flow.step(async_task, order_id), Decimal)
    assert_type(await flow.step(async_task, order_id, on="gpu"), Decimal)
    assert_type(await flow.step(sync_task, order_id, on="gpu"), date)
    await flow.step(charge, "seven")  # refused: int
    await flow.step(charge, order_id, noet=note)  # refused: noet
    await flow.step(ship)  # refused: order_id
    wrong: str = await flow.step(ship, order_id)  # refused: date
    assert_type(await flow.map(charge, [1, 2]), list[Decimal])
    assert_type(await flow.map(ship, range(3), concurrency=2), list[date])
    assert_type(await flow.map(sync_task, [1], on="gpu"), list[date])
    await flow.map(ship, ["one"])  # refused: int
    await flow.map(ship, [1], concurency=2)  # refused: concurency
    assert_type(await flow.gather(flow.step(charge, 1), flow.step(ship, 1)), tuple[Decimal, date])
    assert_type(
        await flow.gather(*[flow.step(ship, number) for number in range(9)]), tuple[date, ...]
    )
    await flow.gather(7)  # refused: int
    assert_type(await flow.child(invoice, order_id), Decimal)
    await flow.child(invoice, "seven")  # refused: int
    await flow.child(invoice, order=order_id)  # refused: order
    await flow.child(async_task, order_id)  # refused: Startable
    assert_type(await flow.wait_for("approved", timeout="1d", default=False), bool)
    assert_type(await flow.wait_for("address", timeout="1d", default=None), Any)
    assert_type(await flow.wait_for("approved", correlation="order:7"), Any)
    await flow.wait_for("approved", timout="1d")  # refused: timout
    await flow.sleep(timedelta(days=3))
    await flow.sleep([3])  # refused: sleep
    flow.on_failure(charge, order_id, note=note)
    flow.on_failure(charge, "seven")  # refused: int
    assert_type(await flow.transaction(reserve, order_id), int)
    await flow.transaction(reserve, "seven")  # refused: int
    assert_type(await flow.now(), datetime)
    assert_type(await flow.version("stock"), bool)
    print(wrong)
    return await flow.step(ship, order_id)


async def reserve(connection: Any, order_id: int) -> int:
    return order_id


@app.flow(retires=Constant(5))  # refused: retires
async def wrong_option(flow: Flow) -> None: ...


@app.flow  # refused: Flow
async def without_flow(order_id: int) -> None: ...


@app.flow  # refused: Awaitable
def not_async(flow: Flow) -> int:
    return 7


async def runs() -> None:
    run = await order.start(7, note="gift")
    assert_type(await run.result(timeout="5s"), date)
    assert_type(await (await order.using(key="order:7", delay="1d").start(7)).result(), date)
    assert_type(app.sync(invoice.start_sync(7).result()), Decimal)
    await order.start("seven")  # refused: int
    await order.start(7, noet="gift")  # refused: noet
    await order.start()  # refused: order_id
    await order.using(key="order:7").start("seven")  # refused: int
    await order.using(kye="order:7").start(7)  # refused: kye
    await run.retry(by="ann")
    await run.retry(byy="ann")  # refused: byy
    await run.signal("approved", {"by": "ann"}, key="once")
    await run.signal(7)  # refused: str
    await run.cancel(resaon="old")  # refused: resaon
    await run.rerun(from_step="charge", by="ann")
    await app.flows.signal_all("approved", True, correlation="order:7")
    await app.flows.signal_all("approved", True)  # refused: correlation
    await app.flows.start("order", {"order_id": 7}, key="order:7")
    await app.flows.list(state=["failed", "waiting"], flow="order")
    await app.flows.list(state="faild")  # refused: faild
    app.flows["42"]  # refused: int
