"""The options of commands that run until they are stopped: how they log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from duetime.telemetry.logs import LEVELS

F = TypeVar("F", bound=Callable[..., Any])


def log_options(command: F) -> F:
    """Add `--log-format` and `--log-level`."""
    command = click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        envvar="DUETIME_LOG_LEVEL",
        default="info",
        metavar="LEVEL",
        help=f"{', '.join(LEVELS)} (or DUETIME_LOG_LEVEL).  [default: info]",
    )(command)
    return click.option(
        "--log-format",
        type=click.Choice(["console", "json"]),
        envvar="DUETIME_LOG_FORMAT",
        metavar="FORMAT",
        help="console or json (or DUETIME_LOG_FORMAT).  [default: console]",
    )(command)
