"""Output of commands: JSON for programs; aligned columns and relative times for people."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from duetime.domain.text import escape_controls, escape_json

_UNITS = (
    (timedelta(hours=36), timedelta(days=1), "d"),
    (timedelta(minutes=90), timedelta(hours=1), "h"),
    (timedelta(seconds=90), timedelta(minutes=1), "m"),
    (timedelta(seconds=0.5), timedelta(seconds=1), "s"),
)
_NARROWEST = 8


class ReaderGone(Exception):
    """The reader of our output has gone. Not an `OSError`, which click would end with code 1."""


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a text in which nothing that was stored can control the terminal."""
    _write(escape_controls(text, keep="\n\t") + "\n", err=err)


class OutputFailed(Exception):
    """Our output cannot be written, as on a full disk. Not an `OSError`, as above."""


class NotConfirmed(Exception):
    """The answer to a question was no, or there was none."""


def confirm(question: str) -> None:
    """Ask before something is changed; raise `NotConfirmed` unless the answer is yes."""
    try:
        confirmed = click.confirm(escape_controls(question), err=True)
    except click.Abort:
        confirmed = False  # Ctrl-C, or the end of the input.
    if not confirmed:
        echo(err=True)  # The question's line is still open.
        raise NotConfirmed


def write_file(content: bytes) -> None:
    """Write a file to standard output byte for byte; on a terminal as `echo` does."""
    if sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
        echo(content.decode(errors="replace").replace("\r\n", "\n").rstrip("\n"))
    else:
        _write(content)


def write_terminal(text: str) -> None:
    """Write to the terminal at once, as it is: escape whatever was stored before."""
    _write(text)
    sys.stdout.flush()


def as_json(value: Any) -> Any:
    """Return a value, as plain data."""
    return msgspec.to_builtins(value)


def print_json(value: Any) -> None:
    text = json.dumps(as_json(value), indent=2, ensure_ascii=not _speaks_unicode())
    _write("\n".join(map(escape_json, text.split("\n"))) + "\n")


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[int] = ()
) -> None:
    """Print aligned columns. On a terminal the longest are cut until a row fits on a line."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    table = [list(headings), *cells]
    widths = [max(columns(row[index]) for row in table) for index in range(len(headings))]
    room = terminal_width() - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for row in table:
        line = "  ".join(
            _fit(cell, width, right=index in right)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        echo(line.rstrip())


def print_facts(facts: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one a line; what is None is left out."""
    shown = [(name, value) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        echo(f"  {name:<{width}}  {escape_controls(str(value))}")


def relative(moment: datetime | None, now: datetime) -> str:
    """Say when, seen from `now`.

    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> relative(noon + timedelta(minutes=3, seconds=20), noon)
    'in 3 m'
    >>> relative(noon - timedelta(hours=2), noon)
    '2 h ago'
    """
    if moment is None:
        return ""
    distance = abs(moment - now)
    for least, unit, name in _UNITS:
        if distance >= least:
            count = round(distance / unit)
            return f"in {count} {name}" if moment > now else f"{count} {name} ago"
    return "now"


def exact(moment: datetime | None, now: datetime | None = None) -> str | None:
    """The moment in UTC, and how far that is from `now`."""
    if moment is None:
        return None
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    return text if now is None else f"{text} ({relative(moment, now)})"


def compact(value: Any) -> str:
    return json.dumps(as_json(value), ensure_ascii=not _speaks_unicode())


def one_line(value: Any) -> str:
    """Text in which nothing can move the cursor or break the line."""
    return "" if value is None else escape_controls(" ".join(str(value).split()))


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters take two, marks none.

    >>> columns("ab"), columns("\u6f22\u5b57"), columns("e\u0301")
    (2, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(_columns_of(character) for character in text)


def cut(text: str, width: int) -> str:
    if columns(text) <= width:
        return text
    while columns(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _write(content: str | bytes, *, err: bool = False) -> None:
    try:
        click.echo(content, nl=False, err=err)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise OutputFailed(error.strerror) from None


def _columns_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _fit(text: str, width: int, *, right: bool) -> str:
    shown = cut(text, width)
    space = " " * (width - columns(shown))
    return space + shown if right else shown + space


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def terminal_width() -> int:
    """A terminal's width; what is piped elsewhere is never cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
