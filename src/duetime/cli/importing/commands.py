"""`duetime import`: import schedules from cron, Celery or APScheduler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from duetime.app import Duetime
from duetime.cli.importing.plan import plan_as_json, print_plan, some, summary
from duetime.cli.output import echo, print_json
from duetime.cli.person import by_option
from duetime.cli.target import Group, Target, import_named, target_of
from duetime.domain.schedules.cron import parse_zone
from duetime.errors import DuetimeError, InvalidSchedule
from duetime.integrations.importing import apscheduler, celery_beat, crontab, django_celery_beat
from duetime.integrations.importing.found import Found, Tasks
from duetime.integrations.importing.plan import Plan, apply_plan, make_plan

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T")

DATABASE = "the database"
"""What messages call it: its URL may have a password."""


class Choice(msgspec.Struct, kw_only=True):
    """How to import: what the commands have in common."""

    tz: str | None
    prefix: str
    only: tuple[str, ...]
    shadow: bool
    apply: bool
    by: str
    task_map: dict[str, str] = {}


@click.group("import", cls=Group)
def importing() -> None:
    """Import schedules from other schedulers. Shows the plan, and writes it only with --apply."""


def _read_map(context: Any, parameter: Any, given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if bad := [old + equals + new for old, equals, new in pairs if not (old and new)]:
        raise click.BadParameter(f"{bad[0]!r} must have the form OLD=NEW.")
    return {old: new for old, _, new in pairs}


def _check_zone(context: Any, parameter: Any, tz: str | None) -> str | None:
    try:
        return None if tz is None else parse_zone(tz).key
    except InvalidSchedule as error:
        raise click.BadParameter(str(error)) from None


def plan_options(command: C) -> C:
    for option in reversed(
        [
            click.option(
                "--apply", is_flag=True, help="Apply the plan. Without this, it is only shown."
            ),
            click.option(
                "--tz",
                metavar="ZONE",
                callback=_check_zone,
                help="The time zone of times without one, such as Europe/Berlin.",
            ),
            click.option("--prefix", default="", metavar="TEXT", help="Prefix of every name."),
            click.option(
                "--only",
                multiple=True,
                metavar="NAME",
                help="Import only this schedule. May be repeated.",
            ),
            click.option(
                "--shadow",
                is_flag=True,
                help="Import in shadow: record every tick, but run nothing.",
            ),
            by_option,
        ]
    ):
        command = option(command)
    return command


map_option = click.option(
    "--task-map",
    multiple=True,
    metavar="OLD=NEW",
    callback=_read_map,
    help="Use another name for a task. May be repeated.",
)


@importing.command("crontab")
@click.argument("file")
@click.option(
    "--task",
    metavar="NAME",
    help="The task that runs the commands. It takes the argument `command`.",
)
@click.option("--system", is_flag=True, help="Each line has a user field, as in /etc/crontab.")
@plan_options
@click.pass_context
def crontab_command(
    context: click.Context, /, file: str, task: str | None, system: bool, **choice: Any
) -> None:
    """Import the lines of a crontab: FILE, or - for standard input (crontab -l | …)."""
    chosen = Choice(**choice)
    if chosen.apply and task is None:
        raise click.UsageError(
            "--apply requires --task, the task that runs the commands. Run without --apply to see "
            "how to write one."
        )
    source = "standard input" if file == "-" else file
    text = _read(source, lambda: _read_text(file))

    def translate(tasks: Tasks, now: datetime) -> list[Found]:
        return crontab.translate(text, task=task, tz=chosen.tz, system=system)

    _import_found(target_of(context), chosen, source, translate)


@importing.command("celery-beat")
@click.argument("source", metavar="MODULE:APP")
@map_option
@plan_options
@click.pass_context
def celery_beat_command(context: click.Context, /, source: str, **choice: Any) -> None:
    """Import the beat_schedule of a Celery app, such as shop.celery:app."""
    chosen = Choice(**choice)
    beat = _read(source, lambda: celery_beat.read_app(_load(source, ("app", "celery"))))

    def translate(tasks: Tasks, now: datetime) -> list[Found]:
        return celery_beat.translate(beat, tasks=tasks, tz=chosen.tz)

    _import_found(target_of(context), chosen, source, translate)


@importing.command("django-celery-beat")
@click.argument("source", metavar="URL")
@map_option
@plan_options
@click.pass_context
def django_celery_beat_command(context: click.Context, /, source: str, **choice: Any) -> None:
    """Import the tables of django-celery-beat: postgresql://…, sqlite:///file, or a SQLite file."""
    chosen = Choice(**choice)
    tables = _read(DATABASE, lambda: django_celery_beat.read_database(source))

    def translate(tasks: Tasks, now: datetime) -> list[Found]:
        return django_celery_beat.translate(tables, now=now, tasks=tasks, tz=chosen.tz)

    _import_found(target_of(context), chosen, DATABASE, translate)


