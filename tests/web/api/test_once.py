"""`Idempotency-Key` on every POST of the API."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from duetime import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.web.access import Access
from duetime.web.api.routing import Routes, include
from duetime.web.problems import add_handlers
from duetime.web.service import make_service
from tests.conftest import Backend, query
from tests.web.api.conftest import Api

KEY = {"idempotency-key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
JOB = {"task": "greet", "args": {"name": "Bo"}}


@pytest.fixture
def enqueued(app: Duetime) -> None:
    @app.task(name="greet")
    async def greet(name: str) -> None: ...


async def post(api: Api, body: Any = JOB, **headers: str) -> httpx.Response:
    return await api.client.post("/jobs", json=body, headers=KEY | headers)


@pytest.mark.usefixtures("enqueued")
async def test_a_request_that_is_sent_again_is_not_carried_out_again(
    app: Duetime, api: Api
) -> None:
    answers = await asyncio.gather(*(post(api) for _ in range(5)))
    last = await post(api)

    assert {answer.status_code for answer in (*answers, last)} == {201}
    assert {answer.text for answer in answers} == {last.text}
    assert last.headers["content-type"] == "application/json"
    repeated = ["idempotency-replayed" in answer.headers for answer in answers]
    assert (repeated.count(False), "idempotency-replayed" in last.headers) == (1, True)
    assert len(await app.jobs.list()) == 1


@pytest.mark.usefixtures("enqueued")
async def test_without_a_key_or_with_another_it_is_another_request(app: Duetime, api: Api) -> None:
    await post(api)
    await post(api, **{"idempotency-key": "another"})
    await api("POST", "/jobs", JOB)
    await api("POST", "/jobs", JOB)

    assert len(await app.jobs.list()) == 4


@pytest.mark.usefixtures("enqueued")
async def test_another_body_under_the_same_key_is_refused(app: Duetime, api: Api) -> None:
    await post(api)
    other = await post(api, {"task": "greet", "args": {"name": "Ann"}})
    bad = await post(api, **{"idempotency-key": "a b"})

    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_input")
    assert len(await app.jobs.list()) == 1


@pytest.mark.usefixtures("enqueued")
async def test_a_request_that_was_refused_may_be_mended_and_sent_again(
    app: Duetime, api: Api
) -> None:
    wrong = await post(api, {"task": "greet", "args": {"nom": "Bo"}})
    right = await post(api)

    assert (wrong.status_code, right.status_code) == (422, 201)


@pytest.mark.usefixtures("enqueued")
async def test_a_key_of_another_visitor_shows_nothing(app: Duetime, api: Api) -> None:
    service = make_service(
        app, authenticate=lambda _: Visitor("eve", TokenScope.OPERATE, by_cookie=False)
    )
    first = await post(api)
    async with client_of(service) as eve:
        second = await eve.post("/api/v1/jobs", json=JOB, headers=KEY)

    assert second.json()["id"] != first.json()["id"]


def test_every_post_of_the_api_takes_a_key(app: Duetime, api: Api) -> None:
    document = api.service.openapi()
    posts = [path["post"] for path in document["paths"].values() if "post" in path]

    assert posts
    for operation in posts:
        names = [parameter["name"] for parameter in operation.get("parameters", ())]
        assert "Idempotency-Key" in names, operation["operationId"]
        assert "409" in operation["responses"], operation["operationId"]


async def test_a_secret_answer_is_not_kept(app: Duetime, backend: Backend) -> None:
    access = Access(app, authenticate=lambda _: Visitor("ann", TokenScope.ADMIN, by_cookie=False))
    routes = Routes(app, access, noun="tokens")

    @routes.post("/made", answer=str, secret=True)
    async def make() -> str:
        """Make a secret."""
        return "dt_secret"

    service = FastAPI()
    add_handlers(service)
    include(service, [routes])
    async with client_of(service) as client:
        first = await client.post("/api/v1/made", headers=KEY)
        second = await client.post("/api/v1/made", headers=KEY)

    assert first.json() == "dt_secret"
    assert (second.status_code, second.json()["code"]) == (409, "answer_not_kept")
    [row] = query(backend, "select * from duetime.idempotency")
    assert "secret" not in repr(row)


def client_of(service: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(service, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")
