"""`duetime subjects`: what people are reminded of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import click
import msgspec

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.explain import explain_command
from duetime.cli.json_values import ObjectType
from duetime.cli.moment import MOMENT, Moment, iso
from duetime.cli.output import (
    as_json,
    compact,
    confirm,
    echo,
    exact,
    one_line,
    plural,
    print_facts,
    print_json,
    print_table,
)
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.reminders.commands import reminder_json, show_reminders, wall
from duetime.cli.rules import format_rules, read_rules, rule_options, rules_json
from duetime.cli.subjects.ical import export_command, import_command
from duetime.cli.subjects.occurrences import (
    move_command,
    occurrences_json,
    read_repeats,
    repeat_options,
    restore_command,
    show_occurrences,
    skip_command,
)
from duetime.cli.target import Group, target_of
from duetime.domain.duration import format_time
from duetime.domain.page import MAX_LIMIT, Page
from duetime.domain.reminders.recurrence import Occurrence
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject, SubjectStatus


class Due(Moment):
    """A time, a span from now, or `none`."""

    def __init__(self) -> None:
        super().__init__(or_span=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if value == "none" else super().convert(value, param, ctx)


_SHOWN = 5


class Found(msgspec.Struct):
    """A subject, the rules that hold for it and whose they are, its reminders and next times."""

    subject: Subject
    rules: Sequence[str]
    source: str | None
    reminders: Sequence[Reminder]
    now: datetime
    occurrences: Sequence[Occurrence]

    @property
    def armed(self) -> list[Reminder]:
        return [one for one in self.reminders if one.status is ReminderStatus.ARMED]


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def subjects(context: click.Context) -> None:
    """Show and change what people are reminded of. Without a command, list it."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


for command in (skip_command, move_command, restore_command, export_command, import_command):
    subjects.add_command(command)
subjects.add_command(
    explain_command(
        lambda app, ref: app.subjects.explain(ref),
        "REF",
        "Explain who is reminded of the subject REF next, or why nobody is.",
    )
)
subjects.add_command(audit_command("subject", "REF"))


@subjects.command("list")
@click.option(
    "--scope", metavar="REF", help="Only subjects in this scope and the scopes inside it."
)
@click.option(
    "--status", type=click.Choice(["open", "done"]), help="Only subjects with this status."
)
@paged(default=100)
@click.pass_context
def list_command(
    context: click.Context,
    scope: str | None,
    status: SubjectStatus | None,
    limit: int,
    after: str | None,
) -> None:
    """List subjects, the next due first, then those that are not due or repeat."""

    async def read(app: Duetime) -> Page[Subject]:
        return await app.subjects.list(scope=scope, status=status, limit=limit, after=after)

    target = target_of(context)
    found = target.run(read)
    none = "No subjects. Add one: duetime subjects put game:42 --due 2026-12-24T18:00Z"
    if scope or status:
        none = "No subjects match."
    if not needs_table(found, json=target.json, empty=none, plain=_plain):
        return
    again = any(subject.repeats for subject in found)
    print_table(
        ("SUBJECT", "STATUS", "DUE (UTC)", "SCOPE", "RULES", "RECIPIENTS", "REPEATS")[: 6 + again],
        [
            (
                subject.ref,
                subject.status,
                _when(subject),
                subject.scope,
                format_rules(subject.rules),
                ", ".join(subject.recipients),
                subject.repeats and subject.repeats.describe(),
            )[: 6 + again]
            for subject in found
        ],
    )


@subjects.command("get")
@click.argument("ref")
@click.pass_context
def get_command(context: click.Context, ref: str) -> None:
    """Show when a subject is due, the rules that apply and their source, and its reminders."""

    async def read(app: Duetime) -> Found:
        return await _find(app, ref)

    target = target_of(context)
    found = target.run(read)
    if target.json:
        print_json(_json(found))
    else:
        _show(found)


