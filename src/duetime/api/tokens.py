"""`app.tokens`: which programs may use the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from duetime.api.handle import Handle, bound, iterated
from duetime.domain.access.token import (
    ApiToken,
    CreatedToken,
    TokenScopeLike,
    check_token_name,
    hash_secret,
    is_token_text,
    make_token_text,
    parse_scope,
)
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_actor, check_sought
from duetime.domain.duration import Duration, parse_positive_duration
from duetime.domain.page import DEFAULT_LIMIT, Id, Page, check_limit, make_page, read_cursor
from duetime.engine.batching import Batcher
from duetime.errors import TokenNotFound
from duetime.storage.access.tokens import TokenStatements

if TYPE_CHECKING:
    from duetime.app import Duetime

MAX_SHARED = 10_000
"""How many requests may share a check."""


class Tokens:
    """`app.tokens`: API tokens, by which programs use the service."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        # Requests with the same token at the same time share a check, which starts after each of
        # them came: a token that is revoked is refused from the next request on.
        self._checks: Batcher[str, ApiToken | None] = Batcher(self._check, max_size=MAX_SHARED)

    def __getitem__(self, name: str) -> TokenHandle:
        return TokenHandle(self, check_sought(name, what="token"))

    async def create(
        self,
        name: str,
        *,
        scope: TokenScopeLike,
        expires_in: Duration | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> CreatedToken:
        """Create a token; its `text` is returned here and never again: only its hash is stored.

        `scope`: `read`, `operate` or `admin`. `expires_in`: how long it is valid; without it, until
        it is revoked. Raises `NameTaken` if a valid token has the name. If the connection is lost
        and you do not know whether the token was created: revoke it, and create it again.
        """
        check_token_name(name)
        wanted = parse_scope(scope)
        span = (
            None if expires_in is None else parse_positive_duration(expires_in, name="expires_in")
        )
        actor = check_actor(by)
        text = make_token_text()
        token: ApiToken = await self._app._perform(
            lambda dialect: TokenStatements(dialect).create(
                name, hashed=hash_secret(text), scope=wanted, expires_in=span, by=actor
            ),
            tx,
        )
        return CreatedToken(token, text)

    async def check(self, text: str) -> ApiToken | None:
        """Return the token with this text; None if there is none, or it is revoked or expired.

        Records when it was last used, at most once a minute.
        """
        if not is_token_text(text):
            return None
        hashed = hash_secret(text)
        return await self._checks.submit(hashed, group=hashed)

    async def get(self, name: str) -> ApiToken:
        """Return the token with that name, the newest if it was revoked; raise `TokenNotFound`."""
        check_sought(name, what="token")
        found: ApiToken | None = await self._app._perform(
            lambda dialect: TokenStatements(dialect).get(name), reads=True
        )
        if found is None:
            raise TokenNotFound(name)
        return found

    async def list(
        self, *, revoked: bool = False, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[ApiToken]:
        """Return tokens by name, also expired ones. `revoked`: revoked ones, too.

        `after`: the `next` of the previous page.
        """
        position = read_cursor(after, order="tokens", shape=tuple[str, Id])
        most = check_limit(limit) + 1
        found = await self._app._perform(
            lambda dialect: TokenStatements(dialect).find(
                revoked=bool(revoked), after=position, limit=most
            ),
            reads=True,
        )
        return make_page(
            found, limit=limit, order="tokens", position=lambda token: (token.name, token.id)
        )

    iterate = iterated(list)

    async def revoke(self, name: str, *, by: str = "unknown", tx: Any = None) -> bool:
        """Revoke the token: it is refused from the next request on.

        Returns False if it was already revoked. Raises `TokenNotFound`.
        """
        check_sought(name, what="token")
        actor = check_actor(by)
        revoked: bool | None = await self._app._perform(
            lambda dialect: TokenStatements(dialect).revoke(name, by=actor), tx
        )
        if revoked is None:
            raise TokenNotFound(name)
        return revoked

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who created and revoked tokens with that name, newest first."""
        entity = f"token:{check_sought(name, what='token')}"
        return await self._app.audit.list(entity=entity, limit=limit, after=after)

    async def _check(self, hashes: Sequence[str]) -> Sequence[ApiToken | None]:
        """Check a token once for all who asked for it."""
        found: tuple[ApiToken, bool] | None = await self._app._perform(
            lambda dialect: TokenStatements(dialect).check(hashes[0]), reads=True
        )
        if found is None:
            return [None] * len(hashes)
        token, is_to_touch = found
        if is_to_touch:
            await self._app._perform(lambda dialect: TokenStatements(dialect).touch(token.id))
        return [token] * len(hashes)


class TokenHandle(Handle[Tokens, str]):
    """One API token, by its name."""

    @property
    def name(self) -> str:
        return self._ref

    get = bound(Tokens.get)
    revoke = bound(Tokens.revoke)
    audit = bound(Tokens.audit)
