"""`duetime recipients`: how and when people are reached."""

from __future__ import annotations

from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.number import Number
from duetime.cli.output import (
    as_json,
    confirm,
    echo,
    exact,
    one_line,
    print_facts,
    print_json,
    print_table,
)
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.target import Group, target_of
from duetime.domain.page import Page
from duetime.domain.reminders.recipient import MAX_PER_HOUR, Recipient

_WHAT = "all, scope:REF, subject:REF, channel:NAME or rule:RULE"


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def recipients(context: click.Context) -> None:
    """Show and change how people are reached. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@recipients.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List recipients by reference."""

    async def read(app: Duetime) -> Page[Recipient]:
        return await app.recipients.list(limit=limit, after=after)

    target = target_of(context)
    found = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty="No recipients. Anyone can still be reminded: the reference is then the address.",
        plain=_json,
    ):
        return
    print_table(
        ("RECIPIENT", "ZONE", "CHANNELS", "QUIET", "PER HOUR", "MUTED"),
        [
            (
                one.ref,
                one.tz,
                ", ".join(route.channel for route in one.channels),
                one.quiet,
                one.max_per_hour,
                ", ".join(one.muted),
            )
            for one in found
        ],
    )


@recipients.command("get")
@click.argument("ref")
@click.pass_context
def get_command(context: click.Context, ref: str) -> None:
    """Show everything about a recipient."""

    async def read(app: Duetime) -> Recipient:
        return await app.recipients.get(ref)

    target = target_of(context)
    _show(target.run(read), as_json=target.json)


@recipients.command("put")
@click.argument("ref")
@click.option(
    "--tz", metavar="ZONE", help="Time zone of the recipient.  [default: that of the subject]"
)
@click.option(
    "--channel",
    "channels",
    metavar="NAME=ADDRESS",
    multiple=True,
    help="Channels in the order in which they are tried. May be repeated.  [default: all, at REF]",
)
@click.option("--quiet", metavar="HOURS", help="Quiet hours, such as 22:00-07:00.")
@click.option("--mute", metavar="WHAT", multiple=True, help=f"Mute {_WHAT}. May be repeated.")
@click.option(
    "--max-per-hour",
    type=Number(1, MAX_PER_HOUR),
    metavar="N",
    help="Send at most N messages per hour, the rest in one digest.  [default: no limit]",
)
@by_option
@click.pass_context
def put_command(
    context: click.Context,
    ref: str,
    tz: str | None,
    channels: tuple[str, ...],
    quiet: str | None,
    mute: tuple[str, ...],
    max_per_hour: int | None,
    by: str,
) -> None:
    """Add the recipient REF, or replace all its settings. Options left out get their defaults.

    \b
    duetime recipients put ann --tz Europe/Berlin --channel push=token --channel email=ann@x.org
    duetime recipients put bob --quiet 22:00-07:00 --max-per-hour 5

    Addresses that were disabled are tried again.
    """

    async def put(app: Duetime) -> tuple[str, Recipient]:
        result = await app.recipients.put(
            ref,
            tz=tz,
            channels=[_read_channel(text) for text in channels],
            quiet=quiet,
            muted=mute,
            max_per_hour=max_per_hour,
            by=by,
        )
        return result, await app.recipients.get(ref)

    _change(context, put)


@recipients.command("mute")
@click.argument("ref")
@click.argument("what", nargs=-1, required=True)
@by_option
@click.pass_context
def mute_command(context: click.Context, ref: str, what: tuple[str, ...], by: str) -> None:
    """Send REF nothing of WHAT: all, scope:REF, subject:REF, channel:NAME or rule:RULE.

    \b
    duetime recipients mute ann scope:guild:1 channel:email
    """

    async def mute(app: Duetime) -> tuple[str, Recipient]:
        result = await app.recipients.mute(ref, *what, by=by)
        return result, await app.recipients.get(ref)

    _change(context, mute)


@recipients.command("unmute")
@click.argument("ref")
@click.argument("what", nargs=-1, required=True)
@by_option
@click.pass_context
def unmute_command(context: click.Context, ref: str, what: tuple[str, ...], by: str) -> None:
    """Unmute WHAT, written as it was muted."""

    async def unmute(app: Duetime) -> tuple[str, Recipient]:
        result = await app.recipients.unmute(ref, *what, by=by)
        return result, await app.recipients.get(ref)

    _change(context, unmute)


@recipients.command("delete")
@click.argument("ref")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def delete_command(context: click.Context, ref: str, yes: bool, by: str) -> None:
    """Delete the settings of REF, who is then reached with the defaults. Asks for confirmation."""

    async def read(app: Duetime) -> None:
        await app.recipients.get(ref)

    async def delete(app: Duetime) -> None:
        await app.recipients.delete(ref, by=by)

    target = target_of(context)
    target.run(read)
    if not yes:
        confirm(f"Delete the recipient {one_line(ref)}?")
    target.run(delete)
    if target.json:
        print_json({"recipient": ref, "deleted": True})
    else:
        echo(f"Recipient {one_line(ref)} is deleted.")


recipients.add_command(audit_command("recipient", "REF"))


def _change(context: click.Context, change: Any) -> None:
    target = target_of(context)
    result, after = target.run(change)
    if target.json:
        print_json(_json(after) | {"result": result})
        return
    said = "is unchanged" if result == "same" else f"is {result}"
    echo(f"Recipient {one_line(after.ref)} {said}.")
    _facts(after)


def _read_channel(text: str) -> tuple[str, str | None]:
    name, equals, address = text.partition("=")
    return name, address if equals else None


def _show(recipient: Recipient, *, as_json: bool) -> None:
    if as_json:
        print_json(_json(recipient))
        return
    echo(f"Recipient {one_line(recipient.ref)}")
    _facts(recipient)


def _facts(recipient: Recipient) -> None:
    print_facts(
        [
            ("zone", recipient.tz or "the subject's"),
            *(
                ("channel", one_line(f"{route.channel}: {route.address or recipient.ref}"))
                for route in recipient.channels
            ),
            *([] if recipient.channels else [("channel", f"all, at {one_line(recipient.ref)}")]),
            ("quiet", recipient.quiet),
            ("per hour", recipient.max_per_hour),
            *(("muted", one_line(muted)) for muted in recipient.muted),
            *(
                (
                    "disabled",
                    one_line(f"{off.channel}: {off.address}, {exact(off.at)}: {off.reason}"),
                )
                for off in recipient.disabled
            ),
        ]
    )


def _json(recipient: Recipient) -> dict[str, Any]:
    return dict(as_json(recipient))
