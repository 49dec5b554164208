"""The table for people and the JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.catalogue import CATALOGUE
from bench.reading import Reading

_HEADINGS = ("measure", "duetime", "beside", "ratio", "target", "", "rounds", "beside what")
_LEFT = {0, 4, 5, 6, 7}


def make_table(readings: Mapping[str, Reading]) -> str:
    """Return the readings as aligned text, in the catalogue's order, with notes below."""
    rows = [_HEADINGS] + [_row(name, readings[name]) for name in CATALOGUE if name in readings]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("─" * width for width in widths))
    notes = [
        f"{name}: {readings[name].note}"
        for name in CATALOGUE
        if name in readings and readings[name].note
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def write_results(readings: Mapping[str, Reading], path: Path) -> None:
    """Write `{name: {value, baseline, ratio, unit}}`."""
    results = {
        name: {
            "value": round(readings[name].value, 3),
            "baseline": round(readings[name].baseline, 3),
            "ratio": round(readings[name].ratio, 3),
            "unit": spec.unit,
        }
        for name, spec in CATALOGUE.items()
        if name in readings
    }
    path.write_text(json.dumps(results, indent=2) + "\n")


def _row(name: str, reading: Reading) -> tuple[str, ...]:
    spec = CATALOGUE[name]
    met = "" if spec.target is None else "met" if spec.target.met(reading) else "MISSED"
    rounds = f"{_spread(reading.rounds)} | {_spread(reading.baseline_rounds)}"
    return (
        name,
        f"{_number(reading.value)} {spec.unit}",
        _number(reading.baseline),
        f"{reading.ratio:.2f}",
        "" if spec.target is None else str(spec.target),
        met,
        rounds if reading.rounds else "",
        spec.baseline,
    )


def _spread(rounds: Sequence[float]) -> str:
    return f"{_number(min(rounds))}…{_number(max(rounds))}" if rounds else "–"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
