"""`/api/v1/reminders` and `/api/v1/receipts`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from duetime.app import Duetime
from duetime.channels.channel import Message
from duetime.domain.access.visitor import Visitor
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.domain.reasons import Reason as Why
from duetime.domain.reminders.delivery import Delivery
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Resent
from duetime.web.access import Access
from duetime.web.api.fields import After, DurationQuery, IdPath, Limit, Name, Reason, Sought, Span
from duetime.web.api.routing import Routes, page_of

ExternalId = Annotated[
    str, Meta(min_length=1, max_length=2000, description="The provider's id of the message.")
]


class ReminderAnswer(msgspec.Struct, kw_only=True):
    """One message to one recipient, at one time of one rule."""

    id: int
    subject: str
    scope: str | None
    due_at: datetime
    rule: str
    time: datetime
    recipient: str
    run_at: datetime | None
    status: ReminderStatus
    reason: Why | None
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
    """The idempotency key that its provider is given."""


class AcknowledgeBody(msgspec.Struct, forbid_unknown_fields=True):
    external_id: ExternalId


class AcknowledgeAnswer(msgspec.Struct):
    new: bool
    """False: it was acknowledged before."""


class SnoozeBody(msgspec.Struct, forbid_unknown_fields=True):
    span: Span


class SnoozeAnswer(msgspec.Struct):
    run_at: datetime


class ResendBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which reminders to send again: all that match."""

    status: Literal["failed", "expired", "skipped"] = "failed"
    subject: Name | None = None
    scope: Name | None = None
    recipient: Name | None = None
    within: Span | None = None
    """Those that ended in the last hours or days."""


class ReceiptBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a provider reports later."""

    status: Literal["delivered", "bounced", "failed", "acknowledged"]
    external_id: ExternalId | None = None
    key: Name | None = None
    """The message's key, if the provider echoes it."""
    reason: Reason | None = None
    channel: Name | None = None


class ReceiptAnswer(msgspec.Struct):
    changed: int
    """Deliveries that changed: 0 if the receipt is a repeat, or is late."""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="reminders")

    @routes.get("/reminders", answer=page_of(ReminderAnswer))
    async def list_reminders(
        subject: Sought = None,
        status: ReminderStatus | None = None,
        limit: Limit = DEFAULT_LIMIT,
        after: After = None,
    ) -> Page[ReminderAnswer]:
        """List reminders, newest first; those of one subject, and armed ones, by their times."""
        found = await app.reminders.list(subject=subject, status=status, limit=limit, after=after)
        return Page(map(reminder_answer, found), next=found.next)

    @routes.get("/reminders/preview", answer=page_of(ReminderAnswer))
    async def preview_reminders(
        within: DurationQuery = "7d", limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[ReminderAnswer]:
        """List what is due in the next days, earliest first."""
        found = await app.reminders.preview(within, limit=limit, after=after)
        return Page(map(reminder_answer, found), next=found.next)

    @routes.post(
        "/reminders/acknowledge",
        body=AcknowledgeBody,
        answer=AcknowledgeAnswer,
        problems=[404],
    )
    async def acknowledge_message(body: Any, visitor: Visitor) -> AcknowledgeAnswer:
        """Acknowledge the reminder that its provider knows under this id."""
        return AcknowledgeAnswer(await app.reminders.acknowledge(body.external_id, by=visitor.name))

    @routes.post("/reminders/resend", body=ResendBody, answer=Resent)
    async def resend_reminders(body: Any, visitor: Visitor) -> Resent:
        """Send all reminders again that failed (or expired, or were skipped) and match."""
        return await app.reminders.resend_many(
            status=body.status,
            subject=body.subject,
            scope=body.scope,
            recipient=body.recipient,
            within=body.within,
            by=visitor.name,
        )

    @routes.get("/reminders/{reminder_id}", answer=ReminderAnswer, problems=[404])
    async def get_reminder(reminder_id: IdPath) -> ReminderAnswer:
        """Show a reminder."""
        return reminder_answer(await app.reminders.get(reminder_id))

    @routes.get("/reminders/{reminder_id}/message", answer=Message, problems=[404])
    async def preview_message(reminder_id: IdPath) -> Message:
        """Show what a reminder would say now: its template, filled with the data of its subject."""
        return await app.reminders.message(reminder_id)

    @routes.get("/reminders/{reminder_id}/explain", answer=Explanation, problems=[404])
    async def explain_reminder(reminder_id: IdPath) -> Explanation:
        """Explain what became of a reminder, and why."""
        return await app.reminders.explain(reminder_id)

    @routes.get("/reminders/{reminder_id}/deliveries", answer=list[Delivery], problems=[404])
    async def list_deliveries(reminder_id: IdPath) -> Sequence[Delivery]:
        """List what each channel did with a reminder."""
        return await app.reminders.deliveries(reminder_id)

    @routes.post("/reminders/{reminder_id}/acknowledge", answer=AcknowledgeAnswer, problems=[404])
    async def acknowledge_reminder(reminder_id: IdPath, visitor: Visitor) -> AcknowledgeAnswer:
        """Record that somebody has seen a reminder: it escalates no more."""
        return AcknowledgeAnswer(await app.reminders.acknowledge(reminder_id, by=visitor.name))

    @routes.post(
        "/reminders/{reminder_id}/snooze",
        body=SnoozeBody,
        example={"span": "30m"},
        answer=SnoozeAnswer,
        problems=[404],
    )
    async def snooze_reminder(reminder_id: IdPath, body: Any, visitor: Visitor) -> SnoozeAnswer:
        """Send a reminder again after a while, unless its subject moves or ends before."""
        return SnoozeAnswer(await app.reminders.snooze(reminder_id, body.span, by=visitor.name))

    @routes.post("/reminders/{reminder_id}/resend", answer=ReminderAnswer, problems=[404])
    async def resend_reminder(reminder_id: IdPath, visitor: Visitor) -> ReminderAnswer:
        """Send a reminder again now that failed, expired, was skipped, or was sent."""
        return reminder_answer(await app.reminders.resend(reminder_id, by=visitor.name))

    @routes.post("/reminders/{reminder_id}/send-anyway", answer=ReminderAnswer, problems=[404])
    async def send_reminder_anyway(reminder_id: IdPath, visitor: Visitor) -> ReminderAnswer:
        """Send a reminder now that waits for quiet hours, for the hourly limit or in a digest."""
        return reminder_answer(await app.reminders.send_anyway(reminder_id, by=visitor.name))

    @routes.post(
        "/receipts",
        body=ReceiptBody,
        example={"external_id": "SM9f2", "status": "delivered"},
        answer=ReceiptAnswer,
        problems=[404],
    )
    async def record_receipt(body: Any, visitor: Visitor) -> ReceiptAnswer:
        """Record what a provider reports later of a message."""
        return ReceiptAnswer(
            await app.receipt(
                body.external_id,
                body.status,
                key=body.key,
                reason=body.reason,
                channel=body.channel,
                by=visitor.name,
            )
        )

    return routes


def reminder_answer(reminder: Reminder) -> ReminderAnswer:
    return ReminderAnswer(
        rule=reminder.rule.text,
        **{name: getattr(reminder, name) for name in _SAME},
    )


_SAME = [name for name in ReminderAnswer.__struct_fields__ if name != "rule"]
