"""`duetime jobs cancel-all` and its siblings: act on all jobs that match."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import Unpack

import click

from duetime.api.bulk import make_request, start_action
from duetime.api.job_filters import make_filter
from duetime.app import Duetime
from duetime.cli.jobs.filters import Filters, filter_options, read_filters
from duetime.cli.moment import MOMENT_OR_SPAN
from duetime.cli.number import JOB_ID
from duetime.cli.output import compact, confirm, echo, exact, print_facts, print_json
from duetime.cli.person import by_option
from duetime.cli.target import Command, target_of
from duetime.domain.jobs.bulk import BulkAction, BulkRequest
from duetime.domain.jobs.facets import FAILED
from duetime.domain.jobs.job import JobFilter, JobState

Make = Callable[[Duetime, JobFilter], Awaitable[BulkRequest]]

_WAITING = (JobState.PENDING, JobState.RETRYING, JobState.PARKED)
_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command("cancel-all", cls=Command)
@filter_options((*_WAITING, JobState.RUNNING))
@click.option("--reason", help="A reason, shown to people.")
@_yes
@by_option
@click.pass_context
def cancel_all_command(
    context: click.Context, reason: str | None, yes: bool, by: str, **filters: Unpack[Filters]
) -> None:
    """Cancel all jobs that match, as a bulk action."""

    async def make(app: Duetime, which: JobFilter) -> BulkRequest:
        return make_request("cancel", which, by=by, reason=reason)

    _start(
        context,
        filters,
        "Cancel all jobs that match?",
        make,
        acts_on=(*_WAITING, JobState.RUNNING),
        sure=yes,
    )


@click.command("requeue-all", cls=Command)
@filter_options(FAILED)
@_yes
@by_option
@click.pass_context
def requeue_all_command(
    context: click.Context, yes: bool, by: str, **filters: Unpack[Filters]
) -> None:
    """Requeue all jobs that match, dead ones unless --state is given, as a bulk action."""

    async def make(app: Duetime, which: JobFilter) -> BulkRequest:
        return make_request("requeue", which, by=by)

    _start(
        context,
        filters,
        "Requeue all jobs that match?",
        make,
        acts_on=FAILED if filters["state"] else (JobState.DEAD,),
        sure=yes,
    )


@click.command("reschedule-all", cls=Command)
@click.argument("at", metavar="TIME", type=MOMENT_OR_SPAN)
@filter_options(_WAITING)
@_yes
@by_option
@click.pass_context
def reschedule_all_command(
    context: click.Context,
    at: datetime | timedelta,
    yes: bool,
    by: str,
    **filters: Unpack[Filters],
) -> None:
    """Move all waiting jobs that match to TIME, or to a duration from now, as a bulk action."""

    async def make(app: Duetime, which: JobFilter) -> BulkRequest:
        moment = at if isinstance(at, datetime) else await app.now() + at
        return make_request("reschedule", which, by=by, at=moment)

    question = "Reschedule all jobs that match?"
    _start(context, filters, question, make, acts_on=_WAITING, sure=yes)


@click.command("bulk", cls=Command)
@click.argument("job_id", metavar="ID", type=JOB_ID)
@click.pass_context
def bulk_command(context: click.Context, job_id: int) -> None:
    """Show how far a bulk action has come."""

    async def read(app: Duetime) -> tuple[BulkAction, datetime]:
        return await app.jobs.bulk_action(job_id), await app.now()

    target = target_of(context)
    action, now = target.run(read)
    if target.json:
        print_json(action)
        return
    echo(f"Bulk action {action.id}: {action.action}, {action.state.value}")
    matched = "still being counted" if action.matched is None else f"{action.matched:,}"
    print_facts(
        [
            ("filters", compact(action.filters)),
            ("matched", matched),
            ("done", f"{action.done:,}"),
            ("skipped", f"{action.skipped:,}" if action.skipped else None),
            ("by", action.by),
            ("reason", action.reason),
            ("created", exact(action.created_at, now)),
            ("finished", exact(action.finished_at, now)),
            ("error", action.error),
        ]
    )


def _start(
    context: click.Context,
    filters: Filters,
    question: str,
    make: Make,
    *,
    acts_on: Collection[JobState],
    sure: bool,
) -> None:
    """Ask the question, unless `sure`, and start the action. `acts_on`: the states of jobs that it
    changes; others that match stay as they are. What cannot be done is refused without a question.
    """

    async def start(app: Duetime) -> int:
        which = make_filter(**await read_filters(app, filters))
        return await start_action(app, await make(app, which))

    async def count(app: Duetime) -> str:
        given = await read_filters(app, filters)
        await make(app, make_filter(**given))
        facets = await app.jobs.facets(**given)
        return ", ".join(
            f"{number} {state}"
            for state, number in facets.states.items()
            if number and state in acts_on
        )

    target = target_of(context)
    if not sure:
        echo(f"There are: {target.run(count) or 'none'}.")
        confirm(question)
    job_id = target.run(start)
    if target.json:
        print_json({"id": job_id})
    else:
        echo(f"Bulk action {job_id} has been requested. A worker carries it out: "
             f"`duetime jobs bulk {job_id}` shows how far it has come.")  # fmt: skip
