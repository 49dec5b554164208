"""Receipts that come early: known by the message's key, before its send is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from duetime.domain.delivery import Delivery, DeliveryStatus
from duetime.domain.digest import DIGEST_PREFIX, digest_key, read_digest_key
from duetime.domain.reminder import KEY_PREFIX, Reminder, ReminderStatus, Subject
from duetime.errors import DeliveryNotFound
from duetime.storage.deliveries import DeliveryStatements
from duetime.storage.store import Statements

_GONE = (ReminderStatus.SUPERSEDED, ReminderStatus.CANCELLED)


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
        """`receipt` of the message with this key, sent or just being sent.

        `only_channel`: the one that it went through, if the app has no other.
        """
        reminder, under_way = yield from self._sought(key)
        deliveries = yield from self._of_key(reminder, key, channel)
        told = {one.reminder_id for one in deliveries if one.sent_at is not None}
        early = [one for one in under_way if one.id not in told]
        if early:
            names = {one.channel for one in deliveries}
            through = channel or (names.pop() if len(names) == 1 else only_channel)
            if through is None:
                raise DeliveryNotFound(external_id or key)
            yield from self._dialect.run(
                "receipt_early",
                [
                    {"id": one.id, "round": one.snoozes, "channel": through, "key": key,
                     "external_id": external_id or key}
                    for one in early
                ],
            )  # fmt: skip
            deliveries = yield from self._of_key(reminder, key, through)
        sent = [one for one in deliveries if one.sent_at is not None]
        if not sent:
            raise DeliveryNotFound(external_id or key)
        changed, last = 0, sent[-1].channel
        ids: dict[str, None] = {}
        for one in [one for one in sent if one.channel == last]:
            known_as = one.external_id or external_id or key
            ids[known_as] = None
            if one.external_id is None:
                yield from self._dialect.run(
                    "receipt_known_as", {"id": one.id, "external_id": known_as}
                )
        for known_as in ids:
            changed += yield from self.receipt(
                known_as, status, reason=reason, channel=last, actor=actor
            )
        return changed

    def _sought(self, key: str) -> Statements:
        """Lock what has this key: a reminder, or (None) all of a digest. Returns it, and the
        reminders that may just be sent with the key."""
        if key.startswith(DIGEST_PREFIX):
            return None, (yield from self._in_digest(key))
        reminder = yield from self._keyed(key)
        return reminder, [reminder] if _may_be_under_way(reminder, key) else []

    def _in_digest(self, key: str) -> Statements:
        """Lock all that went out in the digest with this key; return what just does."""
        members: set[int] = set()
        digest_id = read_digest_key(key)
        if digest_id is None:
            raise DeliveryNotFound(key)
        rows = yield from self._dialect.run("digest_get", {"id": digest_id})
        for _, recipient, status, _, created_at in rows:
            made_at = self._dialect.moment(created_at)
            if status == "sending" and digest_key(recipient, made_at, digest_id) == key:
                inside = yield from self._dialect.run("digest_members", {"id": digest_id})
                members = {row[0] for row in inside}
        recorded = yield from self._of_key(None, key, None)
        _, found = yield from self._locked([*members, *(one.reminder_id for one in recorded)])
        # The digest may have been recorded while we waited.
        return [one for one in found if one.id in members and one.status is ReminderStatus.ARMED]

    def _keyed(self, key: str) -> Statements:
        """Lock the subject of the reminder that has this key, in its last round or before."""
        for ref, due in _read_key(key):
            rows = yield from self._dialect.run("receipt_keyed", {"subject": ref, "due_at": due})
            _, found = yield from self._locked([row[0] for row in rows])
            mine = [one for one in found if any(_key_of(one, n) == key for n in _rounds(one))]
            if mine:
                # Of those that were armed twice, the one that is not withdrawn.
                return max(mine, key=lambda one: (one.status not in _GONE, one.id))
        raise DeliveryNotFound(key)

    def _of_key(self, reminder: Reminder | None, key: str, channel: str | None) -> Statements:
        """The deliveries with a key: of a reminder, or (None) of all in a digest."""
        if reminder is None:
            rows = yield from self._dialect.run("receipt_digest", {"key": key})
        else:
            rows = yield from self._dialect.run("delivery_of", [reminder.id])
        found: list[Delivery] = [self._delivery(row) for row in rows]
        return [one for one in found if one.key == key and channel in (None, one.channel)]

    def _acknowledge(self, subject: Subject, reminder: Reminder, actor: str) -> Statements:
        if reminder.status is not ReminderStatus.ARMED or reminder.snoozes:
            return (yield from super()._acknowledge(subject, reminder, actor))
        # Its sender finds what is recorded here, and records the rest.
        new = yield from self._dialect.run("reminder_acknowledge", {"id": reminder.id, "by": actor})
        if new:
            yield from self._tell(actor, "reminder.acknowledged", reminder, {})
        return len(new)


def _may_be_under_way(reminder: Reminder, key: str) -> bool:
    return reminder.status is not ReminderStatus.SENT and reminder.key == key


def _rounds(reminder: Reminder) -> range:
    return range(reminder.snoozes, -1, -1)


def _key_of(reminder: Reminder, number: int) -> str:
    return msgspec.structs.replace(reminder, snoozes=number).key


def _read_key(key: str) -> Iterator[tuple[str, datetime]]:
    """The subject and the due time in a key; several, if names have the sign between the parts."""
    parts = key.removeprefix(KEY_PREFIX).split("|")
    for place, part in enumerate(parts):
        if place and part[:4].isdigit() and part.endswith("Z"):
            try:
                yield "|".join(parts[:place]), datetime.fromisoformat(part)
            except ValueError:
                continue
