"""`duetime db`: the tables of Duetime in your database."""

from __future__ import annotations

import click
import msgspec

from duetime.cli.number import Number
from duetime.cli.output import confirm, echo, print_json
from duetime.cli.target import Group, Target, target_of
from duetime.storage.migrations import (
    Migration,
    Migrator,
    downgrade,
    plan_downgrade,
    read_status,
    refuse_newer,
    upgrade,
)
from duetime.wiring import back_up, make_migrator, make_roles


@click.group(cls=Group)
def db() -> None:
    """Create, upgrade, inspect and back up Duetime's tables."""


@db.command("init")
@click.pass_context
def init_command(context: click.Context) -> None:
    """Create Duetime's tables, or bring them up to date. Calling it twice has no further effect."""
    _upgrade(context, None)


@db.command("upgrade")
@click.option("--to", type=Number(1), metavar="N", help="The version to stop at.")
@click.pass_context
def upgrade_command(context: click.Context, to: int | None) -> None:
    """Bring the tables up to date; every job is kept."""
    _upgrade(context, to)


@db.command("downgrade")
@click.option("--to", type=Number(0), metavar="N", required=True, help="0 removes everything.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def downgrade_command(context: click.Context, to: int, yes: bool) -> None:
    """Undo migrations, down to version N. Version 0 deletes every job."""
    target = target_of(context)
    migrator = make_migrator(target.settings())
    before = migrator.version()
    todo = plan_downgrade(migrator.migrations, before, to)
    if todo and not yes:
        loss = "This removes every job and its history." if to == 0 else "This may lose data."
        confirm(f"Downgrade from version {before} to {to}? {loss}")
    _tell(target, migrator, _names(downgrade(migrator, to) if todo else []), "removed")


@db.command("backup")
@click.argument("file")
@click.pass_context
def backup_command(context: click.Context, file: str) -> None:
    """Copy the SQLite database into the new FILE while workers run, and check the copy.

    On PostgreSQL use pg_dump; see the manual, Backups.
    """
    target = target_of(context)
    settings = target.settings()
    backup = back_up(settings, file)
    copy = make_migrator(msgspec.structs.replace(settings, database=f"sqlite:///{backup.file}"))
    version = copy.version()
    if target.json:
        print_json(msgspec.structs.asdict(backup) | {"version": version})
    else:
        echo(f"{backup.file}: {backup.bytes:,} bytes, schema version {version}, integrity checked.")


@db.command("status")
@click.pass_context
def status_command(context: click.Context) -> None:
    """Show the version of the tables. Exit code 1 if they are not up to date."""
    target = target_of(context)
    status = read_status(make_migrator(target.settings()))
    if target.json:
        print_json(msgspec.structs.asdict(status) | {"current": status.current})
    elif status.version == 0:
        echo("Duetime's tables are not in this database yet. Run `duetime db init`.")
    elif status.current:
        echo(f"Version {status.version}, up to date.")
    elif status.version == status.latest:
        echo(
            f"Version {status.version}. The SQL functions are those of another release of Duetime. "
            "Run `duetime db upgrade`."
        )
    else:
        refuse_newer(status.version, status.latest)
        echo(
            f"Version {status.version} of {status.latest}. "
            f"Missing: {', '.join(status.pending)}. Run `duetime db upgrade`."
        )
    context.exit(0 if status.current else 1)


@db.command("roles")
@click.option("--apply", is_flag=True, help="Run the statements.")
@click.option("--prefix", default="duetime", show_default=True, help="Prefix of the role names.")
@click.pass_context
def roles_command(context: click.Context, apply: bool, prefix: str) -> None:
    """Print the SQL that creates roles with the least rights: worker, operator, producer, tracker,
    reader; before there are tables, the migrator. Grant them to the roles that log in.
    """
    target = target_of(context)
    roles = make_roles(target.settings(), prefix)
    script = roles.script()
    if apply:
        roles.apply()
    if target.json:
        print_json({"sql": script, "applied": apply})
    elif apply:
        echo("The roles and their privileges are in place. Grant each to the users that log")
        echo(f"in, for example: grant {prefix}_producer to web;")
    else:
        echo(script.rstrip())


def _upgrade(context: click.Context, to: int | None) -> None:
    target = target_of(context)
    migrator = make_migrator(target.settings())
    done = upgrade(migrator, to)
    _tell(
        target,
        migrator,
        _names(done.migrations) + (["functions"] if done.functions else []),
        "applied",
    )


def _names(migrations: list[Migration]) -> list[str]:
    return [f"{migration.version:04}_{migration.name}" for migration in migrations]


def _tell(target: Target, migrator: Migrator, names: list[str], verb: str) -> None:
    version = migrator.version()
    if target.json:
        print_json({"version": version, verb: names})
        return
    for name in names:
        echo(f"{verb} {name}")
    here = f"Version {version}." if version else "Duetime's tables are not in this database."
    echo(here if names else f"{here} Nothing to do.")
