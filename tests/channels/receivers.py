"""Receivers of messages, real ones, with the moods that a channel has to live with."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, Protocol

import aio_pika

from duetime.channels.apprise import Apprise
from duetime.channels.channel import Channel
from duetime.channels.console import Console, Log
from duetime.channels.email import Email
from duetime.channels.rabbitmq import RabbitMQ
from duetime.channels.webhook import Webhook
from tests.channels.http_server import Answer, HttpServer
from tests.channels.smtp_server import SmtpServer
from tests.rabbitmq import RabbitMQServer

# An overloaded receiver may accept later, a refusing one never, a silent one says nothing at all.
Mood = Literal["working", "overloaded", "refusing", "silent"]
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


def timeout_in(mood: Mood) -> str:
    return "300ms" if mood == "silent" else "10s"


class Receiver(Protocol):
    async def channel(self, mood: Mood) -> tuple[Channel, str | None]:
        """A channel to this receiver in that mood, and the address of a recipient."""
        ...

    async def ids(self) -> list[str | None]:
        """By what the receiver tells the messages apart that it has accepted, in order."""
        ...


def answer_in(mood: Mood) -> Answer:
    match mood:
        case "working":
            return Answer(200, {"content-type": "application/json"}, b'{"id": "receipt-7"}')
        case "overloaded":
            return Answer(503)
        case "refusing":
            return Answer(422)
        case "silent":
            return Answer(wait=asyncio.Event())


class WebhookReceiver:
    def __init__(self, server: HttpServer) -> None:
        self.server = server

    async def channel(self, mood: Mood) -> tuple[Channel, str | None]:
        self.server.answer = lambda _: answer_in(mood)
        channel = Webhook(secrets=[SECRET], allow=["127.0.0.1"], timeout=timeout_in(mood))
        return channel, self.server.url

    async def ids(self) -> list[str | None]:
        return [request.headers["webhook-id"] for request in self.server.requests]


class AppriseReceiver:
    def __init__(self, server: HttpServer) -> None:
        self.server = server

    async def channel(self, mood: Mood) -> tuple[Channel, str | None]:
        self.server.answer = lambda _: answer_in(mood)
        # Apprise's own time-out ends the thread soon after ours.
        url = f"json://127.0.0.1:{self.server.port}/?rto=1"
        schemas = ["jsons"] if mood == "refusing" else ["json"]
        return Apprise(schemas=schemas, timeout=timeout_in(mood)), url

    async def ids(self) -> list[str | None]:
        return [None for _ in self.server.requests]


class EmailReceiver:
    def __init__(self, server: SmtpServer) -> None:
        self.server = server

    async def channel(self, mood: Mood) -> tuple[Channel, str | None]:
        replies = {"overloaded": "451 try later", "refusing": "550 no such user"}
        if mood in replies:
            self.server.replies["RCPT"] = replies[mood]
        elif mood == "silent":
            self.server.replies["DATA"] = "silent"
        channel = Email(
            "127.0.0.1",
            port=self.server.port,
            security="plain",
            sender="Duetime <due@example.com>",
            timeout=timeout_in(mood),
        )
        return channel, "ann@example.com"

    async def ids(self) -> list[str | None]:
        return [mail["Message-ID"] for mail in self.server.mails]


# RabbitMQ


class RabbitReceiver:
    """A queue on a real broker; a full one; none; and a port where nobody speaks AMQP."""

    def __init__(self, server: RabbitMQServer, stack: AsyncExitStack) -> None:
        self.server = server
        self._stack = stack
        self._queue: aio_pika.abc.AbstractQueue | None = None

    async def channel(self, mood: Mood) -> tuple[Channel, str | None]:
        if mood == "silent":
            silence = await self._stack.enter_async_context(silent_port())
            url = f"amqp://guest:guest@127.0.0.1:{silence}/"
            return RabbitMQ(url, timeout=timeout_in(mood)), None
        if mood == "refusing":
            return RabbitMQ(self.server.url), "nobody-listens"
        return RabbitMQ(self.server.url), await self._declare(full=mood == "overloaded")

    async def ids(self) -> list[str | None]:
        assert self._queue is not None
        return [message.message_id for message in await take_all(self._queue)]

    async def _declare(self, *, full: bool) -> str:
        connection = await aio_pika.connect(self.server.url)
        self._stack.push_async_callback(connection.close)
        channel = await connection.channel()
        limits: dict[str, Any] = {"x-max-length": 0, "x-overflow": "reject-publish"} if full else {}
        self._queue = await channel.declare_queue(exclusive=True, arguments=limits)
        return self._queue.name


async def take_all(
    queue: aio_pika.abc.AbstractQueue,
) -> list[aio_pika.abc.AbstractIncomingMessage]:
    """What the queue holds, taken out."""
    taken = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        taken.append(message)
    return taken


@asynccontextmanager
async def silent_port() -> AsyncIterator[int]:
    """A port that accepts connections, and never says a word."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


# Console and log


class _FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


class ConsoleReceiver:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    async def channel(self, mood: Mood) -> tuple[Channel, str | None]:
        if mood == "overloaded":
            self.stream = _FullDisk()
        elif mood == "refusing":
            self.stream.close()
        return Console(self.stream), None

    async def ids(self) -> list[str | None]:
        return [_key_in(line) for line in self.stream.getvalue().splitlines()]


class LogReceiver(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    async def channel(self, mood: Mood) -> tuple[Channel, str | None]:
        logger = logging.getLogger(f"reminders.{id(self)}")
        logger.addHandler(self)
        logger.setLevel(logging.ERROR if mood == "refusing" else logging.INFO)
        return Log(logger), None

    async def ids(self) -> list[str | None]:
        return [record.__dict__["key"] for record in self.records]


def _key_in(line: str) -> str:
    return line.rpartition("[")[2].rstrip("]")
