"""Who changed what: one event for each change that people make."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

from duetime.domain.checks import check_text
from duetime.errors import InvalidInput

AuditKind = Literal[
    "job",
    "queue",
    "schedule",
    "preset",
    "scope",
    "subject",
    "recipient",
    "table",
    "token",
    "account",
]
KINDS: tuple[AuditKind, ...] = get_args(AuditKind)


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what, and when."""

    id: int
    at: datetime
    actor: str
    action: str
    """What was done, such as `job.cancel`."""
    entity: str
    """To what it was done, such as `job:42`."""
    before: Any
    after: Any
    reason: str | None


def make_event(
    actor: str,
    action: str,
    entity: str,
    *,
    before: Any = None,
    after: Any = None,
    reason: str | None = None,
) -> dict[str, Any]:
    """Return an event as it is written."""
    return {
        "actor": actor,
        "action": action,
        "entity": entity,
        "before": before,
        "after": after,
        "reason": reason,
    }


def check_entity(entity: Any) -> str:
    """Return `entity` if the audit can have events of it, such as `job:42`."""
    kind, colon, ref = entity.partition(":") if isinstance(entity, str) else ("", "", "")
    if kind not in KINDS or not colon or not ref:
        known = ", ".join(f"{kind}:…" for kind in KINDS)
        raise InvalidInput(f"{entity!r:.60} cannot be audited. Use one of: {known}.")
    return check_text(str(entity), what="The audited thing (entity=)")


def check_kind(kind: Any) -> str:
    """Return `kind` if the audit has events of such things."""
    if kind not in KINDS:
        raise InvalidInput(f"{kind!r:.60} cannot be audited. Use one of: {', '.join(KINDS)}.")
    return str(kind)
