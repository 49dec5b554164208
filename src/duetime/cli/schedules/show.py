"""A schedule for people: as a line of a list, in full, and its ticks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from duetime.api.schedules import ScheduleInfo
from duetime.cli.moment import iso
from duetime.cli.output import (
    compact,
    echo,
    exact,
    one_line,
    plural,
    print_facts,
    print_table,
    relative,
)
from duetime.domain.duration import format_duration
from duetime.domain.schedules.cron import parse_zone
from duetime.domain.schedules.preview import PreviewRow
from duetime.domain.schedules.schedule import Policy, TickStatus, paused_reason
from duetime.domain.schedules.timetable import Timetable
from duetime.storage.schedules.rows import TickInfo

_DEFAULTS = Policy()
POLICIES = Policy.__struct_fields__
_WAITED = ("overlap", "dependency", "dependency_never")
_NOT_RUN = (TickStatus.SKIPPED, TickStatus.COALESCED)
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)


def schedule_row(info: ScheduleInfo, now: datetime) -> tuple[Any, ...]:
    """Name, when, next, last, status."""
    at = info.next_run_at if info.enabled else None
    return (
        info.name,
        info.when.removeprefix("cron "),
        f"due {relative(at, now)}" if at is not None and at <= now else relative(at, now),
        relative(info.last_run_at, now),
        _status(info, now),
    )


def show_schedule(info: ScheduleInfo, rows: Sequence[TickInfo], now: datetime) -> None:
    """Print everything that is known of it, and its last ticks."""
    echo(f"Schedule {one_line(info.name)}: {_state(info)}")
    print_facts(
        [
            (info.kind, one_line(info.target)),
            ("arguments", compact(info.args)),
            ("when", info.when),
            ("next run", next_run(info, now)),
            ("last run", _there(info.last_run_at, info.tz, now) or "none yet"),
            ("broken", info.broken and one_line(info.broken)),
            ("paused", _pause(info, now)),
            ("failures", f"{info.failures} in a row" if info.failures else None),
            *(_policies(info.policy) or [("policies", "the defaults")]),
            ("origin", _origin(info)),
            ("created", exact(info.created_at, now)),
            ("changed", exact(info.updated_at, now) if info.revision > 1 else None),
            ("revision", info.revision),
        ]
    )
    if rows:
        echo("\nRecent and armed ticks:")
        show_history(info, rows, now)


def next_run(info: ScheduleInfo, now: datetime) -> str:
    """When it runs next, or why it does not."""
    if info.broken is not None:
        return "none: it is broken, because its stored timetable or policies cannot be read"
    if info.paused_at is not None:
        return "none: it is paused"
    return _there(info.next_run_at, info.tz, now) or "none: its timetable has ended"


def show_history(info: ScheduleInfo, rows: Sequence[TickInfo], now: datetime) -> None:
    """Print rows of the ledger. A tick is written as `explain` reads it."""
    local = info.tz != "UTC"
    timetable = Timetable.from_json(info.timetable)
    zone = parse_zone(info.tz)
    print_table(
        ("TICK", *(["LOCAL"] if local else []), "STATUS", "LATE", "TOOK", "JOB", "RESULT"),
        [
            (
                iso(row.tick),
                *([f"{row.tick.astimezone(zone):%a %H:%M}"] if local else []),
                row.status.value,
                _late(row),
                "" if row.duration is None else _span(row.duration),
                row.job_id,
                _result(row, timetable, now),
            )
            for row in rows
        ],
        right=(3, 4, 5) if local else (2, 3, 4),
    )


def show_preview(
    timetable: Timetable,
    rows: Sequence[PreviewRow],
    count: int,
    *,
    now: datetime,
    name: str | None = None,
) -> None:
    """Print ticks to come. `name`: the schedule's, which its jitter depends on."""
    local = timetable.tz != "UTC"
    lines: list[tuple[str, ...]] = []
    for row in rows:
        there = (_wall(row.local, offset=True),) if local else ()
        first, *more = _notes(timetable, row, name) or [""]
        lines.append((iso(row.at), *there, relative(row.at, now), first))
        lines += [("", *("" for _ in there), "", note) for note in more]
    if not rows:
        echo("There are no ticks: the timetable has ended.")
        return
    print_table(("UTC", *(["LOCAL"] if local else []), "FROM NOW", "NOTES"), lines)
    if len(rows) < count:
        echo("The timetable ends there.")


# Pieces


