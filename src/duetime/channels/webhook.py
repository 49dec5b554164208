"""Webhooks, signed as Standard Webhooks says (https://www.standardwebhooks.com)."""

from __future__ import annotations

import asyncio
import base64
import re
import secrets as random_secrets
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import msgspec

from duetime.channels.channel import Message, NotSent, Sent, digest, encode, facts_of
from duetime.channels.guard import Guard, Resolve, resolve
from duetime.domain.duration import (
    Duration,
    format_duration,
    parse_duration,
    parse_positive_duration,
)
from duetime.domain.urls import describe_parse_error
from duetime.errors import InvalidInput

try:
    import httpcore2
    import httpx2
    import standardwebhooks

    from duetime.channels.network import GuardedNetwork
except ImportError as error:
    raise ImportError(
        "The webhook channel requires an extra package: pip install 'duetime[webhook]'."
    ) from error

Secrets = Sequence[str] | Callable[[Message], Sequence[str]]

# Standard Webhooks forbids the full stop in an id: it separates what is signed.
_PLAIN_ID = re.compile(r"[A-Za-z0-9_:@/+=~-]{1,200}")
_GONE = 410
_PASSING = frozenset({408, 425, 429})
# Idle connections are dropped before the receiver's own limit, often 5 s, can cut off a request.
_IDLE_SECONDS = 2.0
_SHOWN = 200
_LOST = (httpcore2.NetworkError, httpcore2.ProtocolError, OSError)
_OURS = ("connection", "content-length", "content-type", "host", "transfer-encoding")


def make_secret() -> str:
    """Return a new random secret, `whsec_…`."""
    return "whsec_" + base64.b64encode(random_secrets.token_bytes(32)).decode()


