"""A delivery: what one channel did with one reminder, and what receipts reported later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal

import msgspec

from duetime.domain.reasons import Reason
from duetime.errors import InvalidInput

HANDLER = "handler"
"""The channel of what a handler sends."""
_MAX_ERROR_LENGTH = 2_000
_MAX_ID_LENGTH = 200


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
        """Whether the channel accepted the message, and no receipt reported a failure since."""
        return self in _ACCEPTED

    @property
    def gave_up(self) -> bool:
        """Whether this channel is not tried again."""
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
    error: Reason | None
    """Of the last attempt that failed, or of the receipt that reported a failure."""
    next_at: datetime | None
    """When the channel is tried again, if it is pending."""
    sent_at: datetime | None
    updated_at: datetime


def clean_error(error: object) -> str:
    """Return what an error says, on one line that every database can store.

    >>> clean_error("no\\x00 such\\nnumber \\ud800")
    'no\\\\0 such number \\\\ud800'
    """
    return " ".join(_storable(error).split())[:_MAX_ERROR_LENGTH] or type(error).__name__


def explain_exception(error: BaseException) -> Reason:
    """What an exception says, as the reason why something was not sent.

    >>> str(explain_exception(OSError("no route")))
    'OSError: no route'
    """
    return Reason.of("exception", type=type(error).__name__, text=clean_error(error))


def clean_external_id(value: object) -> str | None:
    """Return a receiver's id as text that every database can store, and index; None if it is empty.

    Ids that differ only in what is cut off stay different, by a hash of the whole.

    >>> clean_external_id(17), clean_external_id(""), clean_external_id("CA\\x0017")
    ('17', None, 'CA\\\\017')
    >>> len(clean_external_id("x" * 100_000))
    200
    """
    if value is None:
        return None
    text = _storable(value)
    if len(text) > _MAX_ID_LENGTH:
        mark = hashlib.sha256(text.encode()).hexdigest()[:32]
        text = f"{text[: _MAX_ID_LENGTH - 33]}~{mark}"
    return text or None


def check_external_id(value: object, *, otherwise: str) -> str:
    """Return the provider's id of a message as it was recorded, or raise `InvalidInput`.

    `otherwise`: what to do without one.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"The provider's id must be a string, got {value!r:.60}.")
    if not value:
        raise InvalidInput(f"The provider's id must not be empty. {otherwise}")
    return clean_external_id(value) or ""


def _storable(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 -- it may fail to describe itself, or have too many digits.
        text = type(value).__name__
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\0")


def read_receipt(status: str) -> DeliveryStatus:
    """Return the status that a receipt may report, or raise `InvalidInput`."""
    if status not in _RECEIPTS:
        raise InvalidInput(
            f"{status!r:.60} is not a status of a receipt. Use one of: {', '.join(_RECEIPTS)}."
        )
    return DeliveryStatus(status)


def comes_after(status: DeliveryStatus, known: DeliveryStatus) -> bool:
    """Whether a receipt reports more than is known. Late ones and repetitions do not.

    >>> comes_after(DeliveryStatus.DELIVERED, DeliveryStatus.SENT)
    True
    >>> comes_after(DeliveryStatus.DELIVERED, DeliveryStatus.ACKNOWLEDGED)
    False
    """
    return _ORDER[status] > _ORDER[known]


def explain_failure(delivery: Delivery) -> Reason:
    """Say how often a channel failed, and how the last time.

    >>> str(explain_failure(Delivery(id=1, reminder_id=1, round=0, channel="push", key="k",
    ...     attempts=3, status=DeliveryStatus.FAILED, external_id=None,
    ...     error=Reason.of("not_sent", text="no answer."),
    ...     next_at=None, sent_at=None, updated_at=datetime.min)))
    'push failed 3 times: no answer'
    """
    failures = delivery.attempts - delivery.status.accepted
    if delivery.status is DeliveryStatus.BOUNCED:
        code = "channel_bounced"
    elif delivery.sent_at is not None and delivery.status is DeliveryStatus.FAILED:
        code = "channel_failed_later"
    elif failures:
        return channel_failed(delivery.channel, failures, delivery.error)
    else:
        code = "channel_not_tried"
    return Reason.of(code, channel=delivery.channel, why=delivery.error)


def channel_failed(channel: str, times: int, error: Reason | None) -> Reason:
    """A channel failed so often, and the last time so."""
    often = times if times > 1 else None
    return Reason.of("channel_failed", channel=channel, times=often, why=error)


def explain_receipt(channel: str, status: DeliveryStatus) -> Reason:
    """What a receipt reported, as the reason to try another channel."""
    how = DeliveryStatus.BOUNCED if status is DeliveryStatus.BOUNCED else DeliveryStatus.FAILED
    return Reason.of("not_delivered", channel=channel, status=how.value)


def explain_failures(deliveries: Iterable[Delivery]) -> list[Reason]:
    """How each channel failed that did."""
    return [
        explain_failure(delivery)
        for delivery in deliveries
        if delivery.error is not None or delivery.status.gave_up
    ]


def channels_failed(deliveries: Iterable[Delivery]) -> Reason:
    """All channels failed, as the reason not to send."""
    return Reason.of("channels_failed", channels=explain_failures(deliveries))
