"""`duetime scopes`: levels that carry rules, which those inside inherit."""

from __future__ import annotations

from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.output import echo, one_line, plural, print_json, print_table
from duetime.cli.person import by_option
from duetime.cli.reminders import format_rules, read_rules, rule_options, rules_json
from duetime.cli.target import Group, target_of
from duetime.errors import InvalidInput
from duetime.storage.reminders.reminders import ScopeInfo


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def scopes(context: click.Context) -> None:
    """Show and change scopes, whose rules subjects inherit. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@scopes.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List every scope, with the rules that it sets itself."""

    async def look(app: Duetime) -> list[ScopeInfo]:
        return await app.scopes.all()

    target = target_of(context)
    found = target.run(look)
    if target.json:
        print_json([_json(scope) for scope in found])
        return
    if not found:
        echo("No scopes. Make one: duetime scopes put NAME --remind -1d --remind -1h")
        return
    print_table(
        ("SCOPE", "PARENT", "RULES", "LOCKED"),
        [
            (scope.ref, scope.parent, _say(scope), "locked" if scope.locked else "")
            for scope in found
        ],
    )


@scopes.command("put")
@click.argument("ref")
@click.option("--parent", metavar="REF", help="The scope around it.")
@rule_options
@click.option("--locked", is_flag=True, help="Levels inside cannot set other rules.")
@by_option
@click.pass_context
def put_command(
    context: click.Context,
    ref: str,
    parent: str | None,
    remind: tuple[Any, ...],
    no_rules: bool,
    locked: bool,
    by: str,
) -> None:
    """Add the scope REF, or change it, with all that is below. Left out is the default.

    \b
    duetime scopes put guild:1 --remind -1d --remind -1h
    duetime scopes put channel:9 --parent guild:1
    duetime scopes put channel:8 --parent guild:1 --none
    """
    rules = read_rules(remind, no_rules)

    async def put(app: Duetime) -> tuple[ScopeInfo | None, ScopeInfo, int]:
        before = {scope.ref: scope for scope in await app.scopes.all()}.get(ref)
        count = await app.scopes.put(ref, parent=parent, remind=rules, locked=locked, by=by)
        [after] = [scope for scope in await app.scopes.all() if scope.ref == ref]
        return before, after, count

    target = target_of(context)
    before, after, count = target.run(put)
    result = "added" if before is None else "same" if before == after else "changed"
    if target.json:
        print_json(_json(after) | {"result": result, "subjects": count})
        return
    said = "is the same: nothing changed" if result == "same" else f"is {result}"
    echo(f"Scope {one_line(ref)} {said}.")
    echo(f"  rules  {_say(after)}{', locked' if locked else ''}")
    if result != "same":
        echo(f"  below  {plural(count, 'open subject')} armed again")


@scopes.command("delete")
@click.argument("ref")
@by_option
@click.pass_context
def delete_command(context: click.Context, ref: str, by: str) -> None:
    """Delete the scope REF. Refused while scopes or subjects are inside it."""

    async def delete(app: Duetime) -> bool:
        return await app.scopes.delete(ref, by=by)

    target = target_of(context)
    gone = target.run(delete)
    if not gone:
        raise InvalidInput(f"There is no scope {ref!r}.")
    if target.json:
        print_json({"scope": ref, "deleted": True})
    else:
        echo(f"Scope {one_line(ref)} is deleted.")


def _say(scope: ScopeInfo) -> str:
    if scope.rules is None and scope.parent is None:
        return "none set"
    return format_rules(scope.rules)


def _json(scope: ScopeInfo) -> dict[str, Any]:
    return {
        "ref": scope.ref,
        "parent": scope.parent,
        "rules": rules_json(scope.rules),
        "locked": scope.locked,
    }
