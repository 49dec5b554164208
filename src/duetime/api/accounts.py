"""`app.accounts`: which people may use the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duetime.api.handle import Handle, bound, iterated
from duetime.api.lazy import lazy
from duetime.domain.access.account import (
    MAX_ACCOUNT_NAME,
    Account,
    RoleLike,
    fold_name,
    make_account_name,
    make_password,
    parse_role,
    prepare_password,
)
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_actor, check_sought
from duetime.domain.page import DEFAULT_LIMIT, Page, check_limit, make_page, read_cursor
from duetime.errors import AccountNotFound
from duetime.storage.access.accounts import AccountStatements, StoredPassword

if TYPE_CHECKING:
    from duetime.api.passwords import Passwords
    from duetime.app import Duetime


class Accounts:
    """`app.accounts`: people who log in with a name and a password.

    A change of the password, the role or the right to log in ends all sessions of the account.
    """

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, name: str) -> AccountHandle:
        return AccountHandle(self, check_sought(name, what="account"))

    @lazy
    def _passwords(self) -> Passwords:
        from duetime.api.passwords import Passwords

        return Passwords()

    async def add(
        self, name: str, *, role: RoleLike, password: str, by: str = "unknown", tx: Any = None
    ) -> Account:
        """Add an account. `role`: `viewer`, `operator` or `admin`. Raises `NameTaken`.

        Names do not distinguish upper and lower case. Only the argon2id hash of the password is
        stored.
        """
        stored = make_account_name(name)
        given = parse_role(role)
        actor = check_actor(by)
        hashed = await self._passwords.hash(make_password(password, name=stored))
        added: Account = await self._app._perform(
            lambda dialect: AccountStatements(dialect).add(
                stored, role=given, hashed=hashed, by=actor
            ),
            tx,
        )
        return added

    async def set_password(
        self, name: str, password: str, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Change the password. Raises `AccountNotFound`."""
        stored = _sought(name)
        actor = check_actor(by)
        hashed = await self._passwords.hash(make_password(password, name=stored))
        await self._app._perform(
            lambda dialect: AccountStatements(dialect).set_password(
                stored, hashed=hashed, by=actor
            ),
            tx,
        )

    async def set_role(
        self,
        name: str,
        role: RoleLike,
        *,
        force: bool = False,
        by: str = "unknown",
        tx: Any = None,
    ) -> bool:
        """Change the role; return whether it is a different one.

        Raises `AccountNotFound`, and `LastAdmin` if no other admin could log in, unless `force`.
        """
        stored = _sought(name)
        given = parse_role(role)
        actor = check_actor(by)
        changed: bool = await self._app._perform(
            lambda dialect: AccountStatements(dialect).set_role(
                stored, role=given, by=actor, force=force
            ),
            tx,
        )
        return changed

    async def disable(
        self, name: str, *, force: bool = False, by: str = "unknown", tx: Any = None
    ) -> bool:
        """Refuse logins of the account; return whether that is new.

        Raises `AccountNotFound`, and `LastAdmin` if no other admin could log in, unless `force`.
        """
        stored = _sought(name)
        actor = check_actor(by)
        disabled: bool = await self._app._perform(
            lambda dialect: AccountStatements(dialect).disable(stored, by=actor, force=force), tx
        )
        return disabled

    async def enable(self, name: str, *, by: str = "unknown", tx: Any = None) -> bool:
        """Allow logins again; return whether that is new. Raises `AccountNotFound`."""
        stored = _sought(name)
        actor = check_actor(by)
        enabled: bool = await self._app._perform(
            lambda dialect: AccountStatements(dialect).enable(stored, by=actor), tx
        )
        return enabled

    async def delete(
        self, name: str, *, force: bool = False, by: str = "unknown", tx: Any = None
    ) -> None:
        """Delete the account. What it did stays in the audit.

        Raises `AccountNotFound`, and `LastAdmin` if no other admin could log in, unless `force`.
        """
        stored = _sought(name)
        actor = check_actor(by)
        await self._app._perform(
            lambda dialect: AccountStatements(dialect).delete(stored, by=actor, force=force), tx
        )

    async def get(self, name: str) -> Account:
        """Return the account; raise `AccountNotFound`."""
        stored = _sought(name)
        found: Account | None = await self._app._perform(
            lambda dialect: AccountStatements(dialect).get(stored), reads=True
        )
        if found is None:
            raise AccountNotFound(name)
        return found

    async def list(self, *, limit: int = DEFAULT_LIMIT, after: str | None = None) -> Page[Account]:
        """Return accounts by name. `after`: the `next` of the previous page."""
        position = read_cursor(after, order="accounts", shape=tuple[str])
        most = check_limit(limit) + 1
        found = await self._app._perform(
            lambda dialect: AccountStatements(dialect).find(
                after=position[0] if position else "", limit=most
            ),
            reads=True,
        )
        return make_page(found, limit=limit, order="accounts", position=lambda one: (one.name,))

    iterate = iterated(list)

    async def check_password(self, name: str, password: str) -> Account | None:
        """Return the account if the password is right and it may log in; else None.

        It takes just as long if there is no such account. It does not limit the number of
        attempts: use `app.sessions.log_in` for passwords that people send.
        """
        stored = await self._check_password(name, password)
        return None if stored is None else stored.account

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the account, and when it logged in and out, newest first."""
        return await self._app.audit.list(
            entity=f"account:{_sought(name)}", limit=limit, after=after
        )

    async def _check_password(self, name: str, password: str) -> StoredPassword | None:
        stored: StoredPassword | None = None
        if _is_storable(name):
            stored = await self._app._perform(
                lambda dialect: AccountStatements(dialect).password(fold_name(name)), reads=True
            )
        if not await self._passwords.verify(stored and stored.hashed, password) or stored is None:
            return None
        if stored.account.disabled_at is not None:
            return None
        if self._passwords.is_outdated(stored.hashed):
            await self._rehash(stored, password)
        return stored

    async def _rehash(self, stored: StoredPassword, password: str) -> None:
        new = await self._passwords.hash(prepare_password(password))
        await self._app._perform(
            lambda dialect: AccountStatements(dialect).rehash(
                stored.account.name, old=stored.hashed, new=new
            )
        )


class AccountHandle(Handle[Accounts, str]):
    """One account, by its name."""

    @property
    def name(self) -> str:
        return self._ref

    get = bound(Accounts.get)
    set_password = bound(Accounts.set_password)
    set_role = bound(Accounts.set_role)
    disable = bound(Accounts.disable)
    enable = bound(Accounts.enable)
    delete = bound(Accounts.delete)
    audit = bound(Accounts.audit)


def _sought(name: str) -> str:
    return fold_name(check_sought(name, what="account"))


def _is_storable(name: str) -> bool:
    return len(name) <= 4 * MAX_ACCOUNT_NAME and name.isprintable()