class Webhook:
    """Posts the message as JSON to the recipient's URL, or to `url` if it has none.

    `secrets` sign it, every one of them: during a rotation give the new and the old one. Receivers
    should not share secrets; give a function that returns those of the message's receiver.
    Redirects are not followed, and proxies of the environment are not used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        secrets: Secrets,
        name: str = "webhook",
        headers: Mapping[str, str] | None = None,
        id_header: str | None = None,
        connect_timeout: Duration = "5s",
        read_timeout: Duration = "15s",
        timeout: Duration = "20s",
        max_answer_bytes: int = 64 * 1024,
        max_retry_after: Duration = "1h",
        allow_private: bool = False,
        allow: Iterable[str] = (),
        ports: Collection[int] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve = resolve,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self._url = url
        self._secrets = secrets
        if not callable(secrets):
            _signers(secrets)
        self._headers = _checked_headers(headers or {})
        self._id_header = None if id_header is None else id_header.lower().encode("ascii")
        self._connect_timeout = parse_positive_duration(connect_timeout, name="connect_timeout")
        self._read_timeout = parse_positive_duration(read_timeout, name="read_timeout")
        self._timeout = parse_positive_duration(timeout, name="timeout")
        self._max_answer_bytes = max_answer_bytes
        self._max_retry_after = parse_duration(max_retry_after, name="max_retry_after")
        self._guard = Guard(allow_private=allow_private, allow=allow, ports=ports, resolve=resolve)
        self._ssl_context = ssl_context
        self._clock = clock
        self._pool: httpcore2.AsyncConnectionPool | None = None
        if url is not None:
            try:
                self._read_url(url)
            except NotSent as error:
                raise InvalidInput(str(error)) from None

    async def send(self, message: Message) -> Sent:
        """Post it; a 2xx status accepts it, whatever becomes of the rest of the answer."""
        url = self._read_url(message.address or self._url)
        host = url.host.decode("ascii")
        request = self._make_request(url, message)
        deadline = asyncio.get_running_loop().time() + self._timeout.total_seconds()
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._open_pool().handle_async_request(request)
        except TimeoutError:
            raise NotSent(
                f"{host} did not answer within {format_duration(self._timeout)}.", transient=True
            ) from None
        except httpcore2.TimeoutException as error:
            raise NotSent(f"{host} took too long: {_name(error)}.", transient=True) from error
        except _LOST as error:
            raise NotSent(f"{host}: {_name(error)}: {error}.", transient=True) from error
        body = await self._read_body(answer, deadline)
        return self._judge(answer, body, host)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    def _read_url(self, text: str | None) -> httpcore2.URL:
        """Take the URL apart, once: what is checked is what is used."""
        if text is None:
            raise NotSent("Neither the recipient nor the channel has a URL.", transient=False)
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

    def _make_request(self, url: httpcore2.URL, message: Message) -> httpcore2.Request:
        facts = facts_of(message)
        content = {
            "type": message.event,
            "timestamp": facts["due_at"],
            "data": {**facts, "title": message.title, "body": message.body},
        }
        body = encode(content)
        authority = url.host if b":" not in url.host else b"[" + url.host + b"]"
        if url.port is not None:
            authority += b":%d" % url.port
        headers = {
            "user-agent": "duetime",
            **self._headers,
            "content-type": "application/json",
            **self._sign(message, body),
        }
        return httpcore2.Request(
            "POST",
            url,
            headers=[
                (b"host", authority),
                (b"content-length", b"%d" % len(body)),
                *((name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()),
            ],
            content=body,
            extensions={
                "timeout": {
                    "connect": self._connect_timeout.total_seconds(),
                    "read": self._read_timeout.total_seconds(),
                    "write": self._read_timeout.total_seconds(),
                    "pool": self._timeout.total_seconds(),
                }
            },
        )

    def _sign(self, message: Message, body: bytes) -> dict[str, str]:
        secrets = self._secrets(message) if callable(self._secrets) else self._secrets
        try:
            signers = _signers(secrets)
        except InvalidInput as error:
            raise NotSent(str(error), transient=False) from None
        key = message.key
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
        if self._pool is None:
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=self._ssl_context or httpx2.create_ssl_context(),
                max_connections=None,
                keepalive_expiry=_IDLE_SECONDS,
                network_backend=GuardedNetwork(self._guard),
            )
        return self._pool

    async def _read_body(self, answer: httpcore2.Response, deadline: float) -> bytes:
        """What arrives of the body in time, up to the limit. The status has decided already."""
        body = bytearray()
        # Whatever happens here: a message that was accepted must not be sent again.
        try:
            with suppress(Exception):
                async with asyncio.timeout_at(deadline):
                    async for part in answer.aiter_stream():
                        body += part
                        if len(body) > self._max_answer_bytes:
                            break
        finally:
            with suppress(Exception):
                await answer.aclose()
        return bytes(body[: self._max_answer_bytes])

    def _judge(self, answer: httpcore2.Response, body: bytes, host: str) -> Sent:
        status = answer.status
        headers = {name.lower(): value for name, value in answer.headers}
        if 200 <= status < 300:
            return Sent(self._id_of(headers, body))
        if 300 <= status < 400:
            raise NotSent(
                f"{host} answered {status}, a redirect. Redirects are not followed: use the URL "
                "that it leads to.",
                transient=False,
            )
        said = _printable(body)
        reason = f"{host} answered {status}" + (f": {said}." if said else ".")
        if status in _PASSING or status >= 500:
            raise NotSent(reason, transient=True, retry_after=self._retry_after(headers))
        if status == _GONE:
            raise NotSent(
                f"{reason} It does not accept further messages.", transient=False, disable=True
            )
        raise NotSent(reason, transient=False)

    def _id_of(self, headers: Mapping[bytes, bytes], body: bytes) -> str | None:
        if self._id_header is not None and self._id_header in headers:
            return _printable(headers[self._id_header])
        try:
            answer = msgspec.json.decode(body)
            identity = answer.get("id") if isinstance(answer, dict) else None
            return str(identity) if isinstance(identity, str | int) else None
        except Exception:  # noqa: BLE001 -- else a message that was accepted would be sent again.
            return None

    def _retry_after(self, headers: Mapping[bytes, bytes]) -> timedelta | None:
        text = headers.get(b"retry-after", b"").decode("latin-1").strip()
        if text.isascii() and text.isdigit():
            # Longer numbers are beyond every limit, and beyond what a timedelta holds.
            wait = timedelta(seconds=int(text[:9]))
        else:
            moment, now = _date(text), _date(headers.get(b"date", b"").decode("latin-1"))
            if moment is None:
                return None
            # By the receiver's own clock if it sends its time: ours may be wrong.
            wait = max(moment - (now or self._clock()), timedelta(0))
        return min(wait, self._max_retry_after)


def _signers(secrets: Sequence[str]) -> list[standardwebhooks.Webhook]:
    if isinstance(secrets, str) or not secrets or "whsec_" in secrets or "" in secrets:
        raise InvalidInput(
            "secrets= must contain at least one secret, such as [make_secret()]. Unsigned requests "
            "could be forged."
        )
    try:
        return [standardwebhooks.Webhook(secret) for secret in secrets]
    except Exception:  # noqa: BLE001 The library raises what its parts raise.
        raise InvalidInput(
            "A webhook secret must be 'whsec_' followed by base64, as returned by make_secret()."
        ) from None


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not (
            value.isascii() and value.isprintable()
        ):
            raise InvalidInput(
                f"The header {name!r} contains characters that are not allowed in HTTP headers."
            )
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            raise InvalidInput(
                f"The header {name!r} is set by the channel and cannot be overridden."
            )
    return {name.lower(): value for name, value in headers.items()}


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _printable(text: bytes) -> str:
    """The beginning of what the receiver said, fit for a log."""
    shown = " ".join(text[: 4 * _SHOWN].decode(errors="replace").split())
    return "".join(letter for letter in shown if letter.isprintable())[:_SHOWN]


def _name(error: Exception) -> str:
    return type(error).__name__
