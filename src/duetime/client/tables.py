"""`client.tables`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, Unpack

import msgspec

from duetime.api.handle import iterated
from duetime.client.connection import Connection
from duetime.client.scopes import rules_body
from duetime.domain.audit import AuditEvent
from duetime.domain.change import Put
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reminders.tracking import TableArguments, read_remind
from duetime.storage.reminders.tracking import TrackedInfo


class _Put(msgspec.Struct):
    result: Any
    rows: int


class _Deleted(msgspec.Struct):
    subjects: int


class _Plan(msgspec.Struct):
    statements: list[str]


class Tables:
    """`client.tables`: the verbs of `app.tables`, for admins."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, table: str, **options: Unpack[TableArguments]) -> Put:
        """Make the rows of a table of the service's database subjects or scopes, by triggers on
        it."""
        name, body = _body(table, options)
        answer = await self._connection.call("PUT /tables/{name}", _Put, body=body, name=name)
        return Put(answer.result, affected=answer.rows)

    async def plan(self, table: str, **options: Unpack[TableArguments]) -> builtins.list[str]:
        """Return the SQL that `put` would run on the table, and run none of it."""
        name, body = _body(table, options)
        answer = await self._connection.call(
            "POST /tables/{name}/plan", _Plan, body=body, name=name
        )
        return answer.statements

    async def get(self, name: str) -> TrackedInfo:
        """Return what is tracked under the name, and what is wrong with it."""
        return await self._connection.call("GET /tables/{name}", TrackedInfo, name=name)

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[TrackedInfo]:
        """Return tracked tables by name, and what is wrong with each."""
        query = {"limit": limit, "after": after}
        return await self._connection.page("GET /tables", TrackedInfo, query=query)

    iterate = iterated(list)

    async def delete(self, name: str) -> int:
        """Remove the triggers, then the subjects with their reminders; return how many those were.

        The table itself stays.
        """
        answer = await self._connection.call("DELETE /tables/{name}", _Deleted, name=name)
        return answer.subjects

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed what is tracked under the name, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /tables/{name}/audit", AuditEvent, query=query, name=name
        )


def _body(table: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    given = {"table": table, **options}
    name = given.pop("name", None) or table
    for several in ("id", "data"):
        if isinstance(given.get(several), str):
            given[several] = [given[several]]
    if "remind" in given:
        rules, column = read_remind(given["remind"])
        given["remind"] = [column] if column is not None else rules_body(rules)
    return name, given
