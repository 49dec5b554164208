"""The screen of timing: how late jobs start and how long they run, over time."""

from __future__ import annotations

import json
from typing import Any

from duetime.domain.stats.series import AttemptSample, Series
from duetime.errors import InvalidInput
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages

WINDOWS = ("1h", "24h", "7d", "30d")
_DOTS = 2000


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/timing", "timing.html")
    async def show_timing(ask: Ask) -> dict[str, Any]:
        window = ask.query.get("window") or "1h"
        if window not in WINDOWS:
            raise InvalidInput(f"The window must be one of {', '.join(WINDOWS)}.")
        task = ask.query.get("task") or None
        series = await app.stats.series(window=window, task=task)
        samples = await app.stats.samples(window=window, task=task, limit=_DOTS)
        tasks = [one.name for one in (await app.stats.now()).tasks]
        return {
            "window": window,
            "windows": WINDOWS,
            "task": task,
            "tasks": tasks,
            "series": series,
            "lines": describe_lines(series),
            "dots": describe_dots(samples),
        }

    return pages


def describe_lines(series: Series) -> str:
    """The points of the charts, as JSON for the script that draws them."""
    points = series.points
    return json.dumps(
        {
            "at": [point.at.timestamp() for point in points],
            "lateness_p50": [point.lateness_p50 for point in points],
            "lateness_p99": [point.lateness_p99 for point in points],
            "duration_p50": [point.duration_p50 for point in points],
            "duration_p99": [point.duration_p99 for point in points],
        }
    )


def describe_dots(samples: list[AttemptSample]) -> str:
    """A dot for each run, as JSON: when it started, how late it was and how long it took."""
    ordered = sorted(samples, key=lambda one: one.started_at)
    return json.dumps(
        {
            "at": [one.started_at.timestamp() for one in ordered],
            "lateness": [one.lateness.total_seconds() for one in ordered],
            "duration": [one.duration.total_seconds() for one in ordered],
        }
    )
