"""What people and providers do to reminders that were sent: see, acknowledge, snooze, tell."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from duetime.domain.checks import check_name, check_sought
from duetime.domain.duration import Duration, parse_positive_duration
from duetime.domain.jobs.keys import DIGEST_PREFIX
from duetime.domain.reminders.delivery import (
    HANDLER,
    Delivery,
    clean_error,
    clean_external_id,
    read_receipt,
)
from duetime.domain.reminders.reminder import Reminder
from duetime.errors import DeliveryNotFound, InvalidInput
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.receipts import ReceiptStatements
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime


async def perform(
    app: Duetime,
    make: Callable[[DeliveryStatements], Statements],
    tx: Any = None,
    *,
    reads: bool = False,
) -> Any:
    """Run statements in a transaction of their own, or in the caller's."""
    return await app._perform(lambda dialect: make(DeliveryStatements(dialect)), tx, reads=reads)


async def find_deliveries(app: Duetime, reminder_id: int) -> list[Delivery]:
    """Return what each channel did with a reminder, in the order in which they were asked."""
    _check_id(reminder_id)
    found: list[Delivery] = await perform(app, lambda s: s.deliveries(reminder_id), reads=True)
    return found


async def acknowledge(app: Duetime, which: int | str, *, by: str, tx: Any = None) -> bool:
    """See `app.reminders.acknowledge`."""
    if isinstance(which, str):
        which = _external_id(which)
    else:
        _check_id(which)
    actor = check_name(by, what="actor (by=)")
    new: bool = await perform(app, lambda s: s.acknowledge(which, actor=actor), tx)
    return new


async def snooze(
    app: Duetime, reminder_id: int, span: Duration, *, by: str, tx: Any = None
) -> datetime:
    """See `app.reminders.snooze`."""
    _check_id(reminder_id)
    wait = parse_positive_duration(span, name="The time to snooze")
    actor = check_name(by, what="actor (by=)")
    at: datetime = await perform(app, lambda s: s.snooze(reminder_id, wait, actor=actor), tx)
    return at


async def receipt(
    app: Duetime,
    external_id: str | None,
    status: str,
    *,
    key: str | None = None,
    reason: str | None = None,
    channel: str | None = None,
    by: str = "provider",
    tx: Any = None,
) -> int:
    """See `app.receipt`."""
    if external_id is not None:
        external_id = _external_id(external_id)
    elif key is None:
        raise InvalidInput("A receipt must identify its message: give the provider's id, or key=.")
    reported = read_receipt(status)
    actor = check_name(by, what="actor (by=)")
    why = None if reason is None else clean_error(reason)
    if channel is not None:
        check_sought(channel, what="channel")

    def record(known: DeliveryStatements) -> Statements:
        statements = ReceiptStatements(known.dialect, partial(_enqueue_follow_up, app))
        try:
            if external_id is not None:
                return (
                    yield from statements.receipt(
                        external_id, reported, reason=why, channel=channel, actor=actor
                    )
                )
        except DeliveryNotFound:
            if key is None:
                raise
        return (
            yield from statements.receipt_by_key(
                str(key), reported, external_id=external_id, reason=why, channel=channel,
                only_channel=_only_channel(app, str(key)), actor=actor,
            )
        )  # fmt: skip

    changed: int = await perform(app, record, tx)
    return changed


def _enqueue_follow_up(app: Duetime, reminder: Reminder) -> Statements:
    """Enqueue the job that escalates a reminder, in the transaction that records it as sent."""
    job = app._sender.follow_up(reminder)
    if job is not None:
        yield from app._unopened().enqueue_in([job])


def _only_channel(app: Duetime, key: str) -> str | None:
    """The channel that a message with this key went through, if there is one only."""
    sender = app._sender
    handler = sender.digest_handler if key.startswith(DIGEST_PREFIX) else sender.handler
    names = [HANDLER] if handler else list(sender.channels)
    return names[0] if len(names) == 1 else None


def id_of(reminder: Any) -> int:
    """The id of a reminder, which is given as such or by its id."""
    reminder_id: int = reminder.id if isinstance(reminder, Reminder) else reminder
    _check_id(reminder_id)
    return reminder_id


def _check_id(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
        raise InvalidInput(f"A reminder id must be a positive integer, got {value!r:.60}.")


def _external_id(value: Any) -> str:
    """The provider's id as it was recorded."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"The provider's id must be a string, got {value!r:.60}.")
    return clean_external_id(value) or ""
