"""Which rules hold in a scope, and which level they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.reasons import Explanation, make_explanation
from duetime.domain.reminders.arming import Level, resolve_rules

SCOPE_SENTENCES = {
    "own_rules": "The scope {scope!r} sets its own rules: {rules:list}"
    "[, and is locked{locked:if}].",
    "inherited_rules": "The scope {scope!r} inherits the rules of {source!r}: {rules:list}.",
    "overruled": "The scope {scope!r} sets its own rules, which are not in effect, because "
    "{locked_by!r} is locked. The rules of {source!r} apply: {rules:list}.",
    "no_reminders": "The scope {scope!r} sends no reminders: {source!r} has an empty list of "
    "rules.",
    "no_rules": "The scope {scope!r} sends no reminders: neither it nor a scope around it has "
    "rules.",
    "rules_hidden": "The scope {scope!r} sends no reminders: {locked_by!r} is locked and has no "
    "rules, so the rules inside it are not in effect.",
}
LEVEL_SENTENCES = {
    "level_rules": "{level!r} sets {rules:list}[, and is locked{locked:if}].",
    "level_empty": "{level!r} sets an empty list of rules[, and is locked{locked:if}].",
    "level_inherits": "{level!r} sets no rules of its own[, and is locked{locked:if}].",
    "level_problem": "Part of the row of {level!r} cannot be used: {reason:reason}.",
    "level_overruled": "{level!r} sets rules of its own, which are not in effect, because "
    "{locked_by!r} is locked.",
    "change_begun": "The scope {scope!r} changed at {at}, and workers have not yet updated the "
    "reminders of the subjects below it.",
    "change_followed": "The scope {scope!r} changed at {at}, and workers have not yet updated the "
    "reminders of {left} subjects[ of {total}] below it.",
}


class ScopeChange(msgspec.Struct, frozen=True):
    """A change of a scope that workers have yet to follow."""

    scope: str
    at: datetime
    total: int | None
    """How many open subjects are below it; None if they are not counted yet."""
    left: int | None
    """How many of them have yet to be armed again."""


def explain_scope(levels: Sequence[Level], changes: Sequence[ScopeChange] = ()) -> Explanation:
    """Say which rules hold. `levels`: the scope, and those around it outwards. Its steps are what
    each level sets, and `changes` that have not reached all subjects yet.
    """
    own = levels[0]
    resolved = resolve_rules(levels)
    lock = _outermost_lock(levels)
    facts: dict[str, Any] = {
        "scope": own.name,
        "rules": [rule.text for rule in resolved.rules],
        "source": resolved.source,
        "locked": own.locked or None,
        "locked_by": levels[lock].name if lock else None,
    }
    if resolved.source is None:
        code = "no_rules" if hidden_by(levels) is None else "rules_hidden"
    elif not resolved.rules:
        code = "no_reminders"
    elif resolved.source == own.name:
        code = "own_rules"
    else:
        code = "inherited_rules" if own.rules is None else "overruled"
    steps = [*explain_levels(levels), *map(_explain_change, changes)]
    return make_explanation(SCOPE_SENTENCES, code, facts, steps=steps)


def _explain_change(change: ScopeChange) -> Explanation:
    facts = {"scope": change.scope, "at": change.at, "total": change.total, "left": change.left}
    code = "change_begun" if change.left is None else "change_followed"
    return make_explanation(LEVEL_SENTENCES, code, facts)


def explain_levels(levels: Sequence[Level]) -> Iterator[Explanation]:
    """Say what each level sets, from the inside out, up to the one whose rules hold."""
    lock = _outermost_lock(levels)
    for place, level in enumerate(levels):
        rules = None if level.rules is None else [rule.text for rule in level.rules]
        facts = {"level": level.name, "rules": rules, "locked": level.locked or None}
        if level.rules is None:
            code = "level_inherits"
        elif place < lock:
            code, facts["locked_by"] = "level_overruled", levels[lock].name
        else:
            code = "level_rules" if level.rules else "level_empty"
        yield make_explanation(LEVEL_SENTENCES, code, facts)
        if level.problem is not None:
            problem = {"level": level.name, "reason": level.problem}
            yield make_explanation(LEVEL_SENTENCES, "level_problem", problem)
        if level.rules is not None and place >= lock:
            return


def hidden_by(levels: Sequence[Level]) -> str | None:
    """The locked level that has no rules and hides those of levels inside it."""
    lock = _outermost_lock(levels)
    hides = resolve_rules(levels).source is None and any(level.rules for level in levels[:lock])
    return levels[lock].name if hides else None


def _outermost_lock(levels: Sequence[Level]) -> int:
    """The place of the level that hides all inside it; 0 if none is locked."""
    return max((place for place, level in enumerate(levels) if level.locked), default=0)
