"""Nobody gets in without being known, and nobody does more than their scope allows."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import httpx
import msgspec
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Mount, Route

from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.web.access import LoginLink
from duetime.web.dashboard.rendering import make_url
from duetime.web.service import Service, make_service
from tests.web.conftest import Running, running
from tests.web.test_login import PASSWORD, csrf_of, log_in

OPEN = {"/login", "/login/{secret}", "/logout", "/healthz", "/readyz"}
"""What everybody may ask for: the login, and the probes, which tell nothing."""


def routes_of(service: Service) -> list[APIRoute]:
    """Every route that has a scope; fails for one that is of another kind."""
    found = []
    for route in service.routes:
        if isinstance(route, APIRoute):
            if route.path not in OPEN:
                found.append(route)
        else:
            assert isinstance(route, Mount | Route)
            assert route.path == "/static"
    return found


def example(route: APIRoute) -> str:
    return re.sub(r"\{[^}]*\}", "1", route.path)


def as_visitor(service: Service, visitor: Visitor | None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(service, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def test_every_route_refuses_whoever_is_not_known(app: Duetime) -> None:
    service = make_service(app)
    client = as_visitor(service, None)

    for route in routes_of(service):
        for method in route.methods or ():
            answer = await client.request(method, example(route))
            assert answer.status_code == 401, (method, route.path)


async def test_every_route_refuses_too_little_scope(app: Duetime) -> None:
    service = make_service(app, authenticate=lambda request: Visitor("reader", TokenScope.READ))
    client = as_visitor(service, None)

    walked = 0
    for route in routes_of(service):
        scope = (route.openapi_extra or {}).get("x-scope", "read")
        for method in route.methods or ():
            if method == "GET" and scope == "read":
                continue
            assert scope != "read", f"{method} {route.path} changes something"
            answer = await client.request(method, example(route))
            assert answer.status_code == 403, (method, route.path)
            assert answer.json()["code"] == "not_allowed"
            walked += 1
    assert walked >= 2


async def test_a_read_only_service_changes_nothing(app: Duetime) -> None:
    service = make_service(
        app, read_only=True, authenticate=lambda request: Visitor("ann", TokenScope.ADMIN)
    )
    client = as_visitor(service, None)

    for route in routes_of(service):
        for method in (route.methods or set()) - {"GET"}:
            answer = await client.request(method, example(route))
            assert (answer.status_code, answer.json()["code"]) == (403, "read_only"), route.path


async def test_a_change_by_cookie_needs_the_token_of_the_page(service: Running) -> None:
    @service.app.task
    async def greet() -> None: ...

    job = await greet.using(delay="1h").enqueue()
    client = await service.browse()
    form = (await client.get(f"/jobs/{job.id}", headers={"accept": "text/html"})).text
    token = re.search(r'name="csrf" value="([^"]+)"', form)
    assert token is not None
    path = f"/jobs/{job.id}/cancel"

    for fields, headers in (
        ({}, {}),
        ({"csrf": "0" * 64}, {}),
        ({"csrf": token[1]}, {"sec-fetch-site": "cross-site"}),
        ({"csrf": token[1]}, {"origin": "http://evil.example"}),
    ):
        answer = await client.post(path, data=fields, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf_failed")
    assert (await service.app.jobs.get(job.id)).state == "pending"

    answer = await client.post(path, data={"csrf": token[1]}, headers={"origin": service.url})
    assert answer.status_code == 200
    assert (await service.app.jobs.get(job.id)).state == "cancelled"


async def test_the_link_works_once(service: Running) -> None:
    secret = service.link.secret
    await service.browse()
    stranger = httpx.AsyncClient(base_url=service.url)

    answer = await stranger.get(f"/login/{secret}")

    assert answer.status_code == 403
    assert "used before" in answer.text
    assert (await stranger.get("/jobs")).status_code == 401


async def test_logging_out_ends_the_session(service: Running) -> None:
    client = await service.browse()
    form = (await client.get("/jobs", headers={"accept": "text/html"})).text
    token = re.search(r'name="csrf" value="([^"]+)"', form)
    assert token is not None
    session = client.cookies["duetime_session"]

    await client.post("/logout", data={"csrf": token[1]})

    client.cookies.set("duetime_session", session)
    assert (await client.get("/jobs")).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
async def test_other_host_names_are_refused(service: Running, host: str) -> None:
    client = await service.browse()

    answer = await client.get("/jobs", headers={"host": host})

    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_host")


async def test_answers_carry_the_headers_of_a_careful_service(service: Running) -> None:
    client = await service.browse()

    for path in ("/", "/jobs", "/api/v1/jobs", "/nowhere", "/static/dashboard.css"):
        headers = (await client.get(path, headers={"origin": "http://evil.example"})).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers or headers["server"] == "uvicorn"


async def test_cookies_are_out_of_reach_of_scripts(service: Running) -> None:
    client = httpx.AsyncClient(base_url=service.url)

    answer = await client.get(f"/login/{service.link.secret}")

    cookies = answer.headers.get_list("set-cookie")
    assert any(one.startswith("duetime_session=") for one in cookies)
    assert all("HttpOnly" in one and "SameSite=lax" in one for one in cookies)


async def test_a_body_that_is_too_large_is_refused(app: Duetime) -> None:
    async with running(app) as service:
        client = await service.browse()

        async def endless() -> object:
            for _ in range(200):
                yield b"x" * 65536

        for content in (b"x" * (9 * 1024 * 1024), endless()):
            answer = await client.post("/api/v1/jobs/1/cancel", content=content)  # type: ignore[arg-type]
            assert answer.status_code in (403, 413)


async def test_a_page_sends_a_browser_to_the_login_and_a_program_away(service: Running) -> None:
    client = httpx.AsyncClient(base_url=service.url)

    browser = await client.get("/jobs?state=dead", headers={"accept": "text/html"})
    program = await client.get("/api/v1/jobs", headers={"accept": "application/json"})

    assert browser.status_code == 303
    assert browser.headers["location"] == "/login?next=%2Fjobs%3Fstate%3Ddead"
    assert program.status_code == 401
    assert program.headers["www-authenticate"] == "Bearer"
    assert program.headers["content-type"] == "application/problem+json"


async def test_a_name_in_the_path_may_contain_slashes_and_percents(service: Running) -> None:
    client = await service.browse()
    for name in ("a/b", "a%2Fb", "ä b?c#d", "a//b/"):
        await service.app.queues.pause(name, reason="slashes")

        page = await client.get(make_url("", "queues", name))

        assert page.status_code == 200, name
        assert "slashes" in page.text


async def test_the_token_of_a_page_is_of_no_use_in_another_login(service: Running) -> None:
    @service.app.task
    async def greet() -> None: ...

    job = await greet.using(delay="1h").enqueue()
    await service.app.accounts.add("ann", role="operator", password=PASSWORD)
    ann, _ = await log_in(service, "ann")
    page = await ann.get(f"/jobs/{job.id}", headers={"accept": "text/html"})
    token, cookie = csrf_of(page.text), ann.cookies["duetime_csrf"]
    bob = await service.browse()
    # Whoever can set cookies in bob's browser knows a cookie and a token that belong together.
    bob.cookies.set("duetime_csrf", cookie, domain="127.0.0.1")

    answer = await bob.post(f"/jobs/{job.id}/cancel", data={"csrf": token})

    assert (answer.status_code, answer.json()["code"]) == (403, "csrf_failed")
    assert (await service.app.jobs.get(job.id)).state == "pending"


def test_the_session_of_the_link_ends_when_nobody_uses_it() -> None:
    clock = 0.0
    link = LoginLink(idle=timedelta(hours=1), lifetime=timedelta(hours=3), clock=lambda: clock)
    assert link.secret is not None
    session = link.open(link.secret)
    assert session is not None

    clock = 3599.0
    assert link.visitor(session) is not None
    clock = 3599.0 + 3500.0
    assert link.visitor(session, is_use=False) is not None
    clock = 3599.0 + 3600.0
    assert link.visitor(session) is None
    clock = 3600.0
    assert link.visitor(session) is None, "It is over for good."


def test_the_session_of_the_link_ends_after_its_lifetime() -> None:
    clock = 0.0
    link = LoginLink(idle=timedelta(hours=1), lifetime=timedelta(hours=2), clock=lambda: clock)
    assert link.secret is not None
    session = link.open(link.secret)
    assert session is not None

    for minute in range(0, 120, 30):
        clock = minute * 60.0
        assert link.visitor(session) is not None
    clock = 7200.0
    assert link.visitor(session) is None


async def test_a_tab_that_refreshes_itself_keeps_no_login_alive(service: Running) -> None:
    await service.app.accounts.add("ann", role="viewer", password=PASSWORD)
    client, _ = await log_in(service, "ann")
    text = client.cookies["duetime_session"]
    service.app.settings = msgspec.structs.replace(
        service.app.settings, session_idle=timedelta(seconds=0.4)
    )
    started = time.monotonic()
    while (await client.get("/workers", headers={"x-live": "1"})).status_code == 200:
        assert time.monotonic() - started < 30

    assert await service.app.sessions.check(text) is None


async def test_a_path_with_a_nul_character_is_refused(service: Running) -> None:
    """Inside the service it stands for a slash in a name."""
    client = await service.browse()

    for path in ("/subjects/a%00b", "/subjects/a%00b%2Fc", "/api/v1/subjects/a%00b"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_path"), path
