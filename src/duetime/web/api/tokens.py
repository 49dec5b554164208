"""`/api/v1/tokens`: the API tokens of programs. For admins."""

from __future__ import annotations

from typing import Any

import msgspec

from duetime.app import Duetime
from duetime.domain.access.token import ApiToken, TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.web.access import Access
from duetime.web.api.fields import After, Limit, Name, NamePath, Span
from duetime.web.api.routing import Routes, page_of


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    scope: TokenScope
    expires_in: Span | None = None
    """How long it is valid; without it, until it is revoked."""


class TokenAnswer(msgspec.Struct):
    """A new token. Its text is shown here and never again."""

    token: ApiToken
    text: str


class RevokeAnswer(msgspec.Struct):
    revoked: bool
    """False: it was revoked before."""


class VisitorAnswer(msgspec.Struct):
    """The person or program that makes the request."""

    name: str
    """The actor of what they change, as the audit shows it."""
    scope: TokenScope


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="tokens")

    @routes.get("/visitor", answer=VisitorAnswer)
    async def get_visitor(visitor: Visitor) -> VisitorAnswer:
        """Show who you are, and what you may do."""
        return VisitorAnswer(visitor.name, visitor.scope)

    @routes.get("/tokens", answer=page_of(ApiToken), scope=TokenScope.ADMIN)
    async def list_tokens(
        revoked: bool = False, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[ApiToken]:
        """List tokens by name, also expired ones; with `revoked`, revoked ones, too."""
        return await app.tokens.list(revoked=revoked, limit=limit, after=after)

    @routes.post(
        "/tokens",
        body=TokenBody,
        example={"name": "ci", "scope": "operate", "expires_in": "90d"},
        answer=TokenAnswer,
        status=201,
        scope=TokenScope.ADMIN,
        problems=[409],
        secret=True,
    )
    async def create_token(body: Any, visitor: Visitor) -> TokenAnswer:
        """Create a token. Its text is answered here and never again: only its hash is stored."""
        created = await app.tokens.create(
            body.name, scope=body.scope, expires_in=body.expires_in, by=visitor.name
        )
        return TokenAnswer(created.token, created.text)

    @routes.get("/tokens/{name}", answer=ApiToken, scope=TokenScope.ADMIN, problems=[404])
    async def get_token(name: NamePath) -> ApiToken:
        """Show a token, without its text."""
        return await app.tokens.get(name)

    @routes.post(
        "/tokens/{name}/revoke", answer=RevokeAnswer, scope=TokenScope.ADMIN, problems=[404]
    )
    async def revoke_token(name: NamePath, visitor: Visitor) -> RevokeAnswer:
        """Let a token open nothing any more, from the next request on."""
        return RevokeAnswer(await app.tokens.revoke(name, by=visitor.name))

    @routes.get("/tokens/{name}/audit", answer=page_of(AuditEvent), scope=TokenScope.ADMIN)
    async def audit_token(
        name: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who created and revoked tokens with a name, newest first."""
        return await app.tokens.audit(name, limit=limit, after=after)

    return routes
