"""Rules in a column of a tracked table. `duetime._read_rules` does the same in SQL."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from duetime.domain.reasons import Reason
from duetime.domain.reminders.rule import Rule
from duetime.domain.reminders.rule_text import MAX_RULES, parse_rule
from duetime.errors import InvalidInput

MAX_PROBLEMS = 5
"""Of one row: further ones are left out."""


def read_rules_column(value: Any) -> tuple[tuple[Rule, ...] | None, list[Reason]]:
    """Return the rules that a column holds, and what of it cannot be used. None: it inherits.

    A number is minutes before the due time. Several are a JSON array, the text of an array of
    PostgreSQL, or a text with commas; each is written as everywhere. What can be read holds.

    >>> [rule.text for rule in read_rules_column("{60,15}")[0]]
    ['-1h', '-15m']
    >>> [rule.text for rule in read_rules_column('["-1d at 09:00", 60]')[0]]
    ['-1d at 09:00', '-1h']
    >>> read_rules_column("soon")
    (None, [Reason(code='rule_unreadable', facts={'rule': 'soon'})])
    """
    items = _items(value)
    if items is None:
        return None, []
    if len(items) > MAX_RULES:
        return None, [Reason.of("too_many_rules", limit=MAX_RULES)]
    rules: dict[str, Rule] = {}
    problems: list[Reason] = []
    for item in items:
        try:
            rule = parse_rule(_rule_of(item))
        except InvalidInput:
            said = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            problems.append(Reason.of("rule_unreadable", rule=said[:60]))
        else:
            rules.setdefault(rule.id, rule)
    if items and not rules:
        return None, problems[:MAX_PROBLEMS]
    return tuple(rules.values()), problems[:MAX_PROBLEMS]


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                decoded = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                return [text]
            return decoded if isinstance(decoded, list) else [decoded]
        if text.startswith("{") and text.endswith("}"):
            inside = text[1:-1].strip()
            return [part.strip(' "') for part in inside.split(",")] if inside else []
        return [part.strip() for part in text.split(",")] if text else None
    if value is None or isinstance(value, list):
        return value
    return [value]


def _rule_of(item: Any) -> Any:
    """An item of the column as `parse_rule` takes it. Options of a rule need a list in code."""
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, str | int) and not isinstance(item, bool):
        return item
    raise InvalidInput("A rule in a column must be a number or a text.")
