"""Whatever a text may name: a job, a schedule, a subject and so on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

MatchKind = Literal[
    "job", "flow", "reminder", "schedule", "task", "queue", "subject", "recipient", "scope",
    "worker", "table",
]  # fmt: skip
KINDS: tuple[MatchKind, ...] = (
    "job", "flow", "reminder", "schedule", "task", "queue", "subject", "recipient", "scope",
    "worker", "table",
)  # fmt: skip
_RANKS = {kind: rank for rank, kind in enumerate(KINDS)}


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was found."""

    kind: MatchKind
    name: str
    """What it is called: of a job its task, of a run its flow, of a reminder its subject."""
    id: int | None = None
    """Of a job, a run of a flow, or a reminder."""
    detail: str | None = None
    """Such as the state of a job, or when a schedule ticks."""
    exact: bool = False
    """Whether the text is its whole name, key or number."""


def best_first(matches: Iterable[Match], limit: int) -> list[Match]:
    """Sort what was found: what the text names exactly, then by kind and name."""
    return sorted(
        matches, key=lambda one: (not one.exact, _RANKS[one.kind], one.name, -(one.id or 0))
    )[:limit]