@subjects.command("put")
@click.argument("ref")
@click.option(
    "--due",
    type=Due(),
    metavar="TIME",
    help="Due time: a time, a duration from now such as 2h, or none.",
)
@repeat_options
@click.option("--scope", metavar="REF", help="The scope of the subject.")
@click.option(
    "--tz", metavar="ZONE", default="UTC", help="Time zone of wall times.  [default: UTC]"
)
@rule_options()
@click.option(
    "--recipient",
    "recipients",
    metavar="NAME",
    multiple=True,
    help="Who is reminded. May be repeated.",
)
@click.option(
    "--data", type=ObjectType(), metavar="JSON", help="Data for the handler and for templates."
)
@by_option
@click.pass_context
def put_command(
    context: click.Context,
    ref: str,
    due: datetime | timedelta | Literal["none"] | None,
    repeats: tuple[Any, ...],
    start: datetime | None,
    until: datetime | None,
    exclude: tuple[str, ...],
    scope: str | None,
    tz: str,
    remind: tuple[Any, ...],
    no_rules: bool,
    recipients: tuple[str, ...],
    data: dict[str, Any] | None,
    by: str,
) -> None:
    """Add or change the subject REF, and its reminders. Options left out get their defaults.

    \b
    duetime subjects put game:42 --due 2026-05-01T18:00+02:00 --scope channel:9 --recipient ann
    duetime subjects put rent --due 2026-05-01T00:00Z --remind "-1d at 09:00" --tz Europe/Berlin
    duetime subjects put standup --repeats "0 9 * * 1-5" --remind -10m --tz Europe/Berlin

    A completed subject is opened again.
    """
    rules = read_rules(remind, no_rules)
    again = read_repeats(repeats, start, until, exclude)
    if (due is None) == (again is None):
        raise click.UsageError("Give either --due or --repeats.")

    async def put(app: Duetime) -> tuple[str, Found]:
        at = await app.now() + due if isinstance(due, timedelta) else due
        result = await app.subjects.put(
            ref,
            due=None if at == "none" else at,
            repeats=again,
            scope=scope,
            tz=tz,
            remind=rules,
            recipients=recipients,
            data=data,
            by=by,
        )
        return result, await _find(app, ref)

    target = target_of(context)
    result, found = target.run(put)
    if target.json:
        print_json({"subject": ref, "result": result, "due_at": found.subject.due_at}
                   | _rules(found) | _again(found) | {"armed": len(found.armed)})  # fmt: skip
        return
    said = "is unchanged" if result == "same" else f"is {result}"
    echo(f"Subject {one_line(ref)} {said}.")
    print_facts(
        [
            ("due", _due(found)),
            ("repeats", _repeats(found)),
            ("rules", _whose(found)),
            ("armed", plural(len(found.armed), "reminder")),
            ("not armed", _not_armed(found)),
            ("next", exact(found.armed[0].run_at, found.now) if found.armed else None),
        ]
    )


@subjects.command("complete")
@click.argument("ref")
@click.option("--occurrence", type=MOMENT, metavar="TIME", help="Complete only this occurrence.")
@click.option(
    "--reason", metavar="TEXT", help="A reason, shown with its reminders and in the audit."
)
@by_option
@click.pass_context
def complete_command(
    context: click.Context, ref: str, occurrence: datetime | None, reason: str | None, by: str
) -> None:
    """Mark a subject as done, and cancel its unsent reminders. `put` opens it again."""

    async def complete(app: Duetime) -> int:
        armed = await app.reminders.list(subject=ref, status=ReminderStatus.ARMED, limit=MAX_LIMIT)
        await app.subjects.complete(ref, occurrence=occurrence, reason=reason, by=by)
        return sum(occurrence is None or one.due_at == occurrence for one in armed)

    target = target_of(context)
    count = target.run(complete)
    if target.json:
        print_json({"subject": ref, "completed": True, "cancelled": count})
        return
    what = f"Subject {one_line(ref)}" + (f" of {iso(occurrence)}" if occurrence else "")
    echo(f"{what} is done: {plural(count, 'reminder')} cancelled.")


@subjects.command("delete")
@click.argument("ref")
@click.option("--reason", metavar="TEXT", help="A reason, stored in the audit.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def delete_command(
    context: click.Context, ref: str, reason: str | None, yes: bool, by: str
) -> None:
    """Delete REF and all its reminders, including sent ones. Asks for confirmation."""

    async def read(app: Duetime) -> int:
        await app.subjects.get(ref)
        return len(await app.reminders.list(subject=ref, limit=MAX_LIMIT))

    async def delete(app: Duetime) -> None:
        await app.subjects.delete(ref, reason=reason, by=by)

    target = target_of(context)
    count = target.run(read)
    if not yes:
        question = f"Delete the subject {one_line(ref)} with {plural(count, 'reminder')}?"
        confirm(question)
    target.run(delete)
    if target.json:
        print_json({"subject": ref, "deleted": True, "reminders": count})
    else:
        echo(f"Subject {one_line(ref)} is deleted, with {plural(count, 'reminder')}.")


