"""Which charts the manual shows. Systems stand in the table's order: a loss looks like a win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.peers.figures import FIGURES, format_number
from bench.peers.svg import Bar, draw

CHARTS: Mapping[str, tuple[str, str, Sequence[str], bool]] = {
    "drain": (
        "Jobs worked off per second",
        "above: one worker process; below: two. More is better.",
        ("drain_1", "drain_2"),
        True,
    ),
    "enqueue": (
        "Jobs enqueued per second",
        "above: in bulk; below: one call after another. More is better.",
        ("bulk_enqueue", "single_enqueue"),
        True,
    ),
    "pickup": (
        "From the commit of a job to its handler, worker idle",
        "above: p50; below: p99. Less is better.",
        ("pickup_p50_ms", "pickup_p99_ms"),
        True,
    ),
    "lateness": (
        "How late a timer's handler begins",
        "above: p50; below: p99. Less is better.",
        ("lateness_p50_ms", "lateness_p99_ms"),
        True,
    ),
    "memory": (
        "Memory of an idle worker",
        "Resident; the server of the database or queue is not counted. Less is better.",
        ("idle_rss_mb",),
        False,
    ),
}


def make_charts(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the SVG of each chart, by its name."""
    return {
        name: draw(
            title,
            subtitle,
            [_bar(key, one, figures) for key, one in results["systems"].items()],
            log=log,
            unit=FIGURES[figures[0]].unit,
        )
        for name, (title, subtitle, figures, log) in CHARTS.items()
    }


def _bar(key: str, one: Mapping[str, Any], figures: Sequence[str]) -> Bar:
    found = [one["figures"].get(figure, {}).get("value") for figure in figures]
    missing = "failed" if one["failed"] else "no figure"
    return Bar(
        one["title"],
        found,
        [missing if value is None else format_number(value) for value in found],
        ours=key.startswith("duetime"),
    )
