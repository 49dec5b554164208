"""`duetime audit`: who changed what."""

from __future__ import annotations

from collections.abc import Sequence

import click

from duetime.cli.events import describe_change, list_events
from duetime.cli.paging import paged
from duetime.cli.schedules.audit_text import describe_schedule_event
from duetime.cli.target import Group, target_of
from duetime.domain.audit import KINDS, AuditEvent, AuditKind


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def audit(context: click.Context) -> None:
    """Show who changed what. Without a command, list it."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@audit.command("list")
@click.argument("entity", required=False)
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help=f"Only {', '.join(KINDS)}.")
@click.option("--by", metavar="NAME", help="Only changes that NAME made.")
@paged()
@click.pass_context
def list_command(
    context: click.Context,
    entity: str | None,
    kind: AuditKind | None,
    by: str | None,
    limit: int,
    after: str | None,
) -> None:
    """List changes, newest first: those of ENTITY, or all.

    \b
    duetime audit list job:42
    duetime audit list --kind schedule --by ann

    ENTITY is a kind and a name: job:ID, queue:NAME, schedule:NAME, preset:NAME, scope:REF,
    subject:REF, recipient:REF, table:NAME, token:NAME or account:NAME. Things that were deleted
    keep their audit.
    """
    list_events(
        target_of(context), _describe, entity=entity, kind=kind, by=by, limit=limit, after=after
    )


def _describe(event: AuditEvent) -> Sequence[str]:
    if event.entity.startswith("schedule:"):
        return describe_schedule_event(event)
    return describe_change(event)
