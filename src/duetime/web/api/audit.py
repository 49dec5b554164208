"""`/api/v1/audit`."""

from __future__ import annotations

from duetime.app import Duetime
from duetime.domain.audit import AuditEvent, AuditKind
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, Sought
from duetime.web.api.routing import Routes, page_of


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="audit")

    @routes.get("/audit", answer=page_of(AuditEvent))
    async def list_audit(
        entity: Sought = None,
        kind: AuditKind | None = None,
        by: Sought = None,
        limit: Limit = DEFAULT_LIMIT,
        after: After = None,
    ) -> Page[AuditEvent]:
        """List who changed what, newest first.

        `entity`: one thing, such as `job:42`. `kind`: all such things, as `schedule`.
        `by`: who made the change.
        """
        return await app.audit.list(entity=entity, kind=kind, by=by, limit=limit, after=after)

    return routes
