"""`duetime worker`: run jobs."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, cast

import click

from duetime.api.metrics import LOOPBACK, serve_metrics
from duetime.app import Duetime
from duetime.cli.log_options import log_options
from duetime.cli.number import Number
from duetime.cli.target import Command, Target, target_of
from duetime.domain.urls import show_url
from duetime.engine.process import run_worker
from duetime.engine.supervisor import Supervisor
from duetime.settings import change_settings
from duetime.telemetry.events import log_event
from duetime.telemetry.logs import LogFormat, configure_logging

log = logging.getLogger("duetime.cli")


@click.command(cls=Command)
@click.option("--queues", metavar="A,B", help="The queues to serve.  [default: default]")
@click.option(
    "--concurrency", metavar="N", help="How many jobs each process runs at once.  [default: 50]"
)
@click.option(
    "--processes",
    type=Number(1, 512),
    default=1,
    metavar="N",
    help="How many worker processes to run. One that dies is replaced.  [default: 1]",
)
@click.option(
    "--grace",
    metavar="SPAN",
    help="How long running jobs may take to finish after a stop.  [default: 30s]",
)
@click.option(
    "--lease",
    metavar="SPAN",
    help="A worker without a heartbeat for this long loses its jobs.  [default: 30s]",
)
@click.option(
    "--heartbeat",
    metavar="SPAN",
    help="How often the lease is renewed.  [default: a third of it, at most 10s]",
)
@click.option(
    "--poll",
    metavar="SPAN",
    help="How often to check for jobs without a notification.  [default: 1s]",
)
@click.option("--name", metavar="NAME", help="Name of the worker.  [default: host:pid:random]")
@log_options
@click.option(
    "--metrics-port",
    type=Number(1, 65535),
    envvar="DUETIME_METRICS_PORT",
    metavar="PORT",
    help="Serve metrics for Prometheus on this port (or DUETIME_METRICS_PORT). Several processes "
    "take this port and those after it.",
)
@click.option(
    "--metrics-host",
    envvar="DUETIME_METRICS_HOST",
    metavar="HOST",
    help="The address to serve metrics on (or DUETIME_METRICS_HOST).  [default: 127.0.0.1]",
)
@click.option("--parent", type=int, hidden=True)
@click.pass_context
def worker(
    context: click.Context,
    /,
    processes: int,
    name: str | None,
    log_format: str | None,
    log_level: str,
    metrics_port: int | None,
    metrics_host: str | None,
    parent: int | None,
    **options: Any,
) -> None:
    """Run jobs until SIGTERM or SIGINT (Ctrl-C).

    The first signal stops claiming, lets running jobs finish within --grace, and gives the rest
    back. The second gives everything back now. The third ends the process at once.

    \b
    Exit codes: 0  it was stopped; every job finished or was given back
                1  it could not start
               70  internal error
               74  the SQLite file is damaged
      130 and 143  it was forced to end; its jobs are rescued when the lease expires
    """
    target = target_of(context)
    if target.app is None:
        raise click.UsageError("--app MODULE:APP is required, or set DUETIME_APP.")
    log_format = log_format or ("json" if target.json else "console")
    app = target.load()
    app.settings = change_settings(app.settings, options)
    configure_logging(cast("LogFormat", log_format), log_level)

    def greet() -> None:
        if parent is None:
            _greet(target, app)

    if processes == 1:
        if metrics_port is not None:
            try:
                serve_metrics(app, metrics_host or LOOPBACK, metrics_port)
            except ImportError as error:
                raise click.UsageError(str(error)) from None
        context.exit(run_worker(app, name=name, parent=parent, greet=greet))
    shared = _given(options) | {"log-format": log_format, "log-level": log_level}
    if metrics_host is not None:
        shared["metrics-host"] = metrics_host

    def command(number: int) -> list[str]:
        mine = shared | ({"name": f"{name}-{number}"} if name else {})
        if metrics_port is not None:
            mine["metrics-port"] = metrics_port + number - 1
        return _child_command(target, mine)

    context.exit(Supervisor(processes, command=command).run(greet=greet))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _greet(target: Target, app: Duetime) -> None:
    """Say what runs where, without the password."""
    where = show_url(app.settings.database)
    log_event(
        log,
        logging.INFO,
        "starting",
        "A worker of %(app)s starts on %(database)s, with %(tasks)s tasks.",
        app=target.app,
        tasks=len(app.tasks),
        database=where,
    )
    if not app.tasks:
        log_event(
            log,
            logging.WARNING,
            "no_tasks",
            "The app has no tasks: %(hint)s.",
            hint="import the modules that define tasks in the module of the app",
        )


def _child_command(target: Target, options: dict[str, Any]) -> list[str]:
    command = [sys.executable, "-m", "duetime", "worker", "--parent", str(os.getpid())]
    for name, value in {"app": target.app, "database": target.database, **options}.items():
        if value is not None:
            command += [f"--{name}", str(value)]
    return command
