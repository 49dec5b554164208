"""`duetime audit`: who changed what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.moment import iso
from duetime.cli.number import Number
from duetime.cli.output import compact, echo, one_line, print_json, print_table
from duetime.cli.reminders import format_rules
from duetime.cli.target import Command, Target, target_of
from duetime.domain.reminders.rule import Rule
from duetime.storage.schedules.rows import AuditEvent

_NOTHING: tuple[Any, ...] = (None, False, [], {})
_BEFORE = click.option("--before", type=Number(1, 2**63 - 1), metavar="ID", help="Only older ones.")
_LIMIT = click.option(
    "--limit",
    type=Number(1, 1000),
    default=20,
    metavar="N",
    help="How many, at most 1,000.  [default: 20]",
)


def paged(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command of the audit its page: `--before` an event, `--limit`."""
    return _BEFORE(_LIMIT(command))


def show_events(
    target: Target,
    events: Sequence[AuditEvent],
    limit: int,
    *,
    nothing: str,
    headings: Sequence[str],
    row: Callable[[AuditEvent], tuple[Any, ...]],
) -> None:
    """Print one page of the audit, and where the next one begins."""
    if target.json:
        print_json(events)
        return
    if not events:
        echo(nothing)
        return
    print_table(headings, [row(event) for event in events], right=(0,))
    if len(events) == limit and sys.stdout.isatty():
        echo(f"More: --before {events[-1].id}")


@click.command(cls=Command)
@click.argument("entity")
@paged
@click.pass_context
def audit(context: click.Context, entity: str, before: int | None, limit: int) -> None:
    """Show who changed ENTITY, newest first.

    \b
    duetime audit subject:game:42
    duetime audit scope:guild:1
    duetime audit recipient:ann

    ENTITY is subject:REF, scope:REF, recipient:REF, schedule:NAME or table:NAME. What is deleted
    is still there.
    """

    async def look(app: Duetime) -> list[AuditEvent]:
        return (await app.audit(entity, before_id=before))[:limit]

    target = target_of(context)
    show_events(
        target,
        target.run(look),
        limit,
        nothing=f"There are no audit events for {one_line(entity)}.",
        headings=("ID", "AT", "BY", "ACTION", "WHAT"),
        row=_row,
    )


def _row(event: AuditEvent) -> tuple[Any, ...]:
    said = [event.reason] if event.reason else []
    return (
        event.id,
        iso(event.at.replace(microsecond=0)),
        event.actor,
        event.action,
        "; ".join([*said, *_changes(event.before, event.after)]),
    )


def _changes(before: Any, after: Any) -> list[str]:
    """What is new of it, and what is different."""
    if not isinstance(after, dict):
        return []
    if not isinstance(before, dict):
        return [f"{name}: {_say(value)}" for name, value in after.items() if value not in _NOTHING]
    return [
        f"{name}: {_say(value)}" + (f" (was {_say(before[name])})" if name in before else "")
        for name, value in after.items()
        if value != before.get(name)
    ]


def _say(value: Any) -> str:
    match value:
        case None | []:
            return "none"
        case str():
            return value
        case [{"offset_us": _}, *_]:
            return format_rules(map(Rule.from_json, value))
        case list() if all(isinstance(one, str) for one in value):
            return ", ".join(value)
    return compact(value)
