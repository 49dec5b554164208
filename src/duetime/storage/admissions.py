"""How reminders are let through to their recipients, or held, alone or in a digest.

Statements without I/O. Whoever lets a message through to a limited recipient holds the recipient's
row: the count of the last hour is exact, whatever the number of workers. Nothing is held while a
message is sent.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from duetime.domain.admission import (
    Send,
    Uses,
    Wait,
    decide,
    digest_time,
    expiry,
    gather,
    why_muted,
)
from duetime.domain.digest import DIGEST_TASK, MOST_REMINDERS, Digest, digest_key, in_order
from duetime.domain.outcome import Outcome, Skip, Snooze
from duetime.domain.recipient import Recipient
from duetime.domain.reminder import Reminder, ReminderStatus
from duetime.storage.recipients import RecipientStatements, read_recipient
from duetime.storage.store import Dialect, Row, Statement, Statements, in_parts

_AFTER_DIGEST = timedelta(seconds=10)
"""What is in a digest looks so long after it, whether it was sent."""
_SOON = timedelta(seconds=1)
GONE = Skip("it was sent or withdrawn just now")


class Desk(NamedTuple):
    """What is known when a reminder is due. No recipient: it was never put."""

    now: datetime
    recipient: Recipient | None
    status: str
    """Of the reminder: it may have gone out with a digest just now, or been withdrawn."""
    held: str | None
    digest: int | None
    digest_status: str | None


class AdmissionStatements(RecipientStatements):
    """Every method is one transaction."""

    def desk(self, reminder: Reminder) -> Statements:
        """Return what is known about the recipient of a reminder. Reads only, in one statement."""
        rows = yield from self._dialect.run("admission_read", {"reminder": reminder.id})
        if not rows:
            return None
        return read_desk(self._dialect, rows[0])

    def around(self, scopes: Sequence[str]) -> Statements:
        """Return `{scope: {itself and all around it}}`. Reads only, in one statement."""
        rows = yield from self._dialect.run("scope_around", list(scopes))
        found: dict[str, set[str]] = {}
        for scope, outer in rows:
            found.setdefault(scope, set()).add(outer)
        return found

    def hold(self, reminder: Reminder, wait: Wait) -> Statements:
        """It waits, alone."""
        yield from self._hold(reminder, run_at=wait.until, reason=wait.reason, held=wait.held)

    def note(self, reminder: Reminder, reason: str | None) -> Statements:
        """It goes out now; `reason`: what people should know. Returns whether it still may."""
        return (yield from self._hold(reminder, reason=reason))

    def give_back(self, reminder: Reminder) -> Statements:
        """It was let through, and surely not sent."""
        yield from self._dialect.run(
            "use_delete", {"ref": reminder.recipient, "what": _use_of(reminder)}
        )

    # Under a limit

    def admit(
        self,
        reminder: Reminder,
        *,
        around: set[str],
        channels: Sequence[str] | None,
        digests: bool,
    ) -> Statements:
        """Let it through and count it, or hold it. `digests`: what waits goes out together.

        Returns `Send`, or the `Outcome` of its job.
        """
        recipient = yield from self.lock_recipient(reminder.recipient)
        recipient = recipient or Recipient(ref=reminder.recipient)
        desk = yield from self.desk(reminder)
        if desk is None or desk.status != ReminderStatus.ARMED:
            return GONE
        if desk.digest is not None:
            # Another worker, which got the job after us, has put it there.
            return Snooze(timedelta(0), f"it is in digest {desk.digest}")
        what = _use_of(reminder)
        now, uses = yield from self._uses(recipient, what)
        decision = decide(recipient, reminder, now, around=around, channels=channels, uses=uses)
        if isinstance(decision, Send) and digests and not uses.admitted:
            # Who waits goes first, else newcomers could keep a digest waiting for ever.
            rows = yield from self._dialect.run("digest_open", {"ref": recipient.ref})
            if rows and not rows[0][3]:
                return (yield from self._join(recipient, reminder, now, uses))
        if isinstance(decision, Send):
            if not (yield from self.note(reminder, decision.note or said_after(reminder))):
                return GONE
            yield from self._dialect.run("use_write", {"ref": recipient.ref, "what": what})
            return decision
        if isinstance(decision, Skip):
            return decision
        if decision.held == "quiet" or not digests:
            yield from self.hold(reminder, decision)
            return Snooze(decision.until - now, decision.reason)
        return (yield from self._join(recipient, reminder, now, uses))

    def stay(self, reminder: Reminder) -> Statements:
        """It is in a digest that was not sent yet: wait for it."""
        recipient = yield from self.lock_recipient(reminder.recipient)
        desk = yield from self.desk(reminder)
        if desk is None or desk.status != ReminderStatus.ARMED:
            return GONE
        if desk.digest is None:
            return Snooze(timedelta(0), "its digest is gone")
        if desk.digest_status == "waiting":
            recipient = recipient or Recipient(ref=reminder.recipient)
            now, uses = yield from self._uses(recipient, f"digest:{desk.digest}")
            return (yield from self._join(recipient, reminder, now, uses))
        # Should it fail for good, whoever settles its job ends this one too.
        return Snooze(_AFTER_DIGEST, f"digest {desk.digest}, in which it is, is being sent")

    def _join(
        self, recipient: Recipient, reminder: Reminder, now: datetime, uses: Uses
    ) -> Generator[Statement, list[Row], Outcome]:
        """Put it into the recipient's digest, which goes out in time for it."""
        at = gather(digest_time(recipient, [reminder], now, uses), reminder, now)
        rows = yield from self._dialect.run("digest_open", {"ref": recipient.ref})
        moment = self._dialect.moment
        if rows and rows[0][3]:
            # Its job was cancelled: whoever was in it joins the next.
            yield from self._dialect.run("digest_delete", {"id": rows[0][0]})
            rows = []
        settled = True
        if not rows:
            given = {"ref": recipient.ref, "run_at": at, "task": DIGEST_TASK}
            rows = yield from self._dialect.run("digest_add", given)
        elif rows[0][2] is None or moment(rows[0][2]) > at:
            moved = yield from self._dialect.run("digest_move", {"job": rows[0][1], "run_at": at})
            settled = bool(moved)
        else:
            at = moment(rows[0][2])
        most = recipient.most_per_hour
        limit = "" if most is None else f": {recipient.ref} gets at most {most} in an hour"
        reason = f"it waits for digest {rows[0][0]}{limit}"
        yield from self._hold(reminder, run_at=at, reason=reason, held="limit", digest=rows[0][0])
        # The digest's job decides just now: it may not have seen this one, so ask again.
        return Snooze(at - now + _AFTER_DIGEST if settled else _SOON, reason)

    # Digests

    def begin_digest(self, digest_id: int) -> Statements:
        """Close a digest and count it, if its time has come.

        Returns the `Digest` to send, or the `Outcome` of its job. What a dead worker began to
        send is begun again, with the same key and what is still true of it.
        """
        found = yield from self._dialect.run("digest_get", {"id": digest_id})
        if not found:
            return Skip("nothing is left of it")
        ref = found[0][1]
        recipient = (yield from self.lock_recipient(ref)) or Recipient(ref=ref)
        found = yield from self._dialect.run("digest_get", {"id": digest_id})
        if not found:
            return Skip("nothing is left of it")
        _, _, status, _, created_at = found[0]
        now, uses = yield from self._uses(recipient, f"digest:{digest_id}")
        members = yield from self._members(digest_id, recipient, now)
        if status == "waiting" and members:
            at = digest_time(recipient, members, now, uses)
            if at > now:
                return Snooze(at - now, f"{ref} gets it then")
        if not members or (status == "waiting" and len(members) == 1):
            yield from self._disband(digest_id, recipient, members, now)
            return Skip("nothing is left of it" if not members else "the only one goes alone")
        if status == "waiting":
            members = members[:MOST_REMINDERS]
            ids = [member.id for member in members]
            yield from self._dialect.run("digest_close", {"id": digest_id, "members": ids})
        yield from self._dialect.run("use_write", {"ref": ref, "what": f"digest:{digest_id}"})
        most = recipient.most_per_hour
        beyond = most is not None and uses.taken >= most and not uses.admitted
        return Digest(
            id=digest_id,
            key=digest_key(ref, self._dialect.moment(created_at), digest_id),
            recipient=ref,
            to=recipient,
            reminders=in_order(members),
            note=f"beyond {most} in an hour, before one would have expired" if beyond else None,
        )

    def drop_digest(self, digest_id: int) -> Statements:
        """It is not sent: what was in it is looked at again, each by itself."""
        yield from self._dialect.run("digest_delete", {"id": digest_id})

    def digest_sent(
        self, digest: Digest, *, channel: str, external_id: str | None, worker: str
    ) -> Statements:
        """Record that all of it was handed over, with the audit events."""
        members = [reminder.id for reminder in digest.reminders]
        reason = f"it went out in digest {digest.id}, with {len(members) - 1} more"
        if digest.note:
            reason += f"; {digest.note}"
        yield from self._dialect.run(
            "digest_sent",
            {"members": members, "channel": channel, "key": digest.key, "status": "sent",
             "external_id": external_id, "reason": reason},
        )  # fmt: skip
        yield from self._dialect.run("digest_delete", {"id": digest.id})
        yield from self._dialect.run(
            "audit_write",
            [
                {"actor": worker, "action": "reminder.sent", "entity": f"subject:{one.subject}",
                 "before": None, "reason": reason,
                 "after": {"reminder": one.id, "rule": one.rule.text, "channel": channel,
                           "recipient": digest.recipient, "external_id": external_id,
                           "digest": digest.key}}
                for one in digest.reminders
            ],
        )  # fmt: skip

    def _members(
        self, digest_id: int, recipient: Recipient, now: datetime
    ) -> Generator[Statement, list[Row], list[Reminder]]:
        """What is in it, and still to be sent, by due time; at most one more than it may have."""
        rows = yield from self._dialect.run("digest_members", {"id": digest_id})
        members: list[Reminder] = []
        ids = [row[0] for row in rows]
        for part in in_parts(ids, MOST_REMINDERS):
            members += yield from self.find(ids=part)
        around: dict[str, set[str]] = {}
        if any(muted.startswith("scope:") for muted in recipient.muted):
            scopes = sorted({member.scope for member in members if member.scope})
            around = yield from self.around(scopes)
        return [
            member
            for member in members
            if not member.stale
            and ((ends := expiry(member)) is None or ends > now)
            and why_muted(recipient, member, around.get(member.scope or "", ())) is None
        ]

    def _disband(
        self, digest_id: int, recipient: Recipient, members: Sequence[Reminder], now: datetime
    ) -> Statements:
        """The only one left is let through, as itself."""
        yield from self._dialect.run("digest_delete", {"id": digest_id})
        for member in members:
            what = _use_of(member)
            yield from self._dialect.run("use_write", {"ref": recipient.ref, "what": what})
            yield from self._dialect.run("digest_move", {"job": member.job_id, "run_at": now})

    def _uses(
        self, recipient: Recipient, what: str
    ) -> Generator[Statement, list[Row], tuple[datetime, Uses]]:
        asked = {"ref": recipient.ref, "what": what, "most": recipient.most_per_hour or 1}
        [row] = yield from self._dialect.run("use_read", asked)
        moment = self._dialect.moment
        frees_at = None if row[2] is None else moment(row[2]) + timedelta(hours=1)
        return moment(row[0]), Uses(row[1], frees_at, bool(row[3]))

    def _hold(
        self,
        reminder: Reminder,
        *,
        run_at: datetime | None = None,
        reason: str | None = None,
        held: str | None = None,
        digest: int | None = None,
    ) -> Generator[Statement, list[Row], bool]:
        """Returns whether it is still to be sent."""
        given: dict[str, Any] = {"id": reminder.id, "run_at": run_at, "reason": reason,
                                 "held": held, "digest": digest}  # fmt: skip
        return bool((yield from self._dialect.run("admission_hold", given)))


def read_desk(dialect: Dialect, row: Row) -> Desk:
    """From the columns of `admission_read`."""
    recipient = None if row[1] is None else read_recipient(row[1:8])
    status, held, digest, digest_status = row[8:12]
    return Desk(dialect.moment(row[0]), recipient, status, held, digest, digest_status)


def said_after(reminder: Reminder) -> str | None:
    """What is said of one that waited, and goes out now."""
    if reminder.reason is None or not reminder.reason.startswith("it waits"):
        return None
    return reminder.reason.replace("it waits", "it waited", 1)


def _use_of(reminder: Reminder) -> str:
    """What takes a place in the hour: a message, however often it is tried. Snoozed or sent again,
    a reminder is another message."""
    again = f"|{reminder.snoozes}" if reminder.snoozes else ""
    return f"reminder:{reminder.id}{again}"
