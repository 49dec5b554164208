"""`app.reminders`: what will be sent, what was, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from duetime.api.handle import Handle, bound, iterated
from duetime.domain.checks import check_actor, check_sought
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.page import (
    DEFAULT_LIMIT,
    Id,
    Moment,
    Page,
    check_limit,
    make_page,
    read_cursor,
)
from duetime.domain.reasons import Explanation
from duetime.domain.reminders.delivery import Delivery, check_external_id
from duetime.domain.reminders.explain import explain_reminder
from duetime.domain.reminders.reminder import (
    Reminder,
    ReminderStatus,
    ReminderStatusLike,
    ResendStatus,
    Resent,
)
from duetime.errors import InvalidInput, RecipientNotFound, ReminderNotFound
from duetime.storage.reminders.admissions import AdmissionStatements
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.reminders.resending import ResendStatements
from duetime.storage.reminders.sends import SendStatements

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.channels.channel import Message

_RESEND_STATUSES = (ReminderStatus.FAILED, ReminderStatus.EXPIRED, ReminderStatus.SKIPPED)


class Reminders:
    """`app.reminders`. `app.reminders[17]` is one of them.

    Changes of a reminder are in the audit of its subject.
    """

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, reminder_id: int) -> ReminderHandle:
        return ReminderHandle(self, _id_of(reminder_id))

    async def get(self, reminder: int | Reminder) -> Reminder:
        """Return the reminder as it is now; raise `ReminderNotFound`."""
        reminder_id = _id_of(reminder)
        found: Sequence[Reminder] = await self._app._perform(
            lambda d: ReminderStatements(d).find([reminder_id]), reads=True
        )
        if not found:
            raise ReminderNotFound(reminder_id)
        return found[0]

    async def list(
        self,
        *,
        subject: str | None = None,
        status: ReminderStatusLike | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[Reminder]:
        """Return reminders, newest first. `after`: the `next` of the previous page.

        Those of one `subject`, and those with the status `armed`, come in the order of their times.
        """
        if status is not None and status not in tuple(ReminderStatus):
            raise InvalidInput(
                f"{status!r} is not a status of a reminder. Use one of: "
                f"{', '.join(ReminderStatus)}."
            )
        if subject is not None:
            return await self._about(check_sought(subject, what="subject"), status, limit, after)
        if status == ReminderStatus.ARMED:
            return await self._armed(None, limit, after)
        position = read_cursor(after, order="reminders", shape=tuple[Id])
        before_id = None if position is None else position[0]
        most = check_limit(limit) + 1
        found = await self._app._perform(
            lambda d: ReminderStatements(d).newest(status=status, before_id=before_id, limit=most),
            reads=True,
        )
        return make_page(found, limit=limit, order="reminders", position=lambda one: (one.id,))

    iterate = iterated(list)

    async def preview(
        self, within: Duration = "7d", *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[Reminder]:
        """Return the reminders that are due in the next days, earliest first."""
        until = await self._app.now() + parse_duration(within, name="within")
        return await self._armed(until, limit, after)

    async def _about(
        self, subject: str, status: str | None, limit: int, after: str | None
    ) -> Page[Reminder]:
        position = read_cursor(after, order="reminders of a subject", shape=tuple[Moment, Id])
        most = check_limit(limit) + 1
        found = await self._app._perform(
            lambda d: ReminderStatements(d).about(
                subject, status=status, after=position, limit=most
            ),
            reads=True,
        )
        return make_page(
            found,
            limit=limit,
            order="reminders of a subject",
            position=lambda one: (one.run_at or one.time, one.id),
        )

    async def _armed(self, until: datetime | None, limit: int, after: str | None) -> Page[Reminder]:
        position = read_cursor(after, order="armed reminders", shape=tuple[Moment, Id])
        most = check_limit(limit) + 1
        found = await self._app._perform(
            lambda d: ReminderStatements(d).armed(until=until, after=position, limit=most),
            reads=True,
        )
        return make_page(
            found,
            limit=limit,
            order="armed reminders",
            position=lambda one: (one.run_at, one.id),
        )

    async def explain(self, reminder: int | Reminder) -> Explanation:
        """Say what became of a reminder, and why. Raises `ReminderNotFound`."""
        found = await self.get(reminder)
        deliveries = await self._deliveries(found.id)
        subject = await self._app.subjects.get(found.subject)
        source = None
        if found.status is ReminderStatus.ARMED:
            rules, level = await self._app.subjects.rules(found.subject)
            source = level if found.rule.text in rules else None
        now = await self._app.now()
        return explain_reminder(found, deliveries, now=now, subject=subject, source=source)

    async def message(self, reminder: int | Reminder) -> Message:
        """Return the message that would be sent now: its template, filled with its data.

        Raises `ReminderNotFound`, and `InvalidInput` if its template does not exist or cannot be
        filled.
        """
        found = await self.get(reminder)
        try:
            tz = (await self._app.recipients.get(found.recipient)).tz if found.recipient else None
        except RecipientNotFound:
            tz = None
        messages = self._app._sender.messages
        return messages.make(found, address=None, now=await self._app.now(), tz=tz)

    async def deliveries(
        self, reminder: int | Reminder, *more: int | Reminder
    ) -> Sequence[Delivery]:
        """Return what each channel did with a reminder, in the order in which they were tried; for
        several, one reminder after another.

        For a single one, raises `ReminderNotFound`.
        """
        ids = [_id_of(one) for one in (reminder, *more)]
        found = await self._deliveries(*ids)
        if not found and len(ids) == 1:
            await self.get(ids[0])
        return found

    async def _deliveries(self, *reminder_ids: int) -> Sequence[Delivery]:
        found: Sequence[Delivery] = await self._app._perform(
            lambda d: SendStatements(d).deliveries(*reminder_ids), reads=True
        )
        return found

    async def acknowledge(
        self, which: int | Reminder | str, *, by: str = "unknown", tx: Any = None
    ) -> bool:
        """Record that someone has seen it, so that it does not escalate. Returns whether that was
        new.

        `which`: the reminder or its id, or the id that its receiver gave to it, as text.
        Raises `ReminderNotFound`, `DeliveryNotFound`, and `InvalidInput` if it was not sent.
        """
        known = (
            check_external_id(which, otherwise="Without it, give the id of the reminder.")
            if isinstance(which, str)
            else _id_of(which)
        )
        actor = check_actor(by)
        new: bool = await self._app._perform(
            lambda d: DeliveryStatements(d).acknowledge(known, actor=actor), tx
        )
        return new

    async def snooze(
        self, reminder: int | Reminder, span: Duration, *, by: str = "unknown", tx: Any = None
    ) -> datetime:
        """Send it again after a while, unless its subject moves or is completed before; return
        when.

        That is another message, with a key of its own. Until then it does not escalate. Raises
        `ReminderNotFound`, and `InvalidInput` if it was not sent, no longer applies, or would
        then be too late.
        """
        reminder_id = _id_of(reminder)
        wait = parse_positive_duration(span, name="The time to snooze")
        actor = check_actor(by)
        at: datetime = await self._app._perform(
            lambda d: DeliveryStatements(d).snooze(reminder_id, wait, actor=actor), tx
        )
        return at

    async def resend(
        self, reminder: int | Reminder, *, by: str = "unknown", tx: Any = None
    ) -> Reminder:
        """Send a finished reminder again now: it failed, expired, was skipped, or was sent.

        It keeps its key, so that a receiver who got it after all can ignore the repetition; if a
        channel accepted it, this is another message, as after a snooze. It does not expire. Returns
        the reminder. Raises `ReminderNotFound`, and `InvalidInput` if it is armed, or no longer
        applies.
        """
        reminder_id = _id_of(reminder)
        actor = check_actor(by)
        armed: Reminder = await self._app._perform(
            lambda d: ResendStatements(d).resend(reminder_id, actor=actor), tx
        )
        return armed

    async def send_anyway(
        self, reminder: int | Reminder, *, by: str = "unknown", tx: Any = None
    ) -> Reminder:
        """Send a reminder now that waits for quiet hours, for the hourly limit or in a digest.

        It does not count towards the limit. A muted reminder is still not sent. Returns the
        reminder. Raises `ReminderNotFound`, and `InvalidInput` if it does not wait for one of
        these: its time has not come yet, it is finished, or it is being sent.
        """
        reminder_id = _id_of(reminder)
        actor = check_actor(by)
        armed: Reminder = await self._app._perform(
            lambda d: AdmissionStatements(d).send_anyway(reminder_id, actor=actor), tx
        )
        return armed

    async def resend_many(
        self,
        *,
        status: ResendStatus = "failed",
        subject: str | None = None,
        scope: str | None = None,
        recipient: str | None = None,
        within: Duration | None = None,
        by: str = "unknown",
    ) -> Resent:
        """Send all reminders again now that match and `failed` (or `expired`, or were `skipped`).

        `scope`: in this scope and all scopes inside it. `within`: finished in the last hours or
        days. Each is sent as `resend` does; returns which are sent, and which are not, such as
        those that no longer apply. Raises `InvalidInput`.
        """
        actor = check_actor(by)
        ids = await self._find_ended(
            status=status, subject=subject, scope=scope, recipient=recipient, within=within
        )
        resent = Resent([], {})
        # Each in a transaction of its own: none waits for another's subject.
        for reminder_id in ids:
            try:
                await self.resend(reminder_id, by=actor)
            except (InvalidInput, ReminderNotFound) as error:
                resent.refused[reminder_id] = str(error)
            else:
                resent.reminders.append(reminder_id)
        return resent

    async def _find_ended(
        self,
        *,
        status: str,
        subject: str | None,
        scope: str | None,
        recipient: str | None,
        within: Duration | None,
    ) -> Sequence[int]:
        """Return the ids of the reminders that `resend_many` would send again."""
        if status not in _RESEND_STATUSES:
            known = ", ".join(_RESEND_STATUSES)
            raise InvalidInput(
                f"resend_many() cannot send reminders that are {status!r:.60}. Use one of: {known}."
            )
        for what, value in (("subject", subject), ("scope", scope), ("recipient", recipient)):
            if value is not None:
                check_sought(value, what=what)
        now = await self._app.now()
        which: dict[str, Any] = {
            "status": ReminderStatus(status),
            "subject": subject,
            "scope": scope,
            "recipient": recipient,
            "since": None if within is None else now - parse_duration(within, name="within"),
        }

        async def page(after: int) -> Sequence[int]:
            ids: Sequence[int] = await self._app._perform(
                lambda d: ResendStatements(d).ended(which | {"after": after}), reads=True
            )
            return ids

        found: list[int] = []
        while ids := await page(found[-1] if found else 0):
            found += ids
        return found


class ReminderHandle(Handle[Reminders, int]):
    """One reminder, by its id."""

    @property
    def id(self) -> int:
        return self._ref

    get = bound(Reminders.get)
    explain = bound(Reminders.explain)
    message = bound(Reminders.message)
    deliveries = bound(Reminders.deliveries)
    acknowledge = bound(Reminders.acknowledge)
    snooze = bound(Reminders.snooze)
    resend = bound(Reminders.resend)
    send_anyway = bound(Reminders.send_anyway)


def _id_of(reminder: Any) -> int:
    """The id of a reminder, which is given as such or by its id."""
    reminder_id = reminder.id if isinstance(reminder, Reminder) else reminder
    if (
        isinstance(reminder_id, bool)
        or not isinstance(reminder_id, int)
        or not 0 < reminder_id < 2**63
    ):
        raise InvalidInput(f"A reminder id must be a positive integer, got {reminder_id!r:.60}.")
    return reminder_id
