"""One module for each kind of measure; each function returns readings by name."""

from __future__ import annotations

from collections.abc import Callable

from bench.environment import Environment
from bench.measures import (
    api,
    bulk,
    costs,
    drain,
    enqueue,
    fire,
    flows,
    idle,
    lateness,
    many_reminders,
    memory,
    pages,
    pickup,
    pinned,
    reminders,
    schedules,
    sqlite,
    watched,
)
from bench.reading import Reading

Measure = Callable[[Environment], dict[str, Reading]]

MEASURES: dict[tuple[str, ...], Measure] = {
    ("drain_1",): drain.measure_one,
    ("drain_2",): drain.measure_two,
    ("drain_8",): drain.measure_eight,
    ("drain_50",): drain.measure_fifty,
    ("bulk_enqueue",): bulk.measure,
    ("enqueue_16",): enqueue.measure,
    ("enqueue_single",): enqueue.measure_single,
    ("enqueue_concurrent",): enqueue.measure_concurrent,
    ("enqueue_hundreds",): enqueue.measure_hundreds,
    ("api_enqueue",): api.measure,
    ("pickup_p50_ms", "pickup_p99_ms"): pickup.measure,
    ("lateness_p50_ms", "lateness_p99_ms"): lateness.measure,
    ("lateness_computing_p50_ms", "lateness_computing_p99_ms"): lateness.measure_computing,
    ("drain_future_1m",): drain.measure_future,
    ("drain_future_10m", "drain_finished_10m"): drain.measure_crowds,
    ("drain_scraped",): watched.measure_scraped,
    ("dashboard_tabs",): watched.measure_tabs,
    ("dashboard_serve",): watched.measure_serve,
    ("page_million_ms",): pages.measure,
    (
        "schedule_lateness_p50_ms",
        "schedule_lateness_p99_ms",
        "schedule_early",
    ): schedules.measure,
    ("schedule_fire_1000", "schedule_claim_p99_ms", "schedule_start_p99_ms"): fire.measure,
    (
        "put_many_100k",
        "put_many_armed_100k",
        "reminder_bytes",
        "scope_change_ms",
        "rearm_100k",
        "drain_1m_reminders",
        "reminder_lateness_p50_ms",
        "reminder_lateness_p99_ms",
    ): reminders.measure,
    (
        "reminders_10m_next_due_ms",
        "reminders_10m_claim",
        "reminders_10m_send",
        "reminders_10m_lateness_p99_ms",
    ): many_reminders.measure,
    ("track_update_100k", "track_armed_100k", "track_move_p50_ms"): reminders.measure_tracked,
    ("drain_pinned",): pinned.measure,
    ("drain_pinned_unpinned",): pinned.measure_beside_none,
    ("sqlite_drain",): sqlite.measure_drain,
    ("sqlite_bulk_enqueue",): sqlite.measure_bulk,
    ("sqlite_pickup_p50_ms",): pickup.measure_sqlite,
    (
        "sqlite_schedule_lateness_p50_ms",
        "sqlite_schedule_lateness_p99_ms",
    ): schedules.measure_sqlite,
    ("rss_idle_mb",): memory.measure,
    ("rss_million_mb",): memory.measure_million,
    ("idle_connections", "idle_transactions"): idle.measure,
    ("idle_fleet_connections",): idle.measure_fleet,
    ("flow_steps",): flows.measure,
    ("flow_idle_ms",): flows.measure_idle,
    ("graph_steps", "graph_idle_ms"): flows.measure_graphs,
    ("flow_fan_out_s",): flows.measure_fan_out,
    ("flow_steps_history",): flows.measure_history,
    ("sqlite_flow_steps",): sqlite.measure_flows,
    ("sqlite_flow_idle_ms",): sqlite.measure_idle_flow,
    ("flow_sleeping_drain", "flow_sleeping_rows"): flows.measure_sleeping,
    (
        "job_enqueue_wal",
        "job_run_wal",
        "tick_wal",
        "reminder_arm_wal",
        "reminder_send_wal",
    ): costs.measure,
}
