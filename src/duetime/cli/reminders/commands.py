"""`duetime reminders`: what is due, what was sent, and why not. Rules on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from duetime.app import Duetime
from duetime.cli.explain import explain_command
from duetime.cli.moment import SPAN, iso
from duetime.cli.number import JOB_ID, Number
from duetime.cli.output import as_json, confirm, echo, plural, print_json, print_table
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.reminders.deliveries import acknowledge_command, deliveries_command, snooze_command
from duetime.cli.target import Group, Target, target_of
from duetime.domain.page import Page
from duetime.domain.reminders.plan_recurrence import HORIZON
from duetime.domain.reminders.reminder import (
    Reminder,
    ReminderStatus,
    ReminderStatusLike,
    ResendStatus,
    Resent,
)
from duetime.domain.schedules.cron import parse_zone

C = TypeVar("C", bound=Callable[..., Any])


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def reminders(context: click.Context) -> None:
    """Show reminders: due, sent, or why not. Without a command, those of the next 7 days."""
    if context.invoked_subcommand is None:
        context.invoke(preview_command)


for command in (deliveries_command, acknowledge_command, snooze_command):
    reminders.add_command(command)


@reminders.command("preview")
@click.option(
    "--days",
    type=Number(1, 3650),
    default=7,
    metavar="N",
    help="How many days ahead.  [default: 7]",
)
@paged(default=100)
@click.pass_context
def preview_command(context: click.Context, days: int, limit: int, after: str | None) -> None:
    """Show what is due in the next days, earliest first, in UTC and the subject's time zone."""

    async def read(app: Duetime) -> Page[Reminder]:
        return await app.reminders.preview(f"{days}d", limit=limit, after=after)

    target = target_of(context)
    found = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty=f"No reminder is due within {plural(days, 'day')}.",
        plain=reminder_json,
    ):
        return
    show_reminders(found, ended=False)
    if days > HORIZON.days:
        echo(
            f"Reminders of recurring subjects are armed about {HORIZON.days} days ahead. `duetime "
            "subjects get REF` shows when a subject is due."
        )


@reminders.command("list")
@click.option("--subject", metavar="REF", help="Only reminders of this subject.")
@click.option(
    "--status",
    type=click.Choice([status.value for status in ReminderStatus]),
    metavar="STATUS",
    help=f"Only {', '.join(ReminderStatus)}.",
)
@paged(default=100)
@click.pass_context
def list_command(
    context: click.Context,
    subject: str | None,
    status: ReminderStatusLike | None,
    limit: int,
    after: str | None,
) -> None:
    """List reminders and their outcomes, newest first.

    Those of one subject, and those that are armed, are in the order of their times.
    """

    async def read(app: Duetime) -> Page[Reminder]:
        return await app.reminders.list(subject=subject, status=status, limit=limit, after=after)

    target = target_of(context)
    found = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty="No reminders match." if subject or status else "No reminders.",
        plain=reminder_json,
    ):
        return
    show_reminders(found)


@reminders.command("get")
@click.argument("reminder_id", metavar="ID", type=JOB_ID)
@click.pass_context
def get_command(context: click.Context, reminder_id: int) -> None:
    """Show a reminder and its outcome."""

    async def read(app: Duetime) -> Reminder:
        return await app.reminders.get(reminder_id)

    target = target_of(context)
    found = target.run(read)
    if target.json:
        print_json(reminder_json(found))
    else:
        show_reminders([found])


reminders.add_command(
    explain_command(
        lambda app, reminder_id: app.reminders.explain(reminder_id),
        "ID",
        "Explain the outcome of a reminder, or what it waits for.",
        type=JOB_ID,
    )
)


