"""The dashboard beside a worker: the service, and tabs that are open on its pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn

from bench.child import Parent
from bench.duetime_side import Bench, work_until_stopped
from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.web.service import make_service
from duetime.web.serving import listen

PAGES = ("/", "/", "/jobs", "/jobs?state=dead", "/queues", "/schedules", "/workers", "/timing")
"""Ten tabs show these, some of them twice."""
TABS = 10
_REFRESH = {"x-live": "1", "accept": "text/html"}
_LEAST_SECONDS = 1.0


async def serve(parent: Parent, *, database: str) -> None:
    """The service, without a worker. Says its port."""
    async with _serving(Duetime(database)) as port:
        parent.say({"port": port})
        await asyncio.Event().wait()


async def serve_and_work(parent: Parent, *, database: str) -> None:
    """A worker, as `bench.duetime_side.work`, and the service in its process. Says its port."""
    bench = Bench(database, parent)
    async with _serving(bench.app) as port:
        parent.say({"port": port})
        await work_until_stopped(bench, parent)


@asynccontextmanager
async def _serving(app: Duetime) -> AsyncIterator[int]:
    await app.store()
    service = make_service(app, authenticate=lambda request: Visitor("ann", TokenScope.READ))
    config = uvicorn.Config(
        service, log_level="critical", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        await serving


async def browse(parent: Parent, *, port: int) -> None:
    """Tabs that fetch their page whenever it may have changed, and a scrape each second.

    When told to stop, says how many pages came, and how long each took until its first byte.
    """
    waits: list[float] = []
    limits = httpx.Limits(max_connections=4 * TABS)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=60, limits=limits
    ) as client:

        async def fetch(path: str) -> None:
            began = time.monotonic()
            async with client.stream("GET", path, headers=_REFRESH) as answer:
                answer.raise_for_status()
                waits.append(time.monotonic() - began)
                await answer.aread()

        async def watch(path: str) -> None:
            await fetch(path)
            async with client.stream("GET", "/live") as events:
                last = time.monotonic()
                async for line in events.aiter_lines():
                    if line == "event: changed":
                        await asyncio.sleep(max(0.0, last + _LEAST_SECONDS - time.monotonic()))
                        await fetch(path)
                        last = time.monotonic()

        async def scrape() -> None:
            while True:
                (await client.get("/metrics")).raise_for_status()
                await asyncio.sleep(1.0)

        tasks = [asyncio.create_task(watch(PAGES[n % len(PAGES)])) for n in range(TABS)]
        tasks.append(asyncio.create_task(scrape()))
        while len(waits) < TABS:
            await asyncio.wait(tasks, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        parent.say("ready")
        await parent.heard()
        for task in tasks:
            task.cancel()
        parent.say({"waits": waits[TABS:]})
