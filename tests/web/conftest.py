"""A service on each backend, over real HTTP, and visitors of every scope."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
import uvicorn

from duetime import Duetime
from duetime.web.access import LoginLink
from duetime.web.security import LOOPBACK
from duetime.web.service import Service, make_service
from duetime.web.serving import listen
from tests.conftest import Backend
from tests.waiting import until_true


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


@dataclass
class Running:
    """A service that answers at `url`."""

    url: str
    app: Duetime
    service: Service
    link: LoginLink

    async def browse(self) -> httpx.AsyncClient:
        """A client that has followed the link: it is logged in with the scope admin."""
        client = httpx.AsyncClient(base_url=self.url, follow_redirects=True)
        assert self.link.secret is not None
        answer = await client.get(f"/login/{self.link.secret}", headers={"accept": "text/html"})
        assert answer.status_code == 200
        return client


@asynccontextmanager
async def running(app: Duetime, **options: object) -> AsyncIterator[Running]:
    """Serve the app on a free port while the block runs."""
    link = LoginLink()
    service = make_service(app, link=link, allowed_hosts=LOOPBACK, **options)  # type: ignore[arg-type]
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(
            uvicorn.Config(service, log_config=None, timeout_graceful_shutdown=1)
        )
        served = asyncio.create_task(server.serve(sockets=[listening]))
        await until_true(lambda: server.started)
        yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", app, service, link)
        server.should_exit = True
        await served


@pytest.fixture
async def service(app: Duetime) -> AsyncIterator[Running]:
    async with running(app) as one:
        yield one
