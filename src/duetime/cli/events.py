"""Events of the audit, for people; and the command `audit` of every noun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from duetime.app import Duetime
from duetime.cli.moment import iso
from duetime.cli.output import compact, echo, one_line, print_json, print_table
from duetime.cli.paging import paged, show_next
from duetime.cli.rules import format_rules
from duetime.cli.target import Command, Target, target_of
from duetime.domain.audit import AuditEvent, AuditKind
from duetime.domain.page import Page
from duetime.domain.reasons import Reason
from duetime.domain.reminders.rule import Rule

Describe = Callable[[AuditEvent], Sequence[str]]
"""What an event did, in few words."""
_NOTHING: tuple[Any, ...] = (None, False, [], {})


def audit_command(
    kind: AuditKind,
    argument: str,
    *,
    type: Any = None,  # noqa: A002
    describe: Describe | None = None,
) -> click.Command:
    """Return the command `audit` of a noun."""

    @click.command("audit", cls=Command, help=f"Show who changed {argument}, newest first.")
    @click.argument("ref", metavar=argument, type=type)
    @paged()
    @click.pass_context
    def command(context: click.Context, ref: Any, limit: int, after: str | None) -> None:
        list_events(
            target_of(context),
            describe or describe_change,
            entity=f"{kind}:{ref}",
            limit=limit,
            after=after,
        )

    return command


def list_events(
    target: Target, describe: Describe, *, entity: str | None = None, **filters: Any
) -> None:
    """Print one page of the audit."""

    async def read(app: Duetime) -> Page[AuditEvent]:
        return await app.audit.list(entity=entity, **filters)

    page = target.run(read)
    if target.json:
        print_json(page)
    elif not page:
        of = "" if entity is None else f" for {one_line(entity)}"
        echo(f"There are no audit events{of}.")
    else:
        headings = ("ID", "AT", "BY", "ACTION", "ENTITY", "WHAT")
        print_table(headings, [_row(event, describe) for event in page], right=(0,))
    show_next(page)


def _reasons_of(event: AuditEvent) -> list[str]:
    """What the person who changed it said; and the reason, if Duetime changed it by itself."""
    why = event.after.get("why") if isinstance(event.after, dict) else None
    found = [event.reason, why and str(msgspec.convert(why, Reason))]
    return [reason for reason in found if reason]


def _without_why(after: Any) -> Any:
    """What is new, without the reason for it."""
    if not isinstance(after, dict):
        return after
    return {name: value for name, value in after.items() if name != "why"}


def _row(event: AuditEvent, describe: Describe) -> tuple[Any, ...]:
    return (
        event.id,
        iso(event.at.replace(microsecond=0)),
        event.actor,
        event.action,
        event.entity,
        "; ".join([*_reasons_of(event), *describe(event)]),
    )


def describe_change(event: AuditEvent) -> Sequence[str]:
    """What is new of a thing, and what is different."""
    return _changes(event.before, event.after)


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
