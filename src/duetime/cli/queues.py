"""`duetime queues`: see, pause and limit them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.explain import explain_command
from duetime.cli.moment import SPAN
from duetime.cli.number import Number
from duetime.cli.output import echo, plural, print_json, print_table, relative
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.target import Group, target_of
from duetime.domain.duration import format_duration
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.page import Page


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def queues(context: click.Context) -> None:
    """List, pause and limit queues. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@queues.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List every queue that has jobs, a worker, a pause or a limit."""

    async def read(app: Duetime) -> tuple[Page[QueueInfo], datetime]:
        return await app.queues.list(limit=limit, after=after), await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if not needs_table(
        found, json=target.json, empty="No queue has jobs, a worker, a pause or a limit."
    ):
        return
    _show(found, now)


@queues.command("get")
@click.argument("queue")
@click.pass_context
def get_command(context: click.Context, queue: str) -> None:
    """Show what waits in QUEUE and runs, its pause and its limits."""

    async def read(app: Duetime) -> tuple[QueueInfo, datetime]:
        return await app.queues.get(queue), await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if target.json:
        print_json(found)
    else:
        _show([found], now)


@queues.command("pause")
@click.argument("queue")
@click.option("--reason", default="", help="A reason, shown to people.")
@by_option
@click.pass_context
def pause_command(context: click.Context, queue: str, reason: str, by: str) -> None:
    """Pause QUEUE: no worker starts another job of it. Running jobs continue."""

    async def pause(app: Duetime) -> QueueInfo:
        await app.queues.pause(queue, by=by, reason=reason)
        return await app.queues.get(queue)

    target = target_of(context)
    info = target.run(pause)
    if target.json:
        print_json(info)
        return
    waiting = plural(info.pending, "job")
    echo(f"Queue {queue} is paused by {info.paused_by}: {waiting} waiting.")


@queues.command("resume")
@click.argument("queue")
@by_option
@click.pass_context
def resume_command(context: click.Context, queue: str, by: str) -> None:
    """Resume QUEUE."""

    async def resume(app: Duetime) -> tuple[QueueInfo, bool]:
        before = await app.queues.get(queue)
        await app.queues.resume(queue, by=by)
        return before, before.paused_at is not None

    target = target_of(context)
    before, was_paused = target.run(resume)
    if target.json:
        print_json({"queue": queue, "resumed": was_paused, "due": before.due})
    elif was_paused:
        echo(f"Queue {queue} is resumed; {plural(before.due, 'job')} due.")
    else:
        echo(f"Queue {queue} was not paused. Nothing changed.")


@queues.command("limit")
@click.argument("queue")
@click.option("--running", type=Number(1), metavar="N", help="How many jobs may run at once.")
@click.option(
    "--per-partition",
    type=Number(1),
    metavar="N",
    help="How many jobs of one partition may run at once.",
)
@click.option(
    "--rate", type=Number(1), metavar="N", help="How many jobs may start in each --period."
)
@click.option("--period", type=SPAN, metavar="SPAN", help="The period of --rate, such as 1m.")
@click.option("--none", "lift", is_flag=True, help="Remove every limit.")
@by_option
@click.pass_context
def limit_command(
    context: click.Context,
    queue: str,
    running: int | None,
    per_partition: int | None,
    rate: int | None,
    period: timedelta | None,
    lift: bool,
    by: str,
) -> None:
    """Set the limits of QUEUE, over all workers. A limit that you leave out is removed."""
    given = [item for item in (running, per_partition, rate, period) if item is not None]
    if lift == bool(given):
        raise click.UsageError("Give --running, --per-partition or --rate, or else --none.")
    if (rate is None) != (period is None):
        raise click.UsageError("A rate needs both: --rate 100 --period 1m.")

    async def limit(app: Duetime) -> Limits:
        await app.queues.limit(
            queue, running=running, per_partition=per_partition, rate=rate, period=period, by=by
        )
        limited = await (await app.store()).limited_queues()
        return limited.get(queue, Limits())

    target = target_of(context)
    limits = target.run(limit)
    if target.json:
        print_json({"queue": queue, "limits": limits})
    else:
        echo(f"Queue {queue}: {_limits(limits) or 'no limits'}.")


queues.add_command(
    explain_command(
        lambda app, queue: app.queues.explain(queue),
        "QUEUE",
        "Explain why jobs of QUEUE do or do not start.",
    )
)
queues.add_command(audit_command("queue", "QUEUE"))


def _show(found: Sequence[QueueInfo], now: datetime) -> None:
    print_table(
        ("QUEUE", "PENDING", "DUE", "RUNNING", "PARKED", "NEXT", "REMARKS"),
        [
            (
                queue.name,
                queue.pending,
                queue.due,
                queue.running,
                queue.parked,
                relative(queue.next_run_at, now),
                _remarks(queue, now),
            )
            for queue in found
        ],
        right=(1, 2, 3, 4),
    )


def _remarks(queue: QueueInfo, now: datetime) -> str:
    parts = []
    if queue.paused_at is not None:
        why = f" ({queue.pause_reason})" if queue.pause_reason else ""
        parts.append(f"paused {relative(queue.paused_at, now)} by {queue.paused_by}{why}")
    if limits := _limits(queue.limits):
        parts.append(limits)
    return "; ".join(parts)


def _limits(limits: Limits) -> str:
    parts = []
    if limits.running is not None:
        parts.append(f"at most {limits.running} running")
    if limits.per_partition is not None:
        parts.append(f"{limits.per_partition} per partition")
    if limits.rate is not None and limits.period is not None:
        parts.append(f"{limits.rate} per {format_duration(limits.period)}")
    return ", ".join(parts)
