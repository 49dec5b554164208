"""What is done to scopes, as statements without I/O."""

from __future__ import annotations

from collections.abc import Mapping

from duetime.domain.change import Put
from duetime.domain.reasons import read_reason
from duetime.domain.reminders.explain_scope import ScopeChange
from duetime.errors import InvalidInput
from duetime.storage.reminders.arming import ArmingStatements
from duetime.storage.reminders.rows import (
    MAX_LEVELS,
    ScopeInfo,
    levels_from,
    read_scope,
    scope_document,
)
from duetime.storage.store import Statements


class ScopeStatements(ArmingStatements):
    """Every method is one transaction."""

    def put_scope(self, scope: ScopeInfo, *, actor: str) -> Statements:
        """Store it, and have every open subject below armed again: a few at once, many by workers.
        Return what that did."""
        yield from self._dialect.run("scope_own", {"ref": scope.ref})
        names = [scope.ref, *([scope.parent] if scope.parent else [])]
        if scope.parent is not None:
            yield from self._dialect.run("scope_queue", [scope.parent])
        known = yield from self._scopes(names)
        before = known.get(scope.ref)
        if scope.parent is not None:
            inside = 0
            if before is not None and before.parent != scope.parent:
                yield from self._dialect.run("scope_turn", {})
                known = yield from self._scopes(names)
                [(inside,)] = yield from self._dialect.run("scope_depth", {"ref": scope.ref})
            _check_parent(scope, known, inside)
        # Also one that says the same: it is the application's from now on.
        yield from self._dialect.run("scope_take_over", {"ref": scope.ref})
        if before == scope:
            return Put("same", affected=0)
        document = scope_document(scope)
        yield from self._dialect.run("scope_put", [document])
        count = 0 if before is None else (yield from self._rearm_below(scope.ref))
        yield from self._audit(
            actor, "scope.put", f"scope:{scope.ref}", before and scope_document(before), document
        )
        return Put("added" if before is None else "changed", affected=count)

    def delete_scope(self, ref: str, *, actor: str) -> Statements:
        """Return whether it was there; raise `InvalidInput` if something is inside it."""
        yield from self._dialect.run("scope_own", {"ref": ref})
        known = yield from self._scopes([ref])
        if ref not in known:
            return False
        [(scopes, subjects)] = yield from self._dialect.run("scope_used", {"ref": ref})
        if scopes or subjects:
            raise InvalidInput(
                f"Inside the scope {ref!r} are {_count(scopes, 'scope')} and "
                f"{_count(subjects, 'subject')}. Put them "
                "elsewhere or delete them first. For no reminders, give it no rules: remind=[]."
            )
        yield from self._dialect.run("scope_delete", {"ref": ref})
        before = scope_document(known[ref])
        yield from self._audit(actor, "scope.delete", f"scope:{ref}", before, None)
        return True

    def scopes(self, *, after: str = "", limit: int | None = None) -> Statements:
        """Return scopes by reference, those after one of them. Reads only."""
        rows = yield from self._dialect.run("scope_list", {"after": after, "limit": limit})
        return [read_scope(row) for row in rows]

    def scope(self, ref: str) -> Statements:
        """Return the scope or None. Reads only."""
        rows = yield from self._dialect.run("scope_get", {"ref": ref})
        return read_scope(rows[0]) if rows else None

    def levels_of_scope(self, ref: str) -> Statements:
        """The chain of rules, from the scope outwards; empty if there is no such scope. Reads
        only, in one statement."""
        rows = yield from self._dialect.run("scope_levels", {"ref": ref})
        problems = {row[0]: read_reason(row[4]) for row in rows}
        levels = levels_from(ref, {row[0]: read_scope(row) for row in rows})
        return [level._replace(problem=problems[level.name]) for level in levels]

    def changes_of_scope(self, ref: str) -> Statements:
        """Return its changes, and those of scopes around it, that workers have yet to follow."""
        rows = yield from self._dialect.run("scope_progress", {"ref": ref})
        return [ScopeChange(row[0], self._dialect.moment(row[1]), row[2], row[3]) for row in rows]


def _check_parent(scope: ScopeInfo, known: Mapping[str, ScopeInfo], inside: int) -> None:
    """`inside`: how many levels of scopes come with it."""
    if scope.parent not in known:
        raise InvalidInput(f"There is no scope {scope.parent!r}. Create the parent first.")
    ref: str | None = scope.parent
    depth = 1
    # Rows of tables that are written at the same time may be inside each other.
    while ref is not None and ref in known and depth <= MAX_LEVELS:
        if ref == scope.ref:
            raise InvalidInput(f"The scope {scope.ref!r} cannot be inside itself.")
        ref = known[ref].parent
        depth += 1
    if depth + inside > MAX_LEVELS:
        what = f", with {_count(inside, 'level')} inside it" if inside else ""
        raise InvalidInput(
            f"Scopes are at most {MAX_LEVELS} levels deep; {scope.ref!r} would be at level "
            f"{depth}{what}. Put it into a scope further out."
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
