"""`client.tokens` and `client.accounts`: for admins."""

from __future__ import annotations

import msgspec

from duetime.api.handle import iterated
from duetime.client.connection import Connection
from duetime.domain.access.account import Account, RoleLike
from duetime.domain.access.token import ApiToken, CreatedToken, TokenScopeLike
from duetime.domain.audit import AuditEvent
from duetime.domain.duration import Duration
from duetime.domain.page import DEFAULT_LIMIT, Page


class _Revoked(msgspec.Struct):
    revoked: bool


class _Changed(msgspec.Struct):
    changed: bool


class Tokens:
    """`client.tokens`: the verbs of `app.tokens`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self, name: str, *, scope: TokenScopeLike, expires_in: Duration | None = None
    ) -> CreatedToken:
        """Create a token; its `text` is returned here and never again. Raises `NameTaken`."""
        body = {"name": name, "scope": scope, "expires_in": expires_in}
        return await self._connection.call("POST /tokens", CreatedToken, body=body)

    async def get(self, name: str) -> ApiToken:
        """Return the token, without its text; raise `TokenNotFound`."""
        return await self._connection.call("GET /tokens/{name}", ApiToken, name=name)

    async def list(
        self, *, revoked: bool = False, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[ApiToken]:
        """Return tokens by name, also expired ones; with `revoked`, revoked ones, too."""
        query = {"revoked": revoked, "limit": limit, "after": after}
        return await self._connection.page("GET /tokens", ApiToken, query=query)

    iterate = iterated(list)

    async def revoke(self, name: str) -> bool:
        """Let the token open nothing any more. Returns False if it was revoked before."""
        answer = await self._connection.call("POST /tokens/{name}/revoke", _Revoked, name=name)
        return answer.revoked

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who created and revoked tokens with that name, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /tokens/{name}/audit", AuditEvent, query=query, name=name
        )


class Accounts:
    """`client.accounts`: the verbs of `app.accounts`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, name: str, *, role: RoleLike, password: str) -> Account:
        """Add an account; raise `NameTaken`. Only the hash of the password is stored."""
        body = {"name": name, "role": role, "password": password}
        return await self._connection.call("POST /accounts", Account, body=body)

    async def get(self, name: str) -> Account:
        """Return the account; raise `AccountNotFound`."""
        return await self._connection.call("GET /accounts/{name}", Account, name=name)

    async def list(self, *, limit: int = DEFAULT_LIMIT, after: str | None = None) -> Page[Account]:
        """Return accounts by name."""
        query = {"limit": limit, "after": after}
        return await self._connection.page("GET /accounts", Account, query=query)

    iterate = iterated(list)

    async def set_password(self, name: str, password: str) -> None:
        """Change the password of the account, and end its sessions."""
        body = {"password": password}
        await self._connection.call("POST /accounts/{name}/set_password", body=body, name=name)

    async def set_role(self, name: str, role: RoleLike) -> bool:
        """Change the role of the account, and end its sessions. Returns whether it changed."""
        answer = await self._connection.call(
            "POST /accounts/{name}/set_role", _Changed, body={"role": role}, name=name
        )
        return answer.changed

    async def disable(self, name: str) -> bool:
        """Refuse logins of the account, and end its sessions. Returns whether it changed."""
        answer = await self._connection.call("POST /accounts/{name}/disable", _Changed, name=name)
        return answer.changed

    async def enable(self, name: str) -> bool:
        """Allow logins of the account again. Returns whether it changed."""
        answer = await self._connection.call("POST /accounts/{name}/enable", _Changed, name=name)
        return answer.changed

    async def delete(self, name: str) -> None:
        """Delete the account. What it did stays in the audit."""
        await self._connection.call("DELETE /accounts/{name}", name=name)

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the account, and when it logged in and out, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /accounts/{name}/audit", AuditEvent, query=query, name=name
        )
