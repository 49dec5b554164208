"""`Client`: the nouns of the Python API, over HTTP."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from duetime.api.lazy import lazy
from duetime.api.portal import Portal
from duetime.client.access import Accounts, Tokens
from duetime.client.audit import Audit
from duetime.client.connection import Connection
from duetime.client.flows import Flows
from duetime.client.jobs import Jobs
from duetime.client.queues import Queues
from duetime.client.recipients import Recipients
from duetime.client.reminders import Reminders
from duetime.client.schedules import Schedules
from duetime.client.scopes import Scopes
from duetime.client.stats import Stats
from duetime.client.subjects import Subjects
from duetime.client.tables import Tables
from duetime.client.workers import Workers
from duetime.domain.access.visitor import Visitor
from duetime.domain.duration import Duration
from duetime.domain.reminders.delivery import ReceiptStatus

T = TypeVar("T")


class _Received(msgspec.Struct):
    changed: int


class Client:
    """A service as its programs see it: `Client("https://jobs.example.com", token="dt_…")`.

    The nouns, verbs, values and errors are those of the Python API; who changes something is the
    token. `client.sync(client.jobs.get(7))` calls it from sync code. Other options are those of
    `httpx2.AsyncClient`, such as `verify=` and `proxy=`.
    """

    def __init__(self, url: str, token: str, *, timeout: Duration = "30s", **options: Any) -> None:
        connection = Connection(url, token, timeout=timeout, **options)
        self._connection = connection
        self.jobs = Jobs(connection)
        self.queues = Queues(connection)
        self.schedules = Schedules(connection)
        self.scopes = Scopes(connection)
        self.subjects = Subjects(connection)
        self.recipients = Recipients(connection)
        self.reminders = Reminders(connection)
        self.flows = Flows(connection)
        self.tables = Tables(connection)
        self.workers = Workers(connection)
        self.audit = Audit(connection)
        self.stats = Stats(connection)
        self.tokens = Tokens(connection)
        self.accounts = Accounts(connection)

    def __repr__(self) -> str:
        return f"<client with a {self._connection!r}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def visitor(self) -> Visitor:
        """Return whose token this is, and its scope."""
        return await self._connection.call("GET /visitor", Visitor)

    async def receipt(
        self,
        external_id: str | None,
        status: ReceiptStatus,
        *,
        key: str | None = None,
        reason: str | None = None,
        channel: str | None = None,
    ) -> int:
        """Record what a provider reports later: `delivered`, `bounced`, `failed`, `acknowledged`.

        Returns how many deliveries changed. See `app.receipt`.
        """
        body = {
            "external_id": external_id,
            "status": status,
            "key": key,
            "reason": reason,
            "channel": channel,
        }
        return (await self._connection.call("POST /receipts", _Received, body=body)).changed

    def sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run any of the client's coroutines from sync code."""
        return self._portal.call(coroutine)

    async def close(self) -> None:
        """Close this event loop's connections. The client can be used again afterwards."""
        await self._connection.close()

    @lazy
    def _portal(self) -> Portal:
        return Portal(self.close, self._connection.forget)
