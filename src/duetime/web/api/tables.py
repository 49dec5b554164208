"""`/api/v1/tables`: the tables whose rows are subjects. Only admins change what is tracked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duetime.app import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reminders.tracking import TableKind
from duetime.storage.reminders.tracking import TrackedInfo
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, NamePath, Rules, given
from duetime.web.api.routing import Routes, page_of

Column = Annotated[str, Meta(min_length=1, max_length=200)]


class TableBody(msgspec.Struct, forbid_unknown_fields=True):
    """How the rows of a table become subjects or scopes. Names of columns, unless said
    otherwise."""

    table: Column
    id: Annotated[list[Column], Meta(min_length=1, max_length=16)]
    due: Column | None = None
    """Required of a table of subjects."""
    kind: TableKind = "subjects"
    """What the rows are."""
    scope: Annotated[str, Meta(min_length=1, max_length=400)] | None = None
    """A column, or a pattern such as `channel:{channel_id}`."""
    parent: Annotated[str, Meta(min_length=1, max_length=400)] | None = None
    """Of a table of scopes: the scope around each, as `scope`."""
    locked: Column | None = None
    """Of a table of scopes: whether levels inside may set other rules."""
    tz: Column | None = None
    due_tz: Column | None = None
    recipients: Column | None = None
    data: Annotated[list[Column], Meta(max_length=100)] = []
    when: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """A condition of SQL: a row for which it is not true has no reminders."""
    remind: Rules | None = None
    """Rules, or one text: the column that holds those of each row."""


class TablePutAnswer(msgspec.Struct):
    result: str
    """`added`, `changed` or `same`."""
    rows: int


class TableDeleteAnswer(msgspec.Struct):
    subjects: int
    """The subjects or scopes that were removed. The table itself stays."""


class TablePlan(msgspec.Struct):
    statements: Sequence[str]


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="tables")

    @routes.get("/tables", answer=page_of(TrackedInfo), scope=TokenScope.ADMIN)
    async def list_tables(limit: Limit = DEFAULT_LIMIT, after: After = None) -> Page[TrackedInfo]:
        """List tracked tables by name, and what is wrong with each."""
        return await app.tables.list(limit=limit, after=after)

    @routes.get("/tables/{name}", answer=TrackedInfo, scope=TokenScope.ADMIN, problems=[404])
    async def get_table(name: NamePath) -> TrackedInfo:
        """Show what is tracked under a name, and what is wrong with it."""
        return await app.tables.get(name)

    @routes.put(
        "/tables/{name}",
        body=TableBody,
        example={"table": "games", "id": ["id"], "due": "starts_at", "remind": ["-1h"]},
        answer=TablePutAnswer,
        scope=TokenScope.ADMIN,
    )
    async def put_table(name: NamePath, body: Any, visitor: Visitor) -> TablePutAnswer:
        """Make the rows of a table subjects or scopes, by triggers on it."""
        put = await app.tables.put(body.table, name=name, by=visitor.name, **given(body, "table"))
        return TablePutAnswer(str(put), put.affected)

    @routes.post("/tables/{name}/plan", body=TableBody, answer=TablePlan, scope=TokenScope.ADMIN)
    async def plan_table(name: NamePath, body: Any) -> TablePlan:
        """Show the SQL that a put would run on the table, and run none of it."""
        options: Any = given(body, "table")
        return TablePlan(await app.tables.plan(body.table, name=name, **options))

    @routes.delete(
        "/tables/{name}", answer=TableDeleteAnswer, scope=TokenScope.ADMIN, problems=[404]
    )
    async def delete_table(name: NamePath, visitor: Visitor) -> TableDeleteAnswer:
        """Remove the triggers, then the subjects with their reminders. The table itself stays."""
        return TableDeleteAnswer(await app.tables.delete(name, by=visitor.name))

    @routes.get("/tables/{name}/audit", answer=page_of(AuditEvent), scope=TokenScope.ADMIN)
    async def audit_table(
        name: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed what is tracked under a name, newest first."""
        return await app.tables.audit(name, limit=limit, after=after)

    return routes
