"""Digests that were not sent: what is in them fails too, and escalates to the next recipients.

Statements without I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from duetime.domain.reasons import Reason, read_attempt_reason
from duetime.domain.reminders.reminder import ReminderStatus
from duetime.storage.reminders.deliveries import DeliveryStatements, not_reached
from duetime.storage.store import Statements

_PART = 100
"""How many reminders end in one transaction: others wait for their subjects meanwhile."""


class UnsentDigests(DeliveryStatements):
    """Every method is one transaction. The recipient is locked before subjects and reminders."""

    def failed(self, jobs: Sequence[int] | None = None) -> Statements:
        """Return the digests whose job has ended, and which were not sent. Reads only.

        `jobs`: only theirs.
        """
        given = None if jobs is None else list(jobs)
        rows = yield from self._dialect.run("digest_failed", {"jobs": given, "id": None})
        return [row[0] for row in rows]

    def fail(self, digest_id: int) -> Statements:
        """End some of what is in a digest whose job has ended; return whether there is more."""
        if not (yield from self._lock_digest(digest_id)):
            return False
        rows = yield from self._dialect.run("digest_failed", {"jobs": None, "id": digest_id})
        if not rows:
            # Its job was enqueued again meanwhile.
            return False
        _, outcome, _, error, _ = rows[0]
        # As it is with a reminder whose own job ended so.
        skipped = outcome in ("cancelled", "completed")
        status = ReminderStatus.SKIPPED if skipped else ReminderStatus.FAILED
        if outcome == "cancelled":
            reason = Reason.of("digest_cancelled", digest=digest_id, text=error)
        else:
            gone = outcome is None
            why = Reason("job_gone") if gone else read_attempt_reason(*rows[0][1:])
            reason = Reason.of("digest_failed", digest=digest_id, why=why)
        return (yield from self._end_some(digest_id, status, reason))

    def skip(self, digest_id: int, reason: Reason) -> Statements:
        """End some of what is in a digest that is not to be sent; return whether there is more."""
        if not (yield from self._lock_digest(digest_id)):
            return False
        return (yield from self._end_some(digest_id, ReminderStatus.SKIPPED, reason))

    def _lock_digest(self, digest_id: int) -> Statements:
        """Hold the recipient of a digest; return whether it is there."""
        rows = yield from self._dialect.run("digest_get", {"id": digest_id})
        if rows:
            yield from self._dialect.run("recipient_lock", {"ref": rows[0][1]})
        return bool(rows)

    def _end_some(self, digest_id: int, status: ReminderStatus, reason: Reason) -> Statements:
        rows = yield from self._dialect.run("digest_members", {"id": digest_id})
        if not rows:
            yield from self._dialect.run("digest_delete", {"id": digest_id})
            return False
        subjects, found = yield from self._locked([row[0] for row in rows[:_PART]])
        # If two do this at once, the second finds them ended.
        members = [one for one in found if one.status is ReminderStatus.ARMED]
        ids = [one.id for one in members]
        yield from self._dialect.run(
            "reminder_withdraw", {"ids": ids, "status": status, "reason": reason}
        )
        if status is ReminderStatus.FAILED:
            yield from self._dialect.run("delivery_give_up", ids)
        for one in members:
            if one.rule.escalate is not None:
                why = not_reached(one, reason)
                yield from self._arm_next(subjects[one.subject], one, why, "duetime")
        return True
