"""`duetime reminders deliveries | ack | snooze`: what was sent, and what people do about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import click

from duetime.app import Duetime
from duetime.cli.moment import SPAN, iso
from duetime.cli.number import JOB_ID
from duetime.cli.output import echo, print_json, print_table
from duetime.cli.person import by_option
from duetime.cli.target import Command, target_of
from duetime.domain.reminders.delivery import Delivery, DeliveryStatus


@click.command("deliveries", cls=Command)
@click.argument("reminder_id", metavar="ID", type=JOB_ID)
@click.pass_context
def deliveries_command(context: click.Context, reminder_id: int) -> None:
    """Show what each channel did with a reminder: attempts, status, error."""

    async def read(app: Duetime) -> Sequence[Delivery]:
        return await app.reminders.deliveries(reminder_id)

    target = target_of(context)
    found = target.run(read)
    if target.json:
        print_json(found)
        return
    if not found:
        echo(f"No channel has tried to send reminder {reminder_id}.")
        return
    snoozed = any(one.round for one in found)
    print_table(
        [
            *(["ROUND"] if snoozed else []),
            "CHANNEL",
            "STATUS",
            "ATTEMPTS",
            "AT",
            "THERE",
            "REMARKS",
        ],
        [
            [
                *([one.round] if snoozed else []),
                one.channel,
                one.status.value,
                one.attempts,
                iso((one.sent_at or one.updated_at).replace(microsecond=0)),
                one.external_id,
                _remarks(one),
            ]
            for one in found
        ],
        right=(3 if snoozed else 2,),
    )


@click.command("acknowledge", cls=Command)
@click.argument("reminder_id", metavar="[ID]", type=JOB_ID, required=False)
@click.option("--external-id", "external", metavar="ID", help="The id that the receiver gave it.")
@by_option
@click.pass_context
def acknowledge_command(
    context: click.Context, reminder_id: int | None, external: str | None, by: str
) -> None:
    """Acknowledge a reminder that was sent, so that it does not escalate."""
    which = reminder_id if external is None else external
    if which is None or (reminder_id is not None and external is not None):
        raise click.UsageError("Give either the ID of a reminder or --external-id.")

    async def acknowledge(app: Duetime) -> bool:
        return await app.reminders.acknowledge(which, by=by)

    target = target_of(context)
    new = target.run(acknowledge)
    name = (
        f"Reminder {which}"
        if external is None
        else (f"The reminder with the external id {external}")
    )
    if target.json:
        print_json({"reminder": which, "new": new})
    else:
        echo(f"{name} is acknowledged." if new else f"{name} was already acknowledged.")


@click.command("snooze", cls=Command)
@click.argument("reminder_id", metavar="ID", type=JOB_ID)
@click.argument("span", type=SPAN, metavar="SPAN")
@by_option
@click.pass_context
def snooze_command(context: click.Context, reminder_id: int, span: timedelta, by: str) -> None:
    """Send a reminder again after SPAN (10m), unless its subject moves or is done by then."""

    async def snooze(app: Duetime) -> datetime:
        return await app.reminders.snooze(reminder_id, span, by=by)

    target = target_of(context)
    at = target.run(snooze)
    if target.json:
        print_json({"reminder": reminder_id, "run_at": at})
    else:
        echo(f"Reminder {reminder_id} will be sent again at {iso(at.replace(microsecond=0))}.")


def _remarks(delivery: Delivery) -> str:
    if delivery.status is DeliveryStatus.PENDING and delivery.next_at is not None:
        again = f"again at {iso(delivery.next_at.replace(microsecond=0))}"
        return f"{delivery.error}; {again}" if delivery.error else again
    return str(delivery.error or "")
