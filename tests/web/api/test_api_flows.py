"""`/api/v1/flows` and `/api/v1/signals`, on every backend."""

from __future__ import annotations

import pytest

from duetime import Duetime, Flow
from tests.waiting import until
from tests.web.api.conftest import Api


@pytest.fixture(autouse=True)
def order(app: Duetime) -> None:
    @app.flow(name="order")
    async def order(flow: Flow, number: int) -> str:
        approved = await flow.wait_for("approved", correlation=f"order:{number}")
        return f"{number} by {approved['by']}"

    @app.flow(name="broken", retry_on=KeyError)
    async def broken(flow: Flow) -> None:
        raise RuntimeError("no")


async def test_a_run_is_started_signalled_and_has_a_result(app: Duetime, api: Api) -> None:
    body = {"flow": "order", "args": {"number": 7}, "key": "order:7"}
    started = await api("POST", "/flows", body, status=201)
    assert started["created"]
    assert await api("POST", "/flows", body) == {"id": started["id"], "created": False}
    path = f"/flows/{started['id']}"

    async def waits() -> bool:
        return (await api("GET", f"{path}/status"))["state"] == "waiting"

    async with app.worker():
        await until(waits)
        assert (await api("GET", f"{path}/explain"))["sentence"]
        signal = {"name": "approved", "correlation": "order:7", "data": {"by": "ann"}, "key": "1"}
        assert await api("POST", "/signals", signal) == {"runs": [started["id"]]}
        answer = await api("GET", f"{path}/result", timeout="30s")

    assert answer == {"result": "7 by ann"}
    [step] = await api("GET", f"{path}/steps")
    assert (step["kind"], step["output"]) == ("signal", {"by": "ann"})
    assert [run["id"] for run in (await api("GET", "/flows", state="completed"))["items"]] == [
        started["id"]
    ]
    ended = await api("POST", f"{path}/signal", {"name": "approved"}, status=409)
    assert ended["code"] == "flow_ended"
    await api("POST", f"{path}/retry", status=409)


async def test_a_failed_run_is_retried_and_a_waiting_one_cancelled(app: Duetime, api: Api) -> None:
    broken = (await api("POST", "/flows", {"flow": "broken"}))["id"]
    waiting = (await api("POST", "/flows", {"flow": "order", "args": {"number": 1}}))["id"]

    async def failed() -> bool:
        return (await api("GET", f"/flows/{broken}"))["state"] == "failed"

    async with app.worker():
        await until(failed)
    failure = await api("GET", f"/flows/{broken}/result", status=409)
    assert failure["code"] == "job_failed"
    await api("POST", f"/flows/{broken}/rerun", {"from_step": "nowhere"}, status=422)
    await api("POST", f"/flows/{broken}/retry")
    assert (await api("GET", f"/flows/{broken}"))["state"] == "pending"

    sent = await api("POST", f"/flows/{waiting}/signal", {"name": "approved", "key": "1"})
    assert sent == {"sent": True}
    again = await api("POST", f"/flows/{waiting}/signal", {"name": "approved", "key": "1"})
    assert again == {"sent": False}
    await api("POST", f"/flows/{waiting}/cancel", {"reason": "changed my mind"})
    assert (await api("GET", f"/flows/{waiting}"))["state"] == "cancelled"
    events = (await api("GET", f"/flows/{waiting}/audit"))["items"]
    assert {event["actor"] for event in events} == {"ann"}


async def test_what_is_not_a_flow_is_refused(app: Duetime, api: Api) -> None:
    unknown = await api("POST", "/flows", {"flow": "nobody's"}, status=422)
    assert unknown["code"] == "unknown_flow"
    await api("POST", "/flows", {"flow": "order"}, status=422)
    for verb in ("", "/steps", "/status", "/explain"):
        assert (await api("GET", f"/flows/4711{verb}", status=404))["code"] == "flow_not_found"
