"""`client.reminders`."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.channels.channel import Message
from duetime.client.connection import Connection
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation, Reason
from duetime.domain.reminders.delivery import Delivery
from duetime.domain.reminders.reminder import (
    ReminderStatus,
    ReminderStatusLike,
    ResendStatus,
    Resent,
)


class ReminderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A reminder as the service shows it: one message to one recipient, at one time of one rule."""

    id: int
    subject: str
    scope: str | None
    due_at: datetime
    rule: str
    time: datetime
    recipient: str
    run_at: datetime | None
    status: ReminderStatus
    reason: Reason | None
    job_id: int | None
    tz: str
    data: dict[str, Any]
    channel: str | None
    external_id: str | None
    delivery: str | None
    ended_at: datetime | None
    snoozes: int
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    stale: bool
    key: str


class _Acknowledged(msgspec.Struct):
    new: bool


class _Snoozed(msgspec.Struct):
    run_at: datetime


class Reminders:
    """`client.reminders`: the verbs of `app.reminders`. `client.reminders[7]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, reminder_id: int) -> ReminderHandle:
        return ReminderHandle(self, reminder_id)

    async def get(self, reminder_id: int) -> ReminderInfo:
        """Return the reminder; raise `ReminderNotFound`."""
        return await self._connection.call(
            "GET /reminders/{reminder_id}", ReminderInfo, reminder_id=reminder_id
        )

    async def list(
        self,
        *,
        subject: str | None = None,
        status: ReminderStatusLike | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[ReminderInfo]:
        """Return reminders, newest first; those of one subject, and armed ones, by their times."""
        query = {"subject": subject, "status": status, "limit": limit, "after": after}
        return await self._connection.page("GET /reminders", ReminderInfo, query=query)

    iterate = iterated(list)

    async def preview(
        self, within: Duration = "7d", *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[ReminderInfo]:
        """Return what is due in the next days, earliest first."""
        query = {"within": parse_duration(within, name="within"), "limit": limit, "after": after}
        return await self._connection.page("GET /reminders/preview", ReminderInfo, query=query)

    async def message(self, reminder_id: int) -> Message:
        """Return what the reminder would say now."""
        return await self._connection.call(
            "GET /reminders/{reminder_id}/message", Message, reminder_id=reminder_id
        )

    async def explain(self, reminder_id: int) -> Explanation:
        """Explain what became of the reminder, and why."""
        return await self._connection.call(
            "GET /reminders/{reminder_id}/explain", Explanation, reminder_id=reminder_id
        )

    async def deliveries(self, reminder_id: int) -> Sequence[Delivery]:
        """Return what each channel did with the reminder."""
        return await self._connection.call(
            "GET /reminders/{reminder_id}/deliveries",
            builtins.list[Delivery],
            reminder_id=reminder_id,
        )

    async def acknowledge(self, which: int | str) -> bool:
        """Record that somebody has seen a reminder: it escalates no more.

        By its id, or by its provider's. Returns False if it was acknowledged before.
        """
        if isinstance(which, str):
            answer = await self._connection.call(
                "POST /reminders/acknowledge", _Acknowledged, body={"external_id": which}
            )
        else:
            answer = await self._connection.call(
                "POST /reminders/{reminder_id}/acknowledge", _Acknowledged, reminder_id=which
            )
        return answer.new

    async def snooze(self, reminder_id: int, span: Duration) -> datetime:
        """Send the reminder again after a while; return when."""
        answer = await self._connection.call(
            "POST /reminders/{reminder_id}/snooze",
            _Snoozed,
            body={"span": span},
            reminder_id=reminder_id,
        )
        return answer.run_at

    async def resend(self, reminder_id: int) -> ReminderInfo:
        """Send a reminder again now that failed, expired, was skipped, or was sent."""
        return await self._connection.call(
            "POST /reminders/{reminder_id}/resend", ReminderInfo, reminder_id=reminder_id
        )

    async def send_anyway(self, reminder_id: int) -> ReminderInfo:
        """Send a reminder now that waits for quiet hours, for the hourly limit or in a digest."""
        return await self._connection.call(
            "POST /reminders/{reminder_id}/send-anyway", ReminderInfo, reminder_id=reminder_id
        )

    async def resend_many(
        self,
        *,
        status: ResendStatus = "failed",
        subject: str | None = None,
        scope: str | None = None,
        recipient: str | None = None,
        within: Duration | None = None,
    ) -> Resent:
        """Send all reminders again that failed (or expired, or were skipped) and match."""
        body = {
            "status": status,
            "subject": subject,
            "scope": scope,
            "recipient": recipient,
            "within": within,
        }
        return await self._connection.call("POST /reminders/resend", Resent, body=body)


class ReminderHandle(Handle[Reminders, int]):
    """One reminder of the service, by its id."""

    get = bound(Reminders.get)
    message = bound(Reminders.message)
    explain = bound(Reminders.explain)
    deliveries = bound(Reminders.deliveries)
    acknowledge = bound(Reminders.acknowledge)
    snooze = bound(Reminders.snooze)
    resend = bound(Reminders.resend)
    send_anyway = bound(Reminders.send_anyway)
