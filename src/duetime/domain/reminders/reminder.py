"""A reminder's values: a subject, what is armed for it, and what became of that."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

import msgspec

from duetime.domain.keys import key_of_round
from duetime.domain.reasons import Reason
from duetime.domain.reminders.recipient import Recipient
from duetime.domain.reminders.recurrence import Recurrence
from duetime.domain.reminders.rule import Rule

REMIND_TASK = "duetime.remind"
MAX_RECIPIENTS = 1000
"""Of one subject."""
REARM_TASK = "duetime.rearm"
ESCALATE_TASK = "duetime.escalate"


class ReminderStatus(StrEnum):
    """What became of a reminder. The first is still open."""

    ARMED = "armed"
    SENT = "sent"
    SKIPPED = "skipped"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    FAILED = "failed"


ReminderStatusLike = (
    ReminderStatus
    | Literal["armed", "sent", "skipped", "expired", "superseded", "cancelled", "failed"]
)


ResendStatus = Literal[
    "failed", "expired", "skipped",
    ReminderStatus.FAILED, ReminderStatus.EXPIRED, ReminderStatus.SKIPPED,
]  # fmt: skip
SubjectStatus = Literal["open", "done"]


class Resent(msgspec.Struct, frozen=True):
    """What became of many reminders that were to be sent again."""

    reminders: list[int]
    """Those that are sent again."""
    refused: dict[int, str]
    """Those that are not, each with its reason: most are no longer true."""


class Subject(msgspec.Struct, kw_only=True):
    """What people are reminded of."""

    id: int = 0
    ref: str
    scope: str | None
    due_at: datetime | None
    tz: str
    status: SubjectStatus
    rules: tuple[Rule, ...] | None
    data: dict[str, Any]
    recipients: tuple[str, ...]
    revision: int = 1
    repeats: Recurrence | None = None
    """When it is due again and again; then `due_at` is None."""
    planned: tuple[datetime, datetime] | None = None
    """Since when, and until when, its occurrences are armed."""
    problem: Reason | None = None
    """What of a tracked row could not be used."""
    stale: bool = False
    """It has changed, and a worker has yet to compute its reminders. Only `get` says it."""

    @property
    def is_repeating(self) -> bool:
        """Whether it has occurrences to be armed."""
        return self.repeats is not None and self.status == "open"

    @property
    def has_plan(self) -> bool:
        """Whether it repeats or did: how far its occurrences are armed is kept, or forgotten."""
        return self.repeats is not None or self.planned is not None

    def material(self) -> tuple[Any, ...]:
        """What reminders depend on: a change of anything else never sends one again."""
        when = self.due_at, self.tz, self.repeats
        return self.scope, *when, self.status, self.rules, self.recipients


class Reminder(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one recipient, at one time of one rule."""

    id: int
    subject: str
    scope: str | None
    due_at: datetime
    rule: Rule
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
    snoozes: int = 0
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    stale: bool = False
    """Its subject has changed, and a worker has yet to compute what that means for it."""
    first_key: str = ""
    """The key of its first round."""
    never_expires: bool = False
    """Its job does not expire, whatever its rule says: it was sent again on request. Read only
    when it is sent."""
    to: Recipient | None = None
    """For the handler: the recipient, with the channels that this reminder may go by."""

    @property
    def key(self) -> str:
        """The idempotency key to hand to a provider: short and opaque, the same in every attempt,
        and for no other message of any installation."""
        return key_of_round(self.first_key, self.snoozes)

    @property
    def offset_minutes(self) -> float:
        """How long before the due time its own time is, in minutes; negative: after it."""
        minutes = (self.due_at - self.time) / timedelta(minutes=1)
        return int(minutes) if minutes.is_integer() else minutes

    @property
    def provider_id(self) -> str | None:
        """The id under which its receiver knows it, if that is not our own key."""
        rounds = range(self.snoozes + 1)
        if any(self.external_id == key_of_round(self.first_key, number) for number in rounds):
            return None
        return self.external_id


class MovePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to the reminders of a subject if it moved."""

    superseded: tuple[Reminder, ...]
    """Those that are armed now, and would no longer be sent."""
    armed: tuple[Reminder, ...]
    """Those that would be armed; their ids are not given to them when it really moves."""
    kept: tuple[Reminder, ...]
    """Those that are armed and would stay as they are."""
