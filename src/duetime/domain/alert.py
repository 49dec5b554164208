"""Alerts: what is reported to whom, and what the message says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec

from duetime.domain.checks import check_name, check_names
from duetime.domain.duration import Duration, parse_positive_duration
from duetime.errors import InvalidInput

ALERT_TASK = "duetime.alert"

AlertEvent = Literal["job_dead", "tick_missed"]
ALERT_EVENTS: tuple[AlertEvent, ...] = get_args(AlertEvent)

MISSED_CODES = (
    "late_skipped", "late_max_age", "late_expires", "late_max_runs", "coalesced", "overlap",
    "overlap_full", "dependency", "dependency_never",
)  # fmt: skip
"""The reasons of ticks that were to run and did not. Others were paused, changed or excluded by
somebody."""

_SHOWN = 10


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration: report these events through these channels, one message in each `every`."""

    name: str
    channels: dict[str, str | None]
    """The names of channels, in the order in which they are tried, each with the address."""
    on: tuple[AlertEvent, ...]
    every: timedelta


def make_alert(
    name: str,
    *,
    channels: Mapping[str, str | None] | Iterable[str],
    on: Iterable[AlertEvent],
    every: Duration,
) -> Alert:
    """Return a checked alert; raise `InvalidInput`."""
    routes = (
        dict(channels)
        if isinstance(channels, Mapping)
        else dict.fromkeys(check_names(channels, what="channels", example="channels=['email']"))
    )
    if not routes:
        raise InvalidInput("An alert needs at least one channel.")
    for channel, address in routes.items():
        check_name(channel, what="channel")
        if address is not None:
            check_name(address, what=f"address for {channel}")
    events = check_names(on, what="events (on=)", example="on=['job_dead']")
    for event in events:
        if event not in ALERT_EVENTS:
            raise InvalidInput(
                f"There is no event {event!r:.60} to alert on. Use: {', '.join(ALERT_EVENTS)}."
            )
    if not events:
        raise InvalidInput(f"An alert needs at least one event: {', '.join(ALERT_EVENTS)}.")
    return Alert(
        name=check_name(name, what="alert"),
        channels=routes,
        on=tuple(event for event in ALERT_EVENTS if event in events),
        every=parse_positive_duration(every, name="every"),
    )


class DeadJobs(msgspec.Struct, frozen=True):
    """Jobs of a task that died of the same error."""

    task: str
    code: str | None
    count: int
    last: int
    """The newest of them."""


class MissedTicks(msgspec.Struct, frozen=True):
    """Ticks of a schedule that did not run for the same reason."""

    schedule: str
    code: str
    count: int
    last: datetime


def describe_alert(
    dead: Sequence[DeadJobs], missed: Sequence[MissedTicks], *, more: bool = False
) -> tuple[str, str]:
    """Return the title and the body of a message. `more`: there were more than were counted.

    The errors' own texts are left out: a channel may show them to anybody.

    >>> print(*describe_alert([DeadJobs("shop.pay", "ConnectionError", 3, 42)], []), sep="\\n")
    3 jobs died
    3 of shop.pay: ConnectionError. The last one: duetime jobs get 42
    """
    parts = []
    if dead:
        parts.append(_count(sum(group.count for group in dead), "job", "died", more=more))
    if missed:
        total = sum(group.count for group in missed)
        parts.append(_count(total, "tick", "did not run", more=more))
    lines = [
        f"{group.count} of {group.task}: {group.code or 'no code'}. "
        f"The last one: duetime jobs get {group.last}"
        for group in sorted(dead, key=lambda group: -group.count)
    ]
    lines += [
        f"{group.count} of {group.schedule}: {group.code}. The last one: {_moment(group.last)}; "
        f"see duetime schedules history {group.schedule}"
        for group in sorted(missed, key=lambda group: -group.count)
    ]
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more kinds"]
    return ", ".join(parts), "\n".join(lines)


def facts_of_alert(dead: Sequence[DeadJobs], missed: Sequence[MissedTicks]) -> dict[str, Any]:
    """Return what programs read of the message."""
    return {
        "job_dead": [
            {"task": group.task, "code": group.code, "count": group.count, "job_id": group.last}
            for group in dead[:_SHOWN]
        ],
        "tick_missed": [
            {
                "schedule": group.schedule,
                "code": group.code,
                "count": group.count,
                "tick": _moment(group.last),
            }
            for group in missed[:_SHOWN]
        ],
    }


def _count(count: int, noun: str, verb: str, *, more: bool) -> str:
    return f"{count:,}{'+' if more else ''} {noun}{'' if count == 1 else 's'} {verb}"


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
