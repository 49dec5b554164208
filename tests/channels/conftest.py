"""Servers for the channels to talk to, and a message to send."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.channels.http_server import HttpServer
from tests.channels.receivers import (
    AppriseReceiver,
    ConsoleReceiver,
    EmailReceiver,
    LogReceiver,
    RabbitReceiver,
    Receiver,
    WebhookReceiver,
)
from tests.channels.smtp_server import SmtpServer
from tests.rabbitmq import RabbitMQServer, find_rabbitmq


@dataclass(frozen=True)
class Certificate:
    """A certificate for hooks.example and mail.example that nobody but we trust."""

    file: Path
    key: Path

    @property
    def server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.file, self.key)
        return context

    @property
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    directory = tmp_path_factory.mktemp("certificate")
    made = Certificate(directory / "certificate.pem", directory / "key.pem")
    options = {
        "-newkey": "ec",
        "-pkeyopt": "ec_paramgen_curve:prime256v1",
        "-days": "2",
        "-subj": "/CN=hooks.example",
        "-addext": "subjectAltName=DNS:hooks.example,DNS:mail.example",
        "-out": str(made.file),
        "-keyout": str(made.key),
    }
    words = [word for option in options.items() for word in option]
    subprocess.run(["openssl", "req", "-x509", "-nodes", *words], check=True, capture_output=True)
    return made


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQServer]:
    """A broker, for all tests: it takes 7 s to start."""
    if find_rabbitmq() is None:
        pytest.skip("RabbitMQ is not installed: sudo apt-get install rabbitmq-server")
    with RabbitMQServer() as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[HttpServer]:
    async with HttpServer().listening() as server:
        yield server


@pytest.fixture
async def smtp() -> AsyncIterator[SmtpServer]:
    async with SmtpServer().listening() as server:
        yield server


@pytest.fixture
async def receiver(request: pytest.FixtureRequest) -> AsyncIterator[Receiver]:
    """The receiver of the channel that the test is run with."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "webhook":
                yield WebhookReceiver(await stack.enter_async_context(HttpServer().listening()))
            case "apprise":
                yield AppriseReceiver(await stack.enter_async_context(HttpServer().listening()))
            case "email":
                yield EmailReceiver(await stack.enter_async_context(SmtpServer().listening()))
            case "rabbitmq":
                yield RabbitReceiver(request.getfixturevalue("rabbitmq"), stack)
            case "console":
                yield ConsoleReceiver()
            case "log":
                yield LogReceiver()
