"""What is done to accounts, as statements without I/O."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from duetime.domain.access.account import Account, Role
from duetime.domain.audit import make_event
from duetime.errors import AccountNotFound, LastAdmin, NameTaken
from duetime.storage.store import Dialect, Row, Statement, Statements


class StoredPassword(NamedTuple):
    """What a login is checked against."""

    account: Account
    hashed: str
    stamp: str
    """Changed with the password, the role and the right to log in: older sessions are over."""

    def __repr__(self) -> str:
        return f"StoredPassword(account={self.account!r})"


class AccountStatements:
    """Every method is one transaction. Who may take away the last admin locks all admins, by name;
    then the account; then its sessions."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def add(self, name: str, *, role: Role, hashed: str, by: str) -> Statements:
        """Store an account; raise `NameTaken`."""
        given = {"name": name, "role": role, "hash": hashed, "stamp": _stamp(), "by": by}
        rows = yield from self._dialect.run("account_add", given)
        if not rows:
            raise NameTaken("account", name, hint="Change that one")
        account = self._read(rows[0])
        yield from self._audit("add", name, by=by, after=_shown(account))
        return account

    def set_password(self, name: str, *, hashed: str, by: str) -> Statements:
        """Change the password and end all sessions."""
        before = yield from self._lock(name)
        after = yield from self._change(name, "account_set_password", {"hash": hashed})
        yield from self._audit("set_password", name, by=by, before=before, after=after)

    def set_role(self, name: str, *, role: Role, by: str, force: bool) -> Statements:
        """Change the role and end all sessions; return whether it was another one."""
        admins = yield from self._lock_admins()
        before = yield from self._lock(name)
        if before.role is role:
            return False
        _check_admins(admins, name, force=force)
        after = yield from self._change(name, "account_set_role", {"role": role})
        yield from self._audit("set_role", name, by=by, before=before, after=after)
        return True

    def disable(self, name: str, *, by: str, force: bool) -> Statements:
        """Refuse logins and end all sessions; return whether that is new."""
        admins = yield from self._lock_admins()
        before = yield from self._lock(name)
        if before.disabled_at is not None:
            return False
        _check_admins(admins, name, force=force)
        after = yield from self._change(name, "account_disable", {"by": by})
        yield from self._audit("disable", name, by=by, before=before, after=after)
        return True

    def enable(self, name: str, *, by: str) -> Statements:
        """Allow logins again; return whether that is new."""
        before = yield from self._lock(name)
        if before.disabled_at is None:
            return False
        after = yield from self._change(name, "account_enable", {})
        yield from self._audit("enable", name, by=by, before=before, after=after)
        return True

    def delete(self, name: str, *, by: str, force: bool) -> Statements:
        """Remove the account and its sessions."""
        admins = yield from self._lock_admins()
        before = yield from self._lock(name)
        _check_admins(admins, name, force=force)
        yield from self._dialect.run("session_end_all", {"account": name})
        yield from self._dialect.run("account_delete", {"name": name})
        yield from self._audit("delete", name, by=by, before=before)

    def get(self, name: str) -> Statements:
        """Return the account or None. Reads only."""
        rows = yield from self._dialect.run("account_get", {"name": name})
        return self._read(rows[0]) if rows else None

    def find(self, *, after: str, limit: int) -> Statements:
        """Return accounts by name. Reads only."""
        rows = yield from self._dialect.run("account_list", {"after": after, "limit": limit})
        return [self._read(row) for row in rows]

    def password(self, name: str) -> Statements:
        """Return the `StoredPassword` of an account, or None. Reads only."""
        rows = yield from self._dialect.run("account_password", {"name": name})
        return StoredPassword(self._read(rows[0]), rows[0][8], rows[0][9]) if rows else None

    def rehash(self, name: str, *, old: str, new: str) -> Statements:
        """Store another hash of the same password, unless that has changed meanwhile."""
        yield from self._dialect.run("account_rehash", {"name": name, "old": old, "new": new})

    def _lock_admins(self) -> Generator[Statement, list[Row], frozenset[str]]:
        rows = yield from self._dialect.run("account_lock_admins", {})
        return frozenset(row[0] for row in rows)

    def _lock(self, name: str) -> Generator[Statement, list[Row], Account]:
        rows = yield from self._dialect.run("account_lock", {"name": name})
        if not rows:
            raise AccountNotFound(name)
        return self._read(rows[0])

    def _change(
        self, name: str, statement: str, given: dict[str, Any]
    ) -> Generator[Statement, list[Row], Account]:
        yield from self._dialect.run("session_end_all", {"account": name})
        document = {"name": name, "stamp": _stamp()} | given
        rows = yield from self._dialect.run(statement, document)
        return self._read(rows[0])

    def _audit(
        self,
        action: str,
        name: str,
        *,
        by: str,
        before: Account | None = None,
        after: Any = None,
    ) -> Statements:
        event = make_event(
            by,
            f"account.{action}",
            f"account:{name}",
            before=None if before is None else _shown(before),
            after=_shown(after) if isinstance(after, Account) else after,
        )
        yield from self._dialect.run("audit_write", [event])

    def _read(self, row: Row) -> Account:
        return Account(
            name=row[0],
            role=Role(row[1]),
            created_at=self._dialect.moment(row[2]),
            created_by=row[3],
            password_set_at=self._dialect.moment(row[4]),
            disabled_at=self._maybe_moment(row[5]),
            disabled_by=row[6],
            last_login_at=self._maybe_moment(row[7]),
        )

    def _maybe_moment(self, value: Any) -> datetime | None:
        return None if value is None else self._dialect.moment(value)


def _check_admins(admins: frozenset[str], name: str, *, force: bool) -> None:
    if admins == {name} and not force:
        raise LastAdmin(name)


def _shown(account: Account) -> dict[str, Any]:
    return dict(msgspec.to_builtins(account))


def _stamp() -> str:
    return secrets.token_hex(16)
