"""Jobs counted by state, queue and task, and their errors by kind."""

from __future__ import annotations

import re
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from duetime.domain.count import Count
from duetime.domain.jobs.job import JobState

MOST_COUNTED = 10_000
"""Of each state. What is more is `10,000+`."""
MOST_GROUPED = 5_000
"""Errors, the newest first."""
FAILED = (JobState.DEAD, JobState.CANCELLED, JobState.EXPIRED, JobState.SUPERSEDED)
"""The states of jobs that are finished and have not completed."""
_LONGEST = 200
_VARYING = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?:0x[0-9a-fA-F]+|(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,})\b"), "<id>"),
    (re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\""), "<text>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<number>"),
    (re.compile(r"\s+"), " "),
)


class JobFacets(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs match, by state, queue and task."""

    states: dict[JobState, Count]
    """Of every state, whatever `state=` says."""
    queues: dict[str, Count]
    tasks: dict[str, Count]


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one task that failed in the same way."""

    task: str
    error_code: str | None
    message: str
    """What their errors have in common: `order <number> not found`."""
    fingerprint: str
    """Short, and the same for the same task, code and message."""
    count: Count
    first_at: datetime
    last_at: datetime
    example: int
    """The newest of the jobs."""
    error: str | None
    """The error of that job."""


class SimilarErrors(msgspec.Struct):
    """Some jobs of one task and code whose messages differ by digits, as they were counted."""

    task: str
    error_code: str | None
    count: int
    first_at: datetime
    last_at: datetime
    example: int
    error: str | None = None


def describe_kind(message: str | None) -> str:
    """Return what errors of one kind have in common: numbers, ids and quoted text are left out.

    >>> describe_kind("order 17 of 'ann' not found at 0x7f12e9511dd0")
    'order <number> of <text> not found at <id>'
    """
    text = (message or "").strip().partition("\n")[0][: 2 * _LONGEST]
    for pattern, placeholder in _VARYING:
        text = pattern.sub(placeholder, text)
    return text[:_LONGEST]


def group_errors(found: list[SimilarErrors], *, is_complete: bool) -> list[ErrorGroup]:
    """Return the groups, the largest first."""
    groups: dict[tuple[Any, ...], SimilarErrors] = {}
    for each in found:
        kind = (each.task, each.error_code, describe_kind(each.error))
        group = groups.setdefault(kind, each)
        if group is not each:
            newest = max(group, each, key=lambda one: one.example)
            groups[kind] = SimilarErrors(
                each.task,
                each.error_code,
                group.count + each.count,
                min(group.first_at, each.first_at),
                max(group.last_at, each.last_at),
                newest.example,
                newest.error,
            )
    largest = sorted(groups.items(), key=lambda item: (-item[1].count, -item[1].example))
    return [
        ErrorGroup(
            task=group.task,
            error_code=group.error_code,
            message=kind[2],
            fingerprint=sha256(msgspec.json.encode(kind)).hexdigest()[:12],
            count=Count(group.count, "exact" if is_complete else "at_least"),
            first_at=group.first_at,
            last_at=group.last_at,
            example=group.example,
            error=group.error,
        )
        for kind, group in largest
    ]
