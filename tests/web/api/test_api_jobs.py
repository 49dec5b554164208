"""`/api/v1/jobs`, on every backend."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any
from urllib.parse import quote

import pytest

from duetime import Duetime
from duetime.domain.jobs.retry import Delays
from tests.web.api.conftest import Api


@pytest.fixture
def greeted(app: Duetime) -> list[str]:
    names: list[str] = []

    @app.task(name="greet", queue="mail", max_attempts=7)
    async def greet(name: str, born: date | None = None) -> str:
        names.append(name)
        return f"Hello {name}"

    @app.task(name="fail", retry=Delays("0s", "1h"))
    async def fail() -> None:
        raise RuntimeError("no")

    return names


async def test_a_job_is_enqueued_with_the_options_of_its_task(
    app: Duetime, api: Api, greeted: list[str]
) -> None:
    answer = await api("POST", "/jobs", {"task": "greet", "args": {"name": "Bo"}}, status=201)

    assert answer["action"] == "created"
    job = await app.jobs.get(answer["id"])
    assert (job.task, job.queue, job.max_attempts, job.args) == ("greet", "mail", 7, {"name": "Bo"})


async def test_the_options_of_an_enqueue(app: Duetime, api: Api, greeted: list[str]) -> None:
    body = {
        "task": "greet",
        "args": {"name": "Bo"},
        "at": "2030-01-02T03:04:05+01:00",
        "queue": "slow",
        "priority": 2,
        "key": "bo",
        "partition": "p",
        "max_attempts": 2,
        "timeout": "PT90S",
        "expires": "2031-01-01T00:00:00Z",
    }
    first = await api("POST", "/jobs", body)
    again = await api("POST", "/jobs", body)
    refused = await api("POST", "/jobs", body | {"on_conflict": "reject"}, status=409)

    assert again == {"id": first["id"], "action": "existing"}
    assert refused["code"] == "key_conflict"
    shown = await api("GET", f"/jobs/{first['id']}")
    assert shown["run_at"] == "2030-01-02T02:04:05Z"
    assert shown["timeout"] == "PT90S"
    assert shown["expires_at"] == "2031-01-01T00:00:00Z"
    assert (shown["queue"], shown["priority"], shown["partition"]) == ("slow", 2, "p")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"task": "nobody.knows"}, "unknown_task"),
        ({"task": "duetime.remind"}, "invalid_input"),
        ({"task": "greet"}, "invalid_arguments"),
        ({"task": "greet", "args": {"name": 5}}, "invalid_arguments"),
        ({"task": "greet", "args": {"name": "a\0"}}, "invalid_arguments"),
        ({"task": "greet", "args": {"name": "Bo"}, "unknown": 1}, "invalid_input"),
        ({"task": "greet", "args": {"name": "Bo"}, "priority": 10}, "invalid_input"),
        ({"task": "greet", "args": {"name": "Bo"}, "at": "2030-01-01T00:00"}, "invalid_input"),
        ({"task": "greet", "args": {"name": "Bo"}, "delay": "soon"}, "invalid_input"),
        ({"task": "greet", "args": {"name": "Bo"}, "delay": -1}, "invalid_input"),
        ({"task": "greet", "args": {"name": "Bo"}, "key": "tick:1"}, "invalid_input"),
        ({"task": "greet", "args": []}, "invalid_input"),
        ([], "invalid_input"),
        (None, "invalid_input"),
    ],
)
async def test_what_cannot_be_enqueued_is_refused(
    api: Api, greeted: list[str], body: Any, code: str
) -> None:
    problem = await api("POST", "/jobs", body, status=422)

    assert problem["code"] == code
    assert problem["status"] == 422
    assert (await api("GET", "/jobs"))["items"] == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"task": "greet", "args": ' + b'{"name":' * 50_000 + b"1" + b"}" * 50_001,
        b'{"task": "greet", "args": {"name": "\\ud800"}}',
        b'{"task": "greet", "args": {"name": 1e999}}',
        b'{"task": "greet", "priority": ' + b"9" * 5000 + b"}",
        b'{"task": "\\u0000"}',
    ],
)
async def test_bodies_that_cannot_be_read_are_refused(
    api: Api, greeted: list[str], content: bytes
) -> None:
    answer = await api.client.post("/jobs", content=content)

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


async def test_many_jobs_are_enqueued_all_or_none(
    app: Duetime, api: Api, greeted: list[str]
) -> None:
    good = {"task": "greet", "args": {"name": "Bo"}, "key": "bo", "on_conflict": "reject"}

    answer = await api("POST", "/jobs/bulk", {"jobs": [good, good]}, status=201)
    assert [one["action"] for one in answer["jobs"]] == ["created", "rejected"]

    await api("POST", "/jobs/bulk", {"jobs": [good, {"task": "greet"}]}, status=422)
    assert len((await api("GET", "/jobs"))["items"]) == 1


async def test_pages_lead_through_a_list(app: Duetime, api: Api, greeted: list[str]) -> None:
    jobs = [{"task": "greet", "args": {"name": f"n{n}"}, "delay": "1h"} for n in range(5)]
    await api("POST", "/jobs/bulk", {"jobs": jobs})

    seen: list[str] = []
    after: dict[str, Any] = {}
    while True:
        page = await api("GET", "/jobs", limit=2, **after)
        seen += [job["args"]["name"] for job in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}

    assert seen == ["n4", "n3", "n2", "n1", "n0"]


async def test_jobs_are_found_by_filters(app: Duetime, api: Api, greeted: list[str]) -> None:
    for name in ("ann", "bob"):
        body = {"task": "greet", "args": {"name": name}, "key": name, "delay": "1h"}
        await api("POST", "/jobs", body)

    async def found(**query: Any) -> list[str]:
        return [job["args"]["name"] for job in (await api("GET", "/jobs", **query))["items"]]

    assert await found(key="ann") == ["ann"]
    assert await found(args="name=bob") == ["bob"]
    assert await found(state=["pending", "running"], task="greet", queue="mail") == ["bob", "ann"]
    assert await found(state="dead") == []
    assert await found(created_since="2100-01-01T00:00Z") == []
    assert await found(due_before="2100-01-01T00:00+02:00") == ["bob", "ann"]


@pytest.mark.parametrize(
    "query",
    [
        {"stat": "dead"},
        {"state": "deceased"},
        {"limit": "0"},
        {"limit": "1001"},
        {"limit": "1" * 5000},
        {"after": "nonsense"},
        {"queue": ""},
        {"queue": "a\0b"},
        {"key": "k" * 3000},
        {"args": "name"},
        {"created_since": "2030-01-01T00:00:00"},
        {"created_since": "yesterday"},
        {"due_before": "9999999999999999"},
    ],
)
async def test_filters_that_make_no_sense_are_refused(api: Api, query: dict[str, str]) -> None:
    problem = await api("GET", "/jobs", status=422, **query)

    assert problem["code"] == "invalid_input"


async def test_a_job_is_changed_by_whoever_asks(app: Duetime, api: Api, greeted: list[str]) -> None:
    body = {"task": "greet", "args": {"name": "Bo"}, "delay": "1h"}
    path = f"/jobs/{(await api('POST', '/jobs', body))['id']}"

    await api("POST", f"{path}/reprioritise", {"priority": 1})
    await api("POST", f"{path}/reschedule", {"at": "2030-01-01T00:00:00Z"})
    assert (await api("GET", path))["run_at"] == "2030-01-01T00:00:00Z"
    await api("POST", f"{path}/retry")
    assert await api("POST", f"{path}/cancel", {"reason": "mistake"}) == {"was": "pending"}
    assert (await api("GET", path))["state"] == "cancelled"
    await api("POST", f"{path}/requeue")
    assert (await api("GET", path))["state"] == "pending"
    assert (await api("POST", f"{path}/requeue", status=409))["code"] == "illegal_transition"

    events = (await api("GET", f"{path}/audit"))["items"]
    assert [event["action"] for event in events] == [
        "job.requeue", "job.cancel", "job.reschedule", "job.reschedule", "job.reprioritise",
    ]  # fmt: skip
    assert {event["actor"] for event in events} == {"ann"}
    assert (await api("GET", f"{path}/explain"))["sentence"]


async def test_the_result_of_a_job_is_awaited(app: Duetime, api: Api, greeted: list[str]) -> None:
    good = (await api("POST", "/jobs", {"task": "greet", "args": {"name": "Bo"}}))["id"]
    bad = (await api("POST", "/jobs", {"task": "fail", "max_attempts": 1}))["id"]
    early = await api("GET", f"/jobs/{good}/result", status=409)
    assert early["code"] == "result_timeout"

    async with app.worker(queues=["default", "mail"]):
        answer = await api("GET", f"/jobs/{good}/result", timeout="30s")
        failed = await api("GET", f"/jobs/{bad}/result", timeout="30s", status=409)

    assert answer == {"result": "Hello Bo"}
    assert failed["code"] == "job_failed"
    for timeout in ("2m", "99999d"):
        refused = await api("GET", f"/jobs/{good}/result", timeout=timeout, status=422)
        assert refused["code"] == "invalid_input"
        assert refused["detail"].startswith(f"timeout must be at most 1m, got '{timeout}'. Ask")
    [attempt] = (await api("GET", f"/jobs/{bad}"))["history"]
    assert "RuntimeError" in attempt["traceback"]


@pytest.mark.parametrize("verb", ["", "/explain", "/result"])
async def test_an_unknown_job_is_not_found(api: Api, verb: str) -> None:
    assert (await api("GET", f"/jobs/4711{verb}", status=404))["code"] == "job_not_found"
    await api("GET", f"/jobs/{2**63}{verb}", status=422)
    await api("GET", f"/jobs/x{verb}", status=422)


async def test_a_queue_may_have_any_name(app: Duetime, api: Api) -> None:
    for name in ("mail", "a/b", "50%", "%2F", "a b?c#d", "naïve"):
        path = f"/queues/{quote(name, safe='')}"
        await api("POST", f"{path}/pause", {"reason": "broken"})
        shown = await api("GET", path)
        assert (shown["name"], shown["paused_by"]) == (name, "ann")
        await api("POST", f"{path}/limit", {"running": 3, "rate": 10, "period": "1m"})
        assert (await api("GET", path))["limits"] == {
            "running": 3, "per_partition": None, "rate": 10, "period": "PT60S",
        }  # fmt: skip
        await api("POST", f"{path}/resume")
        assert len((await api("GET", f"{path}/audit"))["items"]) == 3
        assert (await api("GET", f"{path}/explain"))["code"]

    assert len((await api("GET", "/queues", limit=2))["items"]) == 2
    await api("GET", "/queues/nowhere", status=404)


async def test_all_jobs_that_match_are_changed_by_a_bulk_action(
    app: Duetime, api: Api, greeted: list[str]
) -> None:
    jobs = [{"task": "greet", "args": {"name": f"n{n}"}, "delay": "1h"} for n in range(3)]
    await api("POST", "/jobs/bulk", {"jobs": jobs})
    which = {"filters": {"args": {"name": "n1"}}}

    assert (await api("GET", "/jobs/facets", task="greet"))["queues"]["mail"]["value"] == 3
    await api("POST", "/jobs/cancel_all", {"filters": {}}, status=422)
    await api("POST", "/jobs/cancel_all", {"filters": {"stat": "dead"}}, status=422)
    moved = await api("POST", "/jobs/reschedule_all", which | {"at": "2h"}, status=202)
    async with app.worker():
        await api("GET", f"/jobs/{moved['id']}/result", timeout="30s")
        cancelled = await api("POST", "/jobs/cancel_all", which | {"reason": "no"}, status=202)
        await api("GET", f"/jobs/{cancelled['id']}/result", timeout="30s")
        again = {"filters": {"state": ["cancelled"], "task": "greet"}}
        requeued = await api("POST", "/jobs/requeue_all", again, status=202)
        await api("GET", f"/jobs/{requeued['id']}/result", timeout="30s")

    for action in (moved, cancelled, requeued):
        progress = await api("GET", f"/jobs/{action['id']}/bulk_action")
        assert (progress["by"], progress["done"], progress["matched"]) == ("ann", 1, 1)
    await api("GET", "/jobs/1/bulk_action", status=404)


async def test_requeue_all_without_a_filter_requeues_all_dead_jobs(
    app: Duetime, api: Api, greeted: list[str]
) -> None:
    bad = (await api("POST", "/jobs", {"task": "fail", "max_attempts": 1}))["id"]
    async with app.worker():
        await api("GET", f"/jobs/{bad}/result", timeout="30s", status=409)
        requeued = await api("POST", "/jobs/requeue_all", {"filters": {}}, status=202)
        await api("GET", f"/jobs/{requeued['id']}/result", timeout="30s")

    assert (await api("GET", f"/jobs/{requeued['id']}/bulk_action"))["done"] == 1


async def test_a_finished_job_is_replayed_with_other_arguments(
    app: Duetime, api: Api, greeted: list[str]
) -> None:
    bad = (await api("POST", "/jobs", {"task": "fail", "max_attempts": 1}))["id"]
    await api("POST", f"/jobs/{bad}/replay", status=409)
    done = (await api("POST", "/jobs", {"task": "greet", "args": {"name": "Bo"}}))["id"]
    async with app.worker(queues=["default", "mail"]):
        await api("GET", f"/jobs/{done}/result", timeout="30s")
        await api("GET", f"/jobs/{bad}/result", timeout="30s", status=409)
        new = (await api("POST", f"/jobs/{done}/replay", {"args": {"name": "Al"}}))["id"]
        assert (await api("GET", f"/jobs/{new}/result", timeout="30s"))["result"] == "Hello Al"

    await api("POST", f"/jobs/{done}/replay", {"args": {"nam": "Al"}}, status=422)
    [group] = await api("GET", "/jobs/errors", task="fail")
    assert (group["error_code"], group["example"]) == ("RuntimeError", bad)


async def test_jobs_that_come_at_the_same_time_are_each_answered(
    app: Duetime, api: Api, greeted: list[str]
) -> None:
    bodies: list[dict[str, Any]] = [
        {"task": "greet", "args": {"name": f"n{n}"}, "delay": "1h"} for n in range(10)
    ]
    held = {"task": "greet", "args": {"name": "k"}, "key": "k", "on_conflict": "reject"}

    answers = await asyncio.gather(
        *(api.client.post("/jobs", json=body) for body in [*bodies, held, held, {"task": "greet"}])
    )

    assert sorted(answer.status_code for answer in answers) == [201] * 11 + [409, 422]
    for body, answer in zip(bodies, answers, strict=False):
        job = await app.jobs.get(answer.json()["id"])
        assert job.args == body["args"]
