"""The command `explain` of every noun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click

from duetime.app import Duetime
from duetime.cli.output import compact, echo, one_line, print_facts, print_json
from duetime.cli.target import Command, Target, target_of
from duetime.domain.reasons import Explanation


def explain_command(
    explain: Callable[[Duetime, Any], Awaitable[Explanation]],
    argument: str,
    help: str,  # noqa: A002
    *,
    type: Any = None,  # noqa: A002
) -> click.Command:
    """Return the command `explain` of a noun."""

    @click.command("explain", cls=Command, help=help)
    @click.argument("ref", metavar=argument, type=type)
    @click.pass_context
    def command(context: click.Context, ref: Any) -> None:
        async def ask(app: Duetime) -> Explanation:
            return await explain(app, ref)

        target = target_of(context)
        print_explanation(target, target.run(ask))

    return command


def print_explanation(target: Target, explanation: Explanation) -> None:
    """Print the sentence, the chain of checks, the steps that are in neither, and the facts."""
    if target.json:
        print_json(explanation)
        return
    echo(one_line(explanation.sentence))
    width = max((len(check.question) for check in explanation.checks), default=0)
    for check in explanation.checks:
        line = f"  {check.outcome:<11}  {check.question:<{width}}  {one_line(check.sentence or '')}"
        echo(line.rstrip())
    for step in explanation.other_steps:
        echo(f"  - {one_line(step.sentence)}")
    facts = [(name, _fact(value)) for name, value in explanation.facts.items()]
    print_facts([("code", explanation.code), *facts])


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(one_line, value)) or "none"
    return compact(value) if isinstance(value, dict) else one_line(value)
