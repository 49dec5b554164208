"""The dashboard beside a worker: the service, and tabs that are open on its pages."""

from __future__ import annotations

import asyncio
import time

import httpx
import uvicorn

from bench.child import Parent
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
    app = Duetime(database)
    service = make_service(app, authenticate=lambda request: Visitor("ann", TokenScope.READ))
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(service, log_config=None, access_log=False))
        served = asyncio.create_task(server.serve(sockets=[listening]))
        parent.say({"port": listening.getsockname()[1]})
        await served


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
