"""The first screen: what is wrong, what mends it, and what happens now."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from duetime.domain.stats.agenda import AgendaItem
from duetime.domain.stats.problems import Action
from duetime.domain.stats.series import AttemptSample
from duetime.errors import InvalidInput
from duetime.web.dashboard.charts import TimeAxis
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages
from duetime.web.dashboard.schedules import ZOOMS, DrawnTimeline, draw_timeline

_DOTS = 500
_NEXT = 8
_NEXT_READ = 120
_SCHEDULES = 8
_WIDTH = 460
_HEIGHT = 170
_LEFT = 54
_POWERS = (-1, 0, 1, 2, 3, 4)
"""The lateness axis goes from 0.1 ms to 10 s."""


class Dots(msgspec.Struct, frozen=True):
    """Starts of jobs by how late they were, of one kind: drawn as one path, however many."""

    kind: str
    count: int
    path: str


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/", "now.html")
    async def show_now(ask: Ask) -> dict[str, Any]:
        series = await app.stats.series(window="1h")
        samples = await app.stats.samples(window="1h", limit=_DOTS)
        stats, problems = await app.stats.overview()
        axis = TimeAxis(ask.now - timedelta(hours=1), ask.now, _WIDTH - _LEFT, ask.zone, _LEFT)
        return {
            "stats": stats,
            "problems": problems,
            "series": series,
            "points": series.points,
            "axis": axis,
            "dots": place_dots(samples, axis),
            "levels": [(y_of(10.0**power / 1000), _level(power)) for power in _POWERS],
            "describe": describe,
            "drawn": await _draw_schedules(ask),
            "coming": await _coming(ask),
        }

    async def _coming(ask: Ask) -> list[AgendaItem]:
        """What comes next: of each schedule its next tick only, so that none hides the rest."""
        first: dict[tuple[str, str, int | None], AgendaItem] = {}
        for one in await app.stats.agenda(since=ask.now, limit=_NEXT_READ):
            first.setdefault((one.kind, one.name, one.id), one)
        return list(first.values())[:_NEXT]

    async def _draw_schedules(ask: Ask) -> DrawnTimeline | None:
        before, ahead = ZOOMS["day"]
        timeline = await app.stats.timeline(
            since=ask.now - before, until=ask.now + ahead, limit=_SCHEDULES
        )
        return draw_timeline(timeline, ask.zone) if timeline.rows else None

    @pages.action("/mend")
    async def mend(ask: Ask) -> GoTo:
        """Do what mends a problem, if the problem is still there."""
        form = await ask.form()
        for problem in await app.stats.problems():
            action = problem.action
            if action is not None and form.get("action") == describe(action):
                await _do(action, ask.visitor.name)
                return GoTo([], said=f"Done: {action.label}. {problem.sentence}")
        raise InvalidInput("The problem is gone, or has changed: nothing was done.")

    async def _do(action: Action, by: str) -> None:
        assert action.verb is not None
        noun, _, verb = action.verb.partition(".")
        await getattr(getattr(app, noun), verb)(**action.args, by=by)

    return pages


def describe(action: Action) -> str:
    """An action as text, by which its button names it."""
    return json.dumps([action.verb, action.args], sort_keys=True)


def place_dots(samples: Sequence[AttemptSample], axis: TimeAxis) -> list[Dots]:
    """Place starts by their time and, on a logarithmic axis, by how late they were."""
    paths: dict[str, list[str]] = {"running": [], "late": []}
    for one in samples:
        if axis.shows(one.started_at):
            seconds = one.lateness.total_seconds()
            x, y = axis.x(one.started_at), y_of(seconds)
            paths["late" if seconds > 1 else "running"].append(f"M{x} {y}h0")
    return [Dots(kind, len(parts), "".join(parts)) for kind, parts in paths.items() if parts]


def y_of(seconds: float) -> float:
    """Where on the axis a lateness stands.

    >>> y_of(10.0), y_of(0.0001)
    (12.0, 146.0)
    """
    power = math.log10(max(seconds * 1000, 0.1))
    low, high = _POWERS[0], _POWERS[-1]
    share = (min(max(power, low), high) - low) / (high - low)
    return round(12 + (1 - share) * (_HEIGHT - 36), 1)


def _level(power: int) -> str:
    if power >= 3:
        return f"{10 ** (power - 3)} s"
    return f"{10**power:g} ms"
