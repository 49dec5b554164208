"""What the sender of a reminder reads and records, as statements without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from duetime.domain.jobs.rate import Rate
from duetime.domain.reasons import Reason, read_reason
from duetime.domain.reminders.delivery import Delivery, DeliveryStatus
from duetime.domain.reminders.digest import Digest
from duetime.domain.reminders.reminder import Reminder, ReminderStatus
from duetime.storage.reminders.admissions import AdmissionState, read_admission_state
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.store import Row, Statements, run_many

_SLACK = timedelta(seconds=1)
"""How late a message that was promised a place may come."""
_TWIN, _DELIVERIES, _ADMISSION = 22, 23, 24
"""Where the columns of `reminder_ready` begin that `reminder_get` has not."""


class Ready(NamedTuple):
    """A reminder that is due, and what its sender has to know."""

    reminder: Reminder
    twin: tuple[str, int] | None
    """Another reminder of the same place, which was `sent`, or which a worker is `sending`."""
    deliveries: dict[str, Delivery]
    """What each channel did with it, in this round."""
    admission: AdmissionState
    """What decides whether it goes to its recipient now."""

    @property
    def now(self) -> datetime:
        return self.admission.now


class SentReminder(NamedTuple):
    """A reminder that was sent, what its channels did, and the worker that tried them."""

    reminder: Reminder
    deliveries: list[dict[str, Any]]
    worker: str


class SendStatements(ReminderStatements):
    """Every method is one transaction."""

    def ready(self, reminder_ids: Sequence[int]) -> Statements:
        """Return all that is checked right before they are sent, `{id: Ready}`. Reads only."""
        rows = yield from self._dialect.run("reminder_ready", list(reminder_ids))
        found = [self._ready(row) for row in rows]
        return {ready.reminder.id: ready for ready in found}

    def deliveries(self, *reminder_ids: int) -> Statements:
        """Return the deliveries of reminders, in the order in which they began. Reads only."""
        rows = yield from self._dialect.run("delivery_of", list(reminder_ids))
        return [self._delivery(row) for row in rows]

    def digest_deliveries(self, digest: Digest) -> Statements:
        """Return what channels did with all that is in a digest, in this round. Reads only."""
        rounds = {one.id: one.snoozes for one in digest.reminders}
        rows = yield from self._dialect.run("delivery_of", list(rounds))
        found: list[Delivery] = [self._delivery(row) for row in rows]
        return [one for one in found if one.round == rounds[one.reminder_id]]

    def free(self, reminder_ids: Sequence[int]) -> Statements:
        """Lock the reminders that nobody else changes now; return their ids."""
        rows = yield from self._dialect.run("reminder_free", list(reminder_ids))
        return {row[0] for row in rows}

    def hold(self, reminder_ids: Sequence[int]) -> Statements:
        """Lock reminders, after those that change them now. `record` needs them locked."""
        yield from self._dialect.run("reminder_hold", sorted(set(reminder_ids)))

    def record(self, sent: Sequence[SentReminder]) -> Statements:
        """Record what was sent, with the audit events.

        Returns the reminders for which a receipt arrived before this record.
        """
        rows = yield from self._dialect.run(
            "reminder_sent",
            [
                {"id": one.reminder.id, "round": one.reminder.snoozes, "deliveries": one.deliveries}
                for one in sent
            ],
        )
        yield from self._dialect.run("audit_write", [_sent_event(one) for one in sent])
        recorded = {(row[0], row[1]) for row in rows}
        return [
            one.reminder.id
            for one in sent
            if (one.reminder.id, accepting(one.deliveries)["channel"]) not in recorded
        ]

    def record_attempt(
        self, reminders: Sequence[Reminder], deliveries: Sequence[dict[str, Any]]
    ) -> Statements:
        """Record what channels did with reminders that are not sent yet: the same with each."""
        documents = [
            {"id": one.id, "round": one.snoozes, "deliveries": list(deliveries)}
            for one in reminders
        ]
        yield from run_many(self._dialect, "delivery_write", documents)

    def provider_id(self, delivery: Delivery, external_id: str | None) -> Statements:
        """Record the receiver's id of a delivery, if it is not known yet."""
        if external_id is not None:
            yield from self._dialect.run(
                "receipt_known_as", {"id": delivery.id, "external_id": external_id}
            )

    def withdraw(self, reminder_id: int, reason: Reason) -> Statements:
        """End one that is not to be sent."""
        yield from self._dialect.run(
            "reminder_withdraw",
            {"ids": [reminder_id], "status": ReminderStatus.SUPERSEDED, "reason": reason},
        )

    def take_place(self, channel: str, rate: Rate, promised: datetime | None) -> Statements:
        """Take a place within a channel's rate; return None, or when to come for the next one.

        Who comes too early is promised a place behind all that were promised before. A promise
        keeps others from that place; the limit itself counts what was really taken.
        """
        rows = yield from self._dialect.run("channel_lock", {"channel": channel})
        free_at = None if rows[0][0] is None else self._dialect.moment(rows[0][0])
        now = yield from self._dialect.now()
        since, spacing = now - rate.period, rate.period / rate.count
        [(full, last)] = yield from self._dialect.run(
            "channel_full", {"channel": channel, "count": rate.count, "since": since}
        )
        waiting = free_at is not None and free_at > now
        if waiting and last is not None and self._dialect.moment(last) + 2 * spacing + _SLACK < now:
            # Those that were promised a place do not come: they were withdrawn.
            waiting = False
        invited = promised is not None and promised <= now
        if full is None and (invited or not waiting):
            yield from self._dialect.run(
                "channel_take", {"channel": channel, "at": now, "since": since}
            )
            if free_at is not None and not waiting:
                yield from self._dialect.run(
                    "channel_promise", {"channel": channel, "free_at": None}
                )
            return None
        place = now if full is None else self._dialect.moment(full) + rate.period
        if free_at is not None and waiting:
            place = max(place, free_at)
        yield from self._dialect.run(
            "channel_promise", {"channel": channel, "free_at": place + spacing}
        )
        return place - now

    # Rows

    def _ready(self, row: Row) -> Ready:
        state, _, other = (row[_TWIN] or "").partition(" ")
        known = [self._stored(values) for values in msgspec.json.decode(row[_DELIVERIES] or "[]")]
        return Ready(
            self._reminder(row),
            (state, int(other)) if state else None,
            {delivery.channel: delivery for delivery in known},
            read_admission_state(self._dialect, row[_ADMISSION:]),
        )

    def _delivery(self, row: Row) -> Delivery:
        def maybe(value: Any) -> datetime | None:
            return None if value is None else self._dialect.moment(value)

        return Delivery(
            id=row[0], reminder_id=row[1], round=row[2], channel=row[3], key=row[4],
            status=DeliveryStatus(row[5]), attempts=row[6], external_id=row[7],
            error=read_reason(row[8]), next_at=maybe(row[9]), sent_at=maybe(row[10]),
            updated_at=self._dialect.moment(row[11]),
        )  # fmt: skip

    def _stored(self, values: Sequence[Any]) -> Delivery:
        """From JSON, in which PostgreSQL writes times as text."""
        times = [datetime.fromisoformat(v) if isinstance(v, str) else v for v in values[9:12]]
        return self._delivery((*values[:9], *times))


def accepting(deliveries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the channel did that accepted the message."""
    return next(one for one in deliveries if DeliveryStatus(one["status"]).accepted)


def _sent_event(one: SentReminder) -> dict[str, Any]:
    reminder = one.reminder
    sent = accepting(one.deliveries)
    after = {"reminder": reminder.id, "rule": reminder.rule.text, "channel": sent["channel"],
             "recipient": reminder.recipient, "external_id": sent["external_id"]}  # fmt: skip
    return {
        "actor": one.worker,
        "action": "reminder.sent",
        "entity": f"subject:{reminder.subject}",
        "before": None,
        "after": after,
        "reason": None,
    }
