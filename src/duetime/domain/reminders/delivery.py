"""A delivery's values: what one channel did with one reminder, and what was told of it later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal

import msgspec

from duetime.domain.reminders.rule import format_time
from duetime.errors import InvalidInput

HANDLER = "handler"
"""The channel of what a handler sends."""
_LONGEST_ERROR = 2_000
_LONGEST_ID = 200


class DeliveryStatus(StrEnum):
    """What became of a delivery. The first is still open."""

    PENDING = "pending"
    SENT = "sent"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"
    ACKNOWLEDGED = "acknowledged"

    @property
    def accepted(self) -> bool:
        """Whether the channel took the message, and nobody told since that it did not arrive."""
        return self in _ACCEPTED

    @property
    def gave_up(self) -> bool:
        """Whether this channel is not asked again."""
        return self in (DeliveryStatus.BOUNCED, DeliveryStatus.FAILED)


ReceiptStatus = Literal[
    "delivered",
    "bounced",
    "failed",
    "acknowledged",
    DeliveryStatus.DELIVERED,
    DeliveryStatus.BOUNCED,
    DeliveryStatus.FAILED,
    DeliveryStatus.ACKNOWLEDGED,
]
"""What a provider may report after it accepted a message."""

_ACCEPTED = (DeliveryStatus.SENT, DeliveryStatus.DELIVERED, DeliveryStatus.ACKNOWLEDGED)
_RECEIPTS = (
    DeliveryStatus.DELIVERED,
    DeliveryStatus.BOUNCED,
    DeliveryStatus.FAILED,
    DeliveryStatus.ACKNOWLEDGED,
)
# An email that its server took may come back; who acknowledged it has surely seen it.
_ORDER = {
    DeliveryStatus.PENDING: 0,
    DeliveryStatus.SENT: 1,
    DeliveryStatus.DELIVERED: 2,
    DeliveryStatus.BOUNCED: 3,
    DeliveryStatus.FAILED: 3,
    DeliveryStatus.ACKNOWLEDGED: 4,
}


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One reminder through one channel. Each snooze begins another round, with other deliveries."""

    id: int
    reminder_id: int
    round: int
    channel: str
    key: str
    status: DeliveryStatus
    attempts: int
    external_id: str | None
    error: str | None
    """Of the last attempt that failed."""
    next_at: datetime | None
    """When the channel is asked again, if it is pending."""
    sent_at: datetime | None
    updated_at: datetime


def clean_error(error: object) -> str:
    """Return what an error says, on one line that every database can store.

    >>> clean_error("no\\x00 such\\nnumber \\ud800")
    'no\\\\0 such number \\\\ud800'
    """
    return " ".join(_storable(error).split())[:_LONGEST_ERROR] or type(error).__name__


def clean_external_id(value: object) -> str | None:
    """Return a receiver's id as text that every database can store, and index; None if it is empty.

    What is cut off is still told apart, by a hash of the whole.

    >>> clean_external_id(17), clean_external_id(""), clean_external_id("CA\\x0017")
    ('17', None, 'CA\\\\017')
    >>> len(clean_external_id("x" * 100_000))
    200
    """
    if value is None:
        return None
    text = _storable(value)
    if len(text) > _LONGEST_ID:
        mark = hashlib.sha256(text.encode()).hexdigest()[:32]
        text = f"{text[: _LONGEST_ID - 33]}~{mark}"
    return text or None


def _storable(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 -- it may fail to describe itself, or have too many digits.
        text = type(value).__name__
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\0")


def read_receipt(status: str) -> DeliveryStatus:
    """Return the status that a receipt may tell, or raise `InvalidInput`."""
    if status not in _RECEIPTS:
        raise InvalidInput(
            f"{status!r:.60} is not a status of a receipt. Use one of: {', '.join(_RECEIPTS)}."
        )
    return DeliveryStatus(status)


def comes_after(status: DeliveryStatus, known: DeliveryStatus) -> bool:
    """Whether a receipt tells more than is known. Late ones and repetitions do not.

    >>> comes_after(DeliveryStatus.DELIVERED, DeliveryStatus.SENT)
    True
    >>> comes_after(DeliveryStatus.DELIVERED, DeliveryStatus.ACKNOWLEDGED)
    False
    """
    return _ORDER[status] > _ORDER[known]


def describe_failure(delivery: Delivery) -> str:
    """Say how often a channel failed, and how the last time.

    >>> describe_failure(Delivery(id=1, reminder_id=1, round=0, channel="push", key="k", attempts=3,
    ...     status=DeliveryStatus.FAILED, external_id=None, error="no answer.", next_at=None,
    ...     sent_at=None, updated_at=datetime.min))
    'push failed 3 times: no answer'
    """
    why = f": {delivery.error.rstrip('.')}" if delivery.error else ""
    if delivery.status is DeliveryStatus.BOUNCED:
        return f"{delivery.channel} bounced{why}"
    if delivery.sent_at is not None and delivery.status is DeliveryStatus.FAILED:
        return f"{delivery.channel} took it, and told later that it failed{why}"
    failures = delivery.attempts - delivery.status.accepted
    if not failures:
        return f"{delivery.channel} was not asked{why}"
    return f"{delivery.channel} failed{times(failures)}{why}"


def describe_receipt(channel: str, status: DeliveryStatus) -> str:
    """Say what a provider told later, as the reason to try another channel."""
    how = "bounced" if status is DeliveryStatus.BOUNCED else "failed"
    return f"{channel} told that it {how}"


def describe_failures(deliveries: Iterable[Delivery]) -> str:
    """Say it of all that did."""
    return "; ".join(
        describe_failure(delivery)
        for delivery in deliveries
        if delivery.error is not None or delivery.status.gave_up
    )


def describe_wait(deliveries: Sequence[Delivery], now: datetime) -> str:
    """Say which channel is asked again, and when; nothing if none waits."""
    return "; ".join(
        f"{delivery.channel} is asked again at {format_time(delivery.next_at)}"
        for delivery in deliveries
        if delivery.status is DeliveryStatus.PENDING
        and delivery.next_at is not None
        and delivery.next_at > now
    )


def times(count: int) -> str:
    """Say how often, if not once.

    >>> times(1), times(2)
    ('', ' 2 times')
    """
    return "" if count == 1 else f" {count} times"
