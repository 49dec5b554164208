"""Neither the API nor the dashboard shows a secret, on every backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from duetime import Duetime, JobFailed
from tests.web.conftest import Running


async def test_no_answer_and_no_page_shows_a_secret(app: Duetime, service: Running) -> None:
    @app.task(name="login", max_attempts=1)
    async def login(user: str, password: str) -> None:
        raise RuntimeError(f"refused: password={password}")

    @app.redact
    def hide(field: str, value: Any, task: str | None) -> Any:
        return {**value, "user": "[a person]"} if field == "args" else value

    job = await login.enqueue("ann@example.com", "hunter2")
    async with app.worker():
        with pytest.raises(JobFailed):
            await job.result()
    client = await service.browse()
    answer = await client.get(f"/api/v1/jobs/{job.id}")
    others = [
        await client.get(path)
        for path in (
            "/api/v1/jobs", f"/api/v1/jobs/{job.id}/explain", "/jobs", f"/jobs/{job.id}",
        )
    ]  # fmt: skip
    await client.aclose()

    assert answer.json()["args"] == {"user": "[a person]", "password": "[redacted]"}
    for each in (answer, *others):
        assert each.status_code == 200
        assert "hunter2" not in each.text, each.url
        assert "ann@example.com" not in each.text, each.url


async def test_the_timeline_of_a_subject_repeats_no_secret(app: Duetime, service: Running) -> None:
    await app.subjects.put("order:7", due=await app.now() + timedelta(days=1), remind=["-1h"])
    await app.subjects.complete("order:7", reason="paid with token=hunter2", by="ann")
    client = await service.browse()

    page = await client.get("/subjects/order%3A7")
    await client.aclose()

    assert page.status_code == 200
    assert "token=[redacted]" in page.text
    assert "hunter2" not in page.text
