"""Times on the command line: moments with a time zone, and spans seen from now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from duetime.domain.checks import check_moment
from duetime.domain.duration import TooLong, read_duration
from duetime.errors import InvalidInput


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A time with its zone, such as 2026-01-31T09:00:00Z. `or_span`: or a span, such as 30m."""

    name = "time"

    def __init__(self, *, or_span: bool = False) -> None:
        self._or_span = or_span

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return self._read_span(text, param, ctx)
        if moment.utcoffset() is None:
            self.fail(f"{text!r} has no time zone. Write {_with_zone(moment)!r}.", param, ctx)
        try:
            return check_moment(moment, name="It").astimezone(UTC)
        except (InvalidInput, OverflowError):
            self.fail(f"{text!r} is not between the years 1970 and 9000.", param, ctx)

    def _read_span(self, text: str, param: Any, ctx: Any) -> Any:
        example = "such as '2026-01-31T09:00:00Z'"
        if not self._or_span:
            self.fail(f"{text[:40]!r} is not a valid time {example}.", param, ctx)
        try:
            return read_duration(text, name="A span")
        except TooLong as error:
            self.fail(str(error), param, ctx)
        except InvalidInput:
            self.fail(
                f"{text[:40]!r} is neither a duration such as '30m' nor a time {example}.",
                param,
                ctx,
            )


class Span(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A duration, such as 30m; a number is seconds."""

    name = "span"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return read_duration(value.strip(), name="The span")
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


SPAN = Span()
MOMENT = Moment()
MOMENT_OR_SPAN = Moment(or_span=True)


def iso(moment: datetime) -> str:
    """The moment in UTC, as every command reads it.

    >>> iso(datetime(2026, 1, 31, 9, tzinfo=UTC))
    '2026-01-31T09:00:00Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def ago(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """What was given, or the moment so long before `now`."""
    return now - value if isinstance(value, timedelta) else value


def _with_zone(moment: datetime) -> str:
    return f"{moment.isoformat()}Z"
