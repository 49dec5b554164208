"""The audit, as statements without I/O, for every backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from duetime.domain.audit import AuditEvent
from duetime.storage.store import Dialect, Statements

_NEWEST = 2**63 - 1


def find_events(
    dialect: Dialect,
    *,
    entity: str | None,
    kind: str | None,
    actor: str | None,
    before_id: int | None,
    limit: int,
) -> Statements:
    """Return events, newest first. Reads only."""
    rows = yield from dialect.run(
        "audit_find" if entity is None else "audit_of",
        {
            "entity": entity,
            "kind": kind,
            "actor": actor,
            "before_id": _NEWEST if before_id is None else before_id,
            "limit": limit,
        },
    )
    return [
        AuditEvent(
            id=row[0], at=dialect.moment(row[1]), actor=row[2], action=row[3],
            entity=row[4], before=_from_json(row[5]), after=_from_json(row[6]), reason=row[7],
        )
        for row in rows
    ]  # fmt: skip


def prune_audit(dialect: Dialect, age: timedelta) -> Statements:
    """Remove some of the events that are older than `age`; return how many."""
    given = {"age": age // timedelta(microseconds=1)}
    return len((yield from dialect.run("audit_prune", given)))


def _from_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
