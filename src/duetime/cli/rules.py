"""Rules on the command line: the options `--remind` and `--none`, and how rules are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from duetime.cli.json_values import read_json
from duetime.domain.reminders.rule import Rule
from duetime.domain.reminders.rule_text import write_rule

C = TypeVar("C", bound=Callable[..., Any])


class RuleType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A rule as the library reads it; one that begins with { is JSON."""

    name = "rule"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str) or not value.strip().startswith("{"):
            return value
        try:
            return read_json(value)
        except ValueError as error:
            self.fail(f"{value[:60]!r} is not JSON: {error}.", param, ctx)


_HELP = "-1h, '-1d at 09:00', 60 (minutes before), … May be repeated.  [default: inherited]"


def rule_options(help: str = _HELP) -> Callable[[C], C]:  # noqa: A002
    """Add `--remind` and `--none`, which `read_rules` reads."""

    def add(command: C) -> C:
        for option in (
            click.option(
                "--none", "no_rules", is_flag=True, help="No reminders, whatever the scopes say."
            ),
            click.option("--remind", type=RuleType(), metavar="RULE", multiple=True, help=help),
        ):
            command = option(command)
        return command

    return add


def read_rules(remind: tuple[Any, ...], no_rules: bool) -> list[Any] | None:
    """The rules that the options say; None: inherited."""
    if remind and no_rules:
        raise click.UsageError("Give either --remind or --none.")
    return list(remind) if remind or no_rules else None


def rules_json(rules: Iterable[Rule] | None) -> list[dict[str, Any]] | None:
    """Rules as `--remind` reads them; what has its default is left out."""
    return None if rules is None else [write_rule(rule) for rule in rules]


def format_rules(rules: Iterable[Rule] | None) -> str:
    """Rules for people."""
    if rules is None:
        return "inherited"
    return ", ".join(map(_format_rule, rules)) or "none"


def _format_rule(rule: Rule) -> str:
    given = write_rule(rule)
    text = given.pop("rule")
    options = "; ".join(f"{name} {_say(value)}" for name, value in given.items())
    return f"{text} ({options})" if options else str(text)


def _say(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
