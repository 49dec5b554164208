"""`duetime schedules`: see, make and change what runs when."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from duetime.api.schedules import ScheduleHandle, ScheduleInfo, ticks_between
from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.moment import MOMENT_OR_SPAN, ago, iso
from duetime.cli.output import as_json, confirm, echo, exact, plural, print_json, print_table
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.schedules.audit_text import describe_schedule_event
from duetime.cli.schedules.history import explain_command, history_command
from duetime.cli.schedules.presets import presets
from duetime.cli.schedules.put import preview_command, put_command
from duetime.cli.schedules.show import next_run, schedule_row, show_schedule
from duetime.cli.target import Group, target_of
from duetime.domain.checks import check_moment
from duetime.domain.page import Page
from duetime.domain.schedules.schedule import TickStatus
from duetime.domain.schedules.timetable import Timetable
from duetime.storage.schedules.rows import TickInfo

_MAX_COUNT = 10_000
_SHOWN = 6


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def schedules(context: click.Context) -> None:
    """List, create and change schedules. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


for command in (
    put_command,
    preview_command,
    history_command,
    explain_command,
    audit_command("schedule", "NAME", describe=describe_schedule_event),
    presets,
):
    schedules.add_command(command)


@schedules.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List every schedule: when it runs, its next and last run, and why it does not run."""

    async def read(app: Duetime) -> tuple[Page[ScheduleInfo], datetime]:
        return await app.schedules.list(limit=limit, after=after), await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty='No schedules. Add one: duetime schedules put NAME TASK "0 9 * * *"',
    ):
        return
    print_table(
        ("NAME", "WHEN", "NEXT", "LAST", "STATUS"), [schedule_row(info, now) for info in found]
    )


@schedules.command("get")
@click.argument("name")
@click.pass_context
def get_command(context: click.Context, name: str) -> None:
    """Show a schedule with its policies and its last ticks."""

    async def read(app: Duetime) -> tuple[ScheduleInfo, list[TickInfo], datetime]:
        info = await app.schedules.get(name)
        return info, await app.schedules[name].history(limit=_SHOWN), await app.now()

    target = target_of(context)
    info, rows, now = target.run(read)
    if target.json:
        print_json(as_json(info) | {"history": as_json(rows)})
    else:
        show_schedule(info, rows, now)


@schedules.command("pause")
@click.argument("name")
@click.option("--reason", metavar="TEXT", default="", help="A reason, shown to people.")
@click.option(
    "--until",
    type=MOMENT_OR_SPAN,
    metavar="TIME",
    help="Resume automatically at this time, or after a duration such as 2h.",
)
@by_option
@click.pass_context
def pause_command(
    context: click.Context, name: str, reason: str, until: datetime | timedelta | None, by: str
) -> None:
    """Pause NAME: no worker starts another run of it. Runs that have started continue."""

    async def pause(app: Duetime) -> tuple[ScheduleInfo, datetime]:
        await app.schedules[name].pause(reason=reason, until=until, by=by)
        return await app.schedules.get(name), await app.now()

    target = target_of(context)
    info, now = target.run(pause)
    if target.json:
        fields = ("paused_at", "paused_by", "pause_reason", "paused_until")
        print_json({"schedule": name} | {field: getattr(info, field) for field in fields})
        return
    until_then = f"until {exact(info.paused_until, now)}" if info.paused_until else "until resumed"
    echo(f"Schedule {name} is paused by {info.paused_by}, {until_then}.")


@schedules.command("resume")
@click.argument("name")
@click.option(
    "--missed",
    is_flag=True,
    help="Catch up on the ticks missed during the pause, as the policy of the schedule says.",
)
@by_option
@click.pass_context
def resume_command(context: click.Context, name: str, missed: bool, by: str) -> None:
    """Resume NAME. The ticks of the pause are skipped, unless --missed is given."""

    async def resume(app: Duetime) -> tuple[bool, ScheduleInfo, datetime]:
        was_paused = (await app.schedules.get(name)).paused_at is not None
        await app.schedules[name].resume(missed=missed, by=by)
        return was_paused, await app.schedules.get(name), await app.now()

    target = target_of(context)
    was_paused, info, now = target.run(resume)
    if target.json:
        print_json({"schedule": name, "resumed": was_paused, "next_run_at": info.next_run_at})
    elif was_paused:
        echo(f"Schedule {name} is resumed. Next run: {next_run(info, now)}.")
    else:
        echo(f"Schedule {name} was not paused. Nothing changed.")


@schedules.command("trigger")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="A reason, stored in the audit.")
@by_option
@click.pass_context
def trigger_command(context: click.Context, name: str, reason: str | None, by: str) -> None:
    """Run NAME once now, even if it is paused. Its next run does not change."""

    async def trigger(app: Duetime) -> int:
        return await app.schedules[name].trigger(by=by, reason=reason)

    target = target_of(context)
    job_id = target.run(trigger)
    if target.json:
        print_json({"schedule": name, "job_id": job_id})
    else:
        echo(f"Schedule {name} was triggered: job {job_id} is due now.")


@schedules.command("reschedule")
@click.argument("name")
@click.argument("at", metavar="TIME", type=MOMENT_OR_SPAN)
@by_option
@click.pass_context
def reschedule_command(
    context: click.Context, name: str, at: datetime | timedelta, by: str
) -> None:
    """Move the next run to TIME, or to a duration from now (30m). Other runs do not change."""

    async def move(app: Duetime) -> tuple[datetime, TickInfo, datetime]:
        tick = await app.schedules[name].reschedule(at, by=by)
        later = tick + timedelta(microseconds=1)
        [row] = await app.schedules[name].history(since=tick, before=later)
        return tick, row, await app.now()

    target = target_of(context)
    tick, row, now = target.run(move)
    if target.json:
        print_json({"schedule": name, "tick": tick, "run_at": row.run_at, "job_id": row.job_id})
    else:
        echo(f"The run of {iso(tick)} was moved to {exact(row.run_at, now)}.")


@schedules.command("backfill")
@click.argument("name")
@click.option(
    "--from",
    "start",
    type=MOMENT_OR_SPAN,
    metavar="TIME",
    required=True,
    help="Start of the range: a time, or a duration ago such as 7d.",
)
@click.option(
    "--to",
    "end",
    type=MOMENT_OR_SPAN,
    metavar="TIME",
    help="End of the range, not included.  [default: now]",
)
@click.option("--failed", is_flag=True, help="Also run ticks that ran and failed.")
@click.option("--dry-run", is_flag=True, help="Only show how many ticks would run.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def backfill_command(
    context: click.Context,
    name: str,
    start: datetime | timedelta,
    end: datetime | timedelta | None,
    failed: bool,
    dry_run: bool,
    yes: bool,
    by: str,
) -> None:
    """Run past ticks that have not run. Asks for confirmation."""

    async def read(app: Duetime) -> tuple[datetime, datetime, int]:
        now = await app.now()
        first, last = ago(start, now), now if end is None else ago(end, now)
        assert first is not None
        assert last is not None
        check_moment(first, name="--from")
        return first, last, await _count_missing(app, name, first, last, failed)

    async def backfill(app: Duetime) -> int:
        return await app.schedules[name].backfill(first, last, failed=failed, by=by)

    target = target_of(context)
    first, last, count = target.run(read)
    span = f"from {iso(first)} to {iso(last)}"
    if count and not dry_run and not yes:
        confirm(f"Run {plural(count, 'tick')} of {name}, {span}?")
    runs = count if dry_run else target.run(backfill)
    if target.json:
        print_json({"schedule": name, "runs": runs, "from": first, "to": last, "dry_run": dry_run})
    elif not runs:
        echo(f"All ticks of {name} {span} have already run.")
    else:
        verb = "would run" if dry_run else "will run"
        echo(f"{plural(runs, 'tick')} of {name} {verb}, {span}.")


@schedules.command("delete")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="A reason, stored in the audit.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def delete_command(
    context: click.Context, name: str, reason: str | None, yes: bool, by: str
) -> None:
    """Delete NAME and its history. Runs that have started continue. Asks for confirmation."""

    async def read(app: Duetime) -> ScheduleInfo:
        return await app.schedules.get(name)

    async def delete(app: Duetime) -> None:
        await app.schedules[name].delete(by=by, reason=reason)

    target = target_of(context)
    info = target.run(read)
    again = " It is declared in code: the next worker that starts will add it again."
    note = again if info.declared else ""
    if not yes:
        confirm(f"Delete the schedule {name} and its history?{note}")
    target.run(delete)
    if target.json:
        print_json({"schedule": name, "deleted": True, "declared": info.declared})
    else:
        echo(f"Schedule {name} is deleted.{note}")


async def _count_missing(
    app: Duetime, name: str, start: datetime, end: datetime, failed: bool
) -> int:
    """How many ticks a backfill would run."""
    info = await app.schedules.get(name)
    wanted = set(ticks_between(Timetable.from_json(info.timetable), start, end))
    return len(wanted - await _ran(app.schedules[name], start, end, failed))


async def _ran(
    schedule: ScheduleHandle, start: datetime, end: datetime, failed: bool
) -> set[datetime]:
    """The ticks that a backfill leaves alone."""
    ran: set[datetime] = set()
    not_run = (TickStatus.SKIPPED, TickStatus.COALESCED)
    after = None
    while True:
        rows = await schedule.history(since=start, before=end, limit=_MAX_COUNT, after=after)
        ran |= {
            row.tick
            for row in rows
            if row.status not in not_run
            and not (failed and row.finished_at is not None and not row.succeeded)
        }
        if (after := rows.next) is None:
            return ran
