"""`client.audit`."""

from __future__ import annotations

from duetime.api.handle import iterated
from duetime.client.connection import Connection
from duetime.domain.audit import AuditEvent, AuditKind
from duetime.domain.page import DEFAULT_LIMIT, Page


class Audit:
    """`client.audit`: the verbs of `app.audit`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(
        self,
        *,
        entity: str | None = None,
        kind: AuditKind | None = None,
        by: str | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[AuditEvent]:
        """Return who changed what, newest first."""
        query = {"entity": entity, "kind": kind, "by": by, "limit": limit, "after": after}
        return await self._connection.page("GET /audit", AuditEvent, query=query)

    iterate = iterated(list)
