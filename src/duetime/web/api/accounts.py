"""`/api/v1/accounts`: the people who may use the service. For admins."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duetime.app import Duetime
from duetime.domain.access.account import (
    MAX_ACCOUNT_NAME,
    MAX_PASSWORD,
    MIN_PASSWORD,
    Account,
    Role,
)
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, NamePath
from duetime.web.api.routing import Routes, page_of

Password = Annotated[str, Meta(min_length=MIN_PASSWORD, max_length=MAX_PASSWORD)]


class AccountBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=MAX_ACCOUNT_NAME)]
    role: Role
    password: Password


class PasswordBody(msgspec.Struct, forbid_unknown_fields=True):
    password: Password


class RoleBody(msgspec.Struct, forbid_unknown_fields=True):
    role: Role


class ChangedAnswer(msgspec.Struct):
    changed: bool
    """False: it was so before."""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="accounts")
    admin: Any = {"scope": TokenScope.ADMIN}

    @routes.get("/accounts", answer=page_of(Account), **admin)
    async def list_accounts(limit: Limit = DEFAULT_LIMIT, after: After = None) -> Page[Account]:
        """List accounts by name."""
        return await app.accounts.list(limit=limit, after=after)

    @routes.post("/accounts", body=AccountBody, answer=Account, status=201, problems=[409], **admin)
    async def add_account(body: Any, visitor: Visitor) -> Account:
        """Add an account. Only the hash of the password is stored."""
        return await app.accounts.add(
            body.name, role=body.role, password=body.password, by=visitor.name
        )

    @routes.get("/accounts/{name}", answer=Account, problems=[404], **admin)
    async def get_account(name: NamePath) -> Account:
        """Show an account."""
        return await app.accounts.get(name)

    @routes.post("/accounts/{name}/set_password", body=PasswordBody, problems=[404], **admin)
    async def set_password(name: NamePath, body: Any, visitor: Visitor) -> None:
        """Change the password of an account, and end its sessions."""
        await app.accounts.set_password(name, body.password, by=visitor.name)

    @routes.post(
        "/accounts/{name}/set_role",
        body=RoleBody,
        answer=ChangedAnswer,
        problems=[404, 409],
        **admin,
    )
    async def set_role(name: NamePath, body: Any, visitor: Visitor) -> ChangedAnswer:
        """Change the role of an account, and end its sessions."""
        return ChangedAnswer(await app.accounts.set_role(name, body.role, by=visitor.name))

    @routes.post("/accounts/{name}/disable", answer=ChangedAnswer, problems=[404, 409], **admin)
    async def disable_account(name: NamePath, visitor: Visitor) -> ChangedAnswer:
        """Refuse logins of an account, and end its sessions."""
        return ChangedAnswer(await app.accounts.disable(name, by=visitor.name))

    @routes.post("/accounts/{name}/enable", answer=ChangedAnswer, problems=[404], **admin)
    async def enable_account(name: NamePath, visitor: Visitor) -> ChangedAnswer:
        """Allow logins of an account again."""
        return ChangedAnswer(await app.accounts.enable(name, by=visitor.name))

    @routes.delete("/accounts/{name}", problems=[404, 409], **admin)
    async def delete_account(name: NamePath, visitor: Visitor) -> None:
        """Delete an account. What it did stays in the audit."""
        await app.accounts.delete(name, by=visitor.name)

    @routes.get("/accounts/{name}/audit", answer=page_of(AuditEvent), **admin)
    async def audit_account(
        name: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed an account, and when it logged in and out, newest first."""
        return await app.accounts.audit(name, limit=limit, after=after)

    return routes
