"""`duetime tables`: reminders that follow the rows of your own tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.output import confirm, echo, one_line, plural, print_json, print_table
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.rules import read_rules, rule_options
from duetime.cli.target import Group, target_of
from duetime.domain.change import Put
from duetime.domain.page import Page
from duetime.domain.reminders.tracking import Track, default_name
from duetime.storage.reminders.tracking import TrackedInfo


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def tables(context: click.Context) -> None:
    """Track the rows of your own tables. Without a command, list the tracked tables."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@tables.command("put")
@click.argument("table")
@click.option(
    "--id", "id_", metavar="COLUMN", multiple=True, required=True,
    help="Column that identifies a row. May be repeated.",
)  # fmt: skip
@click.option("--due", metavar="COLUMN", help="Column with the due time.")
@click.option(
    "--kind",
    type=click.Choice(["subjects", "scopes"]),
    default="subjects",
    show_default=True,
    help="What the rows are.",
)
@click.option("--scope", metavar="COLUMN", help="A column, or a pattern: 'channel:{channel_id}'.")
@click.option(
    "--parent", metavar="COLUMN", help="Of scopes: a column, or a pattern: 'guild:{guild_id}'."
)
@click.option("--locked", metavar="COLUMN", help="Of scopes: column that locks the rules.")
@click.option(
    "--tz", metavar="COLUMN", help="A column with the time zone, or a time zone.  [default: UTC]"
)
@click.option("--due-tz", metavar="ZONE", help="Time zone of due times without one.  [default: tz]")
@click.option(
    "--recipients", metavar="COLUMN", help="Column with the recipients: a text, or a list."
)
@click.option(
    "--data",
    metavar="COLUMN",
    multiple=True,
    help="Column to pass to the message. May be repeated.",
)
@click.option("--when", metavar="SQL", help="Condition: only matching rows have reminders.")
@rule_options(help="Rules such as -1h or 60, or the column that holds them.  [default: inherited]")
@click.option(
    "--name", metavar="NAME", help="Name of the tracked table.  [default: the name of the table]"
)
@click.option("--dry-run", is_flag=True, help="Show the SQL, but do not run it.")
@by_option
@click.pass_context
def put_command(
    context: click.Context,
    /,
    table: str,
    id_: tuple[str, ...],
    remind: tuple[Any, ...],
    no_rules: bool,
    dry_run: bool,
    by: str,
    **options: Any,
) -> None:
    """Track the rows of TABLE by triggers on it: reminders follow every change.

    \b
    duetime tables put game_sessions --id id --due scheduled_at --scope "channel:{channel_id}" \\
        --when "status = 'scheduled'"
    duetime tables put tasks --id id --due due_at --recipients owner --remind -1d --dry-run
    duetime tables put channels --kind scopes --name channel --id id \\
        --parent "guild:{guild_id}" --remind reminder_minutes

    To change the options, run it again with the same name.
    """
    options |= {"id": id_, "remind": read_rules(remind, no_rules)}
    target = target_of(context)
    if dry_run:
        statements = target.run(lambda app: app.tables.plan(table, **options))
        if target.json:
            print_json(statements)
        else:
            echo(";\n\n".join(statements) + ";")
        return
    bar = None if target.json or not sys.stderr.isatty() else Bar()

    async def put(app: Duetime) -> tuple[Put, TrackedInfo]:
        result = await app.tables.put(table, by=by, progress=bar, **options)
        return result, await app.tables.get(options["name"] or default_name(table))

    result, info = target.run(put)
    name, count = info.track.name, result.affected
    if target.json:
        print_json({"table": table, "name": name, "result": str(result), "rows": count})
        return
    named = f" as {one_line(name)}" if name != table else ""
    echo(f"{one_line(table)} is now tracked{named}: {plural(count, 'row')} read.")
    if info.problems:
        echo(f"  {_state(info)}")


@tables.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def delete_command(context: click.Context, name: str, yes: bool, by: str) -> None:
    """Stop tracking the table NAME: its triggers, subjects and reminders are removed.

    For a table of scopes, its scopes; one that contains something stays, without rules.
    The table itself stays as it is.
    """

    async def read(app: Duetime) -> str:
        return (await app.tables.get(name)).track.kind

    async def delete(app: Duetime) -> int:
        return await app.tables.delete(name, by=by)

    target = target_of(context)
    kind = target.run(read)
    if not yes:
        confirm(
            f"Remove the triggers of {one_line(name)}, and all its subjects with their reminders, "
            "or its scopes with their rules?"
        )
    count = target.run(delete)
    if target.json:
        print_json({"name": name, kind: count})
    else:
        what = plural(count, kind.removesuffix("s"))
        echo(f"{one_line(name)} is no longer tracked: {what} removed.")


@tables.command("get")
@click.argument("name")
@click.pass_context
def get_command(context: click.Context, name: str) -> None:
    """Show the table tracked as NAME, and its problems."""

    async def read(app: Duetime) -> TrackedInfo:
        return await app.tables.get(name)

    target = target_of(context)
    found = target.run(read)
    if target.json:
        print_json(found)
    else:
        _show([found])


tables.add_command(audit_command("table", "NAME"))


@tables.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List the tracked tables, and their problems."""

    async def read(app: Duetime) -> Page[TrackedInfo]:
        return await app.tables.list(limit=limit, after=after)

    target = target_of(context)
    found = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty="No table is tracked. Track one: duetime tables put TABLE --id ID --due COLUMN",
    ):
        return
    _show(found)


def _show(found: Sequence[TrackedInfo]) -> None:
    print_table(
        ("NAME", "TABLE", "KIND", "DUE", "SCOPE", "RULES", "WHEN", "ROWS", "STATE"),
        [
            (one.track.name, one.track.table, one.track.kind, one.track.due,
             one.track.scope or one.track.parent, _rules(one.track), one.track.when,
             f"{one.subjects + one.scopes:,}", _state(one))
            for one in found
        ],
        right=(7,),
    )  # fmt: skip


def _rules(track: Track) -> str:
    if track.remind_from is not None:
        return f"column {track.remind_from}"
    return "inherited" if track.remind is None else ", ".join(track.remind) or "none"


def _state(info: TrackedInfo) -> str:
    if info.broken is not None:
        return f"broken: {info.broken}"
    if info.problems:
        return f"{plural(info.problems, 'problem')}, such as {info.example}"
    return "ok"


class Bar:
    """How far a back-fill is, on a terminal."""

    _WIDTH = 30

    def __call__(self, done: int, total: int) -> None:
        share = done / total if total else 1.0
        full = round(share * self._WIDTH)
        line = f"\r[{'#' * full}{'.' * (self._WIDTH - full)}] {done:,} of {total:,} rows"
        print(line, end="\n" if done >= total else "", file=sys.stderr, flush=True)
