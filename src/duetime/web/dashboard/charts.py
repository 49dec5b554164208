"""Charts that are drawn on the server as SVG: they need no script, and take their colours from the
theme by their classes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
from markupsafe import Markup

_STEPS = [
    timedelta(seconds=1),
    timedelta(seconds=5),
    timedelta(seconds=15),
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=15),
    timedelta(hours=1),
    timedelta(hours=2),
    timedelta(hours=6),
    timedelta(days=1),
    timedelta(days=7),
]
_LABEL_WIDTH = 64
_HINTED = 6


def sparkline(values: Sequence[float], *, kind: str, label: str, height: int = 34) -> Markup:
    """A small line over time, filled below. `kind`: the state whose colour it has."""
    width = 200
    highest = max(values, default=0) or 1
    step = width / max(len(values) - 1, 1)
    points = [
        f"{index * step:.1f} {height - 3 - (height - 6) * value / highest:.1f}"
        for index, value in enumerate(values)
    ] or [f"0 {height - 3}", f"{width} {height - 3}"]
    line = "M" + " L".join(points)
    return Markup(
        '<svg class="spark s-{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" '
        'role="img" aria-label="{label}">'
        '<path class="area" d="{line} L{width} {height} L0 {height} Z"/>'
        '<path class="line" d="{line}"/></svg>'
    ).format(kind=kind, width=width, height=height, label=label, line=line)


class Mark(msgspec.Struct, frozen=True):
    """A label of a time axis."""

    x: float
    text: str


class TimeAxis(msgspec.Struct, frozen=True):
    """Time from left to right: where a moment stands, and which labels fit."""

    start: datetime
    end: datetime
    width: float
    zone: ZoneInfo
    left: float = 0

    def x(self, at: datetime) -> float:
        """Where a moment stands; what is outside stands at the edge."""
        share = (at - self.start) / (self.end - self.start)
        return round(self.left + self.width * min(max(share, 0.0), 1.0), 1)

    def shows(self, at: datetime) -> bool:
        return self.start <= at <= self.end

    def marks(self) -> list[Mark]:
        """Labels at round times of the zone, as many as do not overlap."""
        room = max(1, int(self.width // _LABEL_WIDTH))
        span = self.end - self.start
        step = next((one for one in _STEPS if span / one <= room), span / room)
        at = _round_down(self.start.astimezone(self.zone), step)
        found = []
        while at <= self.end:
            if at >= self.start and self.x(at) <= self.left + self.width - _LABEL_WIDTH / 2:
                found.append(Mark(self.x(at), _label(at.astimezone(self.zone), step)))
            at = _add(at, step, self.zone)
        return found


class Cluster(msgspec.Struct, frozen=True):
    """Things on a time axis that stand too close together to be drawn each."""

    x: float
    count: int
    hint: str


def gather(places: Sequence[tuple[float, str]], *, apart: float = 14.0) -> list[Cluster]:
    """Put what would overlap into one mark; each is a place and what it is.

    >>> [(one.x, one.count) for one in gather([(10.0, "a"), (12.0, "b"), (60.0, "c")])]
    [(10.0, 2), (60.0, 1)]
    """
    found: list[tuple[float, list[str]]] = []
    for x, hint in sorted(places):
        if found and x - found[-1][0] < apart:
            found[-1][1].append(hint)
        else:
            found.append((x, [hint]))
    return [
        Cluster(
            x,
            len(hints),
            "; ".join(hints[:_HINTED])
            + (f"; and {len(hints) - _HINTED} more" if len(hints) > _HINTED else ""),
        )
        for x, hints in found
    ]


def _round_down(at: datetime, step: timedelta) -> datetime:
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    if step >= timedelta(days=1):
        return midnight
    return midnight + ((at - midnight) // step) * step


def _add(at: datetime, step: timedelta, zone: ZoneInfo) -> datetime:
    """The next label: a step on the wall clock, so that days begin at midnight at clock changes."""
    return (at.replace(tzinfo=None) + step).replace(tzinfo=zone)


def _label(at: datetime, step: timedelta) -> str:
    if step >= timedelta(days=1) or (at.hour == 0 and at.minute == 0):
        return f"{at:%a} {at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step < timedelta(minutes=1) else f"{at:%H:%M}"
