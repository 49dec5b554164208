"""`duetime schedules presets`: specs under names that people choose from."""

from __future__ import annotations

from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.output import echo, print_json, print_table
from duetime.cli.paging import paged, show_next
from duetime.cli.person import by_option
from duetime.cli.schedules.put import SPEC
from duetime.cli.target import Group, target_of
from duetime.domain.page import Page
from duetime.domain.schedules.presets import PRESETS, Preset


@click.group("presets", cls=Group, invoke_without_command=True)
@click.pass_context
def presets(context: click.Context) -> None:
    """Named specs: those that come with Duetime, and your own. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@presets.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List the presets."""

    async def read(app: Duetime) -> Page[Preset]:
        return await app.schedules.presets.list(limit=limit, after=after)

    target = target_of(context)
    found = target.run(read)
    show_next(found)
    if target.json:
        print_json([_plain(preset) for preset in found])
        return
    print_table(
        ("NAME", "SPEC", "DESCRIPTION", "OWN"),
        [
            (
                preset.name,
                preset.spec,
                preset.description,
                "" if _is_ours(preset) else "own",
            )
            for preset in found
        ],
    )


@presets.command("put")
@click.argument("name")
@click.argument("specs", metavar="SPEC...", type=SPEC, nargs=-1, required=True)
@click.option(
    "--tz", metavar="ZONE", default="UTC", help="Time zone, such as Europe/Berlin.  [default: UTC]"
)
@click.option("--description", metavar="TEXT", default="", help="A description, shown to people.")
@by_option
@click.pass_context
def put_command(
    context: click.Context, name: str, specs: tuple[Any, ...], tz: str, description: str, by: str
) -> None:
    """Store SPECs as the preset NAME, or replace it. Existing schedules do not change."""

    async def put(app: Duetime) -> str:
        return await app.schedules.presets.put(name, *specs, tz=tz, description=description, by=by)

    target = target_of(context)
    result = target.run(put)
    if target.json:
        print_json({"preset": name, "result": result})
    else:
        said = "is unchanged" if result == "same" else f"is {result}"
        echo(f"Preset {name} {said}.")


@presets.command("delete")
@click.argument("name")
@by_option
@click.pass_context
def delete_command(context: click.Context, name: str, by: str) -> None:
    """Delete a preset of your own. Existing schedules do not change."""

    async def delete(app: Duetime) -> None:
        await app.schedules.presets.delete(name, by=by)

    target = target_of(context)
    target.run(delete)
    if target.json:
        print_json({"preset": name, "deleted": True})
    else:
        echo(f"Preset {name} is deleted.")


presets.add_command(audit_command("preset", "NAME"))


def _is_ours(preset: Preset) -> bool:
    return preset in PRESETS


def _plain(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "spec": preset.spec,
        "description": preset.description,
        "own": not _is_ours(preset),
    }
