"""Templates, and how they show moments, spans, numbers and states."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

import jinja2
import msgspec
from markupsafe import Markup, escape

from duetime.domain.count import Count
from duetime.domain.duration import format_duration
from duetime.domain.text import escape_controls
from duetime.web.dashboard import charts
from duetime.web.dashboard.mending import find_remedy

HERE = Path(__file__).parent

STATES = {
    "pending": "○",
    "scheduled": "○",
    "armed": "○",
    "registered": "○",
    "running": "◐",
    "sending": "◐",
    "completed": "●",
    "sent": "●",
    "fired": "●",
    "triggered": "●",
    "caught_up": "●",
    "backfilled": "●",
    "retrying": "↻",
    "retried": "↻",
    "compensating": "↻",
    "waiting": "◆",
    "sleeping": "◆",
    "held": "◆",
    "parked": "◆",
    "paused": "◆",
    "dead": "✕",
    "failed": "✕",
    "superseded": "✕",
    "cancelled": "✕",
    "expired": "✕",
    "skipped": "✕",
    "coalesced": "✕",
}
"""The shape of each state. A state is shown as its shape, its word and its colour."""

AHEAD = frozenset({
    "not_due", "time_ahead", "not_planned", "due", "in_line", "about_to_run", "running", "empty",
    "flow_not_due", "flow_running", "flow_steps_running", "flow_sleeping", "flow_waiting",
})  # fmt: skip
"""Codes of failed checks that are no failure: what they ask for is still to come."""


class Templates:
    """The templates of the dashboard."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "default_zero": lambda value: value or 0,
            "duration": duration,
            "lines": lines,
            "number": number,
            "plain": plain,
            "breakable": breakable,
            "pretty": pretty,
            "span": format_duration,
        }
        self._environment.tests["ahead"] = is_ahead
        self._environment.globals |= {
            "state": state,
            "charts": charts,
            "percent": percent,
            "find_remedy": find_remedy,
        }

    def render(
        self,
        template: str,
        *,
        root: str,
        query: Mapping[str, str],
        zone: ZoneInfo,
        now: datetime | None,
        values: Mapping[str, Any],
        **others: Any,
    ) -> str:
        """Render a page with its values and what every page has."""
        return self._environment.get_template(template).render(
            values,
            root=root,
            query=query,
            zone=zone,
            now=now,
            url=partial(make_url, root),
            with_query=partial(with_query, query),
            moment=partial(moment, zone=zone, now=now or datetime.now(UTC)),
            clock=partial(clock, zone=zone, now=now),
            localized=partial(localized, zone=zone, now=now or datetime.now(UTC)),
            **others,
        )


def make_url(root: str, *parts: object, **query: Any) -> str:
    """A link to a page: `url("jobs", 7)`, `url("jobs", state="dead")`.

    >>> make_url("/duetime", "queues", "a/b", tab=None, state="dead")
    '/duetime/queues/a%2Fb?state=dead'
    """
    path = root + "/" + "/".join(quote(str(part), safe="") for part in parts)
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return path + ("?" + urlencode(given, doseq=True) if given else "")


def with_query(query: Any, **changes: Any) -> str:
    """The query of this page with some values changed; None removes one.

    >>> with_query({"state": "dead", "after": "x"}, after=None, task="mail")
    '?state=dead&task=mail'
    """
    pairs = query.multi_items() if hasattr(query, "multi_items") else list(query.items())
    kept = [(name, value) for name, value in pairs if name not in changes]
    kept += [(name, value) for name, value in changes.items() if value not in (None, "")]
    return "?" + urlencode(kept, doseq=True)


def moment(at: datetime | None, *, zone: ZoneInfo, now: datetime, exact: bool = False) -> Markup:
    """A moment: how far away it is, with the exact time on hover; or the other way round."""
    if at is None:
        return Markup('<span class="faint">–</span>')
    utc = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    local = clock(at, zone=zone, now=now)
    far = relative(at, now)
    text, hint = (local, f"{far} · {utc}") if exact else (far, f"{local} · {utc}")
    # Nothing of it needs escaping, but for the time that a zone's rules may have given: a page has
    # hundreds of them, and `Markup.format` takes most of its time.
    return Markup(f'<time datetime="{at.isoformat()}" title="{escape(hint)}">{escape(text)}</time>')


