"""`duetime jobs`: see and change them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Unpack

import click

from duetime.api.requeueing import check_requeuable
from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.explain import explain_command
from duetime.cli.jobs.bulk import (
    bulk_command,
    cancel_all_command,
    requeue_all_command,
    reschedule_all_command,
)
from duetime.cli.jobs.filters import Filters, filter_options, read_filters
from duetime.cli.jobs.show import job_row, show_job
from duetime.cli.json_values import ObjectType
from duetime.cli.moment import MOMENT_OR_SPAN
from duetime.cli.number import JOB_ID, Number
from duetime.cli.output import (
    confirm,
    echo,
    exact,
    plural,
    print_json,
    print_table,
    relative,
)
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.target import Group, Target, name_options, target_of
from duetime.domain.jobs.facets import FAILED, ErrorGroup, JobFacets
from duetime.domain.jobs.job import JobInfo, JobState, JobStateLike, Requeued
from duetime.domain.page import MAX_LIMIT, Page
from duetime.errors import DuetimeError, IllegalTransition


@click.group(cls=Group)
def jobs() -> None:
    """List, inspect and change jobs."""


@jobs.command("list")
@filter_options()
@paged()
@click.pass_context
def list_command(
    context: click.Context, limit: int, after: str | None, **filters: Unpack[Filters]
) -> None:
    """List jobs, newest first."""

    async def read(app: Duetime) -> tuple[Page[JobInfo], datetime]:
        which = await read_filters(app, filters)
        page = await app.jobs.list(limit=limit, after=after, **which)
        return page, await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if found.examined is not None:
        echo(f"Examined {found.examined:,} jobs so far; there are more.", err=True)
    is_filtered = after is not None or any(filters.values())
    if not needs_table(
        found, json=target.json, empty="No jobs match." if is_filtered else "No jobs."
    ):
        return
    print_table(
        ("ID", "STATE", "TASK", "QUEUE", "TRIES", "WHEN", "REMARKS"),
        [job_row(job, now) for job in found],
        right=(0, 4),
    )


@jobs.command("count")
@filter_options()
@click.pass_context
def count_command(context: click.Context, **filters: Unpack[Filters]) -> None:
    """Count jobs by state, queue and task, of each state up to 10,000."""

    async def count(app: Duetime) -> JobFacets:
        return await app.jobs.facets(**await read_filters(app, filters))

    target = target_of(context)
    facets = target.run(count)
    if target.json:
        print_json(facets)
        return
    rows = [
        (kind, name, str(number))
        for kind, counts in (
            ("state", facets.states), ("queue", facets.queues), ("task", facets.tasks)
        )
        for name, number in counts.items()
        if number
    ]  # fmt: skip
    if rows:
        print_table(("BY", "NAME", "JOBS"), rows, right=(2,))
    else:
        echo("No jobs match." if any(filters.values()) else "No jobs.")


@jobs.command("errors")
@filter_options(FAILED)
@click.pass_context
def errors_command(context: click.Context, **filters: Unpack[Filters]) -> None:
    """Group dead jobs by task, error code and message, the most frequent first."""

    async def read(app: Duetime) -> tuple[list[ErrorGroup], datetime]:
        groups = await app.jobs.errors(**await read_filters(app, filters))
        return groups, await app.now()

    target = target_of(context)
    groups, now = target.run(read)
    if target.json:
        print_json(groups)
    elif not groups:
        echo("No jobs have failed." if not any(filters.values()) else "No jobs match.")
    else:
        print_table(
            ("JOBS", "TASK", "CODE", "MESSAGE", "LAST", "EXAMPLE"),
            [
                (
                    str(group.count),
                    group.task,
                    group.error_code or "",
                    group.message,
                    relative(group.last_at, now),
                    group.example,
                )
                for group in groups
            ],
            right=(0, 5),
        )


@jobs.command("get")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@click.option("--reveal", is_flag=True, help="Also show passwords and what else is redacted.")
@click.pass_context
def get_command(context: click.Context, job_id: int, reveal: bool) -> None:
    """Show a job with its arguments, times, and every attempt with its log lines."""

    async def read(app: Duetime) -> tuple[JobInfo, datetime]:
        return await app.jobs.get(job_id), await app.now()

    target = target_of(context)
    job, now = target.run(read, reveal=reveal)
    if target.json:
        print_json(job)
    else:
        show_job(job, now)


@jobs.command("cancel")
@click.argument("job_ids", metavar="ID...", type=JOB_ID, nargs=-1, required=True)
@click.option("--reason", help="A reason, shown to people.")
@by_option
@click.pass_context
def cancel_command(context: click.Context, job_ids: tuple[int, ...], reason: str, by: str) -> None:
    """Cancel waiting jobs, and ask the workers of running jobs to stop them."""

    async def cancel(app: Duetime, job_id: int) -> str:
        match await app.jobs.cancel(job_id, reason=reason, by=by):
            case JobState.RUNNING:
                return "is running: its worker was requested to stop it"
            case JobState.CANCELLED:
                return "was already cancelled"
        return "is cancelled"

    _each(context, job_ids, cancel)


@jobs.command("retry")
@click.argument("job_ids", metavar="ID...", type=JOB_ID, nargs=-1, required=True)
@by_option
@click.pass_context
def retry_command(context: click.Context, job_ids: tuple[int, ...], by: str) -> None:
    """Run pending or retrying jobs now, instead of when they are due."""

    async def retry(app: Duetime, job_id: int) -> str:
        try:
            await app.jobs.reschedule(job_id, await app.now(), by=by)
        except IllegalTransition as error:
            hint = (
                f" `duetime jobs requeue {job_id}` gives it fresh attempts."
                if error.state in ("dead", "cancelled", "expired", "superseded")
                else ""
            )
            raise DuetimeError(
                f"Job {job_id} is {error.state}, so it cannot be retried.{hint}"
            ) from None
        return "is due now"

    _each(context, job_ids, retry)


@jobs.command("reschedule")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@click.argument("at", metavar="TIME", type=MOMENT_OR_SPAN)
@by_option
@click.pass_context
def reschedule_command(
    context: click.Context, job_id: int, at: datetime | timedelta, by: str
) -> None:
    """Move a waiting job to TIME, or to a duration from now such as 30m."""

    async def reschedule(app: Duetime, job_id: int) -> str:
        moment = at if isinstance(at, datetime) else await app.now() + at
        await app.jobs.reschedule(job_id, moment, by=by)
        return f"is due {exact(moment, await app.now())}"

    _each(context, [job_id], reschedule)


@jobs.command("reprioritise")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@click.argument("priority", type=Number(0, 9))
@by_option
@click.pass_context
def reprioritise_command(context: click.Context, job_id: int, priority: int, by: str) -> None:
    """Change the priority of a waiting job: 0 is served first, 9 last."""

    async def reprioritise(app: Duetime, job_id: int) -> str:
        await app.jobs.reprioritise(job_id, priority, by=by)
        return f"has priority {priority}"

    _each(context, [job_id], reprioritise)


jobs.add_command(
    explain_command(
        lambda app, job_id: app.jobs.explain(job_id),
        "ID",
        "Explain why a job is or is not running.",
        type=JOB_ID,
    )
)
jobs.add_command(audit_command("job", "ID", type=JOB_ID))
jobs.add_command(cancel_all_command)
jobs.add_command(requeue_all_command)
jobs.add_command(reschedule_all_command)
jobs.add_command(bulk_command)


@jobs.command("replay")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@click.option(
    "--args", metavar="JSON", type=ObjectType(), help="All its arguments, instead of the old ones."
)
@by_option
@click.pass_context
def replay_command(
    context: click.Context, job_id: int, args: dict[str, Any] | None, by: str
) -> None:
    """Run a finished job again as a new job, with its own or with other arguments.

    \b
    duetime jobs replay 17 --args '{"order": 8}'
    """

    async def replay(app: Duetime) -> int:
        return (await app.jobs.replay(job_id, args, by=by)).id

    target = target_of(context)
    replay_id = target.run(replay)
    if target.json:
        print_json({"id": replay_id, "replay_of": job_id})
    else:
        echo(f"Job {replay_id} is a replay of job {job_id}.")


@jobs.command("requeue")
@click.argument("job_ids", metavar="[ID...]", type=JOB_ID, nargs=-1)
@click.option(
    "--state",
    "states",
    type=click.Choice(["dead", "cancelled", "expired", "superseded"]),
    multiple=True,
    metavar="STATE",
    help="All jobs in this state: dead, cancelled, expired or superseded.",
)
@click.option(
    "--queue",
    metavar="NAME",
    help="All jobs of this queue; only dead ones, unless --state is given.",
)
@click.option(
    "--task", metavar="NAME", help="All jobs of this task; only dead ones, unless --state is given."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@click.pass_context
def requeue_command(
    context: click.Context,
    job_ids: tuple[int, ...],
    states: tuple[JobStateLike, ...],
    queue: str | None,
    task: str | None,
    yes: bool,
    by: str,
) -> None:
    """Give dead, cancelled, expired or superseded jobs fresh attempts.

    Requeues the jobs named, or all that match.

    \b
    duetime jobs requeue 17 18
    duetime jobs requeue --state dead --task shop.send_invoice
    """
    if bool(job_ids) == bool(states or queue or task):
        raise click.UsageError("Give either job ids, or --state, --queue or --task.")
    if job_ids:
        _each(context, job_ids, partial(_requeue, by=by))
    else:
        _requeue_all(target_of(context), states or ("dead",), queue, task, sure=yes, by=by)


async def _requeue(app: Duetime, job_id: int, *, by: str) -> str:
    await app.jobs.requeue(job_id, by=by)
    return "is pending again"


def _requeue_all(
    target: Target,
    states: Sequence[JobStateLike],
    queue: str | None,
    task: str | None,
    *,
    sure: bool,
    by: str,
) -> None:
    async def count(app: Duetime) -> int:
        check_requeuable(task)
        return len(await app.jobs.list(state=states, queue=queue, task=task, limit=MAX_LIMIT))

    async def requeue(app: Duetime) -> Requeued:
        return await app.jobs.requeue_many(state=states, queue=queue, task=task, by=by)

    which = " or ".join(states)
    if not sure and (found := target.run(count)):
        number = f"{MAX_LIMIT:,} or more jobs" if found >= MAX_LIMIT else plural(found, "job")
        of = "".join([f" of queue {queue}" if queue else "", f" of task {task}" if task else ""])
        confirm(f"Requeue {number}{of}, {which}?")
    answer = target.run(requeue)
    requeued, conflicts = len(answer.jobs), answer.conflicts
    if target.json:
        print_json({"requeued": requeued, "conflicts": conflicts})
        return
    for job_id, holder in sorted(conflicts.items()):
        echo(f"Job {job_id} was not requeued, because job {holder} holds its key.")
    if requeued or conflicts:
        echo(f"{plural(requeued, 'job')} requeued.")
    else:
        echo(f"No jobs match ({which}). Nothing changed.")


def _each(
    context: click.Context,
    job_ids: Sequence[int],
    change: Callable[[Duetime, int], Awaitable[str]],
) -> None:
    """Change each job; one that cannot be changed does not keep the others from it."""

    async def change_all(app: Duetime) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for job_id in dict.fromkeys(job_ids):
            try:
                message = await change(app, job_id)
                answers.append({"id": job_id, "done": True, "message": message})
            except DuetimeError as error:
                message = name_options(str(error), context)
                answers.append(
                    {"id": job_id, "done": False, "message": message, "code": error.code}
                )
        return answers

    target = target_of(context)
    answers = target.run(change_all)
    if target.json:
        print_json(answers)
    for answer in answers:
        if not answer["done"]:
            echo(f"Error: {answer['message']}", err=True)
        elif not target.json:
            echo(f"Job {answer['id']} {answer['message']}.")
    context.exit(0 if all(answer["done"] for answer in answers) else 1)
