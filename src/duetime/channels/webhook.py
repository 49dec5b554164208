"""Reminders as webhooks: each message is a signed POST request."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from duetime.channels.channel import Message, NotSent, Sent, encode, facts_of
from duetime.channels.guard import Guard, Resolve, resolve
from duetime.channels.signed_post import (
    PASSING,
    Answer,
    SignedPost,
    make_secret,
    printable,
    read_secrets,
)
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.errors import InvalidInput

__all__ = ["Secrets", "Webhook", "make_secret"]

Secrets = Sequence[str] | Callable[[Message], Sequence[str]]

_GONE = 410


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
            read_secrets(secrets)
        self._id_header = None if id_header is None else id_header.lower().encode("ascii")
        self._read_timeout = parse_positive_duration(read_timeout, name="read_timeout")
        self._timeout = parse_positive_duration(timeout, name="timeout")
        self._requests = SignedPost(
            guard=Guard(allow_private=allow_private, allow=allow, ports=ports, resolve=resolve),
            headers=headers,
            connect_timeout=parse_positive_duration(connect_timeout, name="connect_timeout"),
            max_answer_bytes=max_answer_bytes,
            max_retry_after=parse_duration(max_retry_after, name="max_retry_after"),
            ssl_context=ssl_context,
            clock=clock,
        )
        if url is not None:
            try:
                self._requests.read_url(url)
            except NotSent as error:
                raise InvalidInput(str(error)) from None

    async def send(self, message: Message) -> Sent:
        """Post it; a 2xx status accepts it, whatever becomes of the rest of the answer."""
        address = message.address or self._url
        if address is None:
            raise NotSent("Neither the recipient nor the channel has a URL.", transient=False)
        url = self._requests.read_url(address)
        facts = facts_of(message)
        content = {
            "type": message.event,
            "timestamp": facts["due_at"],
            "data": {**facts, "title": message.title, "body": message.body},
        }
        answer = await self._requests.post(
            url,
            encode(content),
            key=message.key,
            secrets=self._secrets(message) if callable(self._secrets) else self._secrets,
            timeout=self._timeout,
            read_timeout=self._read_timeout,
        )
        return self._judge(answer)

    async def close(self) -> None:
        await self._requests.close()

    def _judge(self, answer: Answer) -> Sent:
        status, host = answer.status, answer.host
        if 200 <= status < 300:
            return Sent(self._id_of(answer))
        if 300 <= status < 400:
            raise NotSent(
                f"{host} answered {status}, a redirect. Redirects are not followed: use the URL "
                "that it leads to.",
                transient=False,
            )
        said = answer.excerpt
        reason = f"{host} answered {status}" + (f": {said}." if said else ".")
        if status in PASSING or status >= 500:
            raise NotSent(reason, transient=True, retry_after=self._requests.retry_after(answer))
        if status == _GONE:
            raise NotSent(
                f"{reason} It does not accept further messages.", transient=False, disable=True
            )
        raise NotSent(reason, transient=False)

    def _id_of(self, answer: Answer) -> str | None:
        if self._id_header is not None and self._id_header in answer.headers:
            return printable(answer.headers[self._id_header])
        try:
            content = msgspec.json.decode(answer.body)
            identity = content.get("id") if isinstance(content, dict) else None
            return str(identity) if isinstance(identity, str | int) else None
        except Exception:  # noqa: BLE001 -- else a message that was accepted would be sent again.
            return None
