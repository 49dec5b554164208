"""Calls of the public API, right ones and wrong ones, for type checkers alone.

A comment says what is refused on its line: mypy and pyright must both name it there, or say that
no overload matches, and must accept every other line. `test_types.py` runs them.
"""

from __future__ import annotations

from datetime import timedelta

from duetime import Constant, Context, Digest, Duetime, Reminder, Sent
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
