"""`duetime subjects export | import`: iCalendar files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.output import echo, one_line, plural, print_json, write_file
from duetime.cli.person import by_option
from duetime.cli.rules import read_rules, rule_options
from duetime.cli.target import Command, target_of
from duetime.integrations.ical.exchange import Imported
from duetime.integrations.ical.limits import MAX_BYTES

_MAX_SHOWN = 20


@click.command("export", cls=Command)
@click.argument("refs", metavar="[REF]...", nargs=-1)
@click.option(
    "--scope", metavar="REF", help="Only open subjects in this scope and the scopes inside it."
)
@click.pass_context
def export_command(context: click.Context, refs: tuple[str, ...], scope: str | None) -> None:
    """Write subjects and their reminders as an iCalendar file: those named, else all open ones.

    duetime subjects export --scope team:1 > team.ics
    """

    async def export(app: Duetime) -> bytes:
        return await app.subjects.export_ical(refs or None, scope=scope)

    target = target_of(context)
    file = target.run(export)
    if target.json:
        print_json({"ical": file.decode()})
    else:
        write_file(file)


@click.command("import", cls=Command)
@click.argument("file")
@click.option("--scope", metavar="REF", help="The scope of the imported subjects.")
@click.option("--tz", metavar="ZONE", help="Time zone of times without one.")
@rule_options()
@click.option(
    "--recipient",
    "recipients",
    metavar="NAME",
    multiple=True,
    help="Who is reminded. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@by_option
@click.pass_context
def import_command(
    context: click.Context,
    /,
    file: str,
    remind: tuple[Any, ...],
    no_rules: bool,
    dry_run: bool,
    recipients: tuple[str, ...],
    **options: Any,
) -> None:
    """Put the events of an iCalendar FILE (- for standard input) as subjects.

    An event's UID is its reference, so that importing again changes only what has changed. With
    --remind or --none its own alarms are ignored.
    """
    data = _read(file)
    rules = read_rules(remind, no_rules)

    async def put(app: Duetime) -> Imported:
        to = recipients or None
        return await app.subjects.import_ical(
            data, remind=rules, recipients=to, dry_run=dry_run, **options
        )

    target = target_of(context)
    done = target.run(put)
    if target.json:
        print_json({"results": done.results, "problems": done.problems, "dry_run": dry_run})
    else:
        _show(done, dry_run)
    if done.problems and not done.results:
        context.exit(1)


def _show(done: Imported, dry_run: bool) -> None:
    counts = ", ".join(
        f"{done.count(result):,} {result}" for result in ("added", "changed", "same")
    )
    said = "would be" if dry_run else "imported"
    echo(f"{plural(len(done.results), 'event')} {said}: {counts}.")
    for problem in done.problems[:_MAX_SHOWN]:
        echo(f"Not imported: {one_line(problem.uid)}: {one_line(problem.reason)}", err=True)
    if (more := len(done.problems) - _MAX_SHOWN) > 0:
        echo(f"Not imported: {more:,} more.", err=True)


def _read(file: str) -> bytes:
    """The file, or a little more than it may have: then the import says so."""
    try:
        if file == "-":
            stream = getattr(sys.stdin, "buffer", None)
            if stream is None:
                return sys.stdin.read(MAX_BYTES + 1).encode()
            read: bytes = stream.read(MAX_BYTES + 1)
            return read
        with Path(file).open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {error.strerror}.") from None
