"""`duetime schedules put` and `preview`: specs on the command line, stored or only tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, get_args

import click

from duetime.api.schedules import ScheduleInfo
from duetime.app import Duetime
from duetime.cli.json_values import ObjectType, read_object
from duetime.cli.moment import MOMENT, SPAN, iso
from duetime.cli.number import Number
from duetime.cli.output import echo, one_line, print_json
from duetime.cli.person import by_option
from duetime.cli.schedules.show import next_run, show_preview
from duetime.cli.target import Command, Target, target_of
from duetime.domain.schedules.presets import find_preset
from duetime.domain.schedules.preview import MAX_ROWS, PreviewRow, preview
from duetime.domain.schedules.schedule import CatchUp, Overlap
from duetime.domain.schedules.timetable import Timetable, timetable
from duetime.errors import ScheduleNotFound

C = TypeVar("C", bound=Callable[..., Any])

# A single field never is a spec; the shell has taken an expression apart.
_FIELD = re.compile(r"[\d*/,?L#-]{1,7}|@every", re.IGNORECASE)


class SpecType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A spec as the library reads it; one that begins with { is JSON."""

    name = "spec"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        if _FIELD.fullmatch(text):
            example = "@every 10m" if text[0] == "@" else "0 9 * * *"
            self.fail(
                f"{text!r} is only part of a spec. Put the whole spec in quotes: '{example}'.",
                param,
                ctx,
            )
        return read_object(self, text, param, ctx) if text.startswith("{") else text


SPEC = SpecType()


def times_options(command: C) -> C:
    """Add the options that specs share."""
    for option in (
        click.option("--end", metavar="TIME", help="No ticks at or after this time."),
        click.option(
            "--start",
            metavar="TIME",
            help="No ticks before this time. Intervals are counted from it.",
        ),
        click.option(
            "--exclude",
            metavar="DATE|CRON",
            multiple=True,
            help="A local date, or a cron expression, on which the schedule does not run. May be "
            "repeated.",
        ),
        click.option(
            "--tz", metavar="ZONE", help="Time zone, such as Europe/Berlin.  [default: UTC]"
        ),
    ):
        command = option(command)
    return command


def _policy_options(command: C) -> C:
    """Add an option for each policy; what is left out is the library's default."""
    span, many = {"metavar": "SPAN", "type": SPAN}, {"metavar": "N", "type": Number(1, 1_000_000)}
    catch_up, overlap = get_args(CatchUp), get_args(Overlap)
    options: list[tuple[str, dict[str, Any]]] = [
        ("--catch-up", {"metavar": "HOW", "type": click.Choice(catch_up),
                        "help": f"Missed ticks: {', '.join(catch_up)}.  [default: latest]"}),
        ("--max-runs", many | {"help": "With --catch-up all: only the last N missed ticks."}),
        ("--max-age", span | {"help": "Missed ticks older than this are skipped."}),
        ("--pace", span | {"help": "The time between runs that are caught up.  [default: 0s]"}),
        ("--grace", span | {"help": "A tick that starts later than this is missed.  [default: "
        "10s]"}),
        ("--overlap", {"metavar": "HOW", "type": click.Choice(overlap),
                       "help": f"If the previous run has not finished: {', '.join(overlap)}.  "
                       "[default: skip]"}),
        ("--max-concurrent-runs", many | {"help": "How many runs may run at once.  [default: 1]"}),
        ("--burst-allowed", {"is_flag": True, "default": None,
                             "help": "Caught-up and backfilled runs may run at the same time."}),
        ("--after", {"metavar": "SCHEDULE", "help": "Run only if that schedule succeeded "
        "recently."}),
        ("--within", span | {"help": "With --after: how recently.  [default: 1h]"}),
        ("--wait", span | {"help": "With --after: how long to wait for it before the tick is "
        "skipped."}),
        ("--pause-after", many | {"help": "Pause the schedule after N failures in a row."}),
        ("--expires", span | {"help": "A run that could not start within this time is skipped."}),
        ("--shadow", {"is_flag": True, "default": None, "help": "Record the ticks, but run "
        "nothing."}),
    ]  # fmt: skip
    for name, attributes in reversed(options):
        command = click.option(name, **attributes)(command)
    return command


