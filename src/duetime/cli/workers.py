"""`duetime workers`: who works at the moment."""

from __future__ import annotations

from datetime import datetime

import click

from duetime.app import Duetime
from duetime.cli.output import print_table, relative
from duetime.cli.paging import needs_table, paged
from duetime.cli.target import Group, target_of
from duetime.domain.page import Page
from duetime.storage.store import WorkerInfo


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def workers(context: click.Context) -> None:
    """List the workers."""
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@workers.command("list")
@paged(default=100)
@click.pass_context
def list_command(context: click.Context, limit: int, after: str | None) -> None:
    """List the workers: the live ones, and those whose jobs are still to be rescued."""

    async def read(app: Duetime) -> tuple[Page[WorkerInfo], datetime]:
        return await app.workers.list(limit=limit, after=after), await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty="No worker is registered. Start one: duetime worker --app MODULE:APP",
    ):
        return
    print_table(
        ("WORKER", "QUEUES", "RUNNING", "STARTED", "SEEN", "LOOP LAG", "LEASE"),
        [
            (
                worker.name,
                ",".join(worker.queues),
                f"{worker.running} of {worker.concurrency}",
                relative(worker.started_at, now),
                relative(worker.seen_at, now),
                f"{worker.loop_lag.total_seconds() * 1000:.0f} ms",
                "ok" if worker.lease_until > now else f"ended {relative(worker.lease_until, now)}",
            )
            for worker in found
        ],
        right=(2, 5),
    )
