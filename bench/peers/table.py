"""The comparison as text for a terminal and as Markdown for the manual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.peers.figures import FIGURES, format_number


def make_text(results: Mapping[str, Any]) -> str:
    """Return aligned columns; below them what failed and what was left out."""
    heading = ["system", *(f"{one.heading} {one.unit}" for one in FIGURES.values())]
    halves = [_halve(cell) for cell in heading]
    rows = [[top for top, _ in halves], [bottom for _, bottom in halves], *_rows(results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(2, "  ".join("─" * width for width in widths))
    return "\n".join([*lines, *_notes(results)])


_COLUMNS = {
    "enqueue/s, bulk / single": ("bulk_enqueue", "single_enqueue"),
    "drain/s, 1 / 2 processes": ("drain_1", "drain_2"),
    "pick-up ms, p50 / p99": ("pickup_p50_ms", "pickup_p99_ms"),
    "lateness ms, p50 / p99": ("lateness_p50_ms", "lateness_p99_ms"),
    "idle MB": ("idle_rss_mb",),
}
"""Of the manual, whose pages are narrower than a terminal."""


def make_markdown(results: Mapping[str, Any]) -> str:
    """Return a table; the best of each figure, raw SQL apart, is bold."""
    best = _best(results)
    lines = ["| System | " + " | ".join(_COLUMNS) + " |", "|---" + "|--:" * len(_COLUMNS) + "|"]
    for place, (title, *values) in enumerate(_rows(results)):
        cells = {
            name: f"**{value}**" if best[name] == place else value
            for name, value in zip(FIGURES, values, strict=True)
        }
        shown = [" / ".join(cells[name] for name in names) for names in _COLUMNS.values()]
        lines.append(f"| {title} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, *("" if not note else f"- {note}" for note in _notes(results))])


def make_settings(results: Mapping[str, Any]) -> str:
    """Return, in Markdown, the machine, and a table of what was measured and how it was set."""
    machine = results["machine"]
    server = f"PostgreSQL {machine['postgresql'].split()[0]}"
    durable = f"`fsync` {machine['fsync']}, `synchronous_commit` {machine['synchronous_commit']}"
    lines = [f"{machine['cores']} cores; {server}; {durable}.", ""]
    lines += ["| System | Version | Jobs drained | Settings | Measured |", "|---|---|--:|---|---|"]
    lines += [
        f"| {one['title']} | {one['version']} | {one['jobs']:,} | {one['settings']}"
        f" | {one['date']}, {one['stolen_seconds']:.1f} s stolen |"
        for one in results["systems"].values()
    ]
    return "\n".join(lines)


def _rows(results: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for one in results["systems"].values():
        figures = one["figures"]
        missing = "FAILED" if one["failed"] else "–"
        cells = [
            format_number(figures[name]["value"]) if name in figures else missing
            for name in FIGURES
        ]
        rows.append([one["title"] + ("" if one["durable"] else " (not durable)"), *cells])
    return rows


def _best(results: Mapping[str, Any]) -> dict[str, int]:
    """By figure, which row is the best of those that are whole systems."""
    best = {}
    for name, figure in FIGURES.items():
        values = [
            (one["figures"][name]["value"], place)
            for place, (key, one) in enumerate(results["systems"].items())
            if name in one["figures"] and not key.startswith("raw")
        ]
        choose = max if figure.more_is_better else min
        best[name] = choose(values)[1] if values else -1
    return best


def _notes(results: Mapping[str, Any]) -> Sequence[str]:
    failed = [
        f"{one['title']} failed: {one['failed']}"
        for one in results["systems"].values()
        if one["failed"]
    ]
    left_out = [f"{name} is left out: {reason}" for name, reason in results["left_out"].items()]
    notes = failed + left_out
    return ["", *notes] if notes else []


def _halve(heading: str) -> tuple[str, str]:
    first, _, rest = heading.partition(" ")
    if len(rest) > len(first) + 8:
        words = heading.split()
        middle = (len(words) + 1) // 2
        return " ".join(words[:middle]), " ".join(words[middle:])
    return first, rest
