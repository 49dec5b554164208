"""`make bench` in miniature: every measure is taken, and says something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.catalogue import CATALOGUE
from bench.figures import make_figures
from bench.measures import MEASURES

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = {
    "drain_1",
    "drain_2",
    "bulk_enqueue",
    "enqueue_16",
    "enqueue_single",
    "enqueue_concurrent",
    "enqueue_hundreds",
    "api_enqueue",
    "pickup_p50_ms",
    "pickup_p99_ms",
    "lateness_p50_ms",
    "lateness_p99_ms",
    "lateness_computing_p50_ms",
    "lateness_computing_p99_ms",
    "drain_future_1m",
    "drain_scraped",
    "dashboard_tabs",
    "dashboard_serve",
    "page_million_ms",
    "schedule_lateness_p50_ms",
    "schedule_lateness_p99_ms",
    "schedule_early",
    "schedule_fire_1000",
    "schedule_claim_p99_ms",
    "rearm_100k",
    "drain_1m_reminders",
    "reminder_lateness_p50_ms",
    "reminder_lateness_p99_ms",
    "reminders_10m_next_due_ms",
    "reminders_10m_claim",
    "reminders_10m_send",
    "reminders_10m_lateness_p99_ms",
    "track_update_100k",
    "track_armed_100k",
    "drain_pinned",
    "sqlite_drain",
    "sqlite_bulk_enqueue",
    "sqlite_schedule_lateness_p50_ms",
    "sqlite_schedule_lateness_p99_ms",
    "rss_idle_mb",
    "flow_steps",
    "flow_idle_ms",
    "graph_steps",
    "graph_idle_ms",
    "flow_fan_out_s",
    "flow_steps_history",
    "sqlite_flow_steps",
    "sqlite_flow_idle_ms",
    "flow_sleeping_drain",
    "flow_sleeping_rows",
    "drain_8",
    "drain_50",
    "drain_future_10m",
    "drain_finished_10m",
    "rss_million_mb",
    "idle_fleet_connections",
    "drain_pinned_unpinned",
    "idle_connections",
    "idle_transactions",
    "job_enqueue_wal",
    "job_run_wal",
    "tick_wal",
    "reminder_arm_wal",
    "reminder_send_wal",
    "put_many_100k",
    "put_many_armed_100k",
    "reminder_bytes",
    "schedule_start_p99_ms",
    "scope_change_ms",
    "track_move_p50_ms",
    "sqlite_pickup_p50_ms",
}
ZERO = {"schedule_early"}


PARTS = 4


def test_the_names_are_those_that_others_read() -> None:
    assert set(CATALOGUE) == NAMES
    assert {name for names in MEASURES for name in names} == NAMES


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_measure_is_written_and_nothing_is_early(tmp_path: Path, part: int) -> None:
    results = tmp_path / "results.json"
    names = {name for group in list(MEASURES)[part::PARTS] for name in group}

    done = run_bench(*names, "--quick", "--output", str(results))

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())
    assert set(found) == names
    for name, measure in found.items():
        assert set(measure) == {"value", "baseline", "ratio", "unit"}
        assert (measure["value"] == 0) == (name in ZERO), name
        assert measure["value"] >= 0, name
        assert measure["baseline"] > 0, name
        assert measure["unit"] == CATALOGUE[name].unit
        assert name in done.stdout


def test_an_unknown_measure_is_refused_by_name() -> None:
    done = run_bench("drain_3")

    assert done.returncode == 2
    assert "there is no measure 'drain_3'" in done.stderr


def test_the_table_of_the_readme_names_what_was_missed() -> None:
    met = {"value": 98_603.2, "baseline": 108_699.1, "ratio": 0.907, "unit": "jobs/s"}
    missed = {"value": 3.2, "baseline": 1.0, "ratio": 3.2, "unit": "ms"}

    table = make_figures({"drain_1": met, "pickup_p50_ms": missed})

    row = "| `drain_1`: one worker process | 98,600 jobs/s | raw SQL, one process: 109,000 | 0.91 |"
    assert row in table
    assert table.endswith("Missed targets: `pickup_p50_ms` (ratio at most 1.5).")


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
