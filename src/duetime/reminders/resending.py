"""`app.reminders.resend`: a reminder that has ended goes out after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duetime.domain.job import check_name
from duetime.domain.reminder import Reminder
from duetime.storage.resending import ResendStatements

if TYPE_CHECKING:
    from duetime.app import Duetime


async def resend(app: Duetime, reminder_id: int, *, by: str, tx: Any = None) -> Reminder:
    """See `app.reminders.resend`."""
    actor = check_name(by, what="actor (by=)")
    reminder: Reminder = await app._perform(
        lambda dialect: ResendStatements(dialect).resend(reminder_id, actor=actor), tx
    )
    return reminder