async def _find(app: Duetime, ref: str) -> Found:
    subject = await app.subjects.get(ref)
    rules, source = await app.subjects.rules(ref)
    goes_on = subject.repeats is not None and subject.status == "open"
    again = await app.subjects.occurrences(ref, _SHOWN) if goes_on else []
    reminders = await app.reminders.list(subject=ref, limit=MAX_LIMIT)
    return Found(subject, rules, source, reminders, await app.now(), again)


def _json(found: Found) -> dict[str, Any]:
    own = {"own_rules": rules_json(found.subject.rules)}
    shown = [reminder_json(reminder) for reminder in found.reminders]
    return _plain(found.subject) | own | _rules(found) | _again(found) | {"reminders": shown}


def _plain(subject: Subject) -> dict[str, Any]:
    repeats = None if subject.repeats is None else subject.repeats.to_json()
    rules = {"rules": rules_json(subject.rules), "repeats": repeats}
    bare = msgspec.structs.replace(subject, repeats=None, planned=None)
    plain = {name: value for name, value in dict(as_json(bare)).items() if name != "planned"}
    return plain | rules


def _again(found: Found) -> dict[str, Any]:
    repeats = found.subject.repeats
    return {
        "repeats": None if repeats is None else repeats.to_json(),
        "occurrences": occurrences_json(found.occurrences),
    }


def _rules(found: Found) -> dict[str, Any]:
    return {"rules": found.rules, "rules_from": found.source}


def _show(found: Found) -> None:
    subject = found.subject
    echo(f"Subject {one_line(subject.ref)}: {subject.status}")
    hidden = subject.rules is not None and found.source != subject.ref
    own = f"{format_rules(subject.rules)}; not in effect, because an enclosing scope is locked"
    print_facts(
        [
            ("due", _due(found)),
            ("repeats", _repeats(found)),
            ("scope", subject.scope and one_line(subject.scope)),
            ("rules", _whose(found)),
            ("own rules", own if hidden else None),
            ("recipients", ", ".join(map(one_line, subject.recipients)) or None),
            ("data", compact(subject.data) if subject.data else None),
            ("revision", subject.revision),
            ("problem", subject.problem and one_line(subject.problem)),
        ]
    )
    if found.occurrences:
        echo("\nDue next:")
        show_occurrences(found.occurrences, subject.tz, found.now)
    if found.reminders:
        echo("\nIts reminders:")
        show_reminders(found.reminders, subject=False)


def _when(subject: Subject) -> str | None:
    if subject.repeats is not None:
        return "repeats"
    due = subject.due_at
    return None if due is None else format_time(due.replace(microsecond=0))


def _due(found: Found) -> str:
    due, tz = found.subject.due_at, found.subject.tz
    if found.subject.repeats is not None:
        if found.subject.status == "done":
            return "no more: it is done"
        if not found.occurrences:
            return "no more: its last occurrence has passed"
        due = found.occurrences[0].due
    if due is None:
        return "none: it has no reminders"
    there = f"; {wall(due, tz)} in {tz}" if tz != "UTC" else ""
    return f"{exact(due, found.now)}{there}"


def _not_armed(found: Found) -> str | None:
    """Why nothing is armed, if that is since all was past."""
    due = found.subject.due_at
    skipped = [one for one in found.reminders if one.status is ReminderStatus.SKIPPED]
    reasons = [one.reason for one in skipped if one.due_at == due and one.reason]
    if found.armed or not reasons:
        return None
    more = f"; and {len(reasons) - 1:,} more" if len(reasons) > 1 else ""
    return one_line(reasons[0]) + more


def _repeats(found: Found) -> str | None:
    repeats = found.subject.repeats
    return None if repeats is None else one_line(repeats.describe())


def _whose(found: Found) -> str:
    """The rules that hold, and where they come from."""
    if found.source is None:
        return "none: neither the subject nor its scopes have rules"
    own = found.source == found.subject.ref
    if own:
        return f"{format_rules(found.subject.rules)}, its own"
    return f"{', '.join(found.rules) or 'none'}, from {one_line(found.source)}"
