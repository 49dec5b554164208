"""What `duetime top` shows: the numbers of one moment as lines of a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from duetime.app import Duetime
from duetime.cli.output import columns, cut, one_line
from duetime.domain.jobs.job import JobInfo
from duetime.domain.stats.now import NowStats, QueueStats, TaskStats
from duetime.domain.stats.series import Series
from duetime.storage.store import WorkerInfo

_WINDOW = timedelta(minutes=5)
_MOST_WORKERS = 500
_MOST_RUNNING = 500
_NARROWEST = 8
_LEAST_ROWS = 2
"""Each table has so many rows, however low the terminal is."""


class Style(StrEnum):
    """How a part of a line looks. Whatever it means is also said in words."""

    PLAIN = "plain"
    HEADING = "heading"
    BAD = "bad"
    FAINT = "faint"


class Part(NamedTuple):
    text: str
    style: Style = Style.PLAIN


Line = Sequence[Part]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown at one moment."""

    stats: NowStats
    series: Series
    """Of the last minutes."""
    workers: list[WorkerInfo]
    running: list[JobInfo]


async def take_snapshot(app: Duetime) -> Snapshot:
    """Read everything that is shown. Each read is bounded, whatever waits and has finished."""
    return Snapshot(
        stats=await app.stats.now(),
        series=await app.stats.series(window=_WINDOW),
        workers=list(await app.workers.list(limit=_MOST_WORKERS)),
        running=list(await app.jobs.list(state="running", limit=_MOST_RUNNING)),
    )


class Order(StrEnum):
    """By what the rows are sorted."""

    NAME = "name"
    DUE = "due"
    RUNNING = "running"
    TROUBLE = "trouble"

    @property
    def next(self) -> Order:
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


def make_frame(
    shot: Snapshot, *, title: str, width: int, height: int | None, order: Order = Order.NAME
) -> list[Line]:
    """Return the lines of a frame. `height`: how many there may be; None: any number."""
    tables = [
        _queue_table(shot.stats, order),
        _task_table(shot.stats.tasks, order),
        _worker_table(shot),
    ]
    lines = _summary(shot.stats, shot.series, title, width)
    room = None if height is None else height - len(lines) - 2 * len(tables)
    for table, rows in zip(tables, _share([len(one.rows) for one in tables], room), strict=True):
        lines.append([])
        lines += table.lines(width, rows)
    return lines


def _summary(stats: NowStats, series: Series, title: str, width: int) -> list[Line]:
    clock = f"{stats.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    name = cut(one_line(title), max(_NARROWEST, width - columns(clock) - 2))
    space = " " * max(2, width - columns(name) - columns(clock)) if width < 1000 else "  "
    oldest = "" if stats.late_by is None else f", oldest {short_span(stats.late_by)}"
    facts = [
        Part(f"due {stats.due}"),
        Part(f"late {stats.late}{oldest}", _bad_if(stats.late)),
        Part(f"running {stats.running:,} of {stats.places:,}"),
        Part(f"retrying {stats.retrying}"),
        Part(f"parked {stats.parked}", _bad_if(stats.parked)),
        Part(f"dead {stats.dead}", _bad_if(stats.dead)),
        Part(f"waiting {stats.waiting}"),
        Part(f"workers {stats.workers:,}", _bad_if(not stats.workers)),
    ]
    if stats.lost_workers:
        facts.append(Part(f"lost workers {stats.lost_workers:,}", Style.BAD))
    facts += _rates(series)
    return [[Part(name, Style.HEADING), Part(space), Part(clock)], *_wrap(facts, width)]


def _rates(series: Series) -> list[Part]:
    """How much was done a second, in the last minute and the one that has begun; how late jobs
    started, in all minutes that were read."""
    latest = series.points[-2:]
    seconds = (series.until - latest[0].at).total_seconds()
    done = sum(point.completed for point in latest) / seconds
    failed = sum(point.retried + point.dead for point in latest) / seconds
    parts = [Part(f"done {done:,.1f}/s"), Part(f"failed {failed:,.1f}/s", _bad_if(failed))]
    if series.lateness_p50 is not None and series.lateness_p99 is not None:
        p50, p99 = short_seconds(series.lateness_p50), short_seconds(series.lateness_p99)
        parts.append(Part(f"started late by {p50} (p50), {p99} (p99)"))
    return parts


class _Column(NamedTuple):
    heading: str
    right: bool = True


