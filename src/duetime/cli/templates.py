"""`duetime schedules templates`: specs under names that people choose from."""

from __future__ import annotations

from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.output import echo, print_json, print_table
from duetime.cli.schedule_put import SPEC
from duetime.cli.target import Group, target_of
from duetime.domain.schedules.templates import TEMPLATES, Template


@click.group("templates", cls=Group, invoke_without_command=True)
@click.pass_context
def templates(context: click.Context) -> None:
    """Named specs: those that come with Duetime, and your own. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@templates.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List the templates."""

    async def look(app: Duetime) -> list[Template]:
        return await app.schedules.templates()

    target = target_of(context)
    found = target.run(look)
    if target.json:
        print_json([_plain(template) for template in found])
        return
    print_table(
        ("NAME", "SPEC", "DESCRIPTION", "OWN"),
        [
            (
                template.name,
                template.spec,
                template.description,
                "" if _is_ours(template) else "own",
            )
            for template in found
        ],
    )


@templates.command("put")
@click.argument("name")
@click.argument("specs", metavar="SPEC...", type=SPEC, nargs=-1, required=True)
@click.option("--tz", metavar="ZONE", default="UTC", help="Such as Europe/Berlin.  [default: UTC]")
@click.option("--description", metavar="TEXT", default="", help="What it means; people see it.")
@click.pass_context
def put_command(
    context: click.Context, name: str, specs: tuple[Any, ...], tz: str, description: str
) -> None:
    """Store SPECs as the template NAME, or replace it. Existing schedules do not change."""

    async def put(app: Duetime) -> None:
        await app.schedules.put_template(name, *specs, tz=tz, description=description)

    target = target_of(context)
    target.run(put)
    if target.json:
        print_json({"template": name, "stored": True})
    else:
        echo(f"Template {name} is stored.")


@templates.command("delete")
@click.argument("name")
@click.pass_context
def delete_command(context: click.Context, name: str) -> None:
    """Delete a template of your own. Existing schedules do not change."""

    async def delete(app: Duetime) -> None:
        await app.schedules.delete_template(name)

    target = target_of(context)
    target.run(delete)
    if target.json:
        print_json({"template": name, "deleted": True})
    else:
        echo(f"Template {name} is deleted.")


def _is_ours(template: Template) -> bool:
    return template in TEMPLATES


def _plain(template: Template) -> dict[str, Any]:
    return {
        "name": template.name,
        "spec": template.spec,
        "description": template.description,
        "own": not _is_ours(template),
    }
