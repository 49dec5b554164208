"""What every request passes: the Host check, a limit on the body, and headers on each answer."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

from fastapi import Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duetime.telemetry.traces import trace_request
from duetime.web.problems import Problem, write

MAX_BODY_BYTES = 8 * 1024 * 1024
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

PROBES = ("/healthz", "/readyz")

CSRF_COOKIE = "duetime_csrf"
CSRF_HEADER = "x-csrf-token"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
_HOST = re.compile(r"(?:\[([^\]@/]*)\]|([^:\[\]@/]*))(?::[0-9]*)?")
_NO_STORE = (b"cache-control", b"no-store")


def _trace_headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"traceparent", b"tracestate")
    }


class Guard:
    """ASGI middleware around the whole service."""

    def __init__(
        self,
        service: ASGIApp,
        *,
        allowed_hosts: Collection[str] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._service = service
        self._allowed = None if allowed_hosts is None else {host.lower() for host in allowed_hosts}
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._service(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                headers += [pair for pair in _HEADERS if pair[0] not in present]
                if b"cache-control" not in present:
                    headers.append(_NO_STORE)
                message = {**message, "headers": headers}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        limited = _Limited(receive, self._max_body_bytes)
        with trace_request(_trace_headers(scope)):
            await self._service(keep_slashes(scope), limited, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        # Probes come to the address of a container, and learn nothing.
        is_probe = scope["path"] in PROBES
        if self._allowed is not None and not is_probe and host_name(host) not in self._allowed:
            return write(
                Problem(
                    status=400,
                    code="unknown_host",
                    title="Unknown host",
                    detail="The service does not answer to this Host name. Start it with "
                    "--allowed-host for each name that it is reached by.",
                )
            )
        if "\0" in scope["path"] or b"%00" in (scope.get("raw_path") or b""):
            return write(
                Problem(
                    status=400,
                    code="invalid_path",
                    title="Invalid path",
                    detail="The path contains a NUL character (%00), which no name can contain.",
                )
            )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body_bytes:
            return write(_too_large(self._max_body_bytes))
        return None


def keep_slashes(scope: Scope) -> Scope:
    """Let a name in the path contain a slash, written as `%2F`.

    Until `read_names` it stands as NUL, which no name can contain.
    """
    raw = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    path = unquote(re.sub("%2f", "%00", raw.decode("latin-1"), flags=re.IGNORECASE))
    return {**scope, "path": path}


def names_in(path: str) -> list[str]:
    """The parameters in the path of a route.

    >>> names_in("/queues/{queue}/pause")
    ['queue']
    """
    return re.findall(r"\{(\w+)", path)


def read_names(values: dict[str, Any], names: Collection[str]) -> None:
    """Put the slashes back into the names that came in the path."""
    for name in names:
        if isinstance(values.get(name), str):
            values[name] = values[name].replace("\0", "/")


class BodyTooLarge(Exception):
    """The body of a request that does not say its length is too long."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.problem = _too_large(limit)


class _Limited:
    """Receives the body of a request up to a limit, whatever its Content-Length says."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit
        self._limit = limit

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise BodyTooLarge(self._limit)
        return message


def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty if it is not a name and a port.

    >>> host_name("LOCALHOST:8000"), host_name("[::1]:8000"), host_name("a.example")
    ('localhost', '::1', 'a.example')
    >>> host_name("localhost:80@evil.example")
    ''
    """
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2] or "").lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    >>> is_loopback("127.0.0.1.example")
    False
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK


def csrf_token(request: Request, key: bytes, login: str) -> str:
    """The token that forms of this browser must send. `keep_csrf_cookie` sets its cookie.

    `key`: a secret of this installation. `login`: whose the pages are; the token is refused in
    another login, also if somebody could plant a cookie in this browser.
    """
    cookie = request.cookies.get(CSRF_COOKIE) or getattr(request.state, "csrf_cookie", None)
    if cookie is None:
        cookie = secrets.token_urlsafe(32)
        request.state.csrf_cookie = cookie
    return _csrf_token(cookie, key, login)


def keep_csrf_cookie(request: Request, response: Response) -> None:
    """Set the cookie that the tokens of the answer were made from, if it is a new one."""
    cookie = getattr(request.state, "csrf_cookie", None)
    if cookie is not None:
        set_cookie(request, response, CSRF_COOKIE, cookie)


def set_cookie(
    request: Request, response: Response, name: str, value: str, *, max_age: int | None = None
) -> None:
    """Set a cookie that scripts cannot read, and that forms of other sites do not send."""
    response.set_cookie(
        name,
        value,
        max_age=max_age,
        path=request.scope.get("root_path", "") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def is_same_origin(request: Request) -> bool:
    """Whether the browser says that a page of this service made the request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def has_csrf_token(request: Request, given: str | None, key: bytes, login: str) -> bool:
    """Whether the token was made for this browser and this login."""
    cookie = request.cookies.get(CSRF_COOKIE)
    if cookie is None or given is None:
        return False
    return hmac.compare_digest(_csrf_token(cookie, key, login).encode(), given.encode())


def _csrf_token(cookie: str, key: bytes, login: str) -> str:
    # By their digests: neither can run into the other.
    parts = [hashlib.sha256(part.encode()).digest() for part in (cookie, login)]
    return hmac.new(key, b"".join(parts), hashlib.sha256).hexdigest()


def _too_large(limit: int) -> Problem:
    return Problem(
        status=413,
        code="body_too_large",
        title="Body too large",
        detail=f"The body must have at most {limit:,} bytes.",
    )
