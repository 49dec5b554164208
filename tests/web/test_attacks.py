"""Ways around the doors of the service that others found in theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from duetime import Duetime, QueueNotFound, SettingsError
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.web.security import host_name
from duetime.web.service import make_service
from duetime.web.serving import serve
from tests.web.conftest import Running
from tests.web.test_login import csrf_of, log_in


def mounted(app: Duetime, authenticate: Any) -> httpx.AsyncClient:
    """A browser at an application that has the dashboard under a path, and its own login."""
    api = FastAPI()
    api.mount("/duetime", app.dashboard(authenticate=authenticate))
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="https://shop.example")


async def test_a_login_of_the_host_needs_the_token_of_the_page(app: Duetime) -> None:
    """Nobody has to know of CSRF to be safe: the usual login of a host is a cookie."""

    def authenticate(request: Any) -> Visitor | None:
        return Visitor("ann", TokenScope.ADMIN) if request.cookies.get("shop") == "ann" else None

    client = mounted(app, authenticate)
    client.cookies.set("shop", "ann")
    await app.queues.pause("mail", reason="first")
    page = await client.get("/duetime/queues/mail", headers={"accept": "text/html"})

    for path, sent in (
        ("/duetime/queues/mail/resume", {"data": {}}),
        ("/duetime/api/v1/queues/mail/resume", {"json": {}}),
        (
            "/duetime/api/v1/queues/mail/resume",
            {"content": b"{}", "headers": {"content-type": "text/plain"}},
        ),
    ):
        answer = await client.post(path, **sent)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf_failed"), path
    assert (await app.queues.get("mail")).paused_at is not None

    answer = await client.post(
        "/duetime/queues/mail/resume",
        data={"csrf": csrf_of(page.text)},
        headers={"origin": "https://shop.example"},
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/duetime/queues/mail")
    with pytest.raises(QueueNotFound):  # Nothing is known of it any more, not even a pause.
        await app.queues.get("mail")


async def test_under_a_path_and_https_cookies_go_nowhere_else(app: Duetime) -> None:
    client = mounted(app, None)

    cookies = (await client.get("/duetime/login")).headers.get_list("set-cookie")

    assert cookies
    assert all("Path=/duetime;" in one and "Secure" in one for one in cookies), cookies


@pytest.mark.parametrize(
    "nonsense",
    [True, "ann", {"name": "ann", "scope": "admin"}, Visitor("ann", "root")],  # type: ignore[arg-type]
)
async def test_a_login_of_the_host_that_returns_nonsense_opens_nothing(
    app: Duetime, nonsense: object
) -> None:
    client = mounted(app, lambda request: nonsense)

    for path in ("/duetime/", "/duetime/api/v1/jobs", "/duetime/live", "/duetime/metrics"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert "Visitor" not in answer.text


async def test_a_stream_ends_with_its_session(service: Running) -> None:
    @service.app.task
    async def greet() -> None: ...

    await service.app.accounts.add("bob", role="viewer", password="correct horse battery")
    client, _ = await log_in(service, "bob")

    async with client.stream("GET", "/live", timeout=60) as stream:
        lines = stream.aiter_lines()
        assert "changed" in await anext(lines)
        await service.app.sessions.end_all("bob", by="ann")
        await greet.enqueue()
        assert [line async for line in lines if "changed" in line] == []


async def test_a_visitor_has_so_many_streams_and_no_more(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.web.dashboard.live.MOST_PLACES", 1)
    client = await service.browse()
    token = await service.app.tokens.create("ci", scope="read")
    program = httpx.AsyncClient(
        base_url=service.url, headers={"authorization": f"Bearer {token.text}"}
    )

    async with client.stream("GET", "/live") as stream:
        assert stream.status_code == 200
        answer = await client.get("/live")
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
        async with program.stream("GET", "/live") as other:
            assert other.status_code == 200
    await until_a_stream_opens(client)


async def until_a_stream_opens(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(20):
        while True:
            async with client.stream("GET", "/live") as stream:
                if stream.status_code == 200:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "host",
    ["localhost:80@evil.example", "[::1]evil.example", "[]", "localhost.", "localhost.example"],
)
def test_a_host_is_a_name_and_a_port(host: str) -> None:
    assert host_name(host) not in ("localhost", "::1")


async def test_deep_and_long_values_in_forms_are_refused(service: Running) -> None:
    @service.app.task
    async def greet() -> None: ...

    job = await greet.enqueue()
    await service.app.jobs.cancel(job.id)
    client = await service.browse()
    csrf = csrf_of((await client.get("/jobs")).text)
    deep = '{"a":' * 100_000

    for path, fields in (
        (f"/jobs/{job.id}/replay", {"args": deep}),
        ("/schedules/new", {"name": "s", "target": greet.name, "spec": "0 9 * * *", "args": deep}),
        ("/flows/1/signal", {"name": "s", "data": deep}),
        ("/jobs", {"do": "cancel", "id": "9" * 5000}),
        ("/jobs", {"do": "cancel", "id": "9" * 19}),
    ):
        answer = await client.post(path, data={"csrf": csrf, **fields})
        assert answer.status_code in (404, 422), (path, answer.status_code)


async def test_viewers_see_no_rows_of_tracked_tables(app: Duetime) -> None:
    service = make_service(app, authenticate=lambda _: Visitor("vic", TokenScope.READ))
    transport = httpx.ASGITransport(service, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    for path in ("/tables", "/api/v1/tables"):
        assert (await client.get(path)).status_code == 403
    assert 'href="/tables"' not in (await client.get("/queues")).text


@pytest.mark.parametrize("proxy", ["*", "everybody", ""])
async def test_a_proxy_is_an_address(app: Duetime, proxy: str) -> None:
    with pytest.raises(SettingsError, match="--proxy"):
        await serve(app, port=0, worker=False, proxies=[proxy])