class _Table(NamedTuple):
    columns: Sequence[_Column]
    rows: Sequence[Sequence[Part]]
    empty: str

    def lines(self, width: int, rows: int | None) -> list[Line]:
        if not self.rows:
            return [[Part(self.columns[0].heading, Style.HEADING)], [Part(self.empty, Style.FAINT)]]
        shown = self.rows
        if rows is not None and len(shown) > rows:
            shown = shown[: rows - 1]
        heading = [Part(column.heading, Style.HEADING) for column in self.columns]
        table = [heading, *shown]
        widths = self._widths(table, width)
        lines: list[Line] = [
            [
                part
                for column, wide, cell in zip(self.columns, widths, row, strict=True)
                for part in _padded(cell, wide, right=column.right)
            ]
            for row in table
        ]
        if len(shown) < len(self.rows):
            lines.append([Part(f"… {len(self.rows) - len(shown):,} more", Style.FAINT)])
        return lines

    def _widths(self, table: Sequence[Sequence[Part]], width: int) -> list[int]:
        widths = [max(columns(row[place].text) for row in table) for place in range(len(table[0]))]
        texts = [place for place, column in enumerate(self.columns) if not column.right]
        while sum(widths) + 2 * len(widths) - 2 > width:
            widest = max(texts, key=lambda place: widths[place])
            if widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
        return widths


def _queue_table(stats: NowStats, order: Order) -> _Table:
    def key(queue: QueueStats) -> tuple[Any, ...]:
        match order:
            case Order.DUE:
                return (-queue.due.value, queue.name)
            case Order.RUNNING:
                return (-queue.running, queue.name)
            case Order.TROUBLE:
                return (-queue.late.value, -queue.parked.value, -queue.retrying.value, queue.name)
        return (queue.name,)

    rows = []
    for queue in sorted(stats.queues, key=key):
        oldest = queue.oldest_due_at
        rows.append(
            [
                _name(queue.name),
                _number(queue.due),
                _number(queue.late, bad=True),
                Part("" if oldest is None else short_span(stats.at - oldest)),
                _number(queue.running),
                _number(queue.retrying),
                _number(queue.parked, bad=True),
                _number(queue.workers),
                _queue_state(queue),
            ]
        )
    headings = ("DUE", "LATE", "OLDEST", "RUN", "RETRY", "PARKED", "WORKERS")
    return _Table(
        [_Column("QUEUE", False), *(_Column(one) for one in headings), _Column("STATE", False)],
        rows,
        "No queue has jobs or a worker.",
    )


def _queue_state(queue: QueueStats) -> Part:
    if queue.paused_at is not None:
        return Part(f"paused by {one_line(queue.paused_by or 'unknown')}", Style.BAD)
    if not queue.workers:
        return Part("no worker", Style.BAD if queue.due else Style.PLAIN)
    return Part("ok")


def _task_table(tasks: Iterable[TaskStats], order: Order) -> _Table:
    def key(task: TaskStats) -> tuple[Any, ...]:
        match order:
            case Order.DUE:
                return (-task.due.value, task.name)
            case Order.RUNNING:
                return (-task.running, task.name)
            case Order.TROUBLE:
                return (-task.dead.value, -task.parked.value, -task.retrying.value, task.name)
        return (task.name,)

    # Each worker registers every task of its code: those with nothing to do come last.
    busy = [task for task in tasks if _is_busy(task)]
    idle = [task for task in tasks if not _is_busy(task)]
    rows = [
        [
            _name(task.name),
            _number(task.due),
            _number(task.running),
            _number(task.retrying),
            _number(task.parked, bad=True),
            _number(task.dead, bad=True),
            _number(task.completed_last_hour),
            _number(task.workers),
        ]
        for task in (*sorted(busy, key=key), *sorted(idle, key=key))
    ]
    headings = ("DUE", "RUN", "RETRY", "PARKED", "DEAD", "DONE/H", "WORKERS")
    return _Table(
        [_Column("TASK", False), *(_Column(one) for one in headings)],
        rows,
        "No worker has registered a task.",
    )


def _is_busy(task: TaskStats) -> bool:
    counts = (task.due, task.running, task.retrying, task.parked, task.dead)
    return any(counts) or task.completed_last_hour > 0


