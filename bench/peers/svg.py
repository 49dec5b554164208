"""Bar charts as SVG, by hand: text that can be selected, colours for light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
_LABELS = 172
_VALUES = 112
_ROW = 34
_BAR = 12
_TOP = 64
_STYLE = """
svg { font: 13px system-ui, sans-serif }
.ground { fill: #ffffff } text { fill: #24292f } .muted { fill: #57606a; font-size: 12px }
.title { font-size: 16px; font-weight: 600 } .line { stroke: #d0d7de }
.first { fill: #8c959f } .second { fill: #c3cad1 }
.ours.first { fill: #0969da } .ours.second { fill: #7ab3f0 } .name.ours { font-weight: 600 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } text { fill: #e6edf3 } .muted { fill: #9198a1 } .line { stroke: #30363d }
.first { fill: #768390 } .second { fill: #444c56 }
.ours.first { fill: #4493f8 } .ours.second { fill: #1f4f8f }
}
"""


@dataclass(frozen=True)
class Bar:
    """A system: one or two values, each with its text; none if there is no figure."""

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]
    ours: bool = False


def draw(title: str, subtitle: str, bars: Sequence[Bar], *, log: bool, unit: str) -> str:
    """Return the chart. On a log axis every tenfold is as long as the next."""
    known = [value for bar in bars for value in bar.values if value is not None and value > 0]
    scale = _Scale.around(known, log=log)
    height = _TOP + _ROW * len(bars) + 34
    bottom = _TOP + _ROW * len(bars)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    label = f'role="img" aria-label="{escape(title)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text class="muted" x="16" y="46">{escape(subtitle)}</text>',
    ]
    for tick in scale.ticks():
        x = scale.x(tick)
        parts.append(f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text class="muted" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{_short(tick)}</text>"
        )
    axis = f"{unit}, logarithmic" if log else unit
    parts.append(f'<text class="muted" x="16" y="{bottom + 18}">{escape(axis)}</text>')
    for place, bar in enumerate(bars):
        parts += _draw_bar(bar, _TOP + _ROW * place, scale)
    return "\n".join([*parts, "</svg>\n"])


def _draw_bar(bar: Bar, top: float, scale: _Scale) -> list[str]:
    ours = " ours" if bar.ours else ""
    middle = top + _ROW / 2
    parts = [f'<text class="name{ours}" x="16" y="{middle + 5:.1f}">{escape(bar.name)}</text>']
    start = middle - _BAR * len(bar.values) / 2
    for number, (value, text) in enumerate(zip(bar.values, bar.texts, strict=True)):
        y = start + number * _BAR
        x = scale.x(value) if value is not None else _LABELS
        if value is not None:
            shade = "second" if number else "first"
            parts.append(
                f'<rect class="{shade}{ours}" x="{_LABELS}" y="{y:.1f}" '
                f'width="{max(x - _LABELS, 1):.1f}" height="{_BAR - 1}"/>'
            )
        parts.append(f'<text class="muted" x="{x + 6:.1f}" y="{y + 10:.1f}">{escape(text)}</text>')
    return parts


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    log: bool

    @classmethod
    def around(cls, values: Sequence[float], *, log: bool) -> _Scale:
        if not log:
            return cls(0.0, max(values, default=1.0), log=False)
        low, high = min(values, default=1.0), max(values, default=10.0)
        # A whole power of ten, so that the shortest bar still has a length.
        return cls(10.0 ** math.floor(math.log10(low / 1.5)), max(high, low * 10), log=True)

    def x(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high
        return _LABELS + share * (WIDTH - _LABELS - _VALUES)

    def ticks(self) -> list[float]:
        if self.log:
            count = math.floor(math.log10(self.high / self.low) + 1e-9)
            return [self.low * 10**power for power in range(count + 1)]
        step = 10 ** math.floor(math.log10(self.high))
        if self.high / step < 3:
            step /= 2
        return [step * number for number in range(int(self.high / step) + 1)]


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"
