"""How often a flow that runs alone waits for PostgreSQL: counted, since times differ."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from duetime import Duetime, Flow
from duetime.api import jobs
from duetime.engine import pace
from duetime.storage.postgres import waits
from tests.counting import RoundTrips
from tests.waiting import until_true

STEPS = 10


@pytest.fixture
async def app(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Duetime]:
    # However slow the machine is: the worker looks ahead when the flow has ended, and who waits
    # for a result knows that the worker is about to claim.
    monkeypatch.setattr(pace, "_PUT_OFF_SECONDS", 30.0)
    monkeypatch.setattr(waits, "_WAKE_SECONDS", 30.0)
    monkeypatch.setattr(waits, "_CLAIM_SECONDS", 30.0)
    monkeypatch.setattr(jobs, "_FIRST_LOOK_SECONDS", 30.0)
    monkeypatch.setattr(pace, "_BUSY_SECONDS", 0.0)
    app = Duetime(pg_url, poll="10m")
    yield app
    await app.close()


async def add(number: int) -> int:
    return number + 1


async def test_a_lone_flow_of_ten_steps_waits_for_two_statements_beside_its_steps(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.flow
    async def count(flow: Flow) -> int:
        number = 0
        for _ in range(STEPS):
            number = await flow.step(add, number)
        return number

    async with app.worker() as worker:
        await (await count.start()).result()
        store = await app.store()
        await until_true(lambda: not worker.loop.pace.should_claim)
        trips = RoundTrips(store, monkeypatch)
        result = await (await count.start()).result()
        sent = list(trips.sent)

    assert result == STEPS
    flow = [name for name in sent if name.startswith(("enqueue", "flow_", "finish", "job_", "wat"))]
    assert flow == ["enqueue_held", *["flow_record_one"] * STEPS, "finish_one"]
    assert "claim" not in sent[: sent.index("finish_one")]


async def test_a_lone_graph_waits_for_its_steps_and_four_statements_beside_them(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = app.graph("sums")

    @graph.step
    async def first() -> int:
        return 1

    @graph.step(after=["first"])
    async def second(first: int) -> int:
        return first + 1

    @graph.step(after=["second"])
    async def third(second: int) -> int:
        return second + 1

    async with app.worker() as worker:
        await (await graph.start()).result()
        store = await app.store()
        await until_true(lambda: not worker.loop.pace.should_claim)
        trips = RoundTrips(store, monkeypatch)
        result = await (await graph.start()).result()
        sent = list(trips.sent)

    assert result == {"third": 3}
    of_graph = [
        name for name in sent if name.startswith(("enqueue", "graph", "finish", "job_", "wat"))
    ]
    assert of_graph == [
        "enqueue_held", "graph_begin_run", *["graph_end_steps"] * 3, "graph_end_run",
        "finish_one",
    ]  # fmt: skip
    assert "claim" not in sent[: sent.index("graph_begin_run")]
