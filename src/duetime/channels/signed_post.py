"""POST requests that are signed as Standard Webhooks says (https://www.standardwebhooks.com), and
that go only where the guard lets them.

Errors name the host and say what happened. They contain neither the rest of the URL, which may hold
a token, nor the host's addresses, which may be of our own network.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import secrets as random_secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from weakref import WeakKeyDictionary

import msgspec

from duetime.channels.channel import NotSent, digest
from duetime.channels.guard import Guard
from duetime.domain.duration import format_duration
from duetime.domain.urls import describe_parse_error
from duetime.errors import InvalidInput

try:
    import httpcore2
    import httpx2
    import standardwebhooks

    from duetime.channels.network import GuardedNetwork
except ImportError as error:
    raise ImportError(
        "Webhooks require an extra package: pip install 'duetime[webhook]'."
    ) from error

# Standard Webhooks forbids the full stop in an id: it separates what is signed.
_PLAIN_ID = re.compile(r"[A-Za-z0-9_:@/+=~-]{1,200}")
# Idle connections are dropped before the receiver's own limit, often 5 s, can cut off a request.
_IDLE_SECONDS = 2.0
_SHOWN = 200
_LOST = (httpcore2.NetworkError, httpcore2.ProtocolError, OSError)
_OURS = ("connection", "content-length", "content-type", "host", "transfer-encoding")

PASSING = frozenset({408, 425, 429})
"""The 4xx statuses that may pass; every other one lasts."""


def make_secret() -> str:
    """Return a new random secret, `whsec_…`."""
    return "whsec_" + base64.b64encode(random_secrets.token_bytes(32)).decode()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver answered."""

    host: str
    status: int
    headers: dict[bytes, bytes]
    body: bytes
    is_whole: bool
    """Whether the body was read to its end: in time, and within the limit."""

    @property
    def excerpt(self) -> str:
        """The beginning of the body, fit for a log."""
        return printable(self.body)


class SignedPost:
    """Sends signed POST requests. Redirects are not followed, and proxies of the environment are
    not used. It has a connection pool per event loop."""

    def __init__(
        self,
        *,
        guard: Guard,
        headers: Mapping[str, str] | None = None,
        connect_timeout: timedelta = timedelta(seconds=5),
        max_answer_bytes: int,
        max_retry_after: timedelta = timedelta(hours=1),
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._guard = guard
        self._headers = _checked_headers(headers or {})
        self._connect_timeout = connect_timeout
        self._max_answer_bytes = max_answer_bytes
        self._max_retry_after = max_retry_after
        self._ssl_context = ssl_context
        self._clock = clock
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpcore2.AsyncConnectionPool] = (
            WeakKeyDictionary()
        )

    def read_url(self, text: str) -> httpcore2.URL:
        """Take the URL apart, once: what is checked is what is used. Raises a lasting `NotSent`."""
        try:
            url = httpx2.URL(text)
        except (httpx2.InvalidURL, TypeError) as error:
            raise NotSent(
                f"The URL cannot be parsed: {describe_parse_error(error)}.", transient=False
            ) from None
        if url.scheme not in ("http", "https") or not url.host:
            raise NotSent(
                "The URL must begin with https:// or http:// and contain a host.", transient=False
            )
        if url.userinfo:
            raise NotSent("The URL must not contain a user name or a password.", transient=False)
        self._guard.check_port(url.port or (443 if url.scheme == "https" else 80))
        return httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )

    async def post(
        self,
        url: httpcore2.URL,
        body: bytes,
        *,
        key: str,
        secrets: Sequence[str],
        timeout: timedelta,
        read_timeout: timedelta,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Post the body under a key that every attempt repeats. Raises `NotSent` without an answer.

        `timeout` is for all of it, `read_timeout` for the wait between two bytes.
        """
        host = url.host.decode("ascii")
        signature = self._sign(key, body, secrets)
        request = self._make_request(
            url, body, {**self._headers, **(headers or {}), **signature}, timeout, read_timeout
        )
        deadline = asyncio.get_running_loop().time() + timeout.total_seconds()
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._open_pool().handle_async_request(request)
        except TimeoutError:
            raise NotSent(
                f"{host} did not answer within {format_duration(timeout)}.", transient=True
            ) from None
        except httpcore2.TimeoutException as error:
            raise NotSent(
                f"{host} took too long: {type(error).__name__}.", transient=True
            ) from None
        except _LOST as error:
            raise NotSent(f"{host}: {_describe_loss(error)}.", transient=True) from None
        content, is_whole = await self._read_body(response, deadline)
        return Answer(
            host=host,
            status=response.status,
            headers={name.lower(): value for name, value in response.headers},
            body=content,
            is_whole=is_whole,
        )

    def retry_after(self, answer: Answer) -> timedelta | None:
        """How long the receiver wants us to wait, at most `max_retry_after`."""
        text = answer.headers.get(b"retry-after", b"").decode("latin-1").strip()
        if text.isascii() and text.isdigit():
            # Longer numbers are beyond every limit, and beyond what a timedelta holds.
            wait = timedelta(seconds=int(text[:9]))
        else:
            moment = _date(text)
            now = _date(answer.headers.get(b"date", b"").decode("latin-1"))
            if moment is None:
                return None
            # By the receiver's own clock if it sends its time: ours may be wrong.
            wait = max(moment - (now or self._clock()), timedelta(0))
        return min(wait, self._max_retry_after)

    async def close(self) -> None:
        """Close this event loop's connections; the next request opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    def _make_request(
        self,
        url: httpcore2.URL,
        body: bytes,
        headers: Mapping[str, str],
        timeout: timedelta,
        read_timeout: timedelta,
    ) -> httpcore2.Request:
        authority = url.host if b":" not in url.host else b"[" + url.host + b"]"
        if url.port is not None:
            authority += b":%d" % url.port
        given = {"user-agent": "duetime", **headers, "content-type": "application/json"}
        return httpcore2.Request(
            "POST",
            url,
            headers=[
                (b"host", authority),
                (b"content-length", b"%d" % len(body)),
                *((name.encode("ascii"), value.encode("ascii")) for name, value in given.items()),
            ],
            content=body,
            extensions={
                "timeout": {
                    "connect": self._connect_timeout.total_seconds(),
                    "read": read_timeout.total_seconds(),
                    "write": read_timeout.total_seconds(),
                    "pool": timeout.total_seconds(),
                }
            },
        )

    def _sign(self, key: str, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
        try:
            signers = read_secrets(secrets)
        except InvalidInput as error:
            raise NotSent(str(error), transient=False) from None
        identity = key if _PLAIN_ID.fullmatch(key) else f"msg_{digest(key)}"
        # The library takes any time for UTC.
        now = self._clock().astimezone(UTC)
        text = body.decode()
        return {
            "webhook-id": identity,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(identity, now, text) for signer in signers),
        }

    def _open_pool(self) -> httpcore2.AsyncConnectionPool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = httpcore2.AsyncConnectionPool(
                ssl_context=self._ssl_context or httpx2.create_ssl_context(),
                max_connections=None,
                keepalive_expiry=_IDLE_SECONDS,
                network_backend=GuardedNetwork(self._guard),
            )
        return pool

    async def _read_body(self, response: httpcore2.Response, deadline: float) -> tuple[bytes, bool]:
        """What arrives of the body in time, up to the limit, and whether that is all of it."""
        body = bytearray()
        is_whole = False
        # The status has arrived, and counts whatever happens here.
        try:
            with suppress(Exception):
                async with asyncio.timeout_at(deadline):
                    async for part in response.aiter_stream():
                        body += part
                        if len(body) > self._max_answer_bytes:
                            break
                    else:
                        is_whole = True
        finally:
            with suppress(Exception):
                await response.aclose()
        return bytes(body[: self._max_answer_bytes]), is_whole


