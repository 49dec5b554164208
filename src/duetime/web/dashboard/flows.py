"""The screens of flows: the runs, and one of them with its graph and its waterfall."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import Path

from duetime.domain.flows.flow import StepInfo, StepState
from duetime.domain.flows.graph import MAX_ITEMS, is_item
from duetime.domain.flows.run import FlowInfo, FlowState
from duetime.domain.page import Page
from duetime.errors import InvalidInput
from duetime.web.dashboard.charts import TimeAxis
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages
from duetime.web.forms import read_json

RunId = Annotated[int, Path(ge=1, le=2**63 - 1)]

_ROWS = 50
_MOST_STEPS = 200
_ROW_HEIGHT = 30
_HEAD_HEIGHT = 28
_NAMES_WIDTH = 250
_WIDTH = 1100
_WAITING = ("sleep", "signal", "child", "job")


class Bar(msgspec.Struct, frozen=True):
    """A step in the waterfall."""

    step: StepInfo
    y: int
    x: float
    width: float
    is_wait: bool
    depth: int
    items: str
    """Of a map: how many of its items have ended."""


class Waterfall(msgspec.Struct, frozen=True):
    """The steps of a run over time."""

    bars: list[Bar]
    axis: TimeAxis
    height: int
    hidden: int
    """How many steps in the middle are left out."""


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/flows", "flows.html")
    async def show_flows(ask: Ask) -> dict[str, Any]:
        chosen = ask.query.get("state") or None
        if chosen is not None and chosen not in list(FlowState):
            raise InvalidInput(f"There is no state {chosen!r:.60} of flows.")
        runs: Page[FlowInfo] = await app.flows.list(
            state=() if chosen is None else FlowState(chosen),
            flow=ask.query.get("flow") or None,
            key=ask.query.get("key") or None,
            after=ask.query.get("after") or None,
            limit=_ROWS,
        )
        return {"runs": runs, "states": [state.value for state in FlowState], "chosen": chosen}

    @pages.page("/flows/{run_id}", "flow.html")
    async def show_run(ask: Ask, run_id: RunId) -> dict[str, Any]:
        run = await app.flows.get(run_id)
        steps = await app.flows.steps(run_id)
        return {
            "run": run,
            "steps": [step for step in steps if step.seq > 0],
            "compensations": [step for step in steps if step.seq < 0],
            "waterfall": draw_waterfall(run, steps, ask),
            "graph": describe_graph(steps),
            "explanation": await app.flows.explain(run_id),
            "events": await app.flows.audit(run_id, limit=20),
        }

    @pages.action("/flows/{run_id}/cancel")
    async def cancel(ask: Ask, run_id: RunId) -> GoTo:
        await app.flows.cancel(run_id, by=ask.visitor.name)
        return GoTo(["flows", run_id], said=f"Run {run_id} is being cancelled.")

    @pages.action("/flows/{run_id}/retry")
    async def retry(ask: Ask, run_id: RunId) -> GoTo:
        await app.flows.retry(run_id, by=ask.visitor.name)
        return GoTo(["flows", run_id], said=f"Run {run_id} goes on from the step that failed.")

    @pages.action("/flows/{run_id}/rerun")
    async def rerun(ask: Ask, run_id: RunId) -> GoTo:
        step = (await ask.form()).get("from_step", "")
        from_step = int(step) if step.isascii() and step.isdigit() and len(step) < 10 else step
        await app.flows.rerun(run_id, from_step=from_step, by=ask.visitor.name)
        return GoTo(["flows", run_id], said=f"Run {run_id} runs again from step {step}.")

    @pages.action("/flows/{run_id}/signal")
    async def signal(ask: Ask, run_id: RunId) -> GoTo:
        form = await ask.form()
        name = form.get("name", "")
        await app.flows.signal(run_id, name, _read_data(form.get("data", "")), by=ask.visitor.name)
        return GoTo(["flows", run_id], said=f"Signal {name} was sent to run {run_id}.")

    return pages


def draw_waterfall(run: FlowInfo, steps: Sequence[StepInfo], ask: Ask) -> Waterfall | None:
    """Place the steps of a run over time; None if none has begun."""
    shown = [step for step in steps if step.seq > 0 and not is_item(step.seq)]
    if not shown or run.started_at is None:
        return None
    hidden = max(0, len(shown) - _MOST_STEPS)
    if hidden:
        half = _MOST_STEPS // 2
        shown = shown[:half] + shown[-half:]
    until = run.finished_at or ask.now  # What had not ended then went no further.
    end = max(
        until,
        *(step.finished_at or until for step in shown),
        run.started_at + timedelta(milliseconds=1),
    )
    axis = TimeAxis(run.started_at, end, _WIDTH - _NAMES_WIDTH - 90, ask.zone, _NAMES_WIDTH)
    depths = _depths(shown)
    bars = [
        _bar(step, place, axis, until, depths[step.name], _items(step, steps))
        for place, step in enumerate(shown)
    ]
    return Waterfall(bars, axis, _HEAD_HEIGHT + _ROW_HEIGHT * len(bars) + 8, hidden)


def describe_graph(steps: Sequence[StepInfo]) -> str | None:
    """The steps of a graph and what each waits for, as JSON for the script that draws it."""
    nodes = [step for step in steps if step.seq > 0 and not is_item(step.seq)]
    if not any(step.after for step in nodes):
        return None
    return json.dumps(
        [
            {
                "name": step.name,
                "state": step.state.value,
                "after": list(step.after),
                "kind": step.kind,
                "note": _items(step, steps) or _note(step),
            }
            for step in nodes
        ]
    )


def _bar(
    step: StepInfo, place: int, axis: TimeAxis, until: datetime, depth: int, items: str
) -> Bar:
    y = _HEAD_HEIGHT + place * _ROW_HEIGHT
    is_wait = step.kind in _WAITING or step.state in (StepState.WAITING, StepState.RETRYING)
    if step.started_at is None:
        return Bar(step, y, axis.x(axis.start), 0, is_wait, depth, items)
    x = axis.x(step.started_at)
    width = max(3.0, axis.x(step.finished_at or until) - x)
    return Bar(step, y, x, round(width, 1), is_wait, depth, items)


def _depths(steps: Sequence[StepInfo]) -> dict[str, int]:
    """How deep in its graph each step is. The steps of a function are all at the top."""
    depths: dict[str, int] = {}
    for step in steps:
        known = [depths[name] + 1 for name in step.after if name in depths]
        depths[step.name] = max(known, default=0)
    return depths


def _items(step: StepInfo, steps: Sequence[StepInfo]) -> str:
    items = [one for one in steps if is_item(one.seq) and one.seq // MAX_ITEMS == step.seq]
    return f"{sum(one.finished_at is not None for one in items)}/{len(items)}" if items else ""


def _note(step: StepInfo) -> str:
    if step.started_at is None or step.finished_at is None:
        return ""
    return f"{(step.finished_at - step.started_at) / timedelta(milliseconds=1):,.0f} ms"


def _read_data(text: str) -> Any:
    if not text.strip():
        return None
    return read_json(text, what='The data must be JSON, such as true or {"ok": 1}')
