"""`/healthz` and `/readyz` over real HTTP."""

from __future__ import annotations

import asyncio

import httpx

from duetime import Duetime
from tests.conftest import Backend, query
from tests.waiting import until
from tests.web.conftest import running


async def test_probes_need_no_token_and_answer_to_any_host(app: Duetime) -> None:
    async with app.worker(), running(app) as service, httpx.AsyncClient() as stranger:
        for path in ("/healthz", "/readyz"):
            answer = await stranger.get(service.url + path, headers={"host": "10.0.0.7:8000"})

            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        other = await stranger.get(f"{service.url}/jobs", headers={"host": "10.0.0.7:8000"})

    assert other.status_code == 400


async def test_a_failing_probe_names_the_check_and_nothing_else(app: Duetime) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.task(name="wait")
    async def wait() -> None:
        begun.set()
        await release.wait()

    async with running(app) as service, httpx.AsyncClient(base_url=service.url) as stranger:
        async with app.worker() as worker:
            await wait.enqueue()
            await begun.wait()
            assert (await stranger.get("/readyz")).status_code == 200
            worker.stop()

            async def unready() -> httpx.Response | None:
                answer = await stranger.get("/readyz")
                return answer if answer.status_code == 503 else None

            answer = await until(unready)
            live = await stranger.get("/healthz")
            release.set()

    assert answer is not None
    assert answer.json() == {"status": "failing", "checks": ["worker"]}
    assert live.json() == {"status": "ok"}


async def test_without_tables_it_is_not_ready(app: Duetime, backend: Backend) -> None:
    query(backend, "delete from duetime.migration")
    app.settings = Duetime(backend.url, migrate=False).settings
    async with running(app) as service, httpx.AsyncClient(base_url=service.url) as stranger:
        answer = await stranger.get("/readyz")

    assert answer.status_code == 503
    assert answer.json() == {"status": "failing", "checks": ["schema"]}
    assert "duetime db init" not in answer.text
