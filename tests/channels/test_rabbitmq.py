"""Events on a real RabbitMQ: what arrives, what nobody takes, and a broker that goes away."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import msgspec
import pytest

from duetime.channels.channel import NotSent
from duetime.channels.rabbitmq import RabbitMQ
from duetime.errors import InvalidInput
from tests.channels.messages import message
from tests.channels.receivers import silent_port, take_all
from tests.integration.test_servers import is_running, wait_until
from tests.rabbitmq import RabbitMQServer
from tests.waiting import until_true

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def queue(rabbitmq: RabbitMQServer) -> AsyncIterator[aio_pika.abc.AbstractQueue]:
    """A queue of the test's own, bound to the exchange `reminders` for what is due."""
    connection = await aio_pika.connect(rabbitmq.url)
    async with connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("reminders", "topic", durable=True)
        queue = await channel.declare_queue("reminders-due", durable=True)
        await queue.bind(exchange, "reminder.#")
        await queue.purge()
        yield queue


@pytest.fixture
async def events(rabbitmq: RabbitMQServer) -> AsyncIterator[RabbitMQ]:
    channel = RabbitMQ(rabbitmq.url, exchange="reminders")
    yield channel
    await channel.close()


async def test_the_event_says_what_is_due(
    queue: aio_pika.abc.AbstractQueue, events: RabbitMQ
) -> None:
    sent = await events.send(message())

    [event] = await take_all(queue)
    assert sent.external_id == event.message_id == "dtr_4f1a"
    assert event.delivery_mode is aio_pika.DeliveryMode.PERSISTENT
    assert (event.content_type, event.type) == ("application/json", "reminder.due")
    assert event.headers == {"subject": "game:42", "recipient": "ann"}
    assert msgspec.json.decode(event.body) == {
        "subject": "game:42",
        "recipient": "ann",
        "rule": "-1h",
        "offset_minutes": 60,
        "due_at": "2026-03-06T14:00:00Z",
        "key": "dtr_4f1a",
        "data": {"place": "Café Central", "seats": 2},
    }


async def test_the_events_type_and_routing_key_may_be_ones_own(
    queue: aio_pika.abc.AbstractQueue, rabbitmq: RabbitMQServer
) -> None:
    await queue.bind("reminders", "game.*")
    channel = RabbitMQ(rabbitmq.url, exchange="reminders", event="game.reminder_due")

    await channel.send(message(address=None))
    await channel.send(message(address="reminder.other", event="reminder.digest"))
    await channel.close()

    events = [(event.routing_key, event.type) for event in await take_all(queue)]
    assert events == [
        ("game.reminder_due", "game.reminder_due"),
        ("reminder.other", "reminder.digest"),
    ]
    await queue.unbind("reminders", "game.*")
    with pytest.raises(InvalidInput, match="event"):
        RabbitMQ(rabbitmq.url, event="")


async def test_what_no_queue_takes_is_told_with_its_place(
    queue: aio_pika.abc.AbstractQueue, events: RabbitMQ
) -> None:
    with pytest.raises(NotSent) as failure:
        await events.send(message(address="invoice.due"))

    assert "'reminders'" in str(failure.value)
    assert "'invoice.due'" in str(failure.value)
    assert not failure.value.transient


@pytest.mark.parametrize("exchange", ["reminders", "nowhere"])
async def test_what_no_queue_takes_may_pass_if_so_configured(
    queue: aio_pika.abc.AbstractQueue, rabbitmq: RabbitMQServer, exchange: str
) -> None:
    channel = RabbitMQ(rabbitmq.url, exchange=exchange, unroutable="retry")

    with pytest.raises(NotSent) as failure:
        await channel.send(message(address="invoice.due"))

    assert failure.value.transient
    await channel.close()
    with pytest.raises(InvalidInput, match="unroutable must be"):
        RabbitMQ(rabbitmq.url, unroutable="ignore")  # type: ignore[arg-type]


