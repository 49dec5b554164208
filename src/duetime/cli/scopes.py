"""`duetime scopes`: levels that carry rules, which those inside inherit."""

from __future__ import annotations

from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.explain import explain_command
from duetime.cli.output import echo, one_line, plural, print_facts, print_json, print_table
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.rules import format_rules, read_rules, rule_options, rules_json
from duetime.cli.target import Group, target_of
from duetime.domain.change import Put
from duetime.domain.page import Page
from duetime.storage.reminders.rows import ScopeInfo


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def scopes(context: click.Context) -> None:
    """Show and change scopes, whose rules subjects inherit. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@scopes.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List scopes, with the rules that they set themselves."""

    async def read(app: Duetime) -> Page[ScopeInfo]:
        return await app.scopes.list(limit=limit, after=after)

    target = target_of(context)
    found = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty="No scopes. Add one: duetime scopes put NAME --remind -1d --remind -1h",
        plain=_json,
    ):
        return
    print_table(
        ("SCOPE", "PARENT", "RULES", "LOCKED"),
        [
            (scope.ref, scope.parent, _say(scope), "locked" if scope.locked else "")
            for scope in found
        ],
    )


@scopes.command("get")
@click.argument("ref")
@click.pass_context
def get_command(context: click.Context, ref: str) -> None:
    """Show a scope, with the rules that it sets itself."""

    async def read(app: Duetime) -> ScopeInfo:
        return await app.scopes.get(ref)

    target = target_of(context)
    scope = target.run(read)
    if target.json:
        print_json(_json(scope))
        return
    echo(f"Scope {one_line(ref)}")
    print_facts(
        [
            ("parent", scope.parent and one_line(scope.parent)),
            ("rules", f"{_say(scope)}{', locked' if scope.locked else ''}"),
        ]
    )


@scopes.command("put")
@click.argument("ref")
@click.option("--parent", metavar="REF", help="The scope that contains it.")
@rule_options()
@click.option(
    "--locked", is_flag=True, help="Subjects and scopes inside cannot set their own rules."
)
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
    """Add the scope REF, or change it and what is inside. Options left out get their defaults.

    \b
    duetime scopes put guild:1 --remind -1d --remind -1h
    duetime scopes put channel:9 --parent guild:1
    duetime scopes put channel:8 --parent guild:1 --none
    """
    rules = read_rules(remind, no_rules)

    async def put(app: Duetime) -> tuple[Put, ScopeInfo]:
        result = await app.scopes.put(ref, parent=parent, remind=rules, locked=locked, by=by)
        return result, await app.scopes.get(ref)

    target = target_of(context)
    result, after = target.run(put)
    if target.json:
        print_json(_json(after) | {"result": str(result), "subjects": result.affected})
        return
    said = "is unchanged" if result == "same" else f"is {result}"
    echo(f"Scope {one_line(ref)} {said}.")
    echo(f"  rules  {_say(after)}{', locked' if locked else ''}")
    if result != "same":
        rearmed = ", armed again" if result.affected else ""
        echo(f"  below  {plural(result.affected, 'open subject')}{rearmed}")


@scopes.command("delete")
@click.argument("ref")
@by_option
@click.pass_context
def delete_command(context: click.Context, ref: str, by: str) -> None:
    """Delete the scope REF. It must not contain scopes or subjects."""

    async def delete(app: Duetime) -> None:
        await app.scopes.delete(ref, by=by)

    target = target_of(context)
    target.run(delete)
    if target.json:
        print_json({"scope": ref, "deleted": True})
    else:
        echo(f"Scope {one_line(ref)} is deleted.")


scopes.add_command(
    explain_command(
        lambda app, ref: app.scopes.explain(ref),
        "REF",
        "Explain which rules apply in the scope REF, and where they come from.",
    )
)
scopes.add_command(audit_command("scope", "REF"))


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
