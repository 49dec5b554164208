"""`duetime flows`: see and change runs of flows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.events import audit_command
from duetime.cli.explain import explain_command
from duetime.cli.flows.show import run_row, show_run
from duetime.cli.json_values import ObjectType, read_json
from duetime.cli.moment import MOMENT_OR_SPAN
from duetime.cli.number import JOB_ID
from duetime.cli.output import as_json, echo, plural, print_json, print_table
from duetime.cli.paging import needs_table, paged
from duetime.cli.person import by_option
from duetime.cli.target import Group, target_of
from duetime.domain.flows.flow import StepInfo
from duetime.domain.flows.run import FlowInfo, FlowState, FlowStateLike
from duetime.domain.page import Page


class JsonType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Any JSON."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return read_json(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(
                f"{value[:60]!r} is not JSON: {error}. Text is given as '\"text\"'.", param, ctx
            )


@click.group(cls=Group)
def flows() -> None:
    """List, start, signal and change runs of flows."""


@flows.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in FlowState]),
    multiple=True,
    metavar="STATE",
    help=f"One of {', '.join(FlowState)}. May be repeated.",
)
@click.option("--flow", metavar="NAME", help="Only runs of this flow.")
@click.option("--key", metavar="KEY", help="Only the runs with this key.")
@paged()
@click.pass_context
def list_command(
    context: click.Context,
    states: tuple[FlowStateLike, ...],
    flow: str | None,
    key: str | None,
    limit: int,
    after: str | None,
) -> None:
    """List runs, newest first."""

    async def read(app: Duetime) -> tuple[Page[FlowInfo], datetime]:
        found = await app.flows.list(state=states, flow=flow, key=key, limit=limit, after=after)
        return found, await app.now()

    target = target_of(context)
    found, now = target.run(read)
    if not needs_table(
        found,
        json=target.json,
        empty="No runs match." if states or flow or key or after else "No runs of flows.",
    ):
        return
    print_table(
        ("RUN", "STATE", "FLOW", "KEY", "STARTED", "WAITS FOR"),
        [run_row(run, now) for run in found],
        right=(0,),
    )


@flows.command("show")
@click.argument("run_id", metavar="ID", type=JOB_ID)
@click.pass_context
def show_command(context: click.Context, run_id: int) -> None:
    """Draw a run: its steps in the order of time, or its graph, with states and durations."""

    async def read(app: Duetime) -> tuple[FlowInfo, list[StepInfo], datetime]:
        run = await app.flows.get(run_id)
        return run, await app.flows.steps(run_id), await app.now()

    target = target_of(context)
    run, steps, now = target.run(read)
    if target.json:
        print_json(as_json(run) | {"steps": as_json(steps)})
    else:
        show_run(run, steps, now)


@flows.command("start")
@click.argument("flow", metavar="FLOW")
@click.option(
    "--args", type=ObjectType(), metavar="JSON", help="Its arguments, as '{\"order_id\": 7}'."
)
@click.option("--key", metavar="KEY", help="While a run holds it, that run is returned.")
@click.option("--queue", metavar="NAME", help="The queue, if not the flow's own.")
@click.option("--at", metavar="TIME", type=MOMENT_OR_SPAN, help="When; or how long from now: 30m.")
@click.pass_context
def start_command(
    context: click.Context,
    flow: str,
    args: dict[str, Any] | None,
    key: str | None,
    queue: str | None,
    at: datetime | timedelta | None,
) -> None:
    """Start a run of FLOW. Requires --app."""

    async def start(app: Duetime) -> tuple[int, bool]:
        when: dict[str, Any] = {"delay": at} if isinstance(at, timedelta) else {"at": at}
        run = await app.flows.start(flow, args, key=key, queue=queue, **when)
        return run.id, run.created

    target = target_of(context)
    run_id, created = target.run(start)
    if target.json:
        print_json({"id": run_id, "created": created})
    elif created:
        echo(f"Run {run_id} of {flow} is started.")
    else:
        echo(f"Run {run_id} of {flow} holds the key. Nothing was started.")


@flows.command("signal")
@click.argument("words", metavar="[ID] SIGNAL [JSON]", nargs=-1)
@click.option(
    "--correlation",
    metavar="TEXT",
    help="Instead of ID: all runs that wait for the signal with this correlation.",
)
@click.option("--key", metavar="KEY", help="A second signal of the same key changes nothing.")
@by_option
@click.pass_context
def signal_command(
    context: click.Context,
    words: tuple[str, ...],
    correlation: str | None,
    key: str | None,
    by: str,
) -> None:
    """Send a signal to a run, which is kept until the run waits for it; or to all runs that wait
    for it now.

    \b
    duetime flows signal 42 approved true
    duetime flows signal --correlation order:7 approved true
    """
    rest = words if correlation is not None else words[1:]
    if len(rest) not in (1, 2):
        raise click.UsageError(
            "Give ID SIGNAL [JSON], or with --correlation SIGNAL [JSON].", context
        )
    name, data = rest[0], JsonType().convert(rest[1], None, context) if rest[1:] else None
    if correlation is not None:
        _signal_all(context, name, data, correlation, key, by)
    else:
        _signal(context, JOB_ID.convert(words[0], None, context), name, data, key, by)


def _signal(
    context: click.Context, run_id: int, name: str, data: Any, key: str | None, by: str
) -> None:
    async def send(app: Duetime) -> bool:
        return await app.flows.signal(run_id, name, data, key=key, by=by)

    target = target_of(context)
    sent = target.run(send)
    if target.json:
        print_json({"id": run_id, "signal": name, "sent": sent})
    elif sent:
        echo(f"Signal {name} was sent to run {run_id}.")
    else:
        echo(f"Run {run_id} already has a signal {name} with the key {key}. Nothing changed.")


def _signal_all(
    context: click.Context, name: str, data: Any, correlation: str, key: str | None, by: str
) -> None:
    async def send(app: Duetime) -> list[int]:
        return await app.flows.signal_all(name, data, correlation=correlation, key=key, by=by)

    target = target_of(context)
    runs = target.run(send)
    if target.json:
        print_json({"correlation": correlation, "signal": name, "runs": runs})
    elif runs:
        sent = ", ".join(str(run) for run in runs)
        echo(f"Signal {name} was sent to {plural(len(runs), 'run')}: {sent}.")
    else:
        echo(f"The signal {name} was sent to no run: none waits for it with {correlation}.")


@flows.command("cancel")
@click.argument("run_id", metavar="ID", type=JOB_ID)
@click.option("--reason", help="A reason, shown to people.")
@by_option
@click.pass_context
def cancel_command(context: click.Context, run_id: int, reason: str | None, by: str) -> None:
    """Cancel a run, its step, and the jobs that it waits for. Its compensations run."""

    async def cancel(app: Duetime) -> FlowState:
        return await app.flows.cancel(run_id, reason=reason, by=by)

    target = target_of(context)
    was = target.run(cancel)
    if target.json:
        print_json({"id": run_id, "was": was})
    elif was is FlowState.RUNNING:
        echo(f"Run {run_id} is running: it was requested to stop.")
    else:
        echo(f"Run {run_id} is cancelled; it was {was}.")


@flows.command("retry")
@click.argument("run_id", metavar="ID", type=JOB_ID)
@click.option(
    "--from-step",
    metavar="STEP",
    help="Do its steps again, from this one on: by its name or its number.",
)
@by_option
@click.pass_context
def retry_command(context: click.Context, run_id: int, from_step: str | None, by: str) -> None:
    """Continue a failed or cancelled run from the step that failed. What succeeded is kept."""

    async def retry(app: Duetime) -> None:
        if from_step is None:
            await app.flows.retry(run_id, by=by)
        else:
            step = int(from_step) if from_step.isdecimal() else from_step
            await app.flows.rerun(run_id, from_step=step, by=by)

    target = target_of(context)
    target.run(retry)
    if target.json:
        print_json({"id": run_id, "retried": True})
    else:
        echo(f"Run {run_id} goes on.")


flows.add_command(
    explain_command(
        lambda app, run_id: app.flows.explain(run_id),
        "ID",
        "Explain what a run waits for and since when, or how it ended.",
        type=JOB_ID,
    )
)
flows.add_command(audit_command("job", "ID", type=JOB_ID))
