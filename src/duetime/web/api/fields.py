"""What parameters and bodies are made of: names, times, durations, rules, each with its bounds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query
from msgspec import Meta
from pydantic import AwareDatetime

from duetime.app import Duetime
from duetime.domain.checks import MAX_NAME_LENGTH
from duetime.domain.duration import Duration, TooLong, parse_duration
from duetime.domain.page import MAX_CURSOR_LENGTH
from duetime.domain.reminders.rule import Rule
from duetime.domain.reminders.rule_text import write_rule
from duetime.errors import InvalidInput

MAX_PAGE = 1000
MAX_ID = 2**63 - 1
_MAX_SOUGHT = 2000
_MAX_REASON_LENGTH = 1000
_MAX_WAIT = timedelta(minutes=1)

# Of paths and queries.

IdPath = Annotated[int, Path(ge=1, le=MAX_ID)]
NamePath = Annotated[
    str,
    Path(
        min_length=1,
        max_length=_MAX_SOUGHT,
        description="Percent-encoded: a slash in it is written as `%2F`.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]
After = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR_LENGTH, description="The `next` of the previous page."),
]
Sought = Annotated[str | None, Query(min_length=1, max_length=_MAX_SOUGHT)]
MomentQuery = Annotated[
    AwareDatetime | None, Query(description="ISO 8601 with an offset: `2026-03-01T09:00:00Z`.")
]
DurationQuery = Annotated[
    str, Query(max_length=40, description="`5m`, `1h30m`, `7d`, or as ISO 8601: `PT5M`.")
]
ReasonQuery = Annotated[
    str | None,
    Query(max_length=_MAX_REASON_LENGTH, description="Why, for the audit and for people."),
]
Count = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many.")]

# Of bodies.

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
Reason = Annotated[
    str, Meta(max_length=_MAX_REASON_LENGTH, description="Why, for the audit and for people.")
]
Moment = Annotated[
    datetime, Meta(tz=True, description="ISO 8601 with an offset: `2026-03-01T09:00:00Z`.")
]
Span = Annotated[
    Annotated[str, Meta(min_length=1, max_length=40)]
    | Annotated[float, Meta(ge=0, le=3_155_760_000)],
    Meta(
        description="`5m`, `1h30m`, `7d`; or ISO 8601 such as `PT5M`; or a number of seconds.",
        examples=["5m"],
    ),
]
MomentOrSpan = Annotated[
    Annotated[str, Meta(min_length=1, max_length=64)]
    | Annotated[float, Meta(ge=0, le=3_155_760_000)],
    Meta(
        description="A time (`2026-03-01T09:00:00Z`), or a duration from now (`5m`).",
        examples=["2026-03-01T09:00:00Z"],
    ),
]
Priority = Annotated[int, Meta(ge=0, le=9, description="0 is served first, 9 last.")]
Arguments = Annotated[dict[str, Any], Meta(description="The arguments, by name.")]
RuleBody = (
    Annotated[str, Meta(min_length=1, max_length=100)]
    | Annotated[int, Meta(ge=0, le=5_260_320, description="Minutes before the due time.")]
    | Annotated[dict[str, Any], Meta(min_length=1, max_length=20)]
)
Rules = Annotated[
    Annotated[list[RuleBody], Meta(max_length=50)],
    Meta(
        description="Rules such as `-1h` or `-1d at 09:00`, minutes before the due time such as "
        "`60`, or objects with options; `[]` means no reminders.",
        examples=[["-1d at 09:00", {"rule": "-1h", "channels": ["push"]}]],
    ),
]
Spec = (
    Annotated[str, Meta(min_length=1, max_length=1000)]
    | Annotated[dict[str, Any], Meta(min_length=1, max_length=20)]
)
Specs = Annotated[
    Annotated[list[Spec], Meta(max_length=100)],
    Meta(
        description="Cron, `@every 10m`, `RRULE:…`, single times; see the guide on schedules.",
        examples=[["0 9 * * 1-5"]],
    ),
]


class PutAnswer(msgspec.Struct):
    """What a put did."""

    result: str
    """`added`, `changed` or `same`."""


def rules_answer(rules: Iterable[Rule] | None) -> list[dict[str, Any]] | None:
    """Rules as `remind` takes them."""
    return None if rules is None else [write_rule(rule) for rule in rules]


def given(body: msgspec.Struct, *but: str) -> dict[str, Any]:
    """Return the fields that the body has, as keyword arguments."""
    return {
        name: value
        for name in body.__struct_fields__
        if name not in but and (value := getattr(body, name)) is not msgspec.UNSET
    }


def read_wait(text: str) -> Duration:
    """Return how long a request may wait for a result."""
    try:
        return parse_duration(text, name="timeout", most=_MAX_WAIT)
    except TooLong as error:
        raise InvalidInput(f"{error} Ask again if the result is not there by then.") from None


async def read_moment(app: Duetime, value: str | float, *, name: str) -> datetime:
    """Return a time, or a duration from now as a time."""
    found = moment_or_span(value, name=name)
    if isinstance(found, datetime):
        return found
    return await app.now() + parse_duration(found, name=name)


def moment_or_span(value: str | float, *, name: str) -> datetime | Duration:
    """Return a time, or else a duration."""
    if isinstance(value, str) and value[:4].isdigit() and "-" in value:
        try:
            return msgspec.convert(value, Moment)
        except msgspec.ValidationError:
            raise InvalidInput(
                f"{name} {value!r} is not a time. Write it as ISO 8601 with an offset, such as "
                "2026-03-01T09:00:00Z."
            ) from None
    return parse_duration(value, name=name)


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """Why a job or a run is cancelled."""

    reason: Reason | None = None
