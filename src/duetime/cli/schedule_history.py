"""`duetime schedules history`, `explain` and `audit`: what happened, why, and by whom."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from duetime.api.schedules import ScheduleInfo
from duetime.app import Duetime
from duetime.cli.audit import paged, show_events
from duetime.cli.moment import MOMENT, MOMENT_OR_SPAN, ago, iso
from duetime.cli.number import Number
from duetime.cli.output import compact, echo, plural, print_json
from duetime.cli.schedule_show import POLICIES, policy_value, show_explanation, show_history
from duetime.cli.target import Command, target_of
from duetime.domain.jobs.explain import Explanation
from duetime.domain.schedules.schedule import Policy, TickStatus
from duetime.domain.schedules.timetable import Timetable
from duetime.errors import InvalidInput
from duetime.storage.schedules.rows import AuditEvent, TickInfo

_MOST = 10_000


@click.command("history", cls=Command)
@click.argument("name")
@click.option(
    "--status",
    type=click.Choice([status.value for status in TickStatus]),
    metavar="STATUS",
    help=f"Only {', '.join(TickStatus)}.",
)
@click.option("--since", type=MOMENT_OR_SPAN, metavar="TIME", help="From then on, or 2d ago on.")
@click.option("--before", type=MOMENT_OR_SPAN, metavar="TIME", help="Only older: the next page.")
@click.option(
    "--limit",
    type=Number(1, _MOST),
    default=20,
    metavar="N",
    help="How many, at most 10,000.  [default: 20]",
)
@click.pass_context
def history_command(
    context: click.Context,
    name: str,
    status: str | None,
    since: datetime | timedelta | None,
    before: datetime | timedelta | None,
    limit: int,
) -> None:
    """Show what became of each tick, newest first, and why."""

    async def look(app: Duetime) -> tuple[list[TickInfo], ScheduleInfo, datetime]:
        now = await app.now()
        rows = await app.schedules[name].history(
            since=ago(since, now), before=ago(before, now), status=status, limit=limit
        )
        return rows, await app.schedules.get(name), now

    target = target_of(context)
    rows, info, now = target.run(look)
    if target.json:
        print_json(rows)
        return
    if not rows:
        echo("No ticks match." if status or since or before else "No ticks yet.")
        return
    show_history(info, rows, now)
    if len(rows) == limit and sys.stdout.isatty():
        echo(f"More: --before {iso(rows[-1].tick)}")


@click.command("explain", cls=Command)
@click.argument("name")
@click.argument("tick", type=MOMENT, required=False)
@click.pass_context
def explain_command(context: click.Context, name: str, tick: datetime | None) -> None:
    """Explain why a schedule does or does not run, or what became of one TICK of it."""

    async def explain(app: Duetime) -> Explanation:
        return await app.schedules[name].explain(tick)

    target = target_of(context)
    explanation = target.run(explain)
    if target.json:
        print_json(explanation)
    else:
        show_explanation(explanation)


@click.command("audit", cls=Command)
@click.argument("name", required=False)
@paged
@click.pass_context
def audit_command(context: click.Context, name: str | None, before: int | None, limit: int) -> None:
    """Show who changed what, newest first: of one schedule, or of all."""

    async def look(app: Duetime) -> list[AuditEvent]:
        return (await app.schedules.audit(name, before_id=before))[:limit]

    target = target_of(context)
    show_events(
        target,
        target.run(look),
        limit,
        nothing="There are no audit events."
        if name is None
        else f"There are no audit events for {name}.",
        headings=("ID", "AT", "BY", "ACTION", "SCHEDULE", "WHAT"),
        row=_audit_row,
    )


def _audit_row(event: AuditEvent) -> tuple[Any, ...]:
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


def _changes(event: AuditEvent) -> list[str]:
    """What an event did, in few words."""
    before, after = event.before or {}, event.after or {}
    match event.action:
        case "schedule.add" | "schedule.put" if not before:
            return [f"{after['target']}, {_when(after)}"]
        case "schedule.delete":
            return [f"{before['target']}, {_when(before)}"]
        case "schedule.pause":
            return [f"until {after['until']}"] if after.get("until") else []
        case "schedule.resume":
            return ["with what was missed"] if after.get("missed") else []
        case "schedule.reschedule":
            return [f"the run of {after['tick']}, to {after['run_at']}"]
        case "schedule.backfill":
            runs = plural(after.get("runs", 0), "run")
            if after.get("failed"):
                runs += ", failed ones included"
            return [f"{runs}, {after['from']} to {after['to']}" if after else runs]
    old, new = _leaves(before), _leaves(after)
    return [
        f"{name}: {old.get(name, 'none')} → {new.get(name, 'none')}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _when(summary: dict[str, Any]) -> str:
    try:
        return Timetable.from_json(summary["timetable"]).describe()
    except InvalidInput:
        return compact(summary["timetable"])


def _leaves(summary: dict[str, Any]) -> dict[str, str]:
    """The values of a schedule that an event tells of, by name; the policies by their own."""
    values = dict(summary)
    if values.pop("timetable", None) is not None:
        values = {"when": _when(summary)} | values
    if "policy" in values:
        policy = msgspec.convert(values.pop("policy"), Policy)
        values |= {name: policy_value(getattr(policy, name)) or None for name in POLICIES}
    return {
        name.replace("_", "-"): value if isinstance(value, str) else compact(value)
        for name, value in values.items()
        if value is not None
    }
