"""`duetime accounts`: which people may use the service."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.output import confirm, echo, plural, print_json, print_table, relative
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.target import Group, target_of
from duetime.domain.access.account import Account, Role
from duetime.domain.page import Page

_ROLES = click.Choice([role.value for role in Role])
_FORCE = click.option("--force", is_flag=True, help="Even if no other admin can log in afterwards.")
_YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def accounts(context: click.Context) -> None:
    """Add, list and change accounts. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@accounts.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List accounts by name."""

    async def read(app: Duetime) -> tuple[Page[Account], datetime]:
        return await app.accounts.list(limit=limit, after=after), await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if not needs_table(
        found, json=target.json, empty="No accounts. `duetime accounts add NAME` adds one."
    ):
        return
    print_table(
        ("ACCOUNT", "ROLE", "STATE", "ADDED", "BY", "LAST LOGIN"),
        [
            (
                account.name,
                account.role,
                "enabled" if account.disabled_at is None else "disabled",
                relative(account.created_at, now),
                account.created_by,
                relative(account.last_login_at, now) or "never",
            )
            for account in found
        ],
    )


@accounts.command("add")
@click.argument("name")
@click.option("--role", type=_ROLES, default=Role.VIEWER.value, help="[default: viewer]")
@by_option
@click.pass_context
def add_command(context: click.Context, name: str, role: str, by: str) -> None:
    """Add the account NAME. Asks for the password, or reads it from standard input.

    \b
    duetime accounts add ann --role admin
    """
    password = _ask_password()

    async def add(app: Duetime) -> Account:
        return await app.accounts.add(name, role=Role(role), password=password, by=by)

    target = target_of(context)
    account = target.run(add)
    if target.json:
        print_json(account)
    else:
        echo(f"Account {account.name} is added as {account.role}.")


@accounts.command("passwd")
@click.argument("name")
@by_option
@click.pass_context
def passwd_command(context: click.Context, name: str, by: str) -> None:
    """Change the password of NAME and end its sessions. Asks for the password, or reads it from
    standard input."""
    target = target_of(context)
    target.run(lambda app: app.accounts.get(name))
    password = _ask_password()

    async def change(app: Duetime) -> None:
        await app.accounts.set_password(name, password, by=by)

    target.run(change)
    if target.json:
        print_json({"account": name, "changed": True})
    else:
        echo(f"The password of {name} is changed; all sessions have ended.")


@accounts.command("role")
@click.argument("name")
@click.argument("role", type=_ROLES)
@_FORCE
@by_option
@click.pass_context
def role_command(context: click.Context, name: str, role: str, force: bool, by: str) -> None:
    """Change the ROLE of NAME and end its sessions: viewer, operator or admin."""

    async def change(app: Duetime) -> bool:
        return await app.accounts.set_role(name, Role(role), force=force, by=by)

    _answer(context, name, target_of(context).run(change), f"is now {role}", f"was {role} before")


@accounts.command("disable")
@click.argument("name")
@_FORCE
@by_option
@click.pass_context
def disable_command(context: click.Context, name: str, force: bool, by: str) -> None:
    """Refuse logins of NAME and end its sessions."""

    async def disable(app: Duetime) -> bool:
        return await app.accounts.disable(name, force=force, by=by)

    _answer(context, name, target_of(context).run(disable), "is disabled", "was disabled before")


@accounts.command("enable")
@click.argument("name")
@by_option
@click.pass_context
def enable_command(context: click.Context, name: str, by: str) -> None:
    """Allow logins of NAME again."""

    async def enable(app: Duetime) -> bool:
        return await app.accounts.enable(name, by=by)

    _answer(context, name, target_of(context).run(enable), "is enabled", "was enabled before")


@accounts.command("logout")
@click.argument("name")
@by_option
@click.pass_context
def logout_command(context: click.Context, name: str, by: str) -> None:
    """End all sessions of NAME, who can log in again."""

    async def end(app: Duetime) -> int:
        await app.accounts.get(name)
        return await app.sessions.end_all(name, by=by)

    target = target_of(context)
    ended = target.run(end)
    if target.json:
        print_json({"account": name, "ended": ended})
    else:
        echo(f"{plural(ended, 'session')} of {name} ended.")


@accounts.command("delete")
@click.argument("name")
@_YES
@_FORCE
@by_option
@click.pass_context
def delete_command(context: click.Context, name: str, yes: bool, force: bool, by: str) -> None:
    """Delete the account NAME. Asks for confirmation."""
    target = target_of(context)
    target.run(lambda app: app.accounts.get(name))
    if not yes:
        confirm(f"Delete the account {name}?")

    async def delete(app: Duetime) -> None:
        await app.accounts.delete(name, force=force, by=by)

    target.run(delete)
    if target.json:
        print_json({"account": name, "deleted": True})
    else:
        echo(f"Account {name} is deleted.")


accounts.add_command(audit_command("account", "NAME"))


def _answer(context: click.Context, name: str, changed: bool, now: str, before: str) -> None:
    if target_of(context).json:
        print_json({"account": name, "changed": changed})
    else:
        echo(f"Account {name} {now}." if changed else f"Account {name} {before}. Nothing changed.")


def _ask_password() -> str:
    """Never an argument: those are in the shell's history and in the list of processes."""
    if sys.stdin.isatty():
        password: str = click.prompt(
            "Password", hide_input=True, confirmation_prompt=True, err=True
        )
        return password
    return sys.stdin.readline().rstrip("\r\n")