@click.command("put", cls=Command)
@click.argument("name")
@click.argument("task")
@click.argument("specs", metavar="SPEC...", type=SPEC, nargs=-1)
@click.option("--args", type=ObjectType(), metavar="JSON", help="The task's arguments.")
@times_options
@click.option("--jitter", type=SPAN, metavar="SPAN", help="Delay each run by up to this much.")
@click.option("--preset", metavar="NAME", help="A named timetable: see `schedules presets`.")
@click.option("--queue", metavar="NAME", help="Queue of the runs.  [default: that of the task]")
@click.option(
    "--priority",
    type=Number(0, 9),
    metavar="N",
    help="0 (first) to 9 (last).  [default: that of the task]",
)
@_policy_options
@by_option
@click.pass_context
def put_command(
    context: click.Context,
    /,
    name: str,
    task: str,
    specs: tuple[Any, ...],
    preset: str | None,
    by: str,
    **options: Any,
) -> None:
    """Add the schedule NAME, which runs TASK, or change it. Options left out get their defaults.

    A SPEC is a cron expression, an interval, a recurrence rule or a moment; several are merged.

    \b
    duetime schedules put digest shop.digest "0 9 * * 1-5" --tz Europe/Berlin
    duetime schedules put poll shop.poll "@every 10m" --args '{"shop": 7}'
    duetime schedules put report shop.report "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17"
    duetime schedules put launch shop.launch 2026-12-01T08:00:00Z

    With --app, the arguments are checked, and the task's own options are the defaults.
    """
    if not specs and preset is None:
        raise click.UsageError("Give a SPEC such as '0 9 * * *', or --preset.")
    given = {option: value for option, value in options.items() if value is not None}

    target = target_of(context)
    unknown = False

    async def put(app: Duetime) -> tuple[str, bool, ScheduleInfo, datetime]:
        nonlocal unknown
        declared = await _is_declared(app, name)
        result = await app.schedules.put(name, task, *specs, by=by, preset=preset, **given)
        unknown = target.app is not None and task not in app._known_tasks
        return result, declared, await app.schedules.get(name), await app.now()

    result, declared, info, now = target.run(put)
    if target.json:
        next_run_at = info.next_run_at
        print_json(
            {"schedule": name, "result": result, "when": info.when, "next_run_at": next_run_at}
        )
        return
    _tell(result, declared, info, now)
    if unknown:
        echo(f"The app has no task {one_line(task)}. Its runs wait until a worker knows the task.")


async def _is_declared(app: Duetime, name: str) -> bool:
    try:
        return (await app.schedules.get(name)).declared
    except ScheduleNotFound:
        return False


def _tell(result: str, declared: bool, info: ScheduleInfo, now: datetime) -> None:
    said = "is unchanged" if result == "same" else f"is {result}"
    echo(f"Schedule {info.name} {said}.")
    echo(f"  when  {info.when}")
    echo(f"  next  {next_run(info, now)}")
    if declared and result != "same":
        echo(
            "This schedule is declared in code: the next worker that starts will revert the change."
        )


@click.command("preview", cls=Command)
@click.argument("name", required=False)
@click.option(
    "-n",
    "--limit",
    "count",
    type=Number(1, MAX_ROWS),
    default=10,
    metavar="N",
    help="How many ticks, at most 1,000.  [default: 10]",
)
@click.option(
    "--since", type=MOMENT, metavar="TIME", help="Show ticks after this time.  [default: now]"
)
@click.option(
    "--spec",
    "specs",
    type=SPEC,
    metavar="SPEC",
    multiple=True,
    help="Preview this spec. May be repeated.",
)
@click.option("--preset", metavar="NAME", help="Preview this preset.")
@times_options
@click.pass_context
def preview_command(
    context: click.Context,
    /,
    name: str | None,
    count: int,
    since: datetime | None,
    specs: tuple[Any, ...],
    preset: str | None,
    **times: Any,
) -> None:
    """Show the next ticks of a schedule; or of a spec, without a database.

    In UTC and local time, with notes where clocks change, and what is excluded.

    \b
    duetime schedules preview digest -n 20
    duetime schedules preview --spec "30 2 * * *" --tz America/New_York --since 2026-03-07T00:00Z
    """
    target = target_of(context)
    trying = bool(specs or preset)
    if trying == (name is not None):
        raise click.UsageError("Give either the NAME of a schedule, or --spec or --preset.")
    given = {option: value for option, value in times.items() if value}
    if name is not None:
        if given:
            raise click.UsageError(f"--{min(given)} can only be combined with --spec.")
        _preview_stored(target, name, count, since)
        return
    if preset is not None:
        specs = (*specs, find_preset(preset).spec)
    times_read = timetable(*specs, **given)
    now = datetime.now(UTC)
    rows = preview(times_read, since or now, count)
    if target.json:
        print_json(rows)
    else:
        echo(times_read.describe())
        show_preview(times_read, rows, count, now=now)


def _preview_stored(target: Target, name: str, count: int, since: datetime | None) -> None:
    async def read(app: Duetime) -> tuple[ScheduleInfo, Sequence[PreviewRow], datetime]:
        now = await app.now()
        rows = await app.schedules[name].preview(count, since=since or now)
        return await app.schedules.get(name), rows, now

    info, rows, now = target.run(read)
    if target.json:
        print_json(rows)
        return
    echo(f"{info.name}: {info.when}")
    if info.broken is not None:
        echo(f"It is broken and does not run: {one_line(info.broken)}")
        return
    if info.paused_at is not None:
        until = f" until {iso(info.paused_until)}" if info.paused_until else ""
        echo(f"It is paused{until}: ticks during the pause do not run.")
    show_preview(Timetable.from_json(info.timetable), rows, count, now=now, name=name)
