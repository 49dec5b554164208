"""A plain HTTP server of the test's process, which answers as badly as the test wants."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Answer:
    """What the server says: bytes as they are, after `wait`, and then `rest`, piece by piece."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    wait: asyncio.Event | None = None
    drip: float | None = None

    def head(self) -> bytes:
        length = {} if self.drip is not None else {"content-length": str(len(self.body))}
        lines = [f"{name}: {value}" for name, value in {**length, **self.headers}.items()]
        return "\r\n".join([f"HTTP/1.1 {self.status} Because", *lines, "", ""]).encode()


class HttpServer:
    """A plain HTTP server of this process; `answer` decides."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: Answer()
        self.connections = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, context: ssl.SSLContext | None = None) -> AsyncIterator[HttpServer]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while request := await _read_request(reader):
                self.requests.append(request)
                await _write(self.answer(request), writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    line = (await reader.readline()).decode()
    if not line:
        return None
    method, path, _ = line.split()
    headers = {}
    while (line := (await reader.readline()).decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


async def _write(answer: Answer, writer: asyncio.StreamWriter) -> None:
    if answer.wait is not None:
        await answer.wait.wait()
    writer.write(answer.head())
    if answer.drip is None:
        writer.write(answer.body)
        await writer.drain()
        return
    for byte in answer.body:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(answer.drip)
    writer.close()
