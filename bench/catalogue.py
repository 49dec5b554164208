"""The measures by name: their unit, what they stand beside, and what they must reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.reading import Reading


@dataclass(frozen=True)
class Target:
    """A bound for the ratio or for the value."""

    of: Literal["ratio", "value"]
    at: Literal["least", "most"]
    bound: float

    def met(self, reading: Reading) -> bool:
        return self.allows(reading.ratio if self.of == "ratio" else reading.value)

    def allows(self, found: float) -> bool:
        return found >= self.bound if self.at == "least" else found <= self.bound

    def __str__(self) -> str:
        return f"{self.of} {'≥' if self.at == 'least' else '≤'} {self.bound:g}"


@dataclass(frozen=True)
class Spec:
    """One measure. A higher rate is better; less time, memory and rows read are."""

    unit: str
    baseline: str
    target: Target | None = None
    only_full: bool = False
    """It takes minutes: only `make bench-full` includes it."""


def _least(bound: float) -> Target:
    return Target("ratio", "least", bound)


def _most(bound: float) -> Target:
    return Target("value", "most", bound)


CATALOGUE: dict[str, Spec] = {
    "drain_1": Spec("jobs/s", "raw SQL, one process", _least(0.8)),
    "drain_2": Spec("jobs/s", "raw SQL, two processes", _least(0.8)),
    "drain_8": Spec("jobs/s", "two processes", _least(0.95)),
    "drain_50": Spec("jobs/s", "two processes", only_full=True),
    "bulk_enqueue": Spec("jobs/s", "raw COPY", _least(0.6)),
    "enqueue_16": Spec("jobs/s", "the same, wake-up off", _least(0.9)),
    "enqueue_single": Spec("jobs/s", "raw insert of the same rows", _least(0.6)),
    "enqueue_concurrent": Spec(
        "jobs/s", "raw inserts, 16 connections", Target("value", "least", 30_000)
    ),
    "enqueue_hundreds": Spec(
        "jobs/s", "raw insert of the same rows", Target("value", "least", 70_000)
    ),
    "api_enqueue": Spec("jobs/s", "bare FastAPI, a raw insert", _least(0.7)),
    "pickup_p50_ms": Spec("ms", "raw LISTEN/NOTIFY", Target("ratio", "most", 1.5)),
    "pickup_p99_ms": Spec("ms", "raw LISTEN/NOTIFY"),
    "lateness_p50_ms": Spec("ms", "raw sleeping loop"),
    "lateness_p99_ms": Spec("ms", "raw sleeping loop", _most(10)),
    "lateness_computing_p50_ms": Spec("ms", "raw sleeping loop", only_full=True),
    "lateness_computing_p99_ms": Spec("ms", "raw sleeping loop", _most(10), only_full=True),
    "drain_future_1m": Spec("jobs/s", "no future jobs", _least(0.9)),
    "drain_future_10m": Spec("jobs/s", "no future jobs", _least(0.95), only_full=True),
    "drain_finished_10m": Spec("jobs/s", "no finished jobs", _least(0.95), only_full=True),
    "drain_scraped": Spec("jobs/s", "no metrics", _least(0.95)),
    "dashboard_tabs": Spec("jobs/s", "no dashboard", _least(0.95), only_full=True),
    "dashboard_serve": Spec("jobs/s", "no open tabs", _least(0.95), only_full=True),
    "page_million_ms": Spec("ms", "a thousand of everything", _most(50), only_full=True),
    "schedule_lateness_p50_ms": Spec("ms", "another scheduler"),
    "schedule_lateness_p99_ms": Spec("ms", "another scheduler", _most(10)),
    "schedule_early": Spec("runs", "all runs", _most(0)),
    "schedule_fire_1000": Spec("fired/s", "raw claims", Target("value", "least", 10_000)),
    "schedule_claim_p99_ms": Spec("ms", "raw claims", _most(100)),
    "schedule_start_p99_ms": Spec("ms", "two workers", _most(100)),
    "put_many_100k": Spec("subjects/s", "bare inserts", Target("value", "least", 20_000)),
    "put_many_armed_100k": Spec("subjects/s", "bare inserts", _least(0.5)),
    "reminder_bytes": Spec("bytes", "its job alone", _most(600)),
    "scope_change_ms": Spec("ms", "one bare update", _most(100)),
    "rearm_100k": Spec("subjects/s", "bare inserts", Target("value", "least", 20_000)),
    "drain_1m_reminders": Spec("jobs/s", "no reminders", _least(0.83)),
    "reminders_10m_next_due_ms": Spec(
        "ms", "10,000 reminders", Target("ratio", "most", 1.1), only_full=True
    ),
    "reminders_10m_claim": Spec("jobs/s", "10,000 reminders", _least(0.9), only_full=True),
    "reminders_10m_send": Spec("reminders/s", "10,000 reminders", _least(0.9), only_full=True),
    "reminders_10m_lateness_p99_ms": Spec("ms", "10,000 reminders", _most(10), only_full=True),
    "reminder_lateness_p50_ms": Spec("ms", "jobs put so"),
    "reminder_lateness_p99_ms": Spec("ms", "jobs put so", _most(10)),
    "track_update_100k": Spec("rows/s", "the same writes, bare", Target("value", "least", 20_000)),
    "track_armed_100k": Spec("rows/s", "the same writes, bare", _least(0.5)),
    "track_move_p50_ms": Spec("ms", "the same, untracked", _most(2)),
    "drain_pinned": Spec("jobs/s", "first of six rounds", _least(0.8)),
    "drain_pinned_unpinned": Spec("jobs/s", "no snapshot", _least(0.8), only_full=True),
    "sqlite_drain": Spec("jobs/s", "raw sqlite3", _least(0.6)),
    "sqlite_bulk_enqueue": Spec("jobs/s", "raw executemany", _least(0.6)),
    "sqlite_pickup_p50_ms": Spec("ms", "raw sqlite3, polled", _most(5)),
    "sqlite_schedule_lateness_p50_ms": Spec("ms", "another scheduler", only_full=True),
    "sqlite_schedule_lateness_p99_ms": Spec("ms", "another scheduler", _most(20), only_full=True),
    "rss_idle_mb": Spec("MB", "a bare psycopg loop"),
    "rss_million_mb": Spec(
        "MB", "after a tenth of the jobs", Target("ratio", "most", 1.1), only_full=True
    ),
    "idle_connections": Spec("connections", "a bare loop", _most(3)),
    "idle_fleet_connections": Spec(
        "connections", "max_connections", Target("ratio", "most", 0.8), only_full=True
    ),
    "idle_transactions": Spec("per second", "a bare loop", _most(2)),
    "flow_steps": Spec("steps/s", "raw inserts, 16 connections", Target("value", "least", 20_000)),
    "flow_idle_ms": Spec("ms", "ten raw inserts", Target("ratio", "most", 2)),
    "graph_steps": Spec("steps/s", "raw inserts, 16 connections"),
    "graph_idle_ms": Spec("ms", "ten raw inserts"),
    "flow_fan_out_s": Spec("s", "raw inserts, gathered", _most(3)),
    "flow_steps_history": Spec("steps/s", "no finished runs", _least(0.9)),
    "sqlite_flow_steps": Spec("steps/s", "raw sqlite3, a commit per step", only_full=True),
    "sqlite_flow_idle_ms": Spec("ms", "ten raw inserts", only_full=True),
    "flow_sleeping_drain": Spec("jobs/s", "no flows", _least(0.9), only_full=True),
    "flow_sleeping_rows": Spec("rows/s", "no flows", Target("ratio", "most", 1.5), only_full=True),
    "job_enqueue_wal": Spec("bytes", "raw, insert to delete", only_full=True),
    "job_run_wal": Spec("bytes", "raw, insert to delete", only_full=True),
    "tick_wal": Spec("bytes", "raw, insert to delete", only_full=True),
    "reminder_arm_wal": Spec("bytes", "raw, insert to delete", only_full=True),
    "reminder_send_wal": Spec("bytes", "raw, insert to delete", only_full=True),
}