async def test_the_same_key_at_once_is_told_for_each(
    queue: aio_pika.abc.AbstractQueue, events: RabbitMQ
) -> None:
    """Returned events are found by their message id: a second one must not hide the first."""
    outcomes = await asyncio.gather(
        *(events.send(message(address="invoice.due")) for _ in range(10)), return_exceptions=True
    )

    assert [type(outcome) for outcome in outcomes] == [NotSent] * 10


async def test_an_exchange_that_is_not_there_is_named(rabbitmq: RabbitMQServer) -> None:
    channel = RabbitMQ(rabbitmq.url, exchange="nowhere")
    for _ in range(2):
        with pytest.raises(NotSent, match="no exchange 'nowhere'") as failure:
            await channel.send(message())

        assert not failure.value.transient
    await channel.close()


async def test_a_wrong_password_may_be_mended_and_is_not_told(rabbitmq: RabbitMQServer) -> None:
    channel = RabbitMQ(rabbitmq.url.replace("guest@", "hunter2@"))

    with pytest.raises(NotSent) as failure:
        await channel.send(message())

    assert failure.value.transient
    assert "hunter2" not in str(failure.value)
    await channel.close()


@pytest.mark.parametrize("url", ["http://localhost/", "amqp://", "localhost", "amqp://host:port/"])
def test_a_url_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="URL"):
        RabbitMQ(url)


async def test_nobody_there_may_pass_and_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    channel = RabbitMQ("amqp://guest:guest@127.0.0.1:9/")

    with pytest.raises(NotSent) as failure:
        await channel.send(message())

    assert failure.value.transient
    await until_true(lambda: asyncio.all_tasks() == before)


async def test_silence_leaves_nothing_behind() -> None:
    async with silent_port() as port:
        before = asyncio.all_tasks()
        channel = RabbitMQ(f"amqp://guest:guest@127.0.0.1:{port}/", timeout="100ms")

        with pytest.raises(NotSent):
            await channel.send(message())

        await until_true(lambda: asyncio.all_tasks() == before)


async def test_a_broker_that_dies_loses_nothing(
    rabbitmq: RabbitMQServer, queue: aio_pika.abc.AbstractQueue
) -> None:
    """At least once, across a crash: duplicates have the message id of their original."""
    channel = RabbitMQ(rabbitmq.url, exchange="reminders", timeout="2s")
    sent: list[str] = []
    failures: list[NotSent] = []

    async def send(key: str) -> None:
        """As a worker does: the same message again, until it is accepted."""
        while True:
            try:
                await channel.send(message(key=key))
            except NotSent as failure:
                failures.append(failure)
                await asyncio.sleep(0.1)
            else:
                sent.append(key)
                return

    async def keep_sending(sender: int) -> None:
        for number in range(30):
            await send(f"{sender}:{number}")

    sending = [asyncio.create_task(keep_sending(sender)) for sender in range(30)]
    await until_true(lambda: len(sent) > 200)
    await asyncio.to_thread(rabbitmq.stop, "kill")
    await until_true(lambda: len(failures) > 0)
    await asyncio.to_thread(rabbitmq.start)
    await asyncio.wait_for(asyncio.gather(*sending), 30)
    await channel.close()

    async with await aio_pika.connect(rabbitmq.url) as connection:
        again = await (await connection.channel()).get_queue("reminders-due")
        events = await take_all(again)
    ids = Counter(event.message_id for event in events)
    assert len(sent) == len(set(sent)) == 900
    assert set(ids) == set(sent)
    assert all(failure.transient for failure in failures)
    bodies = {(event.message_id, event.body) for event in events}
    assert len(bodies) == len(ids), "a repetition says the same"


def test_killed_owner_leaves_no_broker_and_no_files(rabbitmq: RabbitMQServer) -> None:
    program = (
        "import time; from tests.rabbitmq import RabbitMQServer; s = RabbitMQServer();"
        "s._wait_for = lambda *_: None; s.start();"
        "print(s.home, s._process.pid, s._epmd.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    home, broker, epmd = owner.stdout.readline().split()

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    wait_until(lambda: not Path(home).exists())
    wait_until(lambda: not is_running(int(broker)))
    wait_until(lambda: not is_running(int(epmd)))
