"""The pages of the dashboard beside a million of everything: how long a person waits for one."""

from __future__ import annotations

import json
import statistics
import time
from datetime import timedelta

import httpx

from bench.environment import Environment, execute
from bench.processes import Child
from bench.reading import Reading
from duetime.domain.reminders.rule import Rule
from tests.storage.stats.test_stats_plans import FILL

_FEW = 1_000
_PAGES = (
    "/", "/jobs", "/jobs?state=dead", "/jobs?state=pending", "/jobs?task=noop", "/jobs/{job}",
    "/schedules", "/schedules/s7", "/timing", "/timing?window=30d", "/reminders", "/subjects/s7",
    "/recipients/r7", "/flows", "/queues", "/queues/default", "/workers", "/audit", "/search?q=s77",
)  # fmt: skip


def measure(environment: Environment) -> dict[str, Reading]:
    """The slowest page, beside itself where there is little."""
    many = _time_pages(environment, environment.scale.future_jobs)
    few = _time_pages(environment, _FEW)
    slowest = max(many, key=lambda page: many[page])
    others = sorted(many, key=lambda page: -many[page])[1:4]
    note = f"slowest: {slowest}; then " + ", ".join(f"{one} {many[one]:.0f}" for one in others)
    return {"page_million_ms": Reading(many[slowest], few[slowest], note=note)}


def _time_pages(environment: Environment, rows: int) -> dict[str, float]:
    """Return of each page the milliseconds until it was there, the median of some times."""
    database = environment.database("pages")
    rule = json.dumps(Rule(offset=timedelta(hours=-1)).to_json())
    execute(
        database, FILL.format(rows=rows).replace('{"offset": "-1h"}', rule), "vacuum", "checkpoint"
    )
    found: dict[str, float] = {}
    with Child("service", database=database) as service:
        port = service.hear()["port"]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as tab:
            for page in _PAGES:
                path = page.format(job=rows + 7)
                found[page] = statistics.median(
                    [_fetch(tab, path) for _ in range(1 + environment.scale.rounds)][1:]
                )
    environment.drop("pages")
    return found


def _fetch(tab: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    tab.get(path).raise_for_status()
    return (time.perf_counter() - began) * 1e3
