"""`duetime schedules history`, `explain` and `audit`: what happened, why, and by whom."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from duetime.api.schedules import ScheduleInfo
from duetime.app import Duetime
from duetime.cli.explain import print_explanation
from duetime.cli.moment import MOMENT, MOMENT_OR_SPAN, ago
from duetime.cli.paging import needs_table, paged
from duetime.cli.schedules.show import show_history
from duetime.cli.target import Command, target_of
from duetime.domain.page import Page
from duetime.domain.reasons import Explanation
from duetime.domain.schedules.schedule import TickStatus, TickStatusLike
from duetime.storage.schedules.rows import TickInfo


@click.command("history", cls=Command)
@click.argument("name")
@click.option(
    "--status",
    type=click.Choice([status.value for status in TickStatus]),
    metavar="STATUS",
    help=f"Only {', '.join(TickStatus)}.",
)
@click.option(
    "--since",
    type=MOMENT_OR_SPAN,
    metavar="TIME",
    help="Only ticks since this time, or since a duration ago such as 2d.",
)
@click.option("--before", type=MOMENT_OR_SPAN, metavar="TIME", help="Only ticks before then.")
@paged()
@click.pass_context
def history_command(
    context: click.Context,
    name: str,
    status: TickStatusLike | None,
    since: datetime | timedelta | None,
    before: datetime | timedelta | None,
    limit: int,
    after: str | None,
) -> None:
    """Show the outcome of each tick and its reason, newest first."""

    async def read(app: Duetime) -> tuple[Page[TickInfo], ScheduleInfo, datetime]:
        now = await app.now()
        rows = await app.schedules[name].history(
            since=ago(since, now),
            before=ago(before, now),
            status=status,
            limit=limit,
            after=after,
        )
        return rows, await app.schedules.get(name), now

    target = target_of(context)
    rows, info, now = target.run(read)
    if not needs_table(
        rows,
        json=target.json,
        empty="No ticks match." if status or since or before else "No ticks yet.",
    ):
        return
    show_history(info, rows, now)


@click.command("explain", cls=Command)
@click.argument("name")
@click.argument("tick", type=MOMENT, required=False)
@click.pass_context
def explain_command(context: click.Context, name: str, tick: datetime | None) -> None:
    """Explain why a schedule does or does not run, or what became of one TICK of it."""

    async def explain(app: Duetime) -> Explanation:
        return await app.schedules[name].explain(tick)

    target = target_of(context)
    print_explanation(target, target.run(explain))
