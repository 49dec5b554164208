"""`duetime serve`: the dashboard, the HTTP API and a worker in one process."""

from __future__ import annotations

from typing import Any, cast

import click

from duetime.cli.log_options import log_options
from duetime.cli.number import Number
from duetime.cli.output import echo
from duetime.cli.target import Command, target_of
from duetime.telemetry.logs import LogFormat, configure_logging


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", show_default=True)
@click.option("--port", type=Number(0, 65535), default=8000, metavar="N", show_default=True)
@click.option("--worker/--no-worker", default=True, help="Also run jobs.  [default: yes]")
@click.option("--api/--no-api", default=True, help="Serve the HTTP API.  [default: yes]")
@click.option("--dashboard/--no-dashboard", default=True, help="Serve the pages.  [default: yes]")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A host name under which the service is reached. Required for other machines.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="A reverse proxy whose X-Forwarded-For and X-Forwarded-Proto are trusted.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change through the service.")
@log_options
@click.pass_context
def serve(
    context: click.Context,
    /,
    log_format: str | None,
    log_level: str,
    api: bool,
    dashboard: bool,
    **options: Any,
) -> None:
    """Serve the dashboard and the HTTP API, and run jobs, until SIGTERM or SIGINT (Ctrl-C).

    Prints a link that logs you in, once, on this machine. To be reached from other machines, it
    needs --allowed-host, and an account or an API token.
    """
    target = target_of(context)
    if target.app is None and options["worker"]:
        # A worker without tasks would park the jobs that it claims.
        raise click.UsageError(
            "--app MODULE:APP is required, or set DUETIME_APP. To serve without a worker, add "
            "--no-worker."
        )
    app = target.load()
    configure_logging(cast("LogFormat", log_format or "console"), log_level)
    parts = [name for name, wanted in (("api", api), ("dashboard", dashboard)) if wanted]

    def greet(url: str) -> None:
        # Not a log line: anybody who has the link can log in with it.
        echo(f"Duetime is at {url}", err=True)

    app.serve(parts=parts, greet=greet, **options)
