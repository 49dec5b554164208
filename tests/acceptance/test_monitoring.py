"""The Grafana dashboard and the alert rules ask for metrics that there are."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from duetime import Duetime
from tests.acceptance.command import environment

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "monitoring"
BY_PROMETHEUS = {"instance", "le"}
"""Labels that we do not write ourselves, or that every histogram has."""


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FILES / "grafana.json").read_text())
    return found


def queries() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def labels_of_metrics() -> dict[str, set[str]]:
    """As the manual lists them, which is held to the metrics by a test of its own."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(duetime_\w+)(?:\{([\w,]+)\})?` \| \w+ \|", page, re.MULTILINE)
    return {name: set(filter(None, labels.split(","))) for name, labels in rows}


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_asks_for_metrics_and_labels_that_exist(where: str, query: str) -> None:
    known = labels_of_metrics()
    names = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"duetime_\w+", query)
    }

    assert names, where
    assert names <= known.keys(), where
    wanted = set(re.findall(r"(\w+)\s*=~?\s*\"", query))
    for group in re.findall(r"by \(([^)]*)\)", query):
        wanted |= {label.strip() for label in group.split(",")}
    assert wanted <= set().union(*(known[name] for name in names)) | BY_PROMETHEUS, where


def test_every_rule_says_what_happened_and_what_to_do() -> None:
    found = rules()

    assert len({rule["alert"] for rule in found}) == len(found) > 10
    for rule in found:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert {"summary", "description"} <= rule["annotations"].keys(), rule["alert"]
        for text in rule["annotations"].values():
            assert text.strip().endswith((".", ")")), rule["alert"]


def test_commands_that_rules_name_exist() -> None:
    text = " ".join(rule["annotations"]["description"] for rule in rules())
    from duetime.cli import cli

    commands = set(re.findall(r"`duetime ([a-z]+)", text))
    assert commands
    assert commands <= set(cli.list_commands(None))  # type: ignore[arg-type]


def test_panels_do_not_overlap_and_have_an_explanation() -> None:
    places: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }

        assert panel["description"], panel["title"]
        assert at["x"] + at["w"] <= 24
        assert not places & mine, panel["title"]
        places |= mine


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
async def test_prometheus_accepts_the_rules_and_the_metrics(tmp_path: Path) -> None:
    app = Duetime(f"sqlite:///{tmp_path}/duetime.db")

    @app.task(name="pay")
    async def pay() -> None: ...

    async with app.worker():
        await (await pay.enqueue()).result()
        text = await app.metrics()
    await app.close()

    for arguments, given in (
        (["check", "rules", str(FILES / "alerts.yml")], ""),
        (["check", "metrics"], text),
    ):
        done = await asyncio.to_thread(
            subprocess.run,
            ["promtool", *arguments],
            input=given,
            capture_output=True,
            text=True,
            env=environment(None),
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