def _state(info: ScheduleInfo) -> str:
    if info.broken is not None:
        return "broken"
    if info.paused_at is not None:
        return "paused"
    if info.next_run_at is None:
        return "ended"
    return "shadow" if info.policy.shadow else "active"


def _status(info: ScheduleInfo, now: datetime) -> str:
    """The state, and the reason for it in few words."""
    state = _state(info)
    if state == "broken":
        return f"broken: {info.broken}"
    if state == "paused":
        resumes = f", resumes {relative(info.paused_until, now)}" if info.paused_until else ""
        return f"{paused_reason(info)}{resumes}"
    return f"{state}; {plural(info.failures, 'failure')} in a row" if info.failures else state


def _origin(info: ScheduleInfo) -> str:
    if not info.declared:
        return "put at run time"
    return "declared in code" + ("" if info.owner in (None, "default") else f" of {info.owner}")


def _pause(info: ScheduleInfo, now: datetime) -> str | None:
    if info.paused_at is None:
        return None
    until = f", until {exact(info.paused_until, now)}" if info.paused_until else ""
    return f"{relative(info.paused_at, now)}, {one_line(paused_reason(info))}{until}"


def _policies(policy: Policy) -> list[tuple[str, Any]]:
    """Those that differ from the defaults."""
    return [
        (name.replace("_", "-"), policy_value(getattr(policy, name)))
        for name in POLICIES
        if getattr(policy, name) != getattr(_DEFAULTS, name)
    ]


def policy_value(value: Any) -> str:
    """A policy's value as its option is written."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return one_line(value)


def _there(moment: datetime | None, tz: str, now: datetime) -> str | None:
    """The moment in UTC, from now, and on the schedule's clock."""
    if moment is None or tz == "UTC":
        return exact(moment, now)
    return f"{exact(moment, now)}; {_wall(moment.astimezone(parse_zone(tz)))} in {tz}"


def _wall(local: datetime, *, offset: bool = False) -> str:
    seconds = ":%S" if local.second else ""
    text = local.strftime(f"%a %Y-%m-%d %H:%M{seconds}")
    return f"{text} {local.isoformat()[-6:]}" if offset else text


def _late(row: TickInfo) -> str:
    """From when it was due to its start. What is caught up was due at its tick."""
    started = row.started_at or row.claimed_at
    if started is None or row.status in _NOT_RUN:
        return ""
    due = min(row.tick, row.run_at) if row.status is TickStatus.CAUGHT_UP else row.run_at
    return _span(started - due)


def _result(row: TickInfo, timetable: Timetable, now: datetime) -> str:
    """How it ended, or why it has not, and where it ran."""
    reason = "" if row.reason is None else str(row.reason)
    if row.status is TickStatus.ARMED:
        return _due(row, timetable, now)
    if row.status is TickStatus.WAITING:
        return f"waits: {reason}"
    if row.status in _NOT_RUN or row.claimed_at is None:
        return reason
    if row.reason is not None and row.reason.code in _WAITED:
        reason = f"waited ({reason})"
    why = f"; {reason}" if reason else ""
    if row.finished_at is None:
        return f"running on {row.claimed_by}{why}"
    match row.succeeded:
        case True:
            return f"succeeded on {row.claimed_by}{why}"
        case False:
            return f"failed: {one_line(row.error)}, on {row.claimed_by}{why}"
    return reason or f"cancelled on {row.claimed_by}"


def _due(row: TickInfo, timetable: Timetable, now: datetime) -> str:
    due = f"due {relative(row.run_at, now)}"
    if row.reason is not None:
        return f"{due}; {row.reason}"
    moved = row.run_at != timetable.run_at(row.schedule, row.tick)
    return f"moved to {iso(row.run_at)}, {due}" if moved else due


def _span(span: timedelta) -> str:
    """A measured time, as short as it can be read."""
    if abs(span) < _SECOND:
        return f"{span / _MILLISECOND:.0f} ms"
    if abs(span) < 60 * _SECOND:
        return f"{span / _SECOND:.1f} s"
    return format_duration(timedelta(seconds=round(span / _SECOND)))


def _notes(timetable: Timetable, row: PreviewRow, name: str | None) -> list[str]:
    notes = list(row.notes)
    if row.excluded is not None:
        notes.append(f"does not run: {row.excluded}")
    elif name is not None and timetable.jitter:
        notes.append(f"starts {_span(timetable.run_at(name, row.at) - row.at)} later")
    return notes
