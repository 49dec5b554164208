"""A reminder that has ended is sent again on request, as statements without I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from duetime.domain.duration import format_time
from duetime.domain.reasons import Reason
from duetime.domain.reminders.reminder import REMIND_TASK, Reminder, ReminderStatus
from duetime.errors import InvalidInput, ReminderNotFound
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.store import Statements

_GONE = (ReminderStatus.SUPERSEDED, ReminderStatus.CANCELLED)


class ResendStatements(DeliveryStatements):
    """Every method is one transaction."""

    def ended(self, which: dict[str, Any]) -> Statements:
        """Return the ids of some reminders that ended with a status, in their order. Reads only.

        `which`: `status`, `after` (an id), `subject`, `scope`, `recipient`, `since`.
        """
        return [row[0] for row in (yield from self._dialect.run("resend_find", which))]

    def resend(self, reminder_id: int, *, actor: str) -> Statements:
        """Arm it at once, under another job; return it as it is then."""
        subjects, found = yield from self._locked([reminder_id])
        if not found:
            raise ReminderNotFound(reminder_id)
        [reminder] = found
        subject = subjects[reminder.subject]
        _check_ended(reminder)
        if (yield from self._rule_that_holds(subject, reminder)) is None:
            raise InvalidInput(
                f"Reminder {reminder.id} is no longer true: {subject.ref!r} has been closed or "
                "changed since. It is not sent again."
            )
        twin = yield from self._dialect.run("resend_twin", {"id": reminder.id})
        if twin:
            raise InvalidInput(
                f"Reminder {reminder.id} was sent as reminder {twin[0][0]}, which is the same. "
                f"Send that one again: {_command(twin[0][0])}."
            )
        now = yield from self._dialect.now()
        [(taken,)] = yield from self._dialect.run(
            "resend_taken", {"id": reminder.id, "round": reminder.snoozes}
        )
        # What a channel took is another message, with a key and deliveries of its own.
        again = msgspec.structs.replace(reminder, snoozes=reminder.snoozes + bool(taken))
        yield from self._dialect.run(
            "resend",
            {
                "id": reminder.id,
                "run_at": now,
                "reason": Reason.of("reminder_resent", by=actor),
                "snoozes": again.snoozes,
                "key": again.key,
                "task": REMIND_TASK,
                "taken": bool(taken),
                "expires_at": None,
            },
        )
        yield from self._audit_reminder(
            actor, "reminder.resent", reminder, {"key": again.key},
            before={"status": reminder.status, "reason": reminder.reason},
        )  # fmt: skip
        return (yield from self.find([reminder.id]))[0]


def _check_ended(reminder: Reminder) -> None:
    if reminder.status is ReminderStatus.ARMED:
        at = "" if reminder.run_at is None else f" at {format_time(reminder.run_at)}"
        raise InvalidInput(
            f"Reminder {reminder.id} is armed: it is sent{at}, as job {reminder.job_id}."
        )
    if reminder.status in _GONE:
        raise InvalidInput(
            f"Reminder {reminder.id} is {reminder.status} ({reminder.reason}): what is true now "
            f"has reminders of its own. See `duetime reminders list --subject {reminder.subject}`."
        )


def _command(reminder_id: int) -> str:
    return f"`duetime reminders resend {reminder_id}`"
