"""What is done to deliveries, and to reminders that were sent, as statements without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.duration import format_time
from duetime.domain.reasons import Reason
from duetime.domain.reminders.arming import Armed, resolve_rules
from duetime.domain.reminders.delivery import (
    Delivery,
    DeliveryStatus,
    comes_after,
    explain_receipt,
)
from duetime.domain.reminders.reminder import REMIND_TASK, Reminder, ReminderStatus, Subject
from duetime.domain.reminders.rule import rule_times
from duetime.errors import DeliveryNotFound, InvalidInput, ReminderNotFound
from duetime.storage.reminders.arming import reminder_document
from duetime.storage.reminders.rows import levels_of, read_scope
from duetime.storage.reminders.sends import SendStatements
from duetime.storage.store import Dialect, Row, Statements

_GONE = (ReminderStatus.SUPERSEDED, ReminderStatus.CANCELLED)


class DeliveryStatements(SendStatements):
    """Every method is one transaction. A subject is locked before its reminders are changed.

    `enqueue_follow_up`: enqueues the job that escalates a reminder which turns out to be sent.
    """

    def __init__(
        self,
        dialect: Dialect,
        enqueue_follow_up: Callable[[Reminder], Statements] | None = None,
    ) -> None:
        super().__init__(dialect)
        self._enqueue_follow_up = enqueue_follow_up

    # What people and providers do

    def acknowledge(
        self, which: int | str, *, actor: str, channel: str | None = None
    ) -> Statements:
        """Record that somebody has seen it; return whether that was new. It escalates no more."""
        if isinstance(which, int):
            subjects, found = yield from self._locked([which])
            if not found:
                raise ReminderNotFound(which)
        else:
            rows = yield from self._known(which, channel)
            subjects, found = yield from self._locked([row[1] for row in rows])
        new = 0
        for reminder in found:
            new += yield from self._acknowledge(subjects[reminder.subject], reminder, actor)
        return new > 0

    def snooze(self, reminder_id: int, span: timedelta, *, actor: str) -> Statements:
        """Have it sent again after a while; return when."""
        subjects, found = yield from self._locked([reminder_id])
        if not found:
            raise ReminderNotFound(reminder_id)
        [reminder] = found
        subject = subjects[reminder.subject]
        if reminder.status is not ReminderStatus.SENT:
            raise InvalidInput(
                f"Reminder {reminder.id} is {reminder.status}: only one that was sent can be "
                "snoozed."
            )
        rule = yield from self._rule_that_holds(subject, reminder)
        if rule is None:
            raise InvalidInput(
                f"Reminder {reminder.id} is no longer true: {subject.ref!r} has been closed or "
                "changed since it was sent. There is nothing to snooze."
            )
        now = yield from self._dialect.now()
        run_at = now + span
        expires_at = rule.expires_at(reminder.time, reminder.due_at)
        if expires_at is not None and run_at >= expires_at:
            raise InvalidInput(
                f"Reminder {reminder.id} cannot be snoozed until {format_time(run_at)}: it is too "
                f"late from {format_time(expires_at)} on. Snooze it for less."
            )
        yield from self._send_again(
            reminder,
            run_at,
            Reason.of("reminder_snoozed", by=actor),
            expires_at,
            snoozes=reminder.snoozes + 1,
        )
        yield from self._audit_reminder(
            actor, "reminder.snoozed", reminder, {"until": format_time(run_at)}
        )
        return run_at

    def receipt(
        self,
        external_id: str,
        status: DeliveryStatus,
        *,
        reason: str | None,
        channel: str | None,
        actor: str,
    ) -> Statements:
        """Record a receipt; return how many deliveries changed."""
        rows = yield from self._known(external_id, channel)
        subjects, found = yield from self._locked([row[1] for row in rows])
        reminders = {reminder.id: reminder for reminder in found}
        # Again, now that nobody else can change them.
        rows = yield from self._known(external_id, channel)
        changed = 0
        for delivery in (self._delivery(row) for row in rows):
            if not comes_after(status, delivery.status) or delivery.reminder_id not in reminders:
                continue
            changed += 1
            error = Reason.of("receipt", text=reason) if reason and status.gave_up else None
            yield from self._dialect.run(
                "delivery_report", {"id": delivery.id, "status": status, "error": error}
            )
            reminder = reminders[delivery.reminder_id]
            after = {"channel": delivery.channel, "external_id": external_id, "status": status}
            yield from self._audit_reminder(
                actor, "delivery.receipt", reminder, after | {"reason": reason},
                before={"status": delivery.status},
            )  # fmt: skip
            subject = subjects[reminder.subject]
            if status.accepted and delivery.round == reminder.snoozes:
                reported = Reason.of("reported_sent", channel=delivery.channel, status=status.value)
                reminder = yield from self._record_as_sent(
                    reminder, reported, actor, after={"channel": delivery.channel,
                                                      "external_id": external_id},
                )  # fmt: skip
            if status is DeliveryStatus.ACKNOWLEDGED:
                yield from self._acknowledge(subject, reminder, reminder.recipient or actor)
            elif status.gave_up and delivery.round == reminder.snoozes:
                yield from self._try_another(subject, reminder, delivery, status)
        return changed

    def apply_early(self, early: Sequence[int]) -> Statements:
        """Have failures take effect whose receipts arrived before the sends were recorded."""
        for reminder in (yield from self.find(early)) if early else []:
            known = yield from self.deliveries(reminder.id)
            failed = [one for one in known if one.round == reminder.snoozes and one.status.gave_up]
            if failed:
                # Not locked, since we hold the reminder: who changes the subject meanwhile waits
                # for it, and withdraws what we arm.
                [subject] = yield from self.subjects([reminder.subject])
                yield from self._try_another(subject, reminder, failed[-1], failed[-1].status)

    # Escalation

    def escalate(self, reminder_id: int, snoozes: int, *, worker: str) -> Statements:
        """Nobody has acknowledged it in time: remind the next recipient. Returns who that is."""
        subjects, found = yield from self._locked([reminder_id])
        now = yield from self._dialect.now()
        for reminder in found:
            wait, sent_at = reminder.rule.escalate, reminder.ended_at
            if (
                reminder.status is not ReminderStatus.SENT
                or reminder.snoozes != snoozes
                # Sent again meanwhile, by another channel: that has its own time.
                or (wait is not None and sent_at is not None and sent_at + wait > now)
            ):
                return None
            why = Reason.of("not_acknowledged", recipient=reminder.recipient)
            return (yield from self._arm_next(subjects[reminder.subject], reminder, why, worker))
        return None

    def record_unsent(self, jobs: Sequence[int]) -> Statements:
        """Record reminders whose jobs finished without a send, and escalate."""
        rows = yield from self._dialect.run("reminder_subject", {"ids": [], "jobs": list(jobs)})
        subjects = {}
        if rows:
            # Before their reminders: the order of everyone who locks both.
            subjects = {s.ref: s for s in (yield from self._lock(ids=[row[0] for row in rows]))}
        recorded = yield from self._dialect.run("reminder_record_unsent", list(jobs))
        failed = [row[0] for row in recorded if row[1] == ReminderStatus.FAILED]
        if failed:
            yield from self._dialect.run("delivery_give_up", failed)
        unreached = [
            row[0]
            for row in recorded
            if row[2] is not None and row[1] in (ReminderStatus.FAILED, ReminderStatus.SKIPPED)
        ]
        for reminder in (yield from self.find(unreached)) if unreached else []:
            if reminder.subject in subjects:
                why = not_reached(reminder, reminder.reason)
                yield from self._arm_next(subjects[reminder.subject], reminder, why, "duetime")
        return len(recorded)

    def _arm_next(
        self, subject: Subject, reminder: Reminder, why: Reason, actor: str
    ) -> Statements:
        """Arm the reminder of the next recipient, of a locked subject.

        Calling it twice has no further effect. It goes on, too, if the recipient of `reminder` was
        removed.
        """
        rule = yield from self._rule_that_holds(subject, reminder, removed=True)
        if rule is None or rule.escalate is None:
            return None
        now = yield from self._dialect.now()
        group = yield from self._group(subject, reminder)
        following = self._following(subject, reminder, group, now - rule.escalate)
        if following is None:
            return None
        expires_at = rule.expires_at(reminder.time, reminder.due_at)
        armed = Armed(rule, reminder.time, now, "armed", why, expires_at)
        if expires_at is not None and expires_at <= now:
            late = Reason(why.code, why.facts | {"expires_at": format_time(expires_at)})
            armed = Armed(rule, reminder.time, None, "expired", late, expires_at)
        passed = [row[0] for row in group if row[1] == following and _was_past(row)]
        if not passed:
            installation = yield from self._dialect.installation()
            document = reminder_document(installation, subject, reminder.due_at, following, armed)
            yield from self._dialect.run("reminder_write", [document])
        elif armed.run_at is None:
            return None
        else:
            yield from self._dialect.run(
                "resend",
                {"id": passed[-1], "run_at": now, "reason": why, "snoozes": 0,
                 "task": REMIND_TASK, "taken": False, "expires_at": expires_at},
            )  # fmt: skip
        yield from self._audit_reminder(
            actor, "reminder.escalated", reminder, {"to": following, "why": why}
        )
        return following

    def _following(
        self, subject: Subject, reminder: Reminder, group: Sequence[Row], since: datetime
    ) -> str | None:
        """The first recipient, in the order of now, who was not reminded yet.

        None if everybody was reminded, if somebody has acknowledged, or if another reminder
        escalates later by itself: it is still to be sent, or was sent after `since`.
        """
        known: dict[str, Row] = {row[1]: row for row in group if row[2] not in _GONE}
        if any(row[3] is not None for row in group):
            return None
        order = subject.recipients
        place = order.index(reminder.recipient) if reminder.recipient in order else -1
        for number, recipient in enumerate(order):
            row = known.get(recipient)
            # One that an earlier recipient has snoozed keeps nobody waiting.
            if row is None or number == place or (number < place and row[5]):
                continue
            ended_at = None if row[6] is None else self._dialect.moment(row[6])
            lately = row[2] == ReminderStatus.SENT and ended_at is not None and ended_at > since
            if lately or row[2] in (ReminderStatus.ARMED, ReminderStatus.EXPIRED):
                return None
        return next((one for one in order if one not in known or _was_past(known[one])), None)

    # Parts

    def _record_as_sent(
        self, reminder: Reminder, how: Reason, actor: str, *, after: dict[str, Any] | None = None
    ) -> Statements:
        """It did go out, whatever was recorded: its answers were lost. Returns it as it is then.

        One that is being sent just now stays as it is: its sender records it.
        """
        if reminder.status is ReminderStatus.SENT:
            return reminder
        reason = how
        if reminder.status is not ReminderStatus.ARMED:
            reason = how.because(reminder.reason, was=reminder.status.value)
        if not (
            yield from self._dialect.run("reminder_report", {"id": reminder.id, "reason": reason})
        ):
            return reminder
        yield from self._audit_reminder(
            actor, "reminder.sent", reminder, after or {}, before={"status": reminder.status}
        )
        if self._enqueue_follow_up is not None:
            yield from self._enqueue_follow_up(reminder)
        return msgspec.structs.replace(reminder, status=ReminderStatus.SENT, reason=reason)

    def _acknowledge(self, subject: Subject, reminder: Reminder, actor: str) -> Statements:
        if reminder.status is not ReminderStatus.SENT and not reminder.snoozes:
            tried = yield from self.deliveries(reminder.id)
            if not any(one.attempts for one in tried):
                raise InvalidInput(
                    f"Reminder {reminder.id} is {reminder.status}: only one that was sent can be "
                    "acknowledged."
                )
            reminder = yield from self._record_as_sent(
                reminder, Reason.of("acknowledged_sent", by=actor), actor
            )
        document = {"id": reminder.id, "by": actor}
        if not (yield from self._dialect.run("reminder_acknowledge", document)):
            return 0
        idle = [reminder.id] if reminder.status is ReminderStatus.ARMED else []
        if reminder.rule.escalate is not None:
            group = yield from self._group(subject, reminder)
            idle += [row[0] for row in group if row[2] == ReminderStatus.ARMED]
        if idle:
            yield from self._dialect.run(
                "reminder_withdraw",
                {"ids": sorted(set(idle)), "status": ReminderStatus.CANCELLED,
                 "reason": Reason.of("acknowledged", by=actor)},
            )  # fmt: skip
        yield from self._audit_reminder(actor, "reminder.acknowledged", reminder, {})
        return 1

    def _try_another(
        self, subject: Subject, reminder: Reminder, delivery: Delivery, status: DeliveryStatus
    ) -> Statements:
        """It did not arrive after all: arm it again. Channels that gave up are passed over."""
        if reminder.status is not ReminderStatus.SENT or reminder.acknowledged_at is not None:
            return
        rule = yield from self._rule_that_holds(subject, reminder)
        if rule is None:
            return
        now = yield from self._dialect.now()
        expires_at = rule.expires_at(reminder.time, reminder.due_at)
        # One that was sent again on request does not expire: its job says so.
        if expires_at is not None and (
            yield from self._dialect.run("reminder_lasts", {"job": reminder.job_id})
        ):
            expires_at = None
        if expires_at is not None and expires_at <= now:
            return
        others = yield from self._dialect.run("delivery_of", [reminder.id])
        if any(
            other.status.accepted and other.round == delivery.round
            for other in map(self._delivery, others)
        ):
            return
        why = explain_receipt(delivery.channel, status)
        yield from self._send_again(reminder, now, why, expires_at, snoozes=reminder.snoozes)

    def _send_again(
        self,
        reminder: Reminder,
        run_at: datetime,
        reason: Reason,
        expires_at: datetime | None,
        *,
        snoozes: int,
    ) -> Statements:
        again = msgspec.structs.replace(reminder, snoozes=snoozes)
        yield from self._dialect.run(
            "reminder_again",
            {
                "id": reminder.id,
                "run_at": run_at,
                "reason": reason,
                "snoozes": snoozes,
                "key": again.key,
                "task": REMIND_TASK,
                "expires_at": expires_at,
            },
        )

    def _rule_that_holds(
        self, subject: Subject, reminder: Reminder, *, removed: bool = False
    ) -> Statements:
        """The rule of a reminder as it is now; None if the reminder is no longer true.

        `removed`: also if its recipient was removed.
        """
        repeats = subject.repeats
        due = repeats is not None and repeats.is_due(reminder.due_at)
        if subject.status != "open" or not (due or subject.due_at == reminder.due_at):
            return None
        if not removed and reminder.recipient not in (subject.recipients or ("",)):
            return None
        scopes = {}
        if subject.scope is not None:
            rows = yield from self._dialect.run("scope_read", [subject.scope])
            scopes = {row[0]: read_scope(row) for row in rows}
        rules = resolve_rules(levels_of(subject, scopes)).rules
        rule = next((rule for rule in rules if rule.id == reminder.rule.id), None)
        if rule is None:
            return None
        tz = subject.tz
        if rule.zone == "recipient":
            rows = yield from self._dialect.run("recipient_zones", [reminder.recipient])
            tz = rows[0][1] if rows else tz
        # After a change of the time zone, a wall time is another moment.
        return rule if reminder.time in rule_times(rule, reminder.due_at, tz) else None

    def _group(self, subject: Subject, reminder: Reminder) -> Statements:
        return (
            yield from self._dialect.run(
                "reminder_group",
                {
                    "subject_id": subject.id,
                    "due_at": reminder.due_at,
                    "rule_id": reminder.rule.id,
                    "time": reminder.time,
                },
            )
        )

    def _known(self, external_id: str, channel: str | None) -> Statements:
        rows = yield from self._dialect.run(
            "delivery_known", {"external_id": external_id, "channel": channel}
        )
        if not rows:
            raise DeliveryNotFound(external_id)
        return rows

    def _locked(self, reminder_ids: Sequence[int]) -> Statements:
        """Lock the subjects of reminders, then those, and read both: what was true before may not
        be now."""
        ids = sorted(set(reminder_ids))
        rows = yield from self._dialect.run("reminder_subject", {"ids": ids, "jobs": []})
        locked = yield from self._lock(ids=[row[0] for row in rows])
        subjects = {subject.ref: subject for subject in locked}
        if subjects:
            yield from self.hold(ids)
        found = (yield from self.find(ids)) if subjects else []
        return subjects, [reminder for reminder in found if reminder.subject in subjects]

    def _audit_reminder(
        self, actor: str, action: str, reminder: Reminder, after: dict[str, Any], before: Any = None
    ) -> Statements:
        what = {"reminder": reminder.id, "rule": reminder.rule.text}
        what |= {"recipient": reminder.recipient}
        yield from self._audit(actor, action, f"subject:{reminder.subject}", before, what | after)


def _was_past(row: Row) -> bool:
    """Whether a reminder of the group was never tried: its time had passed when it was armed."""
    return row[2] == ReminderStatus.SKIPPED and row[4] is None


def not_reached(reminder: Reminder, why: Reason | None) -> Reason:
    """Why the next recipient is reminded: the one before was not reached."""
    return Reason.of("not_reached", recipient=reminder.recipient, why=why)
