"""`app.scopes`: levels that carry rules, which those inside inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duetime.api.subjects import perform
from duetime.domain.jobs.job import check_name, check_sought
from duetime.domain.reminders.rule_text import RulesLike, parse_rules
from duetime.errors import InvalidInput
from duetime.storage.reminders.reminders import ScopeInfo

if TYPE_CHECKING:
    from duetime.app import Duetime


class Scopes:
    """`app.scopes`: levels that carry rules, which those inside inherit."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def put(
        self,
        ref: str,
        *,
        parent: str | None = None,
        remind: RulesLike | None = None,
        locked: bool = False,
        by: str = "unknown",
        tx: Any = None,
    ) -> int:
        """Add or change a scope; return how many open subjects below it were looked at again.

        `remind`: rules such as `["-7d", "-1h"]`; `[]` means none, None inherits the parent's.
        `locked`: levels inside cannot set others.
        """
        if not isinstance(locked, bool):
            raise InvalidInput(f"locked must be True or False, got {locked!r}.")
        scope = ScopeInfo(
            check_name(ref, what="scope"),
            None if parent is None else check_name(parent, what="parent"),
            None if remind is None else parse_rules(remind),
            locked,
        )
        actor = check_name(by, what="actor (by=)")
        count: int = await perform(self._app, lambda s: s.put_scope(scope, actor=actor), tx)
        return count

    async def delete(self, ref: str, *, by: str = "unknown", tx: Any = None) -> bool:
        """Delete a scope with nothing inside it; return whether it was there."""
        actor = check_name(by, what="actor (by=)")
        name = check_sought(ref, what="scope")
        gone: bool = await perform(self._app, lambda s: s.delete_scope(name, actor=actor), tx)
        return gone

    async def all(self) -> list[ScopeInfo]:
        """Return every scope, with what it says itself."""
        scopes: list[ScopeInfo] = await perform(self._app, lambda s: s.scopes(), reads=True)
        return scopes
