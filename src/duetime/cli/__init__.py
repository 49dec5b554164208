"""The command `duetime`: one file per noun.

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong. Each error is one line.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

import click

from duetime import __version__
from duetime.cli.audit import audit
from duetime.cli.db import db
from duetime.cli.importing import importing
from duetime.cli.jobs import jobs
from duetime.cli.queues import queues
from duetime.cli.recipients import recipients
from duetime.cli.reminders import reminders
from duetime.cli.schedules import schedules
from duetime.cli.scopes import scopes
from duetime.cli.subjects import subjects
from duetime.cli.target import Group
from duetime.cli.tracking import track, tracked, untrack
from duetime.cli.worker import worker
from duetime.cli.workers import workers
from duetime.errors import DuetimeError


@click.group(cls=Group, app_from_environment=True)
@click.version_option(__version__, prog_name="duetime", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable jobs on the database that you already have.

    The database is --database, else the app's, else DUETIME_DATABASE, else sqlite:///duetime.db.
    """


for command in (
    worker,
    jobs,
    schedules,
    reminders,
    subjects,
    scopes,
    track,
    untrack,
    tracked,
    recipients,
    audit,
    queues,
    workers,
    db,
    importing,
):
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line and end the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What is stored may be any text; what a terminal can show may be less.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(prog_name="duetime", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read our output has gone (`| head`): not an error. Python must not try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # Not there before click 8.2.
            click.echo(error.format_message())
            sys.exit(0)
        where = f" See `{error.ctx.command_path} --help`." if error.ctx is not None else ""
        fail(f"{error.format_message()}{where}", code=2)
    except click.ClickException as error:
        fail(error.format_message())
    except click.Abort:
        click.echo(err=True)  # The question's line is still open.
        fail("Not confirmed: nothing was changed. Use --yes to skip the question.")
    except DuetimeError as error:
        fail(str(error))
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, *, code: int = 1) -> NoReturn:
    click.echo(f"Error: {' '.join(message.split())}", err=True)
    sys.exit(code)
