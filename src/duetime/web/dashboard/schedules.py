"""The screens of schedules: the timeline of all, one with its heat map, and the editor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from duetime.domain.duration import parse_duration
from duetime.domain.stats.timeline import HeatMap, Timeline, TimelineRow, TimelineRun
from duetime.errors import InvalidInput
from duetime.web.dashboard.charts import TimeAxis
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages, read_local
from duetime.web.forms import read_json

ZOOMS = {
    "hour": (timedelta(minutes=40), timedelta(minutes=20)),
    "day": (timedelta(hours=12), timedelta(hours=6)),
    "week": (timedelta(days=4), timedelta(days=3)),
    "month": (timedelta(days=20), timedelta(days=10)),
}
"""How much of the past and of the future each zoom shows."""

_ROWS = 40
_HEAT_DAYS = 28
_WIDTH = 1100
_NAMES = 230
_ROW_HEIGHT = 42
_HEAD = 40
_APART = 8.0
_SHORT = 5.0
_TOGETHER = 11.0
"""Short runs that begin within so much share a box."""
_THINNEST = 3.0
_MOST_SHADED = 300
_NAMED = 6
_COLOURS = {
    "fired": "completed",
    "triggered": "completed",
    "backfilled": "running",
    "caught_up": "late",
    "coalesced": "skipped",
    "skipped": "skipped",
    "failed": "dead",
    "cancelled": "skipped",
    "running": "running",
    "waiting": "retrying",
    "due": "pending",
}
_WORST = ("failed", "cancelled", "skipped", "coalesced", "caught_up", "backfilled", "running")
_SHAPES = {
    "fired": "●",
    "triggered": "▲",
    "backfilled": "◀",
    "caught_up": "◷",
    "coalesced": "◆",
    "skipped": "–",
    "failed": "✕",
    "cancelled": "✕",
}


Span = tuple[datetime, datetime, tuple[str, ...]]
"""From when, until when, and which schedules."""


class Box(msgspec.Struct, frozen=True):
    """A run, some runs, or a tick to come, on the timeline."""

    x: float
    width: float
    kind: str
    hint: str
    is_future: bool = False
    is_failed: bool = False
    overlaps: bool = False
    job_id: int | None = None
    also: str | None = None
    """The colour of the worst of several outcomes, if it is not the most frequent one."""
    share: float = 0
    """How many of them had that one."""


class Overlap(msgspec.Struct, frozen=True):
    """A time in which runs of several schedules ran, or at which several tick."""

    x: float
    width: float
    hint: str


class DrawnRow(msgspec.Struct, frozen=True):
    """A schedule on the timeline."""

    row: TimelineRow
    y: int
    boxes: list[Box]


class DrawnTimeline(msgspec.Struct, frozen=True):
    """All schedules over time."""

    axis: TimeAxis
    rows: list[DrawnRow]
    height: int
    now: float
    clock: str
    overlaps: list[Overlap]
    collides: list[Overlap]


class HeatSquare(msgspec.Struct, frozen=True):
    """An hour of a day: its worst outcome, and all of them."""

    kind: str
    shape: str
    hint: str
    count: int


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/schedules", "schedules.html")
    async def show_schedules(ask: Ask) -> dict[str, Any]:
        zoom = ask.query.get("zoom") or "day"
        if zoom not in ZOOMS:
            raise InvalidInput(f"The zoom must be one of {', '.join(ZOOMS)}.")
        after = ask.query.get("after") or None
        schedules = await app.schedules.list(limit=_ROWS, after=after)
        before, ahead = ZOOMS[zoom]
        timeline = None
        if schedules:
            timeline = await app.stats.timeline(
                since=ask.now - before,
                until=ask.now + ahead,
                schedules=[one.name for one in schedules],
                limit=_ROWS,
            )
        return {
            "schedules": schedules,
            "zoom": zoom,
            "zooms": list(ZOOMS),
            "drawn": None if timeline is None else draw_timeline(timeline, ask.zone),
        }

    @pages.page("/schedules/new", "schedule_editor.html")
    async def new_schedule(ask: Ask) -> dict[str, Any]:
        return {"tasks": sorted(app.tasks), "zones": _zones(ask), "name": None}

    @pages.page("/schedules/preview", "schedule_preview.html")
    async def show_preview(ask: Ask) -> dict[str, Any]:
        """What the editor shows beside a spec while it is written."""
        spec, tz = ask.query.get("spec", "").strip(), ask.query.get("tz") or "UTC"
        if not spec:
            return {"preview": None, "problem": None}
        try:
            preview = await app.stats.preview(
                spec, tz=tz, other_tz=ask.zone.key, but=ask.query.get("but") or None
            )
        except InvalidInput as error:
            return {"preview": None, "problem": str(error)}
        return {"preview": preview, "problem": None}

    @pages.action("/schedules/new")
    async def put(ask: Ask) -> GoTo:
        form = await ask.form()
        name = form.get("name", "").strip()
        await app.schedules.put(
            name,
            form.get("target", ""),
            form.get("spec", "").strip(),
            tz=form.get("tz", "UTC").strip(),
            args=_read_args(form.get("args", "")),
            by=ask.visitor.name,
        )
        return GoTo(["schedules", name], said=f"Schedule {name} is stored.")

    @pages.page("/schedules/{name}", "schedule.html")
    async def show_schedule(ask: Ask, name: str) -> dict[str, Any]:
        schedule = await app.schedules.get(name)
        heat = await app.stats.heat_map(name, days=_HEAT_DAYS)
        timeline = await app.stats.timeline(
            since=ask.now - timedelta(hours=12),
            until=ask.now + timedelta(hours=6),
            schedules=[name],
        )
        return {
            "schedule": schedule,
            "drawn": draw_timeline(timeline, ask.zone),
            "heat": heat,
            "squares": draw_heat(heat),
            "days": _days(_first_shown(heat), heat.last_day),
            "outcomes": [
                (word, _COLOURS.get(word, "pending"), _SHAPES.get(word, "○"), count)
                for word, count in heat.outcomes.items()
            ],
            "preview": await app.schedules.preview(name, 8) if schedule.broken is None else (),
            "history": await app.schedules.history(
                name, limit=30, after=ask.query.get("after") or None
            ),
            "explanation": await app.schedules.explain(name),
            "events": await app.schedules.audit(name, limit=20),
        }

    @pages.page("/schedules/{name}/ticks/{tick}", "tick.html")
    async def show_tick(ask: Ask, name: str, tick: str) -> dict[str, Any]:
        at = _read_moment(tick)
        return {
            "schedule": await app.schedules.get(name),
            "tick": at,
            "explanation": await app.schedules.explain(name, at),
        }

    @pages.action("/schedules/{name}/pause")
    async def pause(ask: Ask, name: str) -> GoTo:
        form = await ask.form()
        until = form.get("until", "").strip()
        await app.schedules.pause(
            name, reason=form.get("reason", ""), until=until or None, by=ask.visitor.name
        )
        return GoTo(["schedules", name], said=f"Schedule {name} is paused.")

    @pages.action("/schedules/{name}/resume")
    async def resume(ask: Ask, name: str) -> GoTo:
        missed = (await ask.form()).get("missed") == "yes"
        await app.schedules.resume(name, missed=missed, by=ask.visitor.name)
        return GoTo(["schedules", name], said=f"Schedule {name} is resumed.")

    @pages.action("/schedules/{name}/trigger")
    async def trigger(ask: Ask, name: str) -> GoTo:
        job = await app.schedules.trigger(name, by=ask.visitor.name)
        said = f"It runs now, as job {job}. Its next run is unchanged."
        return GoTo(["schedules", name], said=said)

    @pages.action("/schedules/{name}/reschedule")
    async def reschedule(ask: Ask, name: str) -> GoTo:
        at = _read_when((await ask.form()).get("at", ""), ask.zone)
        await app.schedules.reschedule(name, at, by=ask.visitor.name)
        return GoTo(["schedules", name], said="Its next run is moved; later runs are unchanged.")

    @pages.action("/schedules/{name}/backfill")
    async def backfill(ask: Ask, name: str) -> GoTo:
        form = await ask.form()
        count = await app.schedules.backfill(
            name,
            read_local(form.get("start", ""), ask.zone),
            read_local(form.get("end", ""), ask.zone),
            failed=form.get("failed") == "yes",
            by=ask.visitor.name,
        )
        return GoTo(["schedules", name], said=f"{count} ticks are run.")

    @pages.action("/schedules")
    async def change_many(ask: Ask) -> GoTo:
        """Pause or resume all that are selected."""
        form = await ask.form()
        names = form.getlist("name")
        if not names:
            raise InvalidInput("No schedule is selected.")
        for name in names:
            if form.get("do") == "resume":
                await app.schedules.resume(name, by=ask.visitor.name)
            else:
                await app.schedules.pause(name, reason=form.get("reason", ""), by=ask.visitor.name)
        done = "resumed" if form.get("do") == "resume" else "paused"
        return GoTo(["schedules"], said=f"{len(names)} schedules are {done}.")

    def _zones(ask: Ask) -> list[str]:
        return list(dict.fromkeys([ask.zone.key, "UTC"]))

    return pages


def draw_timeline(timeline: Timeline, zone: ZoneInfo) -> DrawnTimeline:
    """Place the runs and the ticks to come of each schedule."""
    axis = TimeAxis(timeline.since, timeline.until, _WIDTH - _NAMES, zone, _NAMES)
    rows = [
        DrawnRow(row, _HEAD + number * _ROW_HEIGHT, _boxes(row, axis, timeline.now))
        for number, row in enumerate(timeline.rows)
    ]
    height = _HEAD + len(rows) * _ROW_HEIGHT + 6
    clock = timeline.now.astimezone(zone).strftime("%H:%M")
    return DrawnTimeline(
        axis,
        rows,
        height,
        axis.x(timeline.now),
        clock,
        [] if len(rows) == 1 else _draw_spans(find_overlaps(timeline), axis),
        [] if len(rows) == 1 else _draw_spans(find_collisions(timeline), axis),
    )


def find_overlaps(timeline: Timeline) -> list[Span]:
    """When runs of two or more schedules ran at the same time, and which.

    A row that shows counts instead of runs does not show when they ran, and is left out.
    """
    edges: list[tuple[datetime, bool, str]] = []
    for row in timeline.rows:
        for run in row.runs:
            if run.started_at is not None:
                edges.append((run.started_at, True, row.schedule))
                edges.append((run.finished_at or timeline.now, False, row.schedule))
    edges.sort(key=lambda edge: (edge[0], edge[1]))  # What ends makes room before another begins.
    running: Counter[str] = Counter()
    found: list[Span] = []
    for place, (at, begins, schedule) in enumerate(edges):
        running[schedule] += 1 if begins else -1
        names = [name for name, count in running.items() if count > 0]
        if len(names) > 1 and edges[place + 1][0] > at:
            found.append((at, edges[place + 1][0], tuple(sorted(names))))
    return found


def find_collisions(timeline: Timeline) -> list[Span]:
    """The ticks ahead that two or more schedules have at the same time."""
    ticks: dict[datetime, list[str]] = {}
    for row in timeline.rows:
        for tick in row.future:
            ticks.setdefault(tick, []).append(row.schedule)
    return [(at, at, tuple(names)) for at, names in sorted(ticks.items()) if len(names) > 1]


def _draw_spans(spans: Sequence[Span], axis: TimeAxis) -> list[Overlap]:
    """Shade the spans. Those that would touch become one."""
    drawn: list[Overlap] = []
    last: tuple[float, float, tuple[str, ...]] | None = None

    def draw() -> None:
        if last is not None:
            x, end, names = last
            drawn.append(Overlap(x, round(end - x, 1), ", ".join(names[:_NAMED])))

    for since, until, names in spans:
        if not (axis.shows(since) or axis.shows(until)):
            continue
        x = axis.x(since)
        end = max(axis.x(until), x + _THINNEST)
        if last is not None and x <= last[1] + 1:
            last = (last[0], max(last[1], end), tuple(sorted({*last[2], *names})))
        else:
            draw()
            last = (x, end, names)
    draw()
    return drawn[:_MOST_SHADED]


def _boxes(row: TimelineRow, axis: TimeAxis, now: datetime) -> list[Box]:
    boxes = _runs(row, axis, now)
    for part in row.parts:
        x = axis.x(part.since)
        width = max(3.0, axis.x(part.until) - x - 2)
        boxes.append(_several(part.outcomes, x, width, _count(part.outcomes)))
    return boxes + _ahead(row, axis)


def _runs(row: TimelineRow, axis: TimeAxis, now: datetime) -> list[Box]:
    """A box for each run; short ones that would hide each other share one."""
    groups: list[list[tuple[float, TimelineRun]]] = []
    boxes: list[Box] = []
    for run in row.runs:
        start = run.started_at or run.tick
        x = axis.x(start)
        width = axis.x(run.finished_at or (now if run.started_at else start)) - x
        if width > _SHORT:
            boxes.append(_box(run, x, width, axis))
        elif groups and x - groups[-1][0][0] < _TOGETHER:
            groups[-1].append((x, run))
        else:
            groups.append([(x, run)])
    for group in groups:
        x, run = group[0]
        if len(group) == 1:
            boxes.append(_box(run, x, _SHORT, axis))
            continue
        outcomes = dict(Counter(one.outcome for _, one in group))
        first, last = (one.tick.astimezone(axis.zone) for one in (run, group[-1][1]))
        hint = f"{_count(outcomes)}, ticks {first:%a %H:%M} to {last:%H:%M}"
        boxes.append(_several(outcomes, x, group[-1][0] - x + _SHORT - 1, hint))
    return boxes


def _several(outcomes: dict[str, int], x: float, width: float, hint: str) -> Box:
    """A box for many runs: in the colour of most, with the share of the worst in its own."""
    worst = _worst(outcomes)
    most = max(outcomes, key=lambda word: outcomes[word])
    share = outcomes[worst] / sum(outcomes.values())
    return Box(
        x,
        round(width, 1),
        _COLOURS.get(most, "pending"),
        hint,
        is_failed=most == "failed",
        also=None if worst == most else _COLOURS.get(worst, "pending"),
        share=round(share, 2),
    )


def _box(run: TimelineRun, x: float, width: float, axis: TimeAxis) -> Box:
    return Box(
        x,
        round(width, 1),
        _COLOURS.get(run.outcome, "pending"),
        f"{run.outcome.replace('_', ' ')}, tick {run.tick.astimezone(axis.zone):%a %H:%M}",
        is_failed=run.outcome == "failed",
        overlaps=run.overlaps,
        job_id=run.job_id,
    )


def _ahead(row: TimelineRow, axis: TimeAxis) -> list[Box]:
    """The ticks to come; those that are close together as one outline."""
    groups: list[list[datetime]] = []
    for tick in row.future:
        if groups and axis.x(tick) - axis.x(groups[-1][-1]) < _APART:
            groups[-1].append(tick)
        else:
            groups.append([tick])
    boxes = []
    for group in groups:
        x, end = axis.x(group[0]), axis.x(group[-1])
        goes_on = row.more_future and group is groups[-1]
        if goes_on and len(group) > 1:
            end = axis.left + axis.width - _SHORT
        text = f"{group[0].astimezone(axis.zone):%a %H:%M}"
        if len(group) > 1:
            text = f"{len(group)} ticks{' and more' if goes_on else ''} from {text}"
        hint = f"to come: {text}"
        boxes.append(Box(x, round(end - x + _SHORT, 1), "pending", hint, is_future=True))
    return boxes


def _count(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in outcomes.items())


def draw_heat(heat: HeatMap) -> dict[tuple[date, int], HeatSquare]:
    """A square for each hour of each day in which something was due."""
    squares = {}
    for cell in heat.cells:
        worst = _worst(cell.outcomes)
        counted = _count(cell.outcomes)
        squares[cell.day, cell.hour] = HeatSquare(
            _COLOURS.get(worst, "pending"),
            _SHAPES.get(worst, "○"),
            f"{cell.day:%a} {cell.day.day} {cell.day:%b}, {cell.hour:02}:00: {counted}",
            sum(cell.outcomes.values()),
        )
    return squares


def _worst(outcomes: dict[str, int]) -> str:
    found = next((word for word in _WORST if outcomes.get(word)), None)
    return found or next(iter(outcomes), "fired")


def _first_shown(heat: HeatMap) -> date:
    """The day on which something was due first, but a week at least."""
    week = heat.last_day - timedelta(days=6)
    first = min((cell.day for cell in heat.cells), default=week)
    return max(heat.first_day, min(first, week))


def _days(first: date, last: date) -> Sequence[date]:
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _read_moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r:.60} is not a time.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _read_when(text: str, zone: ZoneInfo) -> datetime | timedelta:
    """A time, or how long from now."""
    if text[:1].isdigit() and ("T" in text or "-" in text):
        return read_local(text, zone)
    return parse_duration(text.strip(), name="The time")


def _read_args(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    found: dict[str, Any] = read_json(
        text, dict[str, Any], what="The arguments must be a JSON object"
    )
    return found
