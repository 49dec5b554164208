"""`duetime subjects skip | move | restore`: single occurrences of a subject that repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from duetime.app import Duetime
from duetime.cli.moment import MOMENT, iso
from duetime.cli.output import echo, one_line, print_json, print_table, relative
from duetime.cli.person import by_option
from duetime.cli.reminders.commands import wall
from duetime.cli.schedules.put import SpecType
from duetime.cli.target import Command, target_of
from duetime.domain.reminders.recurrence import Occurrence

C = TypeVar("C", bound=Callable[..., Any])


def repeat_options(command: C) -> C:
    """Add `--repeats` and what bounds it, which `read_repeats` reads."""
    for option in reversed(
        [
            click.option(
                "--repeats",
                type=SpecType(),
                metavar="SPEC",
                multiple=True,
                help="Instead of --due: '0 9 * * 1-5', 'FREQ=WEEKLY;BYDAY=MO', … May be repeated.",
            ),
            click.option(
                "--start", type=MOMENT, metavar="TIME", help="No occurrences before this time."
            ),
            click.option(
                "--until", type=MOMENT, metavar="TIME", help="No occurrences after this time."
            ),
            click.option(
                "--exclude",
                metavar="DATE",
                multiple=True,
                help="A local date, or a cron expression, without occurrences. May be repeated.",
            ),
        ]
    ):
        command = option(command)
    return command


def read_repeats(
    specs: tuple[Any, ...],
    start: datetime | None,
    until: datetime | None,
    exclude: tuple[str, ...],
) -> Any:
    """The recurrence that the options say; None: it is due once."""
    given = {"start": start, "until": until, "exclude": exclude}
    options = {name: value for name, value in given.items() if value}
    if not specs:
        if options:
            raise click.UsageError(f"--{next(iter(options))} requires --repeats.")
        return None
    if len(specs) == 1 and isinstance(specs[0], dict):
        return specs[0] | options
    return {"specs": list(specs)} | options


@click.command("skip", cls=Command)
@click.argument("ref")
@click.argument("occurrence", type=MOMENT, metavar="TIME")
@by_option
@click.pass_context
def skip_command(context: click.Context, ref: str, occurrence: datetime, by: str) -> None:
    """Skip the occurrence of REF at TIME: nobody is reminded of it."""

    async def skip(app: Duetime) -> None:
        await app.subjects.skip(ref, occurrence, by=by)

    _change(context, skip, ref, occurrence, "skipped")


@click.command("move", cls=Command)
@click.argument("ref")
@click.argument("occurrence", type=MOMENT, metavar="TIME")
@click.option("--to", type=MOMENT, metavar="TIME", required=True, help="The new due time.")
@by_option
@click.pass_context
def move_command(
    context: click.Context, ref: str, occurrence: datetime, to: datetime, by: str
) -> None:
    """Move the occurrence of REF at TIME, and its reminders with it.

    duetime subjects move standup 2026-03-02T08:00Z --to 2026-03-02T12:00Z
    """

    async def move(app: Duetime) -> None:
        await app.subjects.move(ref, occurrence, to, by=by)

    _change(context, move, ref, occurrence, f"moved to {iso(to)}")


@click.command("restore", cls=Command)
@click.argument("ref")
@click.argument("occurrence", type=MOMENT, metavar="TIME")
@by_option
@click.pass_context
def restore_command(context: click.Context, ref: str, occurrence: datetime, by: str) -> None:
    """Undo that the occurrence of REF at TIME was skipped, moved or completed."""

    async def restore(app: Duetime) -> None:
        await app.subjects.restore(ref, occurrence, by=by)

    _change(context, restore, ref, occurrence, "as the recurrence says")


def show_occurrences(occurrences: Sequence[Occurrence], tz: str, now: datetime) -> None:
    """Print when a subject is due, on its clock too."""
    local = tz != "UTC"
    print_table(
        ["UTC", *(["LOCAL"] if local else []), "WHEN", "REMARKS"],
        [
            [
                iso(due),
                *([wall(due, tz)] if local else []),
                relative(due, now),
                "" if due == original else f"moved from {iso(original)}",
            ]
            for due, original in occurrences
        ],
    )


def occurrences_json(occurrences: Sequence[Occurrence]) -> list[dict[str, Any]]:
    return [{"due_at": one.due, "original": one.original} for one in occurrences]


def _change(
    context: click.Context, work: Callable[[Duetime], Any], ref: str, at: datetime, what: str
) -> None:
    target = target_of(context)
    target.run(work)
    if target.json:
        print_json({"subject": ref, "occurrence": at, "result": what})
    else:
        echo(f"The occurrence of {one_line(ref)} at {iso(at)} is {what}.")
