"""What is measured of every system, and how a number is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    heading: str
    unit: str
    more_is_better: bool


FIGURES = {
    "bulk_enqueue": Figure("bulk enqueue", "jobs/s", more_is_better=True),
    "single_enqueue": Figure("single enqueue", "jobs/s", more_is_better=True),
    "drain_1": Figure("drain, 1 process", "jobs/s", more_is_better=True),
    "drain_2": Figure("drain, 2 processes", "jobs/s", more_is_better=True),
    "pickup_p50_ms": Figure("pick-up p50", "ms", more_is_better=False),
    "pickup_p99_ms": Figure("pick-up p99", "ms", more_is_better=False),
    "lateness_p50_ms": Figure("lateness p50", "ms", more_is_better=False),
    "lateness_p99_ms": Figure("lateness p99", "ms", more_is_better=False),
    "idle_rss_mb": Figure("idle memory", "MB", more_is_better=False),
}


def format_number(value: float) -> str:
    """Write a figure with as many digits as it deserves.

    >>> [format_number(value) for value in (123456.0, 3642.0, 57.31, 1.234, 0.0412)]
    ['123,000', '3,640', '57', '1.2', '0.04']
    """
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
