"""`make bench-peers` in miniature, and what it does about a system that is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.peers import installing
from bench.peers.charts import make_charts
from bench.peers.checking import check_exactly_once
from bench.peers.comparing import Comparison
from bench.peers.figures import FIGURES
from bench.peers.publishing import fill, merge
from bench.peers.rounds import QUICK
from bench.peers.svg import Bar, draw
from bench.peers.systems import SYSTEMS, System
from bench.peers.table import make_markdown, make_text
from bench.raw_sqlite import create
from tests.postgres_binaries import find_system
from tests.servers import PostgresServer

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ROOT / "docs" / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class UnreliableSystem(System):
    fault: str = ""

    def command(self, role: str) -> list[str]:
        return [sys.executable, "-m", "tests.unreliable_side", self.fault, role]


@pytest.mark.slow
def test_a_comparison_writes_a_table_figures_and_charts(tmp_path: Path) -> None:
    systems = ["raw", "duetime", "raw_sqlite", "duetime_sqlite"]
    options = ["--quick", "--rounds", "1", "--output", str(tmp_path)]

    done = subprocess.run(
        [sys.executable, "-m", "bench.peers", *systems, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "peers.json").read_text())
    assert list(results["systems"]) == systems
    for one in results["systems"].values():
        assert one["failed"] is None
        assert one["executed"] > 2 * one["jobs"]
        assert set(one["figures"]) == set(FIGURES)
        assert one["title"] in done.stdout
        assert one["title"] in (tmp_path / "drain.svg").read_text()


@pytest.mark.parametrize(
    ("fault", "told"),
    [("doubles", "job 3 doubled"), ("loses", "only 9 of 10 jobs ran in 3 s")],
)
def test_a_system_that_doubles_or_loses_a_job_fails(fault: str, told: str, tmp_path: Path) -> None:
    system = UnreliableSystem("Unreliable", "raw_sqlite", "sqlite", 10, "", fault=fault)
    sizes = replace(QUICK, share=1.0, patience_seconds=3.0)
    comparison = Comparison({"bad": system}, _no_server(), tmp_path, sizes, rounds=2)
    create(str(tmp_path / "bad.db"))
    with comparison._attempt("bad"):
        comparison._measure("bad", 0)

    described = comparison._describe("bad")

    assert described["failed"] == told
    assert described["figures"] == {}
    results = {"systems": {"bad": described}, "left_out": {}}
    assert f"Unreliable failed: {told}" in make_text(results)
    assert "| Unreliable | FAILED / FAILED |" in make_markdown(results)


def test_lost_doubled_and_unknown_jobs_are_named() -> None:
    assert check_exactly_once(range(5), [4, 2, 0, 1, 3]) == 5

    with pytest.raises(AssertionError, match=r"2 jobs \(0, 1\) lost; job 2 doubled; job 9 unknown"):
        check_exactly_once(range(4), [2, 3, 2, 9])


def test_a_peer_that_cannot_be_installed_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installing, "HOME", tmp_path)
    monkeypatch.setattr(
        installing, "VERSIONS", {"future": {"python": "3.99", "pip": ["future==1"]}}
    )
    system = System("Future", "future", "sqlite", 10, "", environment="future")
    comparison = Comparison({"future": system}, _no_server(), tmp_path, QUICK, rounds=1)

    with comparison._attempt("future"):
        comparison._prepare("future", system)

    assert "needs Python 3.99 or later" in comparison.left_out["future"]
    results = {"systems": {}, "left_out": comparison.left_out}
    assert "future is left out: it needs Python 3.99" in make_text(results)


def test_measuring_some_systems_keeps_the_figures_of_the_others() -> None:
    before: dict[str, Any] = {
        "machine": {"cores": 1},
        "systems": {"raw": {"date": "old"}, "pgqueuer": {"date": "old"}},
        "left_out": {"oban": "no Python 3.12", "duetime": "broken"},
    }
    now: dict[str, Any] = {
        "machine": {"cores": 2},
        "systems": {"duetime": {"date": "new"}, "raw": {"date": "new"}},
        "left_out": {"pgqueuer": "gone"},
    }

    merged = merge(before, now, ["raw", "duetime", "pgqueuer", "oban"])

    assert merged == {
        "machine": {"cores": 2},
        "systems": {"raw": {"date": "new"}, "duetime": {"date": "new"}},
        "left_out": {"pgqueuer": "gone", "oban": "no Python 3.12"},
    }


def test_a_chart_has_a_bar_and_a_label_for_every_value() -> None:
    bars = [
        Bar("fast & <good>", [1000.0, 2000.0], ["1,000", "2,000"], ours=True),
        Bar("slow", [10.0, None], ["10", "no figure"]),
    ]

    chart = ElementTree.fromstring(draw("Speed", "More is better.", bars, log=True, unit="jobs/s"))

    widths = [float(bar.attrib["width"]) for bar in chart.iter(f"{SVG}rect")][1:]
    texts = {text.text for text in chart.iter(f"{SVG}text")}
    assert len(widths) == 3
    assert widths[2] < widths[0] < widths[1]
    # Each tenfold has the same length: 10 stands one from the left, 1,000 three.
    assert widths[0] == pytest.approx(3 * widths[2], abs=0.5)
    assert {"fast & <good>", "slow", "1,000", "2,000", "10", "no figure"} <= texts
    assert "jobs/s, logarithmic" in texts


def test_the_published_page_and_charts_show_the_published_figures() -> None:
    results = json.loads((PAGES / "peers.json").read_text())
    page = (PAGES / "index.md").read_text()

    assert fill(page, results) == page
    assert set(results["systems"]) | set(results["left_out"]) == set(SYSTEMS)
    for name, chart in make_charts(results).items():
        assert (PAGES / f"{name}.svg").read_text() == chart
        assert f"({name}.svg)" in page


def _no_server() -> PostgresServer:
    """One that is never started: a system on SQLite needs none."""
    return PostgresServer(find_system())
