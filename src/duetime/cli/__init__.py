"""The command `duetime`: a module or a package per noun.

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong. Each error is one line on
standard error, and with `--json` also an object on standard output.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn, TextIO

import click

from duetime import __version__
from duetime.cli.output import NotConfirmed, OutputFailed, ReaderGone, echo, print_json
from duetime.cli.target import RootGroup
from duetime.domain.urls import hide_passwords
from duetime.errors import DuetimeError

# Where each command is, and its summary. It is imported when it is used.
_INTERRUPTED = 130
"""The exit code after Ctrl-C, as of other programs."""
_COMMANDS = {
    "accounts": (
        "accounts:accounts",
        "Add, list and change accounts. Without a command, list them.",
    ),
    "audit": ("audit:audit", "Show who changed what. Without a command, list it."),
    "db": ("db:db", "Create, upgrade, inspect and back up Duetime's tables."),
    "doctor": ("doctor:doctor", "Examine the installation; say what is wrong, and what to do."),
    "flows": ("flows.commands:flows", "List, start, signal and change runs of flows."),
    "health": (
        "health:health",
        "Check that the database answers, its schema is current, and a live worker is registered.",
    ),
    "import": ("importing.commands:importing", "Import schedules from other schedulers."),
    "jobs": ("jobs.commands:jobs", "List, inspect and change jobs."),
    "queues": ("queues:queues", "List, pause and limit queues."),
    "recipients": ("recipients:recipients", "Show and change how people are reached."),
    "reminders": ("reminders.commands:reminders", "Show reminders: due, sent, or why not."),
    "schedules": ("schedules.commands:schedules", "List, create and change schedules."),
    "scopes": ("scopes:scopes", "Show and change scopes, whose rules subjects inherit."),
    "serve": (
        "serve:serve",
        "Serve the dashboard and the HTTP API, and run jobs, until SIGTERM or SIGINT (Ctrl-C).",
    ),
    "subjects": ("subjects.commands:subjects", "Show and change what people are reminded of."),
    "tables": ("tables:tables", "Track the rows of your own tables."),
    "tokens": (
        "tokens:tokens",
        "Create, list and revoke API tokens. Without a command, list them.",
    ),
    "top": ("top.commands:top", "Show what is due, late, running and dead, live."),
    "worker": ("worker:worker", "Run jobs until SIGTERM or SIGINT (Ctrl-C)."),
    "workers": ("workers:workers", "List the workers."),
}


@click.group(cls=RootGroup, commands_at=_COMMANDS)
@click.version_option(__version__, prog_name="duetime", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable reminders, schedules, jobs and flows on the database that you already have.

    It uses the database that --database names, else the app's own, else DUETIME_DATABASE, else
    sqlite:///duetime.db.
    """


def main() -> NoReturn:
    """Run the command line and end the process."""
    # A stream that was closed (`>&-`) is None.
    sys.stdout = sys.stdout or _open_nowhere()
    sys.stderr = sys.stderr or _open_nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What is stored may be any text; what a terminal can show may be less.
            stream.reconfigure(errors="backslashreplace")
    code = 0
    try:
        code = _run()
        sys.stdout.flush()
    except (ReaderGone, BrokenPipeError):
        # The reader of our output has gone (`| head`): not an error. Python must not try again.
        _write_nowhere(sys.stdout, sys.stderr)
    except (OutputFailed, OSError) as error:
        _write_nowhere(sys.stdout)
        why = getattr(error, "strerror", None) or str(error)
        code = _fail(f"The output could not be written: {why}.", code="error")
    sys.exit(code)


def _open_nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _write_nowhere(*streams: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())


def _run() -> int:
    """Run the command and return its exit code. Every error is one line."""
    try:
        code = cli.main(prog_name="duetime", standalone_mode=False)
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # Not there before click 8.2.
            echo(error.format_message())
            return 0
        where = f" See `{error.ctx.command_path} --help`." if error.ctx is not None else ""
        return _fail(f"{error.format_message()}{where}", code="usage", exit_code=2)
    except click.ClickException as error:
        return _fail(error.format_message(), code="error")
    except NotConfirmed:
        return _fail(
            "Not confirmed: nothing was changed. Use --yes to skip the question.",
            code="not_confirmed",
        )
    except click.Abort:
        # Ctrl-C, which click turns into this. What was done until now is done.
        echo(err=True)
        return _fail("Interrupted.", code="interrupted", exit_code=_INTERRUPTED)
    except DuetimeError as error:
        return _fail(str(error), code=error.code)
    return code if isinstance(code, int) else 0


def _fail(message: str, *, code: str, exit_code: int = 1) -> int:
    """Print an error on standard error, and with `--json` also as JSON on standard output."""
    text = hide_passwords(" ".join(message.split()))
    try:
        echo(f"Error: {text}", err=True)
        # Where the command line is wrong, its options have not been read.
        if "--json" in sys.argv[1:]:
            print_json({"error": {"code": code, "message": text}})
    except ReaderGone:
        pass
    return exit_code
