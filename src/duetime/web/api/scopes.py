"""`/api/v1/scopes`."""

from __future__ import annotations

from typing import Any

import msgspec

from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.domain.reminders.explain_scope import ScopeChange
from duetime.storage.reminders.rows import ScopeInfo
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, Name, NamePath, Rules, rules_answer
from duetime.web.api.routing import Routes, page_of


class ScopeBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a scope sets itself."""

    parent: Name | None = None
    remind: Rules | None = None
    """Null: it inherits its parent's."""
    locked: bool = False
    """Levels inside it cannot set other rules."""


class ScopeAnswer(msgspec.Struct):
    """A scope, with what it sets itself."""

    ref: str
    parent: str | None
    rules: list[dict[str, Any]] | None
    """As `remind` takes them; null: it inherits."""
    locked: bool


class ScopePutAnswer(msgspec.Struct):
    result: str
    """`added`, `changed` or `same`."""
    affected: int
    """Open subjects below it that were armed again."""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="scopes")

    @routes.get("/scopes", answer=page_of(ScopeAnswer))
    async def list_scopes(limit: Limit = DEFAULT_LIMIT, after: After = None) -> Page[ScopeAnswer]:
        """List scopes by reference, with their own settings."""
        found = await app.scopes.list(limit=limit, after=after)
        return Page(map(_answer, found), next=found.next)

    @routes.get("/scopes/{ref}", answer=ScopeAnswer, problems=[404])
    async def get_scope(ref: NamePath) -> ScopeAnswer:
        """Show a scope with its own settings."""
        return _answer(await app.scopes.get(ref))

    @routes.put(
        "/scopes/{ref}",
        body=ScopeBody,
        example={"parent": "guild:1", "remind": ["-7d", "-1h"]},
        answer=ScopePutAnswer,
        problems=[404],
    )
    async def put_scope(ref: NamePath, body: Any, visitor: Visitor) -> ScopePutAnswer:
        """Add a scope or change it. The rules of the open subjects below it are applied again."""
        put = await app.scopes.put(
            ref, parent=body.parent, remind=body.remind, locked=body.locked, by=visitor.name
        )
        return ScopePutAnswer(str(put), put.affected)

    @routes.delete("/scopes/{ref}", problems=[404])
    async def delete_scope(ref: NamePath, visitor: Visitor) -> None:
        """Delete a scope with nothing inside it."""
        await app.scopes.delete(ref, by=visitor.name)

    @routes.get("/scopes/{ref}/explain", answer=Explanation, problems=[404])
    async def explain_scope(ref: NamePath) -> Explanation:
        """Explain which rules apply in a scope, and which level they come from."""
        return await app.scopes.explain(ref)

    @routes.get("/scopes/{ref}/changes", answer=list[ScopeChange])
    async def list_scope_changes(ref: NamePath) -> list[ScopeChange]:
        """List what workers have yet to apply: changes of a scope, and of scopes around it."""
        return await app.scopes.changes(ref)

    @routes.get("/scopes/{ref}/audit", answer=page_of(AuditEvent))
    async def audit_scope(
        ref: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed a scope, newest first."""
        return await app.scopes.audit(ref, limit=limit, after=after)

    return routes


def _answer(scope: ScopeInfo) -> ScopeAnswer:
    return ScopeAnswer(scope.ref, scope.parent, rules_answer(scope.rules), scope.locked)
