"""`duetime doctor`: what is wrong, or will be, and what to do."""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap
from collections.abc import Sequence
from datetime import timedelta

import click
import msgspec

from duetime.cli.moment import SPAN
from duetime.cli.output import echo, one_line, plural, print_json
from duetime.cli.target import Command, target_of
from duetime.doctor import worst
from duetime.domain.findings import Finding, FindingLevel
from duetime.engine.process import exit_now


@click.command(cls=Command)
@click.option("--strict", is_flag=True, help="Exit with 1 if there is a warning, too.")
@click.option("--problems", is_flag=True, help="Show warnings and errors only.")
@click.option(
    "--timeout",
    type=SPAN,
    metavar="SPAN",
    default="10s",
    help="How long each check may take.  [default: 10s]",
)
@click.pass_context
def doctor(context: click.Context, strict: bool, problems: bool, timeout: timedelta) -> None:
    """Examine the installation; say what is wrong, and what to do.

    It examines the database, the workers and waiting jobs. Nothing is changed. With --app, the
    tasks of waiting jobs are compared with those of the app, too.

    \b
    Exit codes: 0  no error was found
                1  an error was found; with --strict, also for a warning
    """
    target = target_of(context)
    app = target.load()
    app.settings = msgspec.structs.replace(app.settings, migrate=False)

    # Not `asyncio.run`: it would wait for a thread that still tries to connect.
    loop = asyncio.new_event_loop()
    findings = loop.run_until_complete(app.examine(timeout=timeout))
    level = worst(findings)
    shown = [one for one in findings if not problems or one.level is not FindingLevel.OK]
    if target.json:
        print_json({"level": level, "findings": shown})
    else:
        _print(shown, findings)
    failed = level is FindingLevel.ERROR or (strict and level is FindingLevel.WARNING)
    if any(
        one.code in ("database_missing", "database_unusable", "check_failed") for one in findings
    ):
        # Something may hang, so that closing would hang too.
        exit_now(int(failed))
    loop.run_until_complete(app.close())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    context.exit(int(failed))


def _print(shown: Sequence[Finding], findings: Sequence[Finding]) -> None:
    width = max((len(one.check) for one in shown), default=0)
    for one in shown:
        indent = " " * (9 + width + 2)
        _print_wrapped(f"{one.level:<9}{one.check:<{width}}  ", one.message, indent)
        if one.advice:
            _print_wrapped(indent, f"→ {one.advice}", indent + "  ")
    errors, warnings = (
        sum(one.level is level for one in findings)
        for level in (FindingLevel.ERROR, FindingLevel.WARNING)
    )
    echo(f"{plural(errors, 'error')}, {plural(warnings, 'warning')}.")


def _print_wrapped(first: str, text: str, indent: str) -> None:
    """Print a text; on a terminal it is wrapped at the right edge."""
    text = one_line(text)
    if not sys.stdout.isatty():
        echo(first + text)
        return
    columns = max(60, shutil.get_terminal_size().columns)
    for line in textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=indent, break_long_words=False
    ):
        echo(line)
