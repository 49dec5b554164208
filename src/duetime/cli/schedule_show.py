"""A schedule for people: as a line of a list, in full, its ticks, and who changed it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from duetime.cli.moment import iso
from duetime.cli.output import compact, exact, one_line, plural, print_facts, print_table, relative
from duetime.domain.cron import parse_zone
from duetime.domain.duration import format_duration
from duetime.domain.explain import Explanation
from duetime.domain.preview import PreviewRow
from duetime.domain.schedule import Policy, TickStatus
from duetime.domain.timetable import Timetable
from duetime.schedules import ScheduleInfo
from duetime.storage.schedules import AuditEvent, OccurrenceInfo

_DEFAULTS = Policy()
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)


def schedule_row(info: ScheduleInfo, now: datetime) -> tuple[Any, ...]:
    """Name, when, next, last, status."""
    overdue = info.next_run_at is not None and info.next_run_at <= now
    return (
        info.name,
        info.when.removeprefix("cron "),
        f"due {relative(info.next_run_at, now)}" if overdue else relative(info.next_run_at, now),
        relative(info.last_run_at, now),
        "; ".join([_state(info), *_remarks(info, now)]),
    )


def show_schedule(info: ScheduleInfo, rows: Sequence[OccurrenceInfo], now: datetime) -> None:
    """Print everything that is known of it, and its last ticks."""
    click.echo(f"Schedule {one_line(info.name)}: {_state(info)}")
    print_facts(
        [
            (info.kind, info.target),
            ("arguments", compact(info.args)),
            ("when", info.when),
            ("next run", _there(info.next_run_at, info.tz, now)),
            ("last run", _there(info.last_run_at, info.tz, now) or "none yet"),
            ("broken", info.broken),
            ("paused", _pause(info, now)),
            ("failures", f"{info.failures} in a row" if info.failures else None),
            *(_policies(info.policy) or [("policies", "the defaults")]),
            ("made by", "the code" if info.declared else "hand"),
            ("created", exact(info.created_at, now)),
            ("changed", exact(info.updated_at, now) if info.revision > 1 else None),
            ("revision", info.revision),
        ]
    )
    if rows:
        click.echo("\nThe last ticks, and those that are armed:")
        show_history(rows, info.tz, now)


def show_history(rows: Sequence[OccurrenceInfo], tz: str, now: datetime) -> None:
    """Print rows of the ledger. A tick is written as `explain` reads it."""
    local = tz != "UTC"
    print_table(
        ("TICK", *(["LOCAL"] if local else []), "STATUS", "RESULT", "LATE", "TOOK", "JOB",
         "WORKER", "REMARKS"),
        [
            (
                iso(row.tick),
                *([_wall(row.tick, tz)] if local else []),
                row.status.value,
                _result(row),
                _late(row),
                _span(row.duration),
                row.job_id,
                row.claimed_by,
                row.error or _why(row, now),
            )
            for row in rows
        ],
        right=(4, 5, 6) if local else (3, 4, 5),
    )  # fmt: skip


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
    if rows:
        print_table(
            ("UTC", *([f"LOCAL ({timetable.tz})"] if local else []), "FROM NOW", "NOTES"),
            [
                (
                    iso(row.at),
                    *([f"{row.local:%a} {row.local.isoformat(sep=' ')}"] if local else []),
                    relative(row.at, now),
                    "; ".join(_notes(timetable, row, name)),
                )
                for row in rows
            ],
        )
    if not rows:
        click.echo("There are no ticks: the timetable has ended.")
    elif len(rows) < count:
        click.echo("The timetable ends there.")


def show_explanation(explanation: Explanation) -> None:
    """Print the sentence, then the facts that it rests on."""
    click.echo(explanation.sentence)
    facts = [
        (name, (", ".join(map(str, value)) or "none") if isinstance(value, list) else value)
        for name, value in explanation.facts.items()
    ]
    print_facts([("why", explanation.reason), *facts])


def audit_row(event: AuditEvent) -> tuple[Any, ...]:
    """ID, at, who, what, of which, how."""
    kind, _, name = event.entity.partition(":")
    return (
        event.id,
        iso(event.at.replace(microsecond=0)),
        event.actor,
        event.action.removeprefix("schedule."),
        name if kind == "schedule" else event.entity,
        "; ".join([*([event.reason] if event.reason else []), *_changes(event)]),
    )


# Pieces


def _state(info: ScheduleInfo) -> str:
    if info.broken is not None:
        return "broken"
    if info.paused_at is not None:
        return "paused"
    if info.next_run_at is None:
        return "ended"
    return "shadow" if info.policy.shadow else "active"


def _remarks(info: ScheduleInfo, now: datetime) -> list[str]:
    remarks = []
    if info.broken is not None:
        remarks.append(info.broken)
    elif info.paused_at is not None:
        remarks.append(f"{_pause(info, now)}")
    if info.failures:
        remarks.append(plural(info.failures, "failure"))
    return remarks


def _pause(info: ScheduleInfo, now: datetime) -> str | None:
    if info.paused_at is None:
        return None
    why = f": {one_line(info.pause_reason)}" if info.pause_reason else ""
    until = f", until {exact(info.paused_until, now)}" if info.paused_until else ""
    return f"{relative(info.paused_at, now)} by {info.paused_by}{why}{until}"


def _policies(policy: Policy) -> list[tuple[str, Any]]:
    """Those that differ from the defaults."""
    return [
        (name.replace("_", "-"), _policy_value(getattr(policy, name)))
        for name in policy.__struct_fields__
        if getattr(policy, name) != getattr(_DEFAULTS, name)
    ]


def _policy_value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    return "yes" if value is True else value


def _there(moment: datetime | None, tz: str, now: datetime) -> str | None:
    """The moment in UTC, from now, and on the schedule's clock."""
    if moment is None or tz == "UTC":
        return exact(moment, now)
    return f"{exact(moment, now)}; {_wall(moment, tz)} in {tz}"


