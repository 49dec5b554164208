"""`client.workers`."""

from __future__ import annotations

from duetime.api.handle import iterated
from duetime.client.connection import Connection
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.storage.store import WorkerInfo


class Workers:
    """`client.workers`: the verbs of `app.workers`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[WorkerInfo]:
        """Return the live workers, and those whose jobs are still to be rescued."""
        query = {"limit": limit, "after": after}
        return await self._connection.page("GET /workers", WorkerInfo, query=query)

    iterate = iterated(list)
