"""`/metrics` of the service, and traces that go on through it."""

from __future__ import annotations

import sys

import httpx
import pytest

from duetime import Duetime
from tests.engine.jobs.test_traces import Spans, spans
from tests.web.conftest import Running

__all__ = ["spans"]  # A fixture.

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def reader(service: Running, scope: str = "read") -> httpx.AsyncClient:
    token = (await service.app.tokens.create("prometheus", scope=scope)).text  # type: ignore[arg-type]
    return httpx.AsyncClient(base_url=service.url, headers={"authorization": f"Bearer {token}"})


async def test_metrics_are_read_with_a_token(service: Running) -> None:
    @service.app.task(name="pay")
    async def pay() -> None: ...

    async with service.app.worker(), await reader(service) as prometheus:
        await (await pay.enqueue()).result()
        answer = await prometheus.get("/metrics")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'duetime_job_completed_total{job_type="pay",status="completed"} 1.0' in answer.text
    assert "duetime_database_up 1.0" in answer.text


async def test_without_the_package_the_answer_says_what_to_install(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "duetime.telemetry.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with await reader(service) as prometheus:
        answer = await prometheus.get("/metrics")

    assert answer.status_code == 501
    assert "pip install 'duetime[metrics]'" in answer.json()["detail"]


async def test_trace_of_a_caller_of_the_api_reaches_the_job(
    app: Duetime, service: Running, spans: Spans
) -> None:
    @app.task(name="pay")
    async def pay() -> None: ...

    async with await reader(service, "operate") as caller:
        answer = await caller.post(
            "/api/v1/jobs", json={"task": "pay"}, headers={"traceparent": CALLER}
        )
    assert answer.status_code in (200, 201), answer.text
    enqueued = spans.one("enqueue pay")

    assert enqueued.parent is not None
    assert f"{enqueued.parent.trace_id:032x}" == CALLER.split("-")[1]
