"""`client.scopes`."""

from __future__ import annotations

import builtins
from typing import Any, Literal

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.client.connection import Connection
from duetime.domain.audit import AuditEvent
from duetime.domain.change import Put
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.domain.reminders.explain_scope import ScopeChange
from duetime.domain.reminders.rule_text import RulesLike, parse_rules, write_rule
from duetime.storage.reminders.rows import ScopeInfo


class _Scope(msgspec.Struct):
    ref: str
    parent: str | None
    rules: list[dict[str, Any]] | None
    locked: bool


class _Put(msgspec.Struct):
    result: Literal["added", "changed", "same"]
    affected: int


class Scopes:
    """`client.scopes`: the verbs of `app.scopes`. `client.scopes["guild:1"]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, ref: str) -> ScopeHandle:
        return ScopeHandle(self, ref)

    async def put(
        self,
        ref: str,
        *,
        parent: str | None = None,
        remind: RulesLike | None = None,
        locked: bool = False,
    ) -> Put:
        """Add or change a scope; return `added`, `changed` or `same`.

        `affected` of the result: how many open subjects below it were armed again.
        """
        body = {"parent": parent, "remind": rules_body(remind), "locked": locked}
        answer = await self._connection.call("PUT /scopes/{ref}", _Put, body=body, ref=ref)
        return Put(answer.result, affected=answer.affected)

    async def get(self, ref: str) -> ScopeInfo:
        """Return the scope with its own settings; raise `ScopeNotFound`."""
        return _info(await self._connection.call("GET /scopes/{ref}", _Scope, ref=ref))

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[ScopeInfo]:
        """Return scopes by reference, with their own settings."""
        query = {"limit": limit, "after": after}
        page = await self._connection.page("GET /scopes", _Scope, query=query)
        return Page(map(_info, page), next=page.next)

    iterate = iterated(list)

    async def delete(self, ref: str) -> None:
        """Delete a scope with nothing inside it; raise `ScopeNotFound`."""
        await self._connection.call("DELETE /scopes/{ref}", ref=ref)

    async def explain(self, ref: str) -> Explanation:
        """Explain which rules apply in the scope, and which level they come from."""
        return await self._connection.call("GET /scopes/{ref}/explain", Explanation, ref=ref)

    async def changes(self, ref: str) -> builtins.list[ScopeChange]:
        """Return the changes of the scope, and of scopes around it, that workers have not applied
        to all subjects yet: how many subjects there are, and how many are left."""
        return await self._connection.call(
            "GET /scopes/{ref}/changes", builtins.list[ScopeChange], ref=ref
        )

    async def audit(
        self, ref: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the scope, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /scopes/{ref}/audit", AuditEvent, query=query, ref=ref
        )


class ScopeHandle(Handle[Scopes, str]):
    """One scope of the service, by its reference."""

    put = bound(Scopes.put)
    get = bound(Scopes.get)
    delete = bound(Scopes.delete)
    explain = bound(Scopes.explain)
    changes = bound(Scopes.changes)
    audit = bound(Scopes.audit)


def rules_body(rules: RulesLike | None) -> list[dict[str, Any]] | None:
    """Rules as the service takes them."""
    return None if rules is None else [write_rule(rule) for rule in parse_rules(rules)]


def _info(scope: _Scope) -> ScopeInfo:
    rules = None if scope.rules is None else parse_rules(scope.rules)
    return ScopeInfo(scope.ref, scope.parent, rules, scope.locked)