def read_secrets(secrets: Sequence[str]) -> list[standardwebhooks.Webhook]:
    """Return what signs with these secrets; raise `InvalidInput` if they cannot be used."""
    if isinstance(secrets, str) or not secrets or "whsec_" in secrets or "" in secrets:
        raise InvalidInput(
            "secrets= must contain at least one secret, such as [make_secret()]. Unsigned requests "
            "could be forged."
        )
    try:
        for secret in secrets:
            # The library passes over letters that are no base64, so two secrets could be the same.
            base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        return [standardwebhooks.Webhook(secret) for secret in secrets]
    except Exception:  # noqa: BLE001 The library raises what its parts raise.
        raise InvalidInput(
            "A webhook secret must be 'whsec_' followed by base64, as returned by make_secret()."
        ) from None


def printable(text: bytes) -> str:
    """The beginning of what the receiver said, fit for a log."""
    shown = " ".join(text[: 4 * _SHOWN].decode(errors="replace").split())
    return "".join(letter for letter in shown if letter.isprintable())[:_SHOWN]


def _describe_loss(error: Exception) -> str:
    """Say why there is no connection. What the system says contains the address, so that only the
    number of its error is used."""
    name = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f"{name}: {cause}"
        if isinstance(cause, OSError) and cause.errno is not None:
            return f"{name}: {os.strerror(cause.errno)}"
        cause = cause.__cause__ or cause.__context__
    said = printable(str(error).encode()) if isinstance(error, httpcore2.ProtocolError) else ""
    return f"{name}: {said.rstrip('.')}" if said else name


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not (
            value.isascii() and value.isprintable()
        ):
            raise InvalidInput(
                f"The header {name!r} contains characters that are not allowed in HTTP headers."
            )
        if name.lower() in _OURS or name.lower().startswith(("webhook-", "duetime-")):
            raise InvalidInput(f"The header {name!r} is set by Duetime and cannot be overridden.")
    return {name.lower(): value for name, value in headers.items()}


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
