"""Who may do what: finds the visitor of a request, and checks the scope that a route needs."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Request

from duetime.domain.access.session import SESSION_IDLE, SESSION_LIFETIME
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.errors import TransientError
from duetime.web.forms import read_form
from duetime.web.problems import Refused
from duetime.web.security import CSRF_HEADER, csrf_token, has_csrf_token, is_same_origin

if TYPE_CHECKING:
    from duetime.app import Duetime

Authenticate = Callable[[Any], Awaitable[Visitor | None] | Visitor | None]
"""The host's own login: returns the visitor of a request, or None for nobody."""

SESSION_COOKIE = "duetime_session"
REFRESH_HEADER = "x-live"
"""Sent by a page that fetches itself again."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class LoginLink:
    """The login of the person who started the service on this machine: a link with a secret.

    The secret is made at each start, is kept in memory only, and works once. Its session ends as
    those of accounts do: when it was not used for a while, and after its lifetime in any case.
    """

    def __init__(
        self,
        *,
        idle: timedelta = SESSION_IDLE,
        lifetime: timedelta = SESSION_LIFETIME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.secret: str | None = secrets.token_urlsafe(32)
        self._session: str | None = None
        self._idle = idle.total_seconds()
        self._lifetime = lifetime.total_seconds()
        self._clock = clock
        self._began = self._used = 0.0

    def open(self, secret: str) -> str | None:
        """Return a session in exchange for the secret; None if it is wrong or was used."""
        if self.secret is None or not secrets.compare_digest(self.secret.encode(), secret.encode()):
            return None
        self.secret = None
        session = secrets.token_urlsafe(32)
        self._session = _digest(session)
        self._began = self._used = self._clock()
        return session

    def visitor(self, session: str, *, is_use: bool = True) -> Visitor | None:
        """Return whose session it is; None if it is over. `is_use`: it is not idle."""
        if self._session is None or not secrets.compare_digest(self._session, _digest(session)):
            return None
        now = self._clock()
        if now - self._used >= self._idle or now - self._began >= self._lifetime:
            self.close()
            return None
        if is_use:
            self._used = now
        return Visitor("local", TokenScope.ADMIN, by_cookie=True)

    def close(self) -> None:
        """End the session."""
        self._session = None


class Access:
    """The doors of one service."""

    def __init__(
        self,
        app: Duetime,
        *,
        authenticate: Authenticate | None = None,
        link: LoginLink | None = None,
        read_only: bool = False,
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self.link = link
        self.read_only = read_only

    @property
    def has_login(self) -> bool:
        """Whether people log in here, and not at the application that hosts the service."""
        return self._authenticate is None

    async def visitor(self, request: Request) -> Visitor | None:
        """Return who makes a request; None: nobody that we know."""
        if self._authenticate is not None:
            found = self._authenticate(request)
            return _checked(await found if isawaitable(found) else found)
        if (given := request.headers.get("authorization")) is not None:
            return await self._program(given)
        session = request.cookies.get(SESSION_COOKIE)
        if session is None:
            return None
        return await self._person(session, is_use=not is_by_itself(request))

    async def is_still_known(self, request: Request) -> bool:
        """Whether the visitor of an open stream could open it again: sessions and tokens end."""
        try:
            return await self.visitor(request) is not None
        except TransientError:
            return True  # The database is asked again at the next change.

    async def log_in(self, request: Request, name: str, password: str) -> str:
        """Return the text of a new session; raise `LoginFailed` or `TooManyLogins`."""
        address = None if request.client is None else request.client.host
        started = await self._app.sessions.log_in(
            name, password, address=address, replaces=request.cookies.get(SESSION_COOKIE)
        )
        return started.text

    async def csrf_token(self, request: Request, visitor: Visitor | None = None) -> str:
        """The token that forms of this browser must send, in this login."""
        key = await self._app._secrets.get("csrf")
        return csrf_token(request, key, self._login(request, visitor))

    async def has_csrf_token(
        self, request: Request, given: str | None, visitor: Visitor | None = None
    ) -> bool:
        """Whether a form of this browser, made in this login, sent the request."""
        key = await self._app._secrets.get("csrf")
        return has_csrf_token(request, given, key, self._login(request, visitor))

    def _login(self, request: Request, visitor: Visitor | None) -> str:
        """What differs from one login to another. The host's own sessions are unknown here."""
        if self.has_login:
            return request.cookies.get(SESSION_COOKIE, "")
        return "" if visitor is None else visitor.name

    async def _person(self, text: str, *, is_use: bool) -> Visitor | None:
        """Who logged in with a password, or by the link."""
        if self.link is not None and (local := self.link.visitor(text, is_use=is_use)) is not None:
            return local
        session = await self._app.sessions.check(text, is_use=is_use)
        if session is None:
            return None
        return Visitor(session.account, session.role.scope, by_cookie=True)

    async def _program(self, authorization: str) -> Visitor | None:
        """The program whose API token this is. A wrong one is never replaced by a cookie."""
        kind, _, text = authorization.partition(" ")
        token = await self._app.tokens.check(text.strip()) if kind.lower() == "bearer" else None
        if token is None:
            return None
        return Visitor(f"token:{token.name}", token.scope, by_cookie=False)

    async def log_out(self, request: Request) -> None:
        """End the session of a request."""
        session = request.cookies.get(SESSION_COOKIE)
        if session is None:
            return
        if self.link is not None and self.link.visitor(session) is not None:
            self.link.close()
        else:
            await self._app.sessions.log_out(session)

    def require(self, scope: TokenScope) -> Callable[[Request], Awaitable[Visitor]]:
        """Return a dependency that lets visitors with the scope pass, and refuses all others."""

        async def check(request: Request) -> Visitor:
            visitor = await self.visitor(request)
            if visitor is None:
                raise Refused(
                    401,
                    "not_authenticated",
                    "Send an API token: `Authorization: Bearer …`. "
                    "`duetime tokens create` makes one.",
                    headers={"www-authenticate": "Bearer"},
                )
            if not visitor.scope.includes(scope):
                raise Refused(
                    403,
                    "not_allowed",
                    f"This needs the scope {scope}; {visitor.name} has {visitor.scope}.",
                )
            if request.method not in _SAFE_METHODS:
                await self._check_change(request, visitor)
            return visitor

        return check

    async def _check_change(self, request: Request, visitor: Visitor) -> None:
        if self.read_only:
            raise Refused(403, "read_only", "The service is read-only: nothing can be changed.")
        if not visitor.by_cookie:
            return
        given = await _given_token(request)
        if not is_same_origin(request) or not await self.has_csrf_token(request, given, visitor):
            raise Refused(
                403,
                "csrf_failed",
                "The request did not come from a page of this service, or the page is too old. "
                "Reload the page and try again.",
            )


def is_by_itself(request: Request) -> bool:
    """Whether an open page makes the request without its reader: a tab that is left open keeps no
    login alive."""
    return REFRESH_HEADER in request.headers or "text/event-stream" in request.headers.get(
        "accept", ""
    )


def _checked(found: Any) -> Visitor | None:
    """What the host's own login returned: whatever is not clearly a visitor gets nowhere."""
    if found is None:
        return None
    if not isinstance(found, Visitor) or found.scope not in list(TokenScope):
        raise TypeError(
            "authenticate must return a duetime.Visitor with the scope read, operate or admin, "
            f"or None; it returned {type(found).__name__}."
        )
    return msgspec.structs.replace(found, scope=TokenScope(found.scope))


async def _given_token(request: Request) -> str | None:
    return request.headers.get(CSRF_HEADER) or (await read_form(request)).get("csrf")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
