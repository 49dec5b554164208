"""`app.scopes`: levels that carry rules, which those inside inherit."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from duetime.api.handle import Handle, bound, iterated
from duetime.api.subjects import perform
from duetime.domain.audit import AuditEvent
from duetime.domain.change import Put
from duetime.domain.checks import check_actor, check_name, check_sought
from duetime.domain.page import DEFAULT_LIMIT, Page, check_limit, make_page, read_cursor
from duetime.domain.reasons import Explanation
from duetime.domain.reminders.explain_scope import ScopeChange, explain_scope
from duetime.domain.reminders.rule_text import RulesLike, parse_rules
from duetime.errors import InvalidInput, ScopeNotFound
from duetime.storage.reminders.rows import ScopeInfo

if TYPE_CHECKING:
    from duetime.app import Duetime


class Scopes:
    """`app.scopes`. `app.scopes["guild:1"]` is one of them."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, ref: str) -> ScopeHandle:
        return ScopeHandle(self, check_sought(ref, what="scope"))

    async def put(
        self,
        ref: str,
        *,
        parent: str | None = None,
        remind: RulesLike | None = None,
        locked: bool = False,
        by: str = "unknown",
        tx: Any = None,
    ) -> Put:
        """Add or change a scope; return `added`, `changed` or `same`.

        `remind`: rules such as `["-7d", "-1h"]`; `[]` means none, None inherits the parent's.
        `locked`: levels inside cannot set other rules. `affected` of the result: how many open
        subjects are inside it. Up to 500 are rearmed at once; if there are more, workers rearm
        them, nearest first (`changes` says how many are left).
        """
        if not isinstance(locked, bool):
            raise InvalidInput(f"locked must be True or False, got {locked!r}.")
        scope = ScopeInfo(
            check_name(ref, what="scope"),
            None if parent is None else check_name(parent, what="parent"),
            None if remind is None else parse_rules(remind),
            locked,
        )
        actor = check_actor(by)
        put: Put = await perform(self._app, lambda s: s.put_scope(scope, actor=actor), tx)
        return put

    async def get(self, ref: str) -> ScopeInfo:
        """Return the scope with its own settings; raise `ScopeNotFound`."""
        name = check_sought(ref, what="scope")
        found: ScopeInfo | None = await perform(self._app, lambda s: s.scope(name), reads=True)
        if found is None:
            raise ScopeNotFound(ref)
        return found

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[ScopeInfo]:
        """Return scopes by reference, with their own settings.

        `after`: the `next` of the previous page.
        """
        position = read_cursor(after, order="scopes", shape=tuple[str])
        most = check_limit(limit) + 1
        found = await perform(
            self._app,
            lambda s: s.scopes(after=position[0] if position else "", limit=most),
            reads=True,
        )
        return make_page(found, limit=limit, order="scopes", position=lambda scope: (scope.ref,))

    iterate = iterated(list)

    async def delete(self, ref: str, *, by: str = "unknown", tx: Any = None) -> None:
        """Delete a scope with nothing inside it; raise `ScopeNotFound`."""
        actor = check_actor(by)
        name = check_sought(ref, what="scope")
        if not await perform(self._app, lambda s: s.delete_scope(name, actor=actor), tx):
            raise ScopeNotFound(ref)

    async def explain(self, ref: str) -> Explanation:
        """Explain which rules apply in the scope, and which level they come from.

        Raises `ScopeNotFound`.
        """
        name = check_sought(ref, what="scope")
        levels = await perform(self._app, lambda s: s.levels_of_scope(name), reads=True)
        if not levels:
            raise ScopeNotFound(ref)
        return explain_scope(levels, await self.changes(ref))

    async def changes(self, ref: str) -> builtins.list[ScopeChange]:
        """Return the changes of the scope, and of scopes around it, that workers have not applied
        to all subjects yet: how many subjects there are, and how many are left."""
        name = check_sought(ref, what="scope")
        found: builtins.list[ScopeChange] = await perform(
            self._app, lambda s: s.changes_of_scope(name), reads=True
        )
        return found

    async def audit(
        self, ref: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the scope, newest first."""
        entity = f"scope:{check_sought(ref, what='scope')}"
        return await self._app.audit.list(entity=entity, limit=limit, after=after)


class ScopeHandle(Handle[Scopes, str]):
    """One scope, by its reference."""

    @property
    def ref(self) -> str:
        return self._ref

    put = bound(Scopes.put)
    get = bound(Scopes.get)
    delete = bound(Scopes.delete)
    explain = bound(Scopes.explain)
    changes = bound(Scopes.changes)
    audit = bound(Scopes.audit)
