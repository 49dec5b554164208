"""`/api/v1/workers`."""

from __future__ import annotations

from duetime.app import Duetime
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.storage.store import WorkerInfo
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit
from duetime.web.api.routing import Routes, page_of


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="workers")

    @routes.get("/workers", answer=page_of(WorkerInfo))
    async def list_workers(limit: Limit = DEFAULT_LIMIT, after: After = None) -> Page[WorkerInfo]:
        """List the live workers, and those whose jobs are still to be rescued; the oldest first."""
        return await app.workers.list(limit=limit, after=after)

    return routes
