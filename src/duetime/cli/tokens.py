"""`duetime tokens`: which programs may use the service."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.moment import SPAN
from duetime.cli.output import confirm, echo, exact, print_json, print_table, relative
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.target import Group, target_of
from duetime.domain.access.token import ApiToken, CreatedToken, TokenScope
from duetime.domain.page import Page


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def tokens(context: click.Context) -> None:
    """Create, list and revoke API tokens. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@tokens.command("list")
@click.option("--revoked", is_flag=True, help="Revoked tokens, too.")
@paged(default=100)
@click.pass_context
def list_command(
    context: click.Context, limit: int, after: str | None, revoked: bool = False
) -> None:
    """List API tokens by name."""

    async def read(app: Duetime) -> tuple[Page[ApiToken], datetime]:
        found = await app.tokens.list(revoked=revoked, limit=limit, after=after)
        return found, await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if not needs_table(
        found, json=target.json, empty="No API tokens. `duetime tokens create NAME` creates one."
    ):
        return
    print_table(
        ("TOKEN", "SCOPE", "STATE", "CREATED", "BY", "EXPIRES", "LAST USED"),
        [
            (
                token.name,
                token.scope,
                _state(token, now),
                relative(token.created_at, now),
                token.created_by,
                relative(token.expires_at, now) or "never",
                relative(token.last_used_at, now) or "never",
            )
            for token in found
        ],
    )


@tokens.command("create")
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in TokenScope]),
    default=TokenScope.READ.value,
    help="What it may do.  [default: read]",
)
@click.option(
    "--expires-in",
    type=SPAN,
    metavar="SPAN",
    help="How long it is valid, such as 90d.  [default: until it is revoked]",
)
@by_option
@click.pass_context
def create_command(
    context: click.Context, name: str, scope: str, expires_in: timedelta | None, by: str
) -> None:
    """Create the API token NAME and print it. It cannot be shown again.

    \b
    duetime tokens create ci --scope operate --expires-in 90d

    Standard output is the token alone: `TOKEN=$(duetime tokens create ci)`.
    """

    async def create(app: Duetime) -> CreatedToken:
        return await app.tokens.create(name, scope=TokenScope(scope), expires_in=expires_in, by=by)

    target = target_of(context)
    created = target.run(create)
    if target.json:
        print_json(created)
        return
    echo(created.text)
    token = created.token
    until = (
        "until it is revoked"
        if token.expires_at is None
        else f"until {exact(token.expires_at.replace(microsecond=0))}"
    )
    echo(
        f"The token {name} may {token.scope}, {until}. Store it now: it cannot be shown again.",
        err=True,
    )


@tokens.command("revoke")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def revoke_command(context: click.Context, name: str, yes: bool, by: str) -> None:
    """Revoke the API token NAME: it is refused from the next request on. Asks for confirmation."""

    async def read(app: Duetime) -> ApiToken:
        return await app.tokens.get(name)

    async def revoke(app: Duetime) -> bool:
        return await app.tokens.revoke(name, by=by)

    target = target_of(context)
    if target.run(read).revoked_at is None and not yes:
        confirm(f"Revoke the token {name}? Programs that use it will be refused.")
    revoked = target.run(revoke)
    if target.json:
        print_json({"token": name, "revoked": revoked})
    elif revoked:
        echo(f"The token {name} is revoked.")
    else:
        echo(f"The token {name} was revoked before. Nothing changed.")


tokens.add_command(audit_command("token", "NAME"))


def _state(token: ApiToken, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {relative(token.revoked_at, now)}"
    if token.expires_at is not None and token.expires_at <= now:
        return "expired"
    return "valid"