def _worker_table(shot: Snapshot) -> _Table:
    now = shot.stats.at
    held: dict[str, list[JobInfo]] = {}
    for job in shot.running:
        held.setdefault(job.worker or "", []).append(job)
    rows = []
    for worker in shot.workers:
        jobs = held.get(worker.name, [])
        is_live = worker.lease_until > now
        lease = (
            Part("ok")
            if is_live
            else Part(f"lost {short_span(now - worker.lease_until)}", Style.BAD)
        )
        rows.append(
            [
                _name(worker.name),
                Part(f"{worker.running:,} of {worker.concurrency:,}"),
                lease,
                Part(one_line(",".join(worker.queues))),
                Part(_longest(jobs, now)),
                Part(_name_tasks(jobs)),
            ]
        )
    return _Table(
        [
            _Column("WORKER", False),
            _Column("RUN"),
            _Column("LEASE"),
            _Column("QUEUES", False),
            _Column("LONGEST"),
            _Column("RUNS", False),
        ],
        rows,
        "No worker is registered. Start one: duetime worker --app MODULE:APP",
    )


def _longest(jobs: Sequence[JobInfo], now: datetime) -> str:
    """For how long the oldest of the jobs has been held."""
    spans = [now - job.claimed_at for job in jobs if job.claimed_at is not None]
    return short_span(max(spans)) if spans else ""


def _name_tasks(jobs: Sequence[JobInfo]) -> str:
    """The tasks of the jobs, the most frequent first."""
    tasks = Counter(one_line(job.task) for job in jobs).most_common()
    return ", ".join(task if count == 1 else f"{task} ×{count}" for task, count in tasks)


def short_span(span: timedelta) -> str:
    """A span in the largest unit that fits.

    >>> short_span(timedelta(seconds=0.25)), short_span(timedelta(minutes=90, seconds=5))
    ('0s', '90m')
    """
    seconds = max(0, round(span.total_seconds()))
    if seconds < 100:
        return f"{seconds}s"
    if seconds < 100 * 60:
        return f"{seconds // 60}m"
    if seconds < 48 * 3600:
        return f"{seconds // 3600}h"
    return f"{seconds // 86400}d"


def short_seconds(seconds: float) -> str:
    """A span that may be less than a second.

    >>> short_seconds(0.0123), short_seconds(2.5), short_seconds(90)
    ('12ms', '2.5s', '90s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 10 else short_span(timedelta(seconds=seconds))


def _name(text: str) -> Part:
    return Part(one_line(text))


def _number(count: Any, *, bad: bool = False) -> Part:
    """A number; nothing for zero, so that the others stand out."""
    if not count:
        return Part("")
    text = f"{count:,}" if isinstance(count, int) else str(count)
    return Part(text, Style.BAD if bad else Style.PLAIN)


def _bad_if(condition: Any) -> Style:
    return Style.BAD if condition else Style.PLAIN


def _padded(cell: Part, width: int, *, right: bool) -> list[Part]:
    text = cut(cell.text, width)
    space = Part(" " * (width - columns(text)))
    gap = Part("  ")
    styled = Part(text, cell.style)
    return [space, styled, gap] if right else [styled, space, gap]


def _wrap(parts: Sequence[Part], width: int) -> list[Line]:
    """Put the parts on as many lines as they need."""
    lines: list[list[Part]] = [[]]
    used = 0
    for part in parts:
        if lines[-1] and used + 3 + columns(part.text) > width:
            lines.append([])
            used = 0
        if lines[-1]:
            lines[-1].append(Part("   "))
            used += 3
        lines[-1].append(part)
        used += columns(part.text)
    return list(lines)


def _share(wanted: Sequence[int], room: int | None) -> list[int | None]:
    """Divide the rows of the screen: a table that needs less than a fair share leaves the rest to
    the others.

    >>> _share([2, 50, 9], 30), _share([1, 1, 1], 30), _share([5, 5, 5], 3)
    ([2, 19, 9], [1, 1, 1], [2, 2, 2])
    """
    if room is None:
        return [None] * len(wanted)
    shares = [0] * len(wanted)
    left = room
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place]):
        others = len(wanted) - sum(share > 0 for share in shares)
        shares[place] = max(
            _LEAST_ROWS if wanted[place] > 1 else 1, min(wanted[place], left // others)
        )
        left -= shares[place]
    return [min(share, max(1, want)) for share, want in zip(shares, wanted, strict=True)]


def as_text(lines: Iterable[Line], width: int, paint: Callable[[str, Style], str]) -> list[str]:
    """Return the lines, cut at the width, each part painted in its style."""
    texts = []
    for line in lines:
        parts = list(line)
        while parts and not parts[-1].text.strip():
            parts.pop()
        left, painted = width, ""
        for part in parts:
            text = cut(part.text, left) if left > 0 else ""
            left -= columns(text)
            painted += paint(text, part.style) if text else ""
        texts.append(painted)
    return texts