@importing.command("apscheduler")
@click.argument("source", metavar="MODULE:SCHEDULER|URL")
@click.option(
    "--trust-pickle",
    is_flag=True,
    help="Load the pickles of the job store. Use it only if you trust the database.",
)
@map_option
@plan_options
@click.pass_context
def apscheduler_command(
    context: click.Context, /, source: str, trust_pickle: bool, **choice: Any
) -> None:
    """Import the jobs of APScheduler: of a scheduler, or of a job store's database (3.x)."""
    chosen = Choice(**choice)
    stored = "://" in source or Path(source).is_file()
    if stored and not trust_pickle:
        raise click.UsageError(
            "The job store contains pickles, and loading a malicious pickle can run any code. Give "
            "the scheduler instead (MODULE:SCHEDULER), or add --trust-pickle if you trust everyone "
            "who can write to that database."
        )
    if stored:
        jobs = _read(DATABASE, lambda: apscheduler.read_database(source))
    else:
        jobs = _read(source, lambda: apscheduler.read_scheduler(_load(source, ("scheduler",))))

    def translate(tasks: Tasks, now: datetime) -> list[Found]:
        return apscheduler.translate(jobs, now=now, tasks=tasks, tz=chosen.tz)

    _import_found(target_of(context), chosen, DATABASE if stored else source, translate)


# Sources


def _read(source: str, read: Callable[[], T]) -> T:
    """Read a source; whatever goes wrong in other people's code is one line."""
    try:
        return read()
    except (DuetimeError, click.ClickException):
        raise
    except OSError as error:
        raise click.ClickException(
            f"{source} cannot be read: {error.strerror or error}."
        ) from error
    except Exception as error:
        raise click.ClickException(
            f"{source} cannot be read: {type(error).__name__}: {error}."
        ) from error


def _read_text(file: str) -> str:
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    return data.decode(errors="surrogateescape")


def _load(path: str, names: Sequence[str]) -> Any:
    """Import `module:attribute`; the names are tried if there is no attribute."""
    module_name, _, attribute = path.partition(":")
    module = import_named(module_name)
    for name in [attribute] if attribute else names:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is not None:
            return value
    wanted = attribute or " or ".join(names)
    raise click.ClickException(f"The module {module_name!r} has no {wanted}.")


# The plan


def _import_found(
    target: Target,
    choice: Choice,
    source: str,
    translate: Callable[[Tasks, datetime], list[Found]],
) -> None:
    async def work(app: Duetime) -> Plan:
        arguments = {name: task.arguments for name, task in app.tasks.items()}
        tasks = Tasks(choice.task_map, arguments)
        found = _choose(translate(tasks, await app.now()), choice, source)
        plan = await make_plan(app, found, prefix=choice.prefix, shadow=choice.shadow)
        if choice.apply and plan.schedules:
            return await apply_plan(app, plan, by=choice.by)
        return plan

    plan = target.run(work)
    applied = choice.apply and bool(plan.schedules)
    if target.json:
        print_json(plan_as_json(plan, applied=applied, shadow=choice.shadow))
    else:
        print_plan(plan)
        checked = target.app is not None
        echo(summary(plan, applied=applied, shadow=choice.shadow, checked=checked))
    if not plan.schedules:
        raise click.ClickException(f"No schedule in {source} could be imported.")


def _choose(found: list[Found], choice: Choice, source: str) -> list[Found]:
    if not found:
        raise click.ClickException(f"There are no schedules in {source}.")
    origins = sorted({one.origin for one in found if one.origin is not None})
    known = {*origins, *(origin.replace(":", ".") for origin in origins)}
    if unknown := sorted(set(choice.task_map) - known):
        raise click.UsageError(
            f"--task-map has the unknown task {unknown[0]!r}. The source has: {some(origins)}."
        )
    names = [one.name for one in found]
    if unknown := sorted(set(choice.only) - set(names)):
        raise click.UsageError(
            f"--only has the unknown schedule {unknown[0]!r}. The source has: {some(names)}."
        )
    return [one for one in found if not choice.only or one.name in choice.only]
