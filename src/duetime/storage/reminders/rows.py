"""Rows and documents of scopes and subjects, and the chain of rules that they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from duetime.domain.duration import format_time
from duetime.domain.reminders.arming import Level, resolve_rules
from duetime.domain.reminders.reminder import Subject
from duetime.domain.reminders.rule import Rule
from duetime.storage.store import Row

MAX_LEVELS = 99
"""How many scopes are around a subject."""


class ScopeInfo(msgspec.Struct, frozen=True):
    """A scope: what it sets itself. None: it inherits."""

    ref: str
    parent: str | None
    rules: tuple[Rule, ...] | None
    locked: bool


def read_scope(row: Row) -> ScopeInfo:
    return ScopeInfo(row[0], row[1], read_rules(row[2]), bool(row[3]))


def scope_document(scope: ScopeInfo) -> dict[str, Any]:
    rules = None if scope.rules is None else [rule.encoded for rule in scope.rules]
    return {"ref": scope.ref, "parent": scope.parent, "rules": rules, "locked": scope.locked}


def read_rules(text: str | None) -> tuple[Rule, ...] | None:
    if text is None:
        return None
    return tuple(Rule.from_json(value) for value in msgspec.json.decode(text))


def subject_document(subject: Subject, change: int | None = None) -> dict[str, Any]:
    """`change`: the one after which workers arm it, unless it is armed in Python."""
    rules = subject.rules
    return {
        "ref": subject.ref,
        "scope": subject.scope,
        "due_at": subject.due_at,
        "tz": subject.tz,
        "status": subject.status,
        "rules": None if rules is None else [rule.encoded for rule in rules],
        "data": subject.data,
        "recipients": list(subject.recipients),
        "repeats": subject.repeats and subject.repeats.to_json(),
        "change": None if subject.has_plan else change,
    }


def subject_summary(subject: Subject) -> dict[str, Any]:
    rules = subject.rules
    return {
        "scope": subject.scope,
        "due_at": subject.due_at and format_time(subject.due_at),
        "tz": subject.tz,
        "status": subject.status,
        "rules": None if rules is None else [rule.text for rule in rules],
        "recipients": list(subject.recipients),
    } | ({"repeats": subject.repeats.to_json()} if subject.repeats else {})


def rules_that_hold(subject: Subject, scopes: Mapping[str, ScopeInfo]) -> tuple[Rule, ...]:
    """Its own, or those of a scope around it."""
    return resolve_rules(levels_of(subject, scopes)).rules


def levels_of(subject: Subject, scopes: Mapping[str, ScopeInfo]) -> list[Level]:
    return [Level(subject.ref, subject.rules), *levels_from(subject.scope, scopes)]


def levels_from(ref: str | None, scopes: Mapping[str, ScopeInfo]) -> list[Level]:
    """A scope and those around it, from the inside out."""
    levels: list[Level] = []
    while ref is not None and ref in scopes and len(levels) < MAX_LEVELS:
        scope = scopes[ref]
        levels.append(Level(scope.ref, scope.rules, scope.locked))
        ref = scope.parent
    return levels
