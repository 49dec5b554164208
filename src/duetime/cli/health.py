"""`duetime health`: for probes and for people."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta

import click
import msgspec

from duetime.cli.moment import SPAN
from duetime.cli.output import print_json, print_table
from duetime.cli.target import Command, target_of
from duetime.engine.process import exit_now
from duetime.health import check_health

_EXIT_CODES = {"database": 3, "schema": 4, "worker": 5}


@click.command(cls=Command)
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Require a live worker that serves this queue. May be repeated.",
)
@click.option("--worker", "name", metavar="NAME", help="Require a live worker with this name.")
@click.option(
    "--this-host",
    "here",
    is_flag=True,
    help="Require a live worker on this host or in this container.",
)
@click.option("--no-worker", is_flag=True, help="Check the database and its schema only.")
@click.option(
    "--timeout",
    type=SPAN,
    metavar="SPAN",
    default="10s",
    help="How long the database may take to answer.  [default: 10s]",
)
@click.pass_context
def health(
    context: click.Context,
    queues: tuple[str, ...],
    name: str | None,
    here: bool,
    no_worker: bool,
    timeout: timedelta,
) -> None:
    """Check that the database answers, its schema is current, and a live worker is registered.

    A worker is live as long as it renews its lease.

    \b
    Exit codes: 0  healthy
                3  the database does not answer, refuses, or does not exist
                4  the schema is missing, old or too new
                5  there is no live worker
    """
    if here and name is not None:
        raise click.UsageError("--this-host and --worker cannot be combined.")
    if no_worker and (here or name is not None or queues):
        raise click.UsageError(
            "--no-worker cannot be combined with --this-host, --worker or --queue."
        )
    target = target_of(context)
    app = target.load()
    app.settings = msgspec.structs.replace(app.settings, migrate=False)
    workers = socket.gethostname() if here else name

    # Not `asyncio.run`: it would wait for a thread that still tries to connect.
    loop = asyncio.new_event_loop()
    found = loop.run_until_complete(
        check_health(app, workers=workers, queues=queues, timeout=timeout)
    )
    checks = [one for one in found if not (no_worker and one.name == "worker")]
    failed = next((one for one in checks if not one.ok), None)
    if target.json:
        print_json({"healthy": failed is None, "checks": checks})
    else:
        print_table(
            ("CHECK", "STATE", "REMARKS"),
            [(one.name, "ok" if one.ok else "FAILED", one.message) for one in checks],
        )
    code = 0 if failed is None else _EXIT_CODES[failed.name]
    if code in (_EXIT_CODES["database"], _EXIT_CODES["schema"]):
        # There is nothing to close, and perhaps something that hangs.
        exit_now(code)
    loop.run_until_complete(app.close())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    context.exit(code)
