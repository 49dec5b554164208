"""`app.reminders.resend`: a reminder that has ended goes out after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duetime.domain.checks import check_name, check_sought
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Resent
from duetime.errors import InvalidInput, ReminderNotFound
from duetime.storage.reminders.resending import ResendStatements

if TYPE_CHECKING:
    from duetime.app import Duetime

_MAY_BE_RESENT = (ReminderStatus.FAILED, ReminderStatus.EXPIRED, ReminderStatus.SKIPPED)


async def resend(app: Duetime, reminder_id: int, *, by: str, tx: Any = None) -> Reminder:
    """See `app.reminders.resend`."""
    actor = check_name(by, what="actor (by=)")
    reminder: Reminder = await app._perform(
        lambda dialect: ResendStatements(dialect).resend(reminder_id, actor=actor), tx
    )
    return reminder


async def find_ended(
    app: Duetime,
    *,
    status: str,
    subject: str | None,
    scope: str | None,
    recipient: str | None,
    within: Duration | None,
) -> list[int]:
    """Return the ids of the reminders that `resend_many` would send again."""
    if status not in _MAY_BE_RESENT:
        known = ", ".join(_MAY_BE_RESENT)
        raise InvalidInput(
            f"Many reminders at once are sent again only if they are {known}, not {status!r:.60}."
        )
    for what, value in (("subject", subject), ("scope", scope), ("recipient", recipient)):
        if value is not None:
            check_sought(value, what=what)
    since = None if within is None else await app.now() - parse_duration(within, name="within")
    which = {"subject": subject, "scope": scope, "recipient": recipient, "since": since}

    async def page(after: int) -> list[int]:
        ids: list[int] = await app._perform(
            lambda dialect: ResendStatements(dialect).ended(
                {"status": ReminderStatus(status), "after": after} | which
            ),
            reads=True,
        )
        return ids

    found: list[int] = []
    while ids := await page(found[-1] if found else 0):
        found += ids
    return found


async def resend_many(app: Duetime, ids: list[int], *, by: str) -> Resent:
    """Send reminders again, each in a transaction of its own: none waits for another's subject."""
    resent = Resent([], {})
    for reminder_id in ids:
        try:
            await resend(app, reminder_id, by=by)
        except (InvalidInput, ReminderNotFound) as error:
            resent.refused[reminder_id] = str(error)
        else:
            resent.reminders.append(reminder_id)
    return resent
