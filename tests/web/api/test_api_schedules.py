"""`/api/v1/schedules` and `/api/v1/presets`, on every backend."""

from __future__ import annotations

from typing import Any

import pytest

from duetime import Duetime
from tests.web.api.conftest import Api

NIGHTLY = {"task": "report", "specs": ["0 2 * * *"], "tz": "Europe/Berlin", "args": {"n": 1}}


@pytest.fixture(autouse=True)
def report(app: Duetime) -> None:
    @app.task(name="report")
    async def report(n: int) -> None: ...


async def test_a_schedule_is_put_and_shown(api: Api) -> None:
    body = NIGHTLY | {"catch_up": "all", "max_age": "1h", "overlap": "buffer_one", "jitter": "30s"}

    assert await api("PUT", "/schedules/nightly", body) == {"result": "added"}
    assert await api("PUT", "/schedules/nightly", body) == {"result": "same"}
    assert await api("PUT", "/schedules/nightly", NIGHTLY) == {"result": "changed"}

    shown = await api("GET", "/schedules/nightly")
    assert (shown["target"], shown["tz"], shown["args"]) == ("report", "Europe/Berlin", {"n": 1})
    assert [one["name"] for one in (await api("GET", "/schedules"))["items"]] == ["nightly"]


async def test_schedules_are_at_their_old_address_too(api: Api) -> None:
    await api("PUT", "/schedules/nightly", NIGHTLY)

    answer = await api.client.get("http://localhost/api/schedules")

    assert answer.json() == await api("GET", "/schedules")


@pytest.mark.parametrize(
    "body",
    [
        {"specs": ["0 2 * * *"]},
        NIGHTLY | {"specs": []},
        NIGHTLY | {"specs": ["0 0 30 2 *"]},
        NIGHTLY | {"specs": "0 2 * * *"},
        NIGHTLY | {"tz": "Mars/Base"},
        NIGHTLY | {"args": {"m": 1}},
        NIGHTLY | {"overlap": "whatever"},
        NIGHTLY | {"max_runs": 0},
        NIGHTLY | {"after": "nightly"},
        NIGHTLY | {"start": "2026-01-01"},
        NIGHTLY | {"by": "mallory"},
    ],
)
async def test_a_schedule_that_makes_no_sense_is_refused(api: Api, body: Any) -> None:
    problem = await api("PUT", "/schedules/nightly", body, status=422)

    assert problem["code"] in ("invalid_input", "invalid_schedule", "invalid_arguments")
    await api("GET", "/schedules/nightly", status=404)


async def test_a_schedule_is_operated(app: Duetime, api: Api) -> None:
    await api("PUT", "/schedules/nightly", NIGHTLY)
    path = "/schedules/nightly"

    await api("POST", f"{path}/pause", {"reason": "moving", "until": "2h"})
    paused = await api("GET", path)
    assert (paused["enabled"], paused["paused_by"], paused["pause_reason"]) == (
        False,
        "ann",
        "moving",
    )
    await api("POST", f"{path}/resume", {"missed": True})
    assert (await api("GET", path))["enabled"]
    job_id = (await api("POST", f"{path}/trigger", {"reason": "now"}))["job_id"]
    assert (await api("GET", f"/jobs/{job_id}"))["task"] == "report"
    tick = (await api("POST", f"{path}/reschedule", {"at": "30m"}))["tick"]
    assert tick.endswith("Z")
    start, end = "2026-01-01T00:00:00Z", "2026-01-04T00:00:00+00:00"
    assert await api("POST", f"{path}/backfill", {"start": start, "end": end}) == {"runs": 3}

    events = (await api("GET", f"{path}/audit"))["items"]
    assert {event["actor"] for event in events} == {"ann"}
    assert (await api("GET", f"{path}/explain"))["sentence"]
    past = (await api("GET", f"{path}/history", before=end, since=start))["items"]
    assert [row["reason"]["code"] for row in past] == ["backfilled"] * 3
    await api("DELETE", path, reason="gone")
    await api("GET", path, status=404)


async def test_ticks_are_previewed(api: Api) -> None:
    await api("PUT", "/schedules/nightly", NIGHTLY)
    since = "2026-03-28T12:00:00Z"

    [first] = await api("GET", "/schedules/nightly/preview", n=1, since=since)
    assert first["at"] == "2026-03-29T01:00:00Z"
    assert first["local"] == "2026-03-29T03:00:00+02:00"
    assert first["notes"]
    assert len(await api("GET", "/schedules/nightly/preview", n=20)) == 20
    await api("GET", "/schedules/nightly/preview", n=1001, status=422)

    tried = await api(
        "GET", "/preview", specs=["0 2 * * *", "@every 6h"], tz="Europe/Berlin", since=since
    )
    assert len(tried["ticks"]) == 10
    assert "Europe/Berlin" in tried["when"]
    assert (await api("GET", "/preview", preset="Yearly"))["ticks"]
    await api("GET", "/preview", status=422)
    await api("GET", "/preview", specs="0 0 30 2 *", status=422)


async def test_schedules_are_applied_all_or_none(api: Api) -> None:
    wrong = {"schedules": [NIGHTLY | {"name": "a"}, NIGHTLY | {"name": "b", "tz": "Mars/Base"}]}
    await api("PUT", "/schedules", wrong, status=422)
    assert (await api("GET", "/schedules"))["items"] == []

    both = {"schedules": [NIGHTLY | {"name": "a"}, NIGHTLY | {"name": "b"}], "prune": True}
    assert (await api("PUT", "/schedules", both))["results"] == {"a": "added", "b": "added"}
    one = {"schedules": [NIGHTLY | {"name": "a"}], "prune": True}
    assert (await api("PUT", "/schedules", one))["results"] == {"a": "same", "b": "removed"}


async def test_presets(api: Api) -> None:
    body = {"specs": ["0 18 * * 5"], "description": "Friday evening"}

    assert await api("PUT", "/presets/weekend", body) == {"result": "added"}
    assert (await api("GET", "/presets/weekend"))["description"] == "Friday evening"
    assert len((await api("GET", "/presets", limit=3))["items"]) == 3
    await api("PUT", "/schedules/x", {"task": "report", "preset": "weekend", "args": {"n": 1}})
    assert "0 18 * * 5" in (await api("GET", "/schedules/x"))["when"]
    await api("PUT", "/presets/Yearly", body, status=422)
    assert len((await api("GET", "/presets/weekend/audit"))["items"]) == 1
    await api("DELETE", "/presets/weekend")
    await api("GET", "/presets/weekend", status=404)