_WRITTEN = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?:Z| UTC|\+00:00)", re.ASCII
)


def localized(text: Any, length: int = 500, *, zone: ZoneInfo, now: datetime) -> Markup:
    """A sentence whose times, written in UTC, are shown in the viewer's time zone.

    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> text = localized("Due at 2026-01-01T12:00:00Z.", zone=ZoneInfo("Asia/Tokyo"), now=noon)
    >>> text.striptags()
    'Due at 21:00:00.'
    """
    shown = plain(text, length)
    parts: list[Markup] = []
    last = 0
    for found in _WRITTEN.finditer(shown):
        try:
            at = datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00")
        except ValueError:
            continue
        parts += [escape(shown[last : found.start()]), moment(at, zone=zone, now=now, exact=True)]
        last = found.end()
    return Markup("").join([*parts, escape(shown[last:])])


def clock(at: datetime, *, zone: ZoneInfo, now: datetime | None = None) -> str:
    """A time of day in the viewer's zone, with the date unless it is today."""
    local = at.astimezone(zone)
    time = local.strftime("%H:%M:%S")
    if now is not None and local.date() == now.astimezone(zone).date():
        return time
    year = "" if now is not None and now.astimezone(zone).year == local.year else f" {local.year}"
    return f"{local:%a} {local.day} {local:%b}{year} {time}"


def relative(at: datetime, now: datetime) -> str:
    """How far a moment is from now.

    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> relative(noon + timedelta(seconds=161), noon), relative(noon - timedelta(hours=2), noon)
    ('in 2 min 41 s', '2 h ago')
    """
    distance = abs(at - now)
    if distance < timedelta(seconds=1):
        return "now"
    text = duration(distance)
    return f"in {text}" if at > now else f"{text} ago"


def duration(span: timedelta | float | None) -> str:
    """A span with at most two units.

    >>> duration(timedelta(seconds=161)), duration(0.0021), duration(timedelta(days=3, hours=2))
    ('2 min 41 s', '2.1 ms', '3 d 2 h')
    """
    if span is None:
        return "–"
    value = span if isinstance(span, timedelta) else timedelta(seconds=span)
    if value < timedelta(seconds=1):
        milliseconds = value / timedelta(milliseconds=1)
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    if value < timedelta(seconds=10):
        return f"{value.total_seconds():.1f} s"
    units = [("y", 31_536_000), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)]
    seconds = round(value.total_seconds())
    parts: list[str] = []
    for name, size in units:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count} {name}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def number(value: float | Count | None) -> str:
    """A number as people read it.

    >>> number(48210), number(13.42), number(None)
    ('48,210', '13.4', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, Count):
        return str(value)
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def percent(part: float, whole: float) -> str:
    return "–" if not whole else f"{100 * part / whole:.0f} %"


def plain(value: Any, length: int = 200) -> str:
    """Stored text on one line, without what controls a terminal or reverses its direction."""
    text = "" if value is None else str(value)
    shown = escape_controls(" ".join(text[: 4 * length].split()))
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def breakable(name: str) -> Markup:
    """A name that a narrow column breaks after a dot or an underscore, not within a word."""
    return Markup(re.sub(r"([._:/])(?=\w)", r"\1<wbr>", str(escape(name))))


def is_ahead(code: str | None) -> bool:
    """Whether a check with this code failed only because what it asks for is still to come."""
    return code in AHEAD


def lines(text: str) -> str:
    """Stored text of several lines."""
    return escape_controls(text, keep="\n\t")


def pretty(value: Any) -> str:
    """A stored value as JSON on several lines."""
    text = json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)
    return escape_controls(text, keep="\n")


def state(word: object, *, label: str | None = None) -> Markup:
    """A state: its shape, its word and its colour, in this order."""
    name = str(word)
    known = name if name in STATES else "pending"
    shown = escape(label or name.replace("_", " "))
    return Markup(
        f'<span class="state s-{known}"><i aria-hidden="true">{STATES[known]}</i>{shown}</span>'
    )
