"""Receipts by the message's key: of what was sent, is being sent, or seemed to have failed."""

from __future__ import annotations

from typing import NamedTuple

from duetime.domain.keys import DIGEST_PREFIX, make_digest_key, read_digest_key, read_reminder_key
from duetime.domain.reminders.delivery import Delivery, DeliveryStatus
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject
from duetime.errors import DeliveryNotFound
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.store import Statements

_GONE = (ReminderStatus.SUPERSEDED, ReminderStatus.CANCELLED)


class _Sought(NamedTuple):
    """What has a key: reminders, and the round in which each had it."""

    rounds: dict[int, int]
    deliveries: list[Delivery]
    """Those that are recorded with the key."""


class ReceiptStatements(DeliveryStatements):
    """Every method is one transaction."""

    def receipt_by_key(
        self,
        key: str,
        status: DeliveryStatus,
        *,
        external_id: str | None,
        reason: str | None,
        channel: str | None,
        only_channel: str | None,
        actor: str,
    ) -> Statements:
        """`receipt` of the message with this key. The answer to its send may be lost, or not be
        recorded yet: the receipt shows that its channel accepted it.

        `only_channel`: the one that it went through, if the app has no other.
        """
        sought = yield from self._sought(key)
        if sought is None:
            raise DeliveryNotFound(external_id, key=key)
        deliveries = [one for one in sought.deliveries if channel in (None, one.channel)]
        known = {one.reminder_id for one in deliveries if one.sent_at is not None}
        unknown = {one: number for one, number in sought.rounds.items() if one not in known}
        if unknown:
            names = {one.channel for one in deliveries}
            through = channel or (names.pop() if len(names) == 1 else only_channel)
            if through is None:
                raise DeliveryNotFound(
                    external_id,
                    key=key,
                    why=f"The send of the message with the key {key!r} is not recorded, and it "
                    "is not known here which channel it went through. Give channel=.",
                )
            yield from self._dialect.run(
                "receipt_early",
                [
                    {"id": one, "round": number, "channel": through, "key": key,
                     "external_id": external_id or key}
                    for one, number in unknown.items()
                ],
            )  # fmt: skip
            found = yield from self._of_key(key, list(sought.rounds))
            deliveries = [one for one in found if one.channel == through]
        sent = [one for one in deliveries if one.sent_at is not None]
        if not sent:
            raise DeliveryNotFound(
                external_id, key=key, why=f"The message with the key {key!r} has not been sent."
            )
        changed, last = 0, sent[-1].channel
        ids: dict[str, None] = {}
        for one in [one for one in sent if one.channel == last]:
            provider_id = one.external_id or external_id or key
            ids[provider_id] = None
            yield from self.provider_id(one, provider_id)
        for provider_id in ids:
            changed += yield from self.receipt(
                provider_id, status, reason=reason, channel=last, actor=actor
            )
        return changed

    def _sought(self, key: str) -> Statements:
        """Lock what has this key: a reminder, or all of a digest. None: nothing has it."""
        if key.startswith(DIGEST_PREFIX):
            return (yield from self._in_digest(key))
        return (yield from self._keyed(key))

    def _in_digest(self, key: str) -> Statements:
        """Lock all that went out in the digest with this key, or goes out in it just now."""
        members: set[int] = set()
        digest_id = read_digest_key(key)
        installation = yield from self._dialect.installation()
        if digest_id is None or make_digest_key(installation, digest_id) != key:
            return None
        for _, _, status, _ in (yield from self._dialect.run("digest_get", {"id": digest_id})):
            if status == "sending":
                inside = yield from self._dialect.run("digest_members", {"id": digest_id})
                members = {row[0] for row in inside}
        recorded = yield from self._of_digest(key)
        _, found = yield from self._locked([*members, *(one.reminder_id for one in recorded)])
        # The digest may have been recorded while we waited.
        recorded = yield from self._of_digest(key)
        rounds = {one.reminder_id: one.round for one in recorded}
        rounds |= {
            one.id: one.snoozes
            for one in found
            if one.id in members and one.status is ReminderStatus.ARMED and one.id not in rounds
        }
        return _Sought(rounds, recorded)

    def _keyed(self, key: str) -> Statements:
        """Lock the reminder that has this key, in its last round or before."""
        named = read_reminder_key(key)
        if named is None:
            return None
        first, number = named
        rows = yield from self._dialect.run("receipt_keyed", {"key": first})
        _, found = yield from self._locked([row[0] for row in rows])
        mine = [one for one in found if number <= one.snoozes]
        if not mine:
            return None
        # Of those that were armed twice, the one that is not withdrawn.
        reminder: Reminder = max(mine, key=lambda one: (one.status not in _GONE, one.id))
        deliveries = yield from self._of_key(key, [reminder.id])
        if number < reminder.snoozes and deliveries:
            # A channel whose answer was lost keeps its key when the reminder is sent again.
            number = max(one.round for one in deliveries)
        return _Sought({reminder.id: number}, deliveries)

    def _of_key(self, key: str, reminder_ids: list[int]) -> Statements:
        rows = yield from self._dialect.run("delivery_of", reminder_ids)
        return [one for one in map(self._delivery, rows) if one.key == key]

    def _of_digest(self, key: str) -> Statements:
        rows = yield from self._dialect.run("receipt_digest", {"key": key})
        return [self._delivery(row) for row in rows]

    def _acknowledge(self, subject: Subject, reminder: Reminder, actor: str) -> Statements:
        if reminder.status is not ReminderStatus.ARMED or reminder.snoozes:
            return (yield from super()._acknowledge(subject, reminder, actor))
        # Its sender finds what is recorded here, and records the rest.
        new = yield from self._dialect.run("reminder_acknowledge", {"id": reminder.id, "by": actor})
        if new:
            yield from self._audit_reminder(actor, "reminder.acknowledged", reminder, {})
        return len(new)
