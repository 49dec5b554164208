"""Nobody finds out what is redacted by filtering for it."""

from __future__ import annotations

from typing import Any

import pytest

from duetime import Duetime
from tests.web.conftest import Running

HIDDEN = ["password=hunter2", "smtp.password=hunter2", "url=postgresql://ann:hunter2@db/x"]


@pytest.mark.parametrize("condition", HIDDEN)
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/jobs/facets", "/api/v1/jobs/errors"])
async def test_the_api_refuses_a_filter_by_a_redacted_argument(
    app: Duetime, service: Running, path: str, condition: str
) -> None:
    client = await service.browse()

    answer = await client.get(path, params={"args": condition})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert "is redacted" in answer.json()["detail"]
    assert "hunter2" not in answer.text


async def test_actions_on_all_that_match_refuse_it(app: Duetime, service: Running) -> None:
    await app.tokens.create("ci", scope="operate")
    token = await app.tokens.create("robot", scope="operate")
    client = await service.browse()
    client.cookies.clear()
    client.headers["authorization"] = f"Bearer {token.text}"
    filters = {"args": {"login.password": "hunter2"}}

    for verb, further in (("cancel", {}), ("requeue", {}), ("reschedule", {"at": "1h"})):
        answer = await client.post(f"/api/v1/jobs/{verb}_all", json={"filters": filters, **further})
        assert answer.status_code == 422, verb
        assert "is redacted" in answer.json()["detail"]
    assert await app.jobs.list() == []


async def test_the_page_of_jobs_refuses_it(app: Duetime, service: Running) -> None:
    client = await service.browse()

    page = await client.get("/jobs", params={"args": "password=hunter2"})
    form = (await client.get("/jobs")).text
    token = form.partition('name="csrf" value="')[2].partition('"')[0]
    act = await client.post(
        "/jobs",
        data={"csrf": token, "all": "yes", "do": "cancel", "filters": "args=password%3Dhunter2"},
    )

    for answer in (page, act):
        assert answer.status_code == 422
        assert "is redacted" in answer.text
    assert await app.jobs.list() == []


async def test_what_a_hook_hides_in_one_task_can_be_filtered_in_another(
    app: Duetime, service: Running
) -> None:
    @app.redact
    def hide(field: str, value: Any, task: str | None) -> Any:
        return {**value, "name": "…"} if field == "args" and task == "visit" else value

    @app.task(name="visit")
    async def visit(name: str) -> None: ...

    @app.task(name="greet")
    async def greet(name: str) -> None: ...

    await visit.enqueue("ann")
    greeting = await greet.enqueue("ann")
    client = await service.browse()

    for query in ({"args": "name=ann"}, {"args": "name=ann", "task": "visit"}):
        assert (await client.get("/api/v1/jobs", params=query)).status_code == 422
    allowed = await client.get("/api/v1/jobs", params={"args": "name=ann", "task": "greet"})

    assert [job["id"] for job in allowed.json()["items"]] == [greeting.id]
