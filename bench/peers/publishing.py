"""What is kept of a comparison: `docs/benchmarks/`. A part of the systems replaces only itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.charts import make_charts
from bench.peers.table import make_markdown, make_settings


def merge(before: Mapping[str, Any] | None, now: Mapping[str, Any], order: Sequence[str]) -> Any:
    """Return the new results, with those systems of before that were not measured again."""
    if before is None:
        return now
    systems = dict(before["systems"]) | now["systems"]
    left_out = dict(before["left_out"]) | now["left_out"]
    return {
        "machine": now["machine"],
        "systems": {
            name: systems[name] for name in order if name in systems and name not in now["left_out"]
        },
        "left_out": {
            name: left_out[name]
            for name in order
            if name in left_out and name not in now["systems"]
        },
    }


def publish(results: Mapping[str, Any], directory: Path) -> None:
    """Write the JSON and the charts, and the tables into the page, between their marks."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "peers.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    for name, chart in make_charts(results).items():
        (directory / f"{name}.svg").write_text(chart)
    page = directory / "index.md"
    if page.exists():
        page.write_text(fill(page.read_text(), results))


def read_results(directory: Path) -> Any:
    file = directory / "peers.json"
    return json.loads(file.read_text()) if file.exists() else None


def fill(page: str, results: Mapping[str, Any]) -> str:
    """Replace what stands between the marks of each table."""
    for name, table in (("table", make_markdown(results)), ("settings", make_settings(results))):
        opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = page.partition(opening)
        _, _, after = rest.partition(closing)
        page = f"{before}{opening}\n\n{table}\n\n{closing}{after}"
    return page