@reminders.command("resend")
@click.argument("reminder_ids", metavar="[ID...]", type=JOB_ID, nargs=-1)
@click.option(
    "--status",
    type=click.Choice(["failed", "expired", "skipped"]),
    metavar="STATUS",
    help="All reminders with this status: failed, expired or skipped.",
)
@click.option(
    "--subject",
    metavar="REF",
    help="All reminders of this subject; only failed ones, unless --status is given.",
)
@click.option(
    "--scope", metavar="REF", help="All reminders in this scope and the scopes inside it."
)
@click.option("--recipient", metavar="REF", help="All reminders to this recipient.")
@click.option(
    "--within", type=SPAN, metavar="SPAN", help="All reminders that finished in the last 2h, 1d, …"
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def resend_command(
    context: click.Context,
    reminder_ids: tuple[int, ...],
    status: ResendStatus | None,
    subject: str | None,
    scope: str | None,
    recipient: str | None,
    within: timedelta | None,
    yes: bool,
    by: str,
) -> None:
    """Send failed, expired or skipped reminders now: those named, or all that match.

    One that is named may also have been sent; then it is sent once more.

    \b
    duetime reminders resend 17 18
    duetime reminders resend --status failed --within 2h
    """
    which = {"subject": subject, "scope": scope, "recipient": recipient, "within": within}
    if bool(reminder_ids) == bool(status or any(which.values())):
        raise click.UsageError(
            "Give either reminder ids, or --status, --subject, --scope, --recipient or --within."
        )
    target = target_of(context)
    if reminder_ids:
        _resend_each(target, reminder_ids, by)
    else:
        _resend_all(target, {"status": status or "failed"} | which, by, sure=yes)


@reminders.command("send-anyway")
@click.argument("reminder_ids", metavar="ID...", type=JOB_ID, nargs=-1, required=True)
@by_option
@click.pass_context
def send_anyway_command(context: click.Context, reminder_ids: tuple[int, ...], by: str) -> None:
    """Send reminders now that wait for quiet hours, for the hourly limit or in a digest."""

    async def send_anyway(app: Duetime) -> list[Reminder]:
        return [await app.reminders.send_anyway(reminder_id, by=by) for reminder_id in reminder_ids]

    target = target_of(context)
    _show_due(target, target.run(send_anyway))


def _resend_each(target: Target, reminder_ids: Sequence[int], by: str) -> None:
    async def resend(app: Duetime) -> list[Reminder]:
        return [await app.reminders.resend(reminder_id, by=by) for reminder_id in reminder_ids]

    _show_due(target, target.run(resend))


def _show_due(target: Target, armed: Sequence[Reminder]) -> None:
    if target.json:
        shown = [reminder_json(one) for one in armed]
        print_json(shown[0] if len(shown) == 1 else shown)
        return
    for one in armed:
        echo(f"Reminder {one.id} is due now, as job {one.job_id}.")


def _resend_all(target: Target, which: dict[str, Any], by: str, *, sure: bool) -> None:
    async def count(app: Duetime) -> int:
        return len(await app.reminders._find_ended(**which))

    async def resend(app: Duetime) -> Resent:
        return await app.reminders.resend_many(**which, by=by)

    if not sure and (found := target.run(count)):
        confirm(f"Send {plural(found, 'reminder')} again, {which['status']}?")
    answer = target.run(resend)
    if target.json:
        print_json({"resent": answer.reminders, "refused": answer.refused})
        return
    for reason in answer.refused.values():
        echo(reason)
    if answer.reminders or answer.refused:
        echo(f"{plural(len(answer.reminders), 'reminder')} sent again.")
    else:
        echo(f"No reminders match ({which['status']}). Nothing changed.")


# Shown


def show_reminders(found: Sequence[Reminder], *, ended: bool = True, subject: bool = True) -> None:
    """Print them; `ended`: with what became of each; `subject`: with what each is of."""
    local = any(reminder.tz != "UTC" for reminder in found)
    columns: list[tuple[str, Callable[[Reminder], Any]]] = [
        ("ID", lambda reminder: reminder.id),
        *([("STATUS", lambda reminder: reminder.status.value)] if ended else []),
        ("UTC", lambda reminder: iso(_when(reminder).replace(microsecond=0))),
        *([("LOCAL", lambda reminder: wall(_when(reminder), reminder.tz))] if local else []),
        *([("SUBJECT", lambda reminder: reminder.subject)] if subject else []),
        ("RULE", lambda reminder: reminder.rule.text),
        ("RECIPIENT", lambda reminder: reminder.recipient),
        ("JOB", lambda reminder: reminder.job_id),
        *([("REMARKS", _remarks)] if ended else []),
    ]
    print_table(
        [heading for heading, _ in columns],
        [[cell(reminder) for _, cell in columns] for reminder in found],
        right=(0, len(columns) - (2 if ended else 1)),
    )


def reminder_json(reminder: Reminder) -> dict[str, Any]:
    """What scripts read: its rule as text."""
    shown = {name: value for name, value in as_json(reminder).items() if name != "to"}
    return shown | {"rule": reminder.rule.text, "key": reminder.key}


def wall(moment: datetime, tz: str) -> str:
    """The moment on the clock of a zone."""
    local = moment.astimezone(parse_zone(tz))
    seconds = ":%S" if local.second else ""
    return f"{local.strftime(f'%a %Y-%m-%d %H:%M{seconds}')} {local.isoformat()[-6:]}"


def _when(reminder: Reminder) -> datetime:
    return reminder.run_at or reminder.time


def _remarks(reminder: Reminder) -> str:
    if reminder.status is not ReminderStatus.SENT:
        return str(reminder.reason or "")
    known = f", there {reminder.provider_id}" if reminder.provider_id else ""
    status = f": {reminder.delivery}" if reminder.delivery not in (None, "sent") else ""
    return f"by {reminder.channel}{known}{status}" if reminder.channel else ""
