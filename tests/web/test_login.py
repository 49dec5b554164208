"""People log in with a name and a password, and stay within their role."""

from __future__ import annotations

import re

import httpx
import pytest

from duetime import Duetime, SettingsError
from duetime.web.serving import serve
from tests.web.conftest import Running

PASSWORD = "correct horse battery"


async def open_login(service: Running, path: str = "/login") -> tuple[httpx.AsyncClient, str]:
    """A browser at the login, and the token of its form."""
    client = httpx.AsyncClient(base_url=service.url)
    return client, csrf_of((await client.get(path)).text)


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


async def log_in(
    service: Running, name: str, password: str = PASSWORD, **fields: str
) -> tuple[httpx.AsyncClient, httpx.Response]:
    client, csrf = await open_login(service)
    data = {"csrf": csrf, "name": name, "password": password} | fields
    return client, await client.post("/login", data=data)


async def test_whoever_logs_in_goes_where_they_wanted(service: Running) -> None:
    await service.app.accounts.add("ann", role="operator", password=PASSWORD)

    client, answer = await log_in(service, "ann", next="/jobs?state=dead")

    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead")
    page = await client.get("/jobs")
    assert page.status_code == 200
    assert "ann, operate" in page.text


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/\\evil.example"])
async def test_the_login_leads_to_no_other_site(service: Running, wanted: str) -> None:
    await service.app.accounts.add("ann", role="viewer", password=PASSWORD)

    _, answer = await log_in(service, "ann", next=wanted)

    assert answer.headers["location"] == "/"


async def test_a_wrong_password_tells_nothing_of_the_name(service: Running) -> None:
    await service.app.accounts.add("ann", role="viewer", password=PASSWORD)

    _, wrong = await log_in(service, "ann", "incorrect horse")
    _, unknown = await log_in(service, "bob", "incorrect horse")

    for answer in (wrong, unknown):
        assert answer.status_code == 403
        assert "The name or the password is wrong." in answer.text
        assert "duetime_session" not in answer.cookies


async def test_too_many_failures_are_refused_for_a_while(service: Running) -> None:
    await service.app.accounts.add("ann", role="viewer", password=PASSWORD)
    client, csrf = await open_login(service)

    statuses = []
    for _ in range(30):
        data = {"csrf": csrf, "name": "ann", "password": "wrong wrong wrong"}
        statuses.append((await client.post("/login", data=data)).status_code)
        if statuses[-1] == 429:
            break

    assert statuses[-1] == 429
    _, right = await log_in(service, "ann")
    assert right.status_code == 429


async def test_a_viewer_sees_and_does_not_change(service: Running) -> None:
    @service.app.task
    async def greet() -> None: ...

    job = await greet.using(delay="1h").enqueue()
    await service.app.accounts.add("vic", role="viewer", password=PASSWORD)
    client, _ = await log_in(service, "vic")
    page = await client.get(f"/jobs/{job.id}")

    answer = await client.post(f"/jobs/{job.id}/cancel", data={"csrf": csrf_of(page.text)})

    assert ">Cancel<" not in page.text
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")


async def test_a_disabled_account_is_out_at_once(service: Running) -> None:
    await service.app.accounts.add("ann", role="admin", password=PASSWORD)
    await service.app.accounts.add("bob", role="operator", password=PASSWORD)
    client, _ = await log_in(service, "bob")
    assert (await client.get("/jobs")).status_code == 200

    await service.app.accounts.disable("bob", by="ann")

    assert (await client.get("/jobs")).status_code == 401


async def test_a_token_opens_the_api_and_is_named_in_the_audit(service: Running) -> None:
    @service.app.task
    async def greet() -> None: ...

    job = await greet.using(delay="1h").enqueue()
    token = await service.app.tokens.create("ci", scope="operate")
    client = httpx.AsyncClient(
        base_url=service.url, headers={"authorization": f"Bearer {token.text}"}
    )

    answer = await client.post(f"/api/v1/jobs/{job.id}/cancel", json={"reason": "deploy"})
    assert (answer.status_code, answer.json()) == (200, {"was": "pending"})
    assert (await service.app.jobs.audit(job.id))[0].actor == "token:ci"

    await service.app.tokens.revoke("ci")
    assert (await client.get("/api/v1/jobs")).status_code == 401


async def test_it_is_not_served_beyond_this_machine_without_credentials(app: Duetime) -> None:
    with pytest.raises(SettingsError, match="--allowed-host"):
        await serve(app, host="0.0.0.0", port=0, worker=False)
    with pytest.raises(SettingsError, match="duetime accounts add"):
        await serve(app, host="0.0.0.0", port=0, worker=False, allowed_hosts=["a.example"])
