"""`python -m bench.figures [RESULTS]`: write what was measured into the table of the README."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.catalogue import CATALOGUE, Target
from bench.processes import ROOT

_LABELS = {
    "drain_1": "one worker process",
    "drain_2": "two worker processes",
    "drain_8": "eight worker processes on two cores",
    "bulk_enqueue": "`enqueue_many` of 100,000",
    "enqueue_16": "16 clients",
    "enqueue_single": "one `enqueue` after another",
    "enqueue_concurrent": "200 callers in one process",
    "enqueue_hundreds": "`enqueue_many` of 100",
    "api_enqueue": "over HTTP",
    "pickup_p50_ms": "an idle worker, from the commit to the handler",
    "lateness_p50_ms": "timers, from their due time to the handler",
    "lateness_p99_ms": "the same, 99 of 100",
    "lateness_computing_p99_ms": "beside a handler that computes in a thread, 99 of 100",
    "drain_future_1m": "beside 1,000,000 future jobs",
    "drain_future_10m": "beside 10,000,000 future jobs",
    "drain_finished_10m": "beside 10,000,000 finished jobs",
    "drain_scraped": "with metrics that are scraped every second",
    "dashboard_tabs": "with ten open tabs of the dashboard",
    "dashboard_serve": "the same, in the process of the worker",
    "page_million_ms": "the slowest page beside 1,000,000 of everything",
    "schedule_lateness_p50_ms": "200 schedules in the same second",
    "schedule_lateness_p99_ms": "the same, 99 of 100",
    "schedule_fire_1000": "1,000 schedules in one second, 50 workers",
    "schedule_start_p99_ms": "the same, from the tick to the handler, 99 of 100",
    "put_many_100k": "two rules each, until the calls return",
    "put_many_armed_100k": "the same, until all reminders are armed",
    "reminder_bytes": "on disk, for an armed reminder",
    "scope_change_ms": "a scope with 100,000 subjects below, until the call returns",
    "rearm_100k": "armed again by workers after it",
    "drain_1m_reminders": "beside 1,000,000 reminders",
    "reminder_lateness_p99_ms": "subjects put 50 ms before, 99 of 100",
    "track_update_100k": "one UPDATE of 100,000 tracked rows",
    "track_armed_100k": "the same, until all reminders are armed",
    "track_move_p50_ms": "an UPDATE of one tracked row",
    "drain_pinned": "sixth round under a held snapshot",
    "drain_pinned_unpinned": "the same, beside no snapshot",
    "sqlite_drain": "one worker process",
    "sqlite_bulk_enqueue": "`enqueue_many` of many",
    "sqlite_pickup_p50_ms": "enqueued by another process",
    "sqlite_schedule_lateness_p99_ms": "200 schedules in the same second, 99 of 100",
    "rss_idle_mb": "an idle worker",
    "idle_connections": "an idle worker",
    "idle_transactions": "an idle worker",
    "flow_steps": "200 flows of ten steps in flight",
    "flow_idle_ms": "one flow of ten steps, from start to result",
    "graph_idle_ms": "the same as a graph",
    "flow_fan_out_s": "a map of 10,000 and its join",
    "flow_steps_history": "beside 100,000 finished runs",
}
_BEGIN, _END = "<!-- figures -->", "<!-- /figures -->"


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "bench" / "results.json"
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    table = make_figures(json.loads(given.read_text()))
    readme.write_text(f"{before}{_BEGIN}\n\n{table}\n\n{_END}{after}")


def make_figures(results: dict[str, Any]) -> str:
    """Return the table of what was measured, and which targets were missed."""
    rows = ["| Measure | Duetime | Beside | Ratio |", "|---|---|---|---|"]
    rows += [_row(name, results[name]) for name in _LABELS if name in results]
    missed = [
        f"`{name}` ({_short(spec.target)})"
        for name, spec in CATALOGUE.items()
        if name in results and spec.target is not None and not _met(spec.target, results[name])
    ]
    said = "Every target was met." if not missed else f"Missed targets: {', '.join(missed)}."
    return "\n".join([*rows, "", said])


def _row(name: str, found: dict[str, Any]) -> str:
    spec = CATALOGUE[name]
    value = f"{number(found['value'])} {spec.unit}"
    beside = f"{spec.baseline}: {number(found['baseline'])}"
    return f"| `{name}`: {_LABELS[name]} | {value} | {beside} | {found['ratio']:.2f} |"


def _met(target: Target, found: dict[str, Any]) -> bool:
    return target.allows(found[target.of])


def _short(target: Target) -> str:
    return f"{target.of} {'at least' if target.at == 'least' else 'at most'} {target.bound:g}"


def number(value: float) -> str:
    """As people read it, to three digits.

    >>> number(98603.2), number(0.884), number(561.6)
    ('98,600', '0.88', '562')
    """
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    main()
