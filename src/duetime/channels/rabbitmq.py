"""RabbitMQ: publishes an event, and waits until the broker has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from duetime.channels.channel import DUE, Message, NotSent, Sent, digest, encode, facts_of
from duetime.domain.checks import check_name
from duetime.domain.duration import Duration, format_duration, parse_positive_duration
from duetime.domain.urls import show_url
from duetime.errors import InvalidInput

try:
    import aio_pika
    import yarl
    from aio_pika import exceptions
    from aiormq.exceptions import ChannelAccessRefused
except ImportError as error:
    raise ImportError(
        "The RabbitMQ channel requires an extra package: pip install 'duetime[rabbitmq]'."
    ) from error

_MAX_NAME_LENGTH = 255  # Bytes of a short string in AMQP.
_HEARTBEAT_SECONDS = "10"  # A connection that died silently is noticed after two of them.
# Too large, no right to publish there.
_LASTING = (
    exceptions.ChannelPreconditionFailed,
    ChannelAccessRefused,
)


class RabbitMQ:
    """Publishes the message's facts as JSON, persistent, with its key as the message id.

    It goes to `exchange`, under the recipient's address as the routing key, or under `routing_key`
    if it has none; by default that is `event`, the event type of reminders. Sent means
    that the broker has confirmed it, and that a queue holds it. An answer that is lost leaves it
    unknown: a repetition has the same message id.

    An event that no queue takes, or whose exchange is not there, is a failure that lasts. With
    `unroutable="retry"` it may pass: for brokers whose exchanges and queues come and go.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "",
        event: str = DUE,
        routing_key: str | None = None,
        unroutable: Literal["fail", "retry"] = "fail",
        name: str = "rabbitmq",
        timeout: Duration = "10s",
    ) -> None:
        if unroutable not in ("fail", "retry"):
            raise InvalidInput(f"unroutable must be 'fail' or 'retry', got {unroutable!r:.60}.")
        self.name = name
        self._retries_unroutable = unroutable == "retry"
        self._url = _read_url(url)
        self._exchange = exchange
        self._event = check_name(event, what="event")
        self._routing_key = event if routing_key is None else routing_key
        self._timeout = parse_positive_duration(timeout, name="timeout")
        self._connecting = asyncio.Lock()
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channel: aio_pika.abc.AbstractChannel | None = None
        self._turns: dict[str, asyncio.Lock] = {}

    async def send(self, message: Message) -> Sent:
        """Publish it, and wait until the broker has confirmed it."""
        identity = message.key
        if len(identity.encode()) > _MAX_NAME_LENGTH:
            identity = digest(identity)
        event = aio_pika.Message(
            encode(facts_of(message)),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=identity,
            type=self._event if message.event == DUE else message.event,
            app_id="duetime",
            headers={"subject": message.subject, "recipient": message.recipient},
        )
        try:
            async with asyncio.timeout(self._timeout.total_seconds()), self._turn(identity):
                await self._publish(event, message.address or self._routing_key)
        except TimeoutError:
            raise NotSent(
                f"RabbitMQ at {self._url.host} did not confirm the event within "
                f"{format_duration(self._timeout)}.",
                transient=True,
            ) from None
        return Sent(identity)

    async def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _publish(self, event: aio_pika.Message, routing_key: str) -> None:
        place = f"exchange {self._exchange or 'default'!r} with the routing key {routing_key!r}"
        try:
            channel = await self._open()
            exchange = await channel.get_exchange(self._exchange, ensure=False)
            await exchange.publish(event, routing_key, mandatory=True)
        except exceptions.PublishError as error:
            raise NotSent(
                f"No queue is bound to the {place}. Bind one, or correct the exchange and the "
                "routing key.",
                transient=self._retries_unroutable,
            ) from error
        except exceptions.DeliveryError as error:
            raise NotSent(
                f"RabbitMQ rejected the event for the {place}.", transient=True
            ) from error
        except exceptions.ChannelClosed as error:
            raise NotSent(
                f"RabbitMQ does not accept events for the {place}: {error}.",
                transient=self._may_pass(error),
            ) from error
        except ValueError as error:
            raise NotSent(f"The {place} cannot be used: {error}.", transient=False) from error
        except (exceptions.AMQPError, OSError, RuntimeError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NotSent(
                f"RabbitMQ at {self._url.host}: {type(error).__name__}: {error}.", transient=True
            ) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: the library cancels what waits on a connection that it lost.
            raise NotSent("RabbitMQ closed the connection.", transient=True) from error

    def _may_pass(self, error: Exception) -> bool:
        if isinstance(error, exceptions.ChannelNotFoundEntity):
            return self._retries_unroutable
        return not isinstance(error, _LASTING)

    async def _open(self) -> aio_pika.abc.AbstractChannel:
        """The channel; after it was closed, by an error or with the broker, a new one."""
        async with self._connecting:
            if self._channel is not None and not self._channel.is_closed:
                return self._channel
            await self.close()
            self._connection = await aio_pika.connect(self._url)
            self._channel = await self._connection.channel(
                publisher_confirms=True, on_return_raises=True
            )
            return self._channel

    @asynccontextmanager
    async def _turn(self, identity: str) -> AsyncIterator[None]:
        """One at a time under one message id, by which the library finds what was returned."""
        lock = self._turns.setdefault(identity, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._turns.pop(identity, None)


def _read_url(text: str) -> yarl.URL:
    try:
        url = yarl.URL(text)
    except ValueError:
        # Not what the library says: it quotes the password.
        raise InvalidInput(
            "The RabbitMQ URL cannot be parsed. Write amqp://user:password@host:port/vhost, and "
            "percent-encode special characters in the user name and the password."
        ) from None
    if url.scheme not in ("amqp", "amqps") or not url.host:
        raise InvalidInput(
            "The RabbitMQ URL must begin with amqp:// or amqps:// and contain a host, got "
            f"{show_url(text)}."
        )
    return url.update_query({"heartbeat": _HEARTBEAT_SECONDS, **url.query})
