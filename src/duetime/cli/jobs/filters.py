"""Which jobs: the options of the commands that take filters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypedDict, cast

import click

from duetime.api.job_filters import JobFilters
from duetime.app import Duetime
from duetime.cli.moment import MOMENT_OR_SPAN
from duetime.domain.jobs.job import JobState

Command = Callable[..., None]


class Filters(TypedDict):
    """The options as click passes them on."""

    state: tuple[str, ...]
    queue: str | None
    task: str | None
    key: str | None
    error_code: str | None
    args: tuple[str, ...]
    created_since: datetime | timedelta | None
    created_before: datetime | timedelta | None
    due_since: datetime | timedelta | None
    due_before: datetime | timedelta | None


def filter_options(states: tuple[JobState, ...] = tuple(JobState)) -> Callable[[Command], Command]:
    """Give a command the filters of `app.jobs.list`, for jobs in these states."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--state",
            type=click.Choice([state.value for state in states]),
            multiple=True,
            metavar="STATE",
            help=f"One of {', '.join(states)}. May be repeated.",
        ),
        click.option("--queue", metavar="NAME", help="Only jobs of this queue."),
        click.option("--task", metavar="NAME", help="Only jobs of this task."),
        click.option("--key", metavar="KEY", help="Only the jobs with this key."),
        click.option(
            "--error-code", metavar="CODE", help="Only jobs whose last attempt failed with it."
        ),
        click.option(
            "--arg",
            "args",
            metavar="PATH=VALUE",
            multiple=True,
            help="Only jobs with this argument, such as order.id=7. May be repeated.",
        ),
        _time("--created-since", "Only jobs created at TIME or later, or so long ago, such as 1h."),
        _time("--created-before", "Only jobs created before TIME, or longer ago than that."),
        _time("--due-since", "Only waiting jobs due at TIME or later, or so long from now."),
        _time("--due-before", "Only waiting jobs due before TIME, or sooner than that."),
    ]

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


async def read_filters(app: Duetime, given: Filters) -> JobFilters:
    """Return the filters that the options set; what they do not name is left out."""
    now = await app.now()
    filters: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value == ():
            continue
        if isinstance(value, timedelta):
            filters[name] = now - value if name.startswith("created") else now + value
        else:
            filters[name] = list(value) if isinstance(value, tuple) else value
    return cast("JobFilters", filters)


def _time(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, metavar="TIME", type=MOMENT_OR_SPAN, help=text)
