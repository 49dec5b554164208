"""A run of a flow for people: as a line of a list, and drawn with its steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from duetime.cli.output import columns, compact, cut, echo, exact, one_line, print_facts, relative
from duetime.domain.flows.flow import StepInfo, StepState
from duetime.domain.flows.graph import MAX_ITEMS, is_item
from duetime.domain.flows.run import FlowInfo, FlowState

_WIDTH = 100
"""Columns of the drawing, all in all."""
_BAR = 34
_NAME = 28
_MOST_ROWS = 100
_UNITS = (
    (timedelta(days=2), timedelta(days=1), "d"),
    (timedelta(hours=2), timedelta(hours=1), "h"),
    (timedelta(minutes=2), timedelta(minutes=1), "m"),
    (timedelta(seconds=1), timedelta(seconds=1), "s"),
)
_WAITS = ("sleep", "signal", "child", "job")


def run_row(run: FlowInfo, now: datetime) -> tuple[Any, ...]:
    """Run, state, flow, key, started, waits for."""
    waits = ", ".join(_describe_wait(step, now) for step in run.waits[:3])
    return (
        run.id,
        run.state.value,
        run.flow,
        run.key or "",
        relative(run.started_at, now),
        run.parked_reason or run.error or waits,
    )


def show_run(run: FlowInfo, steps: Sequence[StepInfo], now: datetime) -> None:
    """Print what is known of a run, and draw its steps."""
    echo(f"Run {run.id}: {one_line(run.flow)}, {run.state.value}")
    print_facts(
        [
            ("arguments", compact(run.args)),
            ("key", run.key),
            ("queue", f"{run.queue}, priority {run.priority}"),
            ("child of", None if run.parent is None else f"run {run.parent}"),
            ("created", exact(run.created_at, now)),
            ("started", exact(run.started_at, now)),
            ("worker", run.worker if run.state is FlowState.RUNNING else None),
            ("goes on", exact(run.run_at, now)),
            ("finished", exact(run.finished_at, now)),
            ("parked", run.parked_reason),
            ("error", None if run.error is None else one_line(run.error)),
            ("result", None if run.result is None else compact(run.result)),
        ]
    )
    for step in run.waits:
        echo(f"  waits for {_describe_wait(step, now)}")
    _draw("STEP", _rows_of_steps(steps), run, now)
    _draw("COMPENSATION", [(step, 0, "") for step in steps if step.seq < 0], run, now)


Drawn = tuple[StepInfo, int, str]
"""A step, how far it is indented, and what is said beside its state."""


def _rows_of_steps(steps: Sequence[StepInfo]) -> list[Drawn]:
    shown = [step for step in steps if step.seq > 0 and step.kind not in ("end", "item")]
    shown = [step for step in shown if not is_item(step.seq)]
    if not any(step.after for step in shown):
        return [(step, 0, "") for step in shown]
    return [(step, depth, _count_items(step, steps)) for step, depth in _as_tree(shown)]


def _as_tree(steps: Sequence[StepInfo]) -> list[tuple[StepInfo, int]]:
    """The steps of a graph, each beneath the deepest of those that it waits for."""
    depths: dict[str, int] = {}
    beneath: dict[str | None, list[StepInfo]] = {}
    for step in steps:
        # A step is declared after all that it waits for.
        known = [name for name in step.after if name in depths]
        parent = max(known, key=depths.__getitem__) if known else None
        depths[step.name] = 0 if parent is None else depths[parent] + 1
        beneath.setdefault(parent, []).append(step)
    found: list[tuple[StepInfo, int]] = []
    left = [(step, 0) for step in reversed(beneath.get(None, []))]
    while left:
        step, depth = left.pop()
        found.append((step, depth))
        left += [(one, depth + 1) for one in reversed(beneath.get(step.name, []))]
    return found


def _count_items(step: StepInfo, steps: Sequence[StepInfo]) -> str:
    items = [one for one in steps if is_item(one.seq) and one.seq // MAX_ITEMS == step.seq]
    if not items:
        return ""
    return f"{sum(one.finished_at is not None for one in items)}/{len(items)}"


def _draw(heading: str, rows: Sequence[Drawn], run: FlowInfo, now: datetime) -> None:
    """Draw steps over time: `=` it ran, `-` it waited."""
    if not rows:
        return
    start = run.started_at or run.created_at
    end = run.finished_at or now
    for step, _, _ in rows:
        end = max(end, step.finished_at or end)
    span = max(end - start, timedelta(milliseconds=1))
    graph = any(step.after for step, _, _ in rows)
    last = "AFTER" if graph else f"0{_took(span):>{_BAR - 1}}"
    echo()
    echo(f"{'#':>4}  {heading:<{_NAME}} {'STATE':<14} {'TRIES':>5} {'TOOK':>8}  {last}")
    hidden = len(rows) - _MOST_ROWS
    for place, (step, depth, items) in enumerate(rows):
        if hidden > 0 and _MOST_ROWS // 2 <= place < _MOST_ROWS // 2 + hidden:
            if place == _MOST_ROWS // 2:
                echo(f"      … {hidden:,} more; --json shows them all")
            continue
        name = _pad(cut("  " * depth + one_line(step.name), _NAME), _NAME)
        state = _pad(f"{step.state.value} {items}".rstrip(), 14)
        beside = ", ".join(map(one_line, step.after)) if graph else _bar(step, start, span, now)
        took = "" if step.started_at is None else _took((step.finished_at or now) - step.started_at)
        line = f"{abs(step.seq):>4}  {name} {state} {step.attempt:>5} {took:>8}  {beside}"
        echo(cut(line.rstrip(), _WIDTH))
        if step.error is not None and step.state is not StepState.COMPLETED:
            echo(cut(f"{'':>4}  {'  ' * depth}! {one_line(step.error)}", _WIDTH))


def _bar(step: StepInfo, start: datetime, span: timedelta, now: datetime) -> str:
    if step.started_at is None:
        return ""
    first = round((step.started_at - start) / span * _BAR)
    last = round(((step.finished_at or now) - start) / span * _BAR)
    first = min(max(first, 0), _BAR - 1)
    length = min(max(last - first, 1), _BAR - first)
    is_wait = step.kind in _WAITS or step.state in (StepState.WAITING, StepState.RETRYING)
    return " " * first + ("-" if is_wait else "=") * length


def _describe_wait(step: StepInfo, now: datetime) -> str:
    until = "" if step.until is None else f", {relative(step.until, now)}"
    if step.state is StepState.RETRYING:
        return f"a retry of {one_line(step.name)}{until}"
    match step.kind:
        case "sleep":
            return f"a sleep{until}"
        case "signal":
            return f"signal {one_line(step.name)}" + (until and f" (times out{until[1:]})")
        case "child":
            return f"run {step.job_id} of {one_line(step.name)}"
    return f"step {one_line(step.name)}" + ("" if step.job_id is None else f", job {step.job_id}")


def _took(span: timedelta) -> str:
    """How long.

    >>> _took(timedelta(milliseconds=12.3)), _took(timedelta(seconds=1.5)), _took(timedelta(days=3))
    ('12 ms', '1.5 s', '3.0 d')
    """
    for least, unit, name in _UNITS:
        if span >= least:
            return f"{span / unit:.1f} {name}"
    return f"{max(span, timedelta(0)) / timedelta(milliseconds=1):.0f} ms"


def _pad(text: str, width: int) -> str:
    return text + " " * (width - columns(text))
