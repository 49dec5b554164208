"""Pages that refresh themselves: tabs that show the same share what was read."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
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
