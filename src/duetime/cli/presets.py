"""`duetime schedules presets`: specs under names that people choose from."""

from __future__ import annotations

from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.output import echo, print_json, print_table
from duetime.cli.schedule_put import SPEC
from duetime.cli.target import Group, target_of
from duetime.domain.schedules.presets import PRESETS, Preset


@click.group("presets", cls=Group, invoke_without_command=True)
@click.pass_context
def presets(context: click.Context) -> None:
    """Named specs: those that come with Duetime, and your own. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@presets.command("list")
@click.pass_context
def list_command(context: click.Context) -> None:
    """List the presets."""

    async def look(app: Duetime) -> list[Preset]:
        return await app.schedules.presets()

    target = target_of(context)
    found = target.run(look)
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
@click.option("--tz", metavar="ZONE", default="UTC", help="Such as Europe/Berlin.  [default: UTC]")
@click.option("--description", metavar="TEXT", default="", help="What it means; people see it.")
@click.pass_context
def put_command(
    context: click.Context, name: str, specs: tuple[Any, ...], tz: str, description: str
) -> None:
    """Store SPECs as the preset NAME, or replace it. Existing schedules do not change."""

    async def put(app: Duetime) -> None:
        await app.schedules.put_preset(name, *specs, tz=tz, description=description)

    target = target_of(context)
    target.run(put)
    if target.json:
        print_json({"preset": name, "stored": True})
    else:
        echo(f"Preset {name} is stored.")


@presets.command("delete")
@click.argument("name")
@click.pass_context
def delete_command(context: click.Context, name: str) -> None:
    """Delete a preset of your own. Existing schedules do not change."""

    async def delete(app: Duetime) -> None:
        await app.schedules.delete_preset(name)

    target = target_of(context)
    target.run(delete)
    if target.json:
        print_json({"preset": name, "deleted": True})
    else:
        echo(f"Preset {name} is deleted.")


def _is_ours(preset: Preset) -> bool:
    return preset in PRESETS


def _plain(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "spec": preset.spec,
        "description": preset.description,
        "own": not _is_ours(preset),
    }
