"""What a channel is: it sends one message once, and says whether a failure may pass.

Retries, fallback to another channel, limits and records are not its business.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from duetime.errors import DuetimeError

DUE = "reminder.due"
"""The event of a message for one reminder."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be sent: rendered, for one recipient, under a key that every attempt repeats."""

    key: str
    subject: str
    recipient: str
    title: str
    body: str
    due_at: datetime
    address: str | None = None
    """Where this channel reaches the recipient: a URL, an email address, a routing key."""
    rule: str | None = None
    offset_minutes: float | None = None
    """How long before the due time the reminder's own time is; negative: after it."""
    data: dict[str, Any] = {}
    event: str = DUE


class Sent(msgspec.Struct, frozen=True):
    """The receiver accepted the message, and may have given it an id of its own."""

    external_id: str | None = None


class NotSent(DuetimeError):
    """The message was not accepted, or it is unknown whether it was.

    A `transient` failure may go away: send the same message again, not before `retry_after` if that
    is given. `disable` means that the receiver wants nothing more at this address.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool,
        retry_after: timedelta | None = None,
        disable: bool = False,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.retry_after = retry_after
        self.disable = disable


class Channel(Protocol):
    """One way to reach people. Many sends may run at once, all on one event loop."""

    @property
    def name(self) -> str:
        """What rules and records call it."""
        ...

    async def send(self, message: Message) -> Sent:
        """Send it, and wait until it is accepted; raise `NotSent` otherwise."""
        ...

    async def close(self) -> None:
        """Close connections; the next send opens new ones. Calling it twice has no further
        effect."""
        ...


def facts_of(message: Message) -> dict[str, Any]:
    """What programs read of a message, as JSON."""
    return {
        "subject": message.subject,
        "recipient": message.recipient,
        "rule": message.rule,
        "offset_minutes": message.offset_minutes,
        "due_at": message.due_at.astimezone(UTC),
        "key": message.key,
        "data": message.data,
    }


def encode(content: dict[str, Any]) -> bytes:
    """Return the content as JSON, or raise a lasting `NotSent` if it cannot be written so."""
    try:
        return msgspec.json.encode(content)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise NotSent(
            f"The data of the message cannot be encoded as JSON: {error}.", transient=False
        ) from error


def digest(key: str) -> str:
    """Return what stands for a key where the key itself does not fit: short, plain, stable.

    >>> digest("reminder:game:42")
    '6a0caaa0d3b5ebdd9daa7b2cf71f891a8c8a78bf'
    """
    return hashlib.sha256(key.encode()).hexdigest()[:40]
