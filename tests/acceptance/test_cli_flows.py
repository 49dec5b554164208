"""`duetime flows`, as people and scripts use it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duetime import Constant, Duetime, Flow
from tests.acceptance.test_cli_reminders import duetime, on_both, on_sqlite, rows
from tests.conftest import Backend
from tests.waiting import until

APP = """
from duetime import Duetime, Flow

app = Duetime()


@app.flow(name="shop.order")
async def order(flow: Flow, order_id: int) -> int:
    return order_id
"""


def declare(app: Duetime) -> Any:
    def charge(order_id: int) -> str:
        return f"payment {order_id}"

    def ship() -> None:
        raise ValueError("no truck")

    @app.flow(name="order", retry=Constant("1ms", max_attempts=2))
    async def order(flow: Flow, order_id: int) -> str:
        await flow.step(charge, order_id)
        if await flow.wait_for("approved", timeout="7d", correlation=f"order:{order_id}"):
            await flow.sleep("1h")
        else:
            await flow.step(ship)
        return "shipped"

    return order


@on_both
async def test_all_runs_of_a_correlation_are_signalled(backend: Backend, app: Duetime) -> None:
    order = declare(app)
    signal = (backend.url, "flows", "signal", "--correlation", "order:7", "approved", "true")
    async with app.worker():
        runs = [await order.start(order_id=number) for number in (7, 7, 8)]
        for run in runs:
            await until(partial(_is, run, "waiting"))
        sent = duetime(*signal)
        for run in runs[:2]:
            await until(partial(_is, run, "sleeping"))
    again = duetime(*signal)
    as_json = duetime(*signal, "--json")
    bad = [
        duetime(backend.url, "flows", "signal", "approved"),
        duetime(backend.url, "flows", "signal", "--correlation", "order:7"),
        duetime(backend.url, "flows", "signal", "x", "approved"),
        duetime(*signal[:-1], "yes"),
        duetime(*signal[:-1], "[" * 50_000),
        duetime(*signal[:-1], '"\\ud800"'),
    ]

    assert sent.out == f"Signal approved was sent to 2 runs: {runs[0].id}, {runs[1].id}.\n"
    assert await runs[2].status() == "waiting"
    assert again.out == (
        "The signal approved was sent to no run: none waits for it with order:7.\n"
    )
    assert as_json.json == {"correlation": "order:7", "signal": "approved", "runs": []}
    assert [result.code for result in bad] == [2] * 5 + [1]
    assert "ID SIGNAL [JSON]" in bad[0].err
    assert "'x' is not an integer" in bad[2].err
    assert "'yes' is not JSON" in bad[3].err
    assert "it is nested too deeply" in bad[4].err
    assert "The data of the signal cannot be written as JSON" in bad[5].err


@on_both
async def test_runs_are_listed_shown_and_signalled(backend: Backend, app: Duetime) -> None:
    order = declare(app)
    none = duetime(backend.url, "flows", "list")
    async with app.worker():
        run = await order.using(key="order:7").start(order_id=7)
        await until(lambda: _is(run, "waiting"))
        listed = duetime(backend.url, "flows", "list", "--state", "waiting")
        shown = duetime(backend.url, "flows", "show", str(run.id))
        why = duetime(backend.url, "flows", "explain", str(run.id))
        sent = duetime(backend.url, "flows", "signal", str(run.id), "approved", "false",
                       "--key", "k", "--by", "ann")  # fmt: skip
        await until(lambda: _is(run, "failed"))
    failed = duetime(backend.url, "flows", "show", str(run.id))
    as_json = duetime(backend.url, "flows", "show", str(run.id), "--json")
    late = duetime(backend.url, "flows", "signal", str(run.id), "approved")

    assert none.out == "No runs of flows.\n"
    assert rows(listed) == [
        ["RUN", "STATE", "FLOW", "KEY", "STARTED", "WAITS FOR"],
        [str(run.id), "waiting", "order", "order:7", rows(listed)[1][4],
         "signal approved (times out in 7 d)"],
    ]  # fmt: skip
    assert "waits for signal approved (times out in 7 d)" in shown.out
    [charged, waits] = [line for line in shown.out.splitlines() if line.startswith("   ")][-2:]
    assert charged.split()[:4] == ["1", "charge", "completed", "1"]
    assert charged.split()[-1].strip("=") == ""
    assert waits.split()[:4] == ["2", "approved", "waiting", "1"]
    assert waits.split()[-1].strip("-") == ""
    assert why.out.startswith(f"Run {run.id} of flow 'order' has waited since ")
    assert sent.out == f"Signal approved was sent to run {run.id}.\n"
    assert f"Run {run.id}: order, failed" in failed.out
    assert "! no truck" in failed.out
    assert max(len(line) for line in failed.out.splitlines()) <= 100
    assert [step["name"] for step in as_json.json["steps"]] == ["charge", "approved", "ship"]
    assert (late.code, late.error) != (0, "")


@on_both
async def test_a_graph_is_drawn_as_a_tree(backend: Backend, app: Duetime) -> None:
    graph = app.graph("onboard")

    @graph.step
    def create() -> list[int]:
        return [1, 2, 3]

    @graph.map(over="create")
    def greet(number: int) -> int:
        return number

    @graph.step(after=[create])
    def bill() -> None: ...

    @graph.step
    def close(greet: list[int], bill: None) -> int:
        return len(greet)

    async with app.worker():
        run = await graph.start()
        await run.result()
    shown = duetime(backend.url, "flows", "show", str(run.id))

    drawn = shown.out.splitlines()
    start = next(i for i, line in enumerate(drawn) if line.lstrip().startswith("#"))
    names = [line[6:34].rstrip() for line in drawn[start + 1 :]]
    assert names == ["create", "  greet", "    close", "  bill"]
    assert "completed 3/3" in shown.out
    assert drawn[start + 3].endswith("greet, bill")


@on_both
async def test_runs_are_cancelled_and_retried(backend: Backend, app: Duetime) -> None:
    order = declare(app)
    run = await order.start(order_id=7)
    cancelled = duetime(backend.url, "flows", "cancel", str(run.id), "--reason", "sold out")
    was = await run.status()
    retried = duetime(backend.url, "flows", "retry", str(run.id), "--by", "ann")
    again = duetime(backend.url, "flows", "retry", str(run.id), "--json")
    audit = duetime(backend.url, "flows", "audit", str(run.id))
    missing = duetime(backend.url, "flows", "show", "99")

    assert cancelled.out == f"Run {run.id} is cancelled; it was pending.\n"
    assert was == "cancelled"
    assert retried.out == f"Run {run.id} goes on.\n"
    assert await run.status() == "pending"
    assert (again.code, again.json["error"]["code"]) == (1, "illegal_transition")
    assert "ann" in audit.out
    assert (missing.code, "no run 99" in missing.err) == (1, True)


@on_sqlite
async def test_runs_are_started_by_the_name_of_their_flow(
    backend: Backend, app: Duetime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_flows.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    named = ("flows", "start", "shop.order", "--app", "shop_flows:app")
    started = duetime(backend.url, *named, "--args", '{"order_id": 7}', "--key", "order:7")
    again = duetime(backend.url, *named, "--args", '{"order_id": 7}', "--key", "order:7", "--json")
    wrong = duetime(backend.url, *named, "--args", '{"order": 7}')
    unknown = duetime(backend.url, "flows", "start", "shop.order")

    [run] = await app.flows.list()
    assert started.out == f"Run {run.id} of shop.order is started.\n"
    assert (run.flow, run.args, run.key) == ("shop.order", {"order_id": 7}, "order:7")
    assert again.json == {"id": run.id, "created": False}
    assert (wrong.code, "order" in wrong.err) == (1, True)
    assert (unknown.code, "No flow named 'shop.order'" in unknown.err) == (1, True)


async def _is(run: Any, state: str) -> bool:
    return bool(await run.status() == state)