def _wall(moment: datetime, tz: str) -> str:
    local = moment.astimezone(parse_zone(tz))
    return f"{local:%a %Y-%m-%d %H:%M:%S}" if local.second else f"{local:%a %Y-%m-%d %H:%M}"


def _result(row: OccurrenceInfo) -> str:
    if row.succeeded is not None:
        return "succeeded" if row.succeeded else "failed"
    return "running" if row.claimed_at is not None and row.finished_at is None else ""


def _late(row: OccurrenceInfo) -> str:
    """From when it was due to its start. What is caught up was due at its tick."""
    due = row.tick if row.status is TickStatus.CAUGHT_UP else row.run_at
    started = row.started_at or row.claimed_at
    return "" if started is None else _span(started - due)


def _why(row: OccurrenceInfo, now: datetime) -> str | None:
    if row.status is not TickStatus.ARMED:
        return row.reason
    moved = "moved: " if row.run_at < row.tick else ""
    due = f"{moved}due {relative(row.run_at, now)}"
    return f"{due}; {row.reason}" if row.reason else due


def _span(span: timedelta | None) -> str:
    """A measured time, as short as it can be read."""
    if span is None:
        return ""
    if abs(span) < _SECOND:
        return f"{span / _MILLISECOND:.0f} ms"
    if abs(span) < 100 * _SECOND:
        return f"{span / _SECOND:.1f} s"
    return format_duration(timedelta(seconds=round(span / _SECOND)))


def _notes(timetable: Timetable, row: PreviewRow, name: str | None) -> list[str]:
    notes = list(row.notes)
    if row.excluded is not None:
        notes.append(f"does not run: {row.excluded}")
    elif name is not None and timetable.jitter:
        notes.append(f"starts {_span(timetable.run_at(name, row.at) - row.at)} later")
    return notes


def _changes(event: AuditEvent) -> list[str]:
    """What differs between before and after, each by its name."""
    if event.action == "schedule.add" and isinstance(event.after, dict):
        return [
            f"{event.after['target']}, {Timetable.from_json(event.after['timetable']).describe()}"
        ]
    before, after = _leaves(event.before), _leaves(event.after)
    if not before or event.after is None:
        return [f"{name} {value}" for name, value in after.items()]
    return [
        f"{name} {before.get(name, 'none')} → {after.get(name, 'none')}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _leaves(value: Any) -> dict[str, str]:
    """The values that are not empty, by name; those of `policy` and `timetable` by their own."""
    leaves: dict[str, str] = {}
    for name, item in (value or {}).items():
        if name in ("policy", "timetable") and isinstance(item, dict):
            leaves |= _leaves(item)
        elif item is not None and name != "reason":
            leaves[name] = item if isinstance(item, str) else compact(item)
    return {name: _readable(text) for name, text in leaves.items()}


def _readable(text: str) -> str:
    """Spans as the options write them."""
    try:
        return format_duration(msgspec.convert(text, timedelta))
    except msgspec.ValidationError:
        return text
