"""Pages that refresh themselves: tabs that show the same share it, and all take little time."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import httpx
import pytest

from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.domain.jobs.job import NewJob
from duetime.web.dashboard.kept import Refreshes
from duetime.web.dashboard.live import Live
from duetime.web.dashboard.rendering import Templates
from duetime.web.service import Service, make_service

REFRESH = {"x-live": "1", "accept": "text/html"}


def tab(service: Service, name: str = "ann") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(service), base_url="http://localhost", headers={"who": name}
    )


@pytest.fixture
def service(app: Duetime) -> Service:
    return make_service(
        app,
        parts=["dashboard"],
        authenticate=lambda request: Visitor(request.headers["who"], TokenScope.ADMIN),
    )


@pytest.fixture
def lists(app: Duetime, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the jobs page has asked for so far."""
    asked: list[object] = []
    real = app.jobs.list

    async def note(**filters: object) -> object:
        asked.append(filters)
        return await real(**filters)  # type: ignore[arg-type]

    monkeypatch.setattr(app.jobs, "list", note)
    return asked


async def test_ten_tabs_that_refresh_read_once(service: Service, lists: list[object]) -> None:
    tabs = [tab(service) for _ in range(10)]
    pages = await asyncio.gather(*(one.get("/jobs?task=a", headers=REFRESH) for one in tabs))

    assert {page.status_code for page in pages} == {200}
    assert len(lists) == 1


async def test_ten_tabs_that_refresh_are_rendered_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    real = Templates.render

    def note(self: Templates, template: str, **values: Any) -> str:
        rendered.append(template)
        return real(self, template, **values)

    monkeypatch.setattr(Templates, "render", note)
    pages = await asyncio.gather(*(tab(service).get("/queues", headers=REFRESH) for _ in range(10)))

    assert {page.status_code for page in pages} == {200}
    assert rendered == ["queues.html"]


async def test_pages_that_refresh_take_turns(
    service: Service, app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = most = 0
    real = app.jobs.list

    async def note(**filters: Any) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await real(**filters)
        finally:
            running -= 1

    monkeypatch.setattr(app.jobs, "list", note)
    tabs = [tab(service).get(f"/jobs?task={name}", headers=REFRESH) for name in "abcd"]
    pages = await asyncio.gather(*tabs)

    assert {page.status_code for page in pages} == {200}
    assert most == 1


async def test_pages_that_take_long_are_told_less_often(app: Duetime) -> None:
    """Pages that take 40 ms are told every two seconds: they take one second of 50."""
    refreshes: Refreshes[None] = Refreshes(seconds=0.0)
    live = Live(app, refreshes)
    told: list[float] = []
    changes = live.changes()
    while len(told) < 2:
        await asyncio.wait_for(anext(changes), 60)
        told.append(time.monotonic())
        await app.enqueue_many([NewJob(task="send")])
        for page in range(2 - len(told)):
            await refreshes.get(page, lambda: asyncio.sleep(0.04))
    await changes.aclose()
    live.close()

    assert refreshes.spent >= 0.04
    assert told[1] - told[0] >= min(refreshes.spent / 0.02, 15.0) - 0.5


async def test_what_an_action_said_is_shown_to_that_browser_only(
    service: Service, lists: list[object]
) -> None:
    said = {"cookie": "duetime_said=Job%207%20was%20cancelled."}
    told = await tab(service).get("/jobs", headers=REFRESH | said)
    other = await tab(service).get("/jobs", headers=REFRESH)

    assert "Job 7 was cancelled." in told.text
    assert "Job 7 was cancelled." not in other.text


async def test_what_differs_is_read_on_its_own(service: Service, lists: list[object]) -> None:
    await tab(service).get("/jobs?task=a", headers=REFRESH)
    await tab(service).get("/jobs?task=b", headers=REFRESH)
    await tab(service, "bob").get("/jobs?task=a", headers=REFRESH)
    cookie = {"cookie": "duetime_zone=Europe/Berlin"}
    berlin = await tab(service).get("/jobs?task=a", headers=REFRESH | cookie)

    assert len(lists) == 4
    assert "Europe/Berlin" in berlin.text


async def test_a_page_that_is_opened_is_read_anew(service: Service, lists: list[object]) -> None:
    for headers in (REFRESH, {}, {}):
        await tab(service).get("/jobs", headers=headers)

    assert len(lists) == 3


async def test_each_browser_gets_its_own_token(service: Service, app: Duetime) -> None:
    await app.queues.pause("mail")
    pages = [await tab(service).get("/queues/mail", headers=REFRESH) for _ in range(2)]
    tokens = {re.findall(r'name="csrf" value="([^"]+)"', page.text)[0] for page in pages}

    assert len(tokens) == 2


async def test_a_refresh_after_an_action_shows_it(service: Service, app: Duetime) -> None:
    await app.queues.pause("mail")
    client = tab(service)
    before = await client.get("/queues/mail", headers=REFRESH)
    token = re.findall(r'name="csrf" value="([^"]+)"', before.text)[0]
    await client.post("/queues/mail/pause", data={"csrf": token, "reason": "moving house"})

    assert "moving house" not in before.text
    assert "moving house" in (await client.get("/queues/mail", headers=REFRESH)).text
