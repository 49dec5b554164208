"""What a channel knows in secret is in no error, no `repr` and no log line, at any level."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from duetime.channels.apprise import Apprise
from duetime.channels.channel import Channel, NotSent
from duetime.channels.email import Email
from duetime.channels.rabbitmq import RabbitMQ
from duetime.channels.webhook import Webhook
from duetime.errors import InvalidInput
from tests.channels.messages import message

SECRET = "hunter2"
TOKEN = SECRET * 5
SIGNING = "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="


def brokers() -> list[str]:
    return [
        f"amqp://ann:{SECRET}@127.0.0.1:1/",
        f"amqp://ann:{SECRET}%zz@127.0.0.1:1/",
        f"amqp://ann:{SECRET}/x@127.0.0.1:1/",
        f"amqp://ann:a@{SECRET}@127.0.0.1:1/",
        f"amqp://ann:[{SECRET}@127.0.0.1",
        f"amqp://ann:{SECRET}\u2100@127.0.0.1:1/",
        f"mqtt://ann:{SECRET}@host",
        f"host=127.0.0.1 password={SECRET}",
    ]


def services() -> list[str]:
    return [
        f"json://ann:{SECRET}@127.0.0.1:1/{SECRET}",
        f"ntfy://ann:{SECRET}@127.0.0.1:1/{SECRET}",
        f"slack://{SECRET}",
        f"nonsense://{SECRET}",
        f"json://ann:{SECRET}%zz@[127.0.0.1",
        f"jsons://127.0.0.1:1/bot{TOKEN}/sendMessage",
    ]


def webhook(url: str | None = None) -> Webhook:
    return Webhook(
        url, secrets=[SIGNING], headers={"authorization": SECRET}, allow_private=True, ports={1}
    )


CHANNELS: list[tuple[str, Callable[[], Channel], str | None]] = [
    *((url, lambda url=url: RabbitMQ(url), None) for url in brokers()),
    *((url, lambda url=url: Apprise(url, timeout="5s"), None) for url in services()),
    *((url, lambda: Apprise(schemas=["json"], timeout="5s"), url) for url in services()[:2]),
    (
        "email",
        lambda: Email("127.0.0.1", port=1, sender="a@example.com", username="ann", password=SECRET),
        "ann@example.com",
    ),
    ("webhook", lambda: webhook(f"http://127.0.0.1:1/{SECRET}?token={SECRET}"), None),
    ("webhook to", webhook, f"http://ann:{SECRET}/x@127.0.0.1:1/"),
    ("a webhook's secret", lambda: Webhook(secrets=[f"whsec_{SECRET}"]), None),
    ("a webhook's header", lambda: Webhook(secrets=[SIGNING], headers={"a b": SECRET}), None),
]


@pytest.mark.parametrize(("make", "address"), [c[1:] for c in CHANNELS], ids=range(len(CHANNELS)))
async def test_nothing_shows_a_secret(
    make: Callable[[], Channel], address: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []

    try:
        channel = make()
        shown.append(repr(channel))
        with pytest.raises(NotSent) as failure:
            await channel.send(message(address=address))
        shown.append(str(failure.value))
        await channel.close()
    except InvalidInput as error:
        shown.append(str(error))

    assert shown
    assert not [text for text in [*shown, caplog.text] if SECRET in text]


def test_a_refused_broker_shows_its_scheme() -> None:
    with pytest.raises(InvalidInput, match=r"got mqtt://…@host"):
        RabbitMQ(f"mqtt://ann:{SECRET}@host")
