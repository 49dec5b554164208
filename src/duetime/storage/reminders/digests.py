"""What the job of a digest reads and records, as statements without I/O."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.jobs.outcome import Skip, Snooze
from duetime.domain.keys import make_digest_key
from duetime.domain.reasons import Reason
from duetime.domain.reminders.admission import digest_time, expiry, leave_out_quiet, why_muted
from duetime.domain.reminders.digest import MAX_REMINDERS, Digest, in_order
from duetime.domain.reminders.recipient import Recipient
from duetime.domain.reminders.reminder import Reminder
from duetime.storage.reminders.admissions import AdmissionStatements, use_of, use_of_digest
from duetime.storage.reminders.sends import accepting
from duetime.storage.store import Row, Statement, Statements, in_parts, run_many


class DigestStatements(AdmissionStatements):
    """Every method is one transaction. A transaction that closes a digest holds
    the recipient's row."""

    def begin_digest(self, digest_id: int, *, job_id: int) -> Statements:
        """Close a digest and count it, if its time has come.

        Returns the `Digest` to send, or the `Outcome` of its job. What a dead worker began to
        send is begun again, with the same key and what is still true of it.
        """
        found = yield from self._dialect.run("digest_get", {"id": digest_id})
        if not found:
            return Skip(Reason("digest_empty"))
        ref = found[0][1]
        recipient = (yield from self.lock_recipient(ref)) or Recipient(ref=ref)
        found = yield from self._dialect.run("digest_lock", {"id": digest_id})
        if not found:
            return Skip(Reason("digest_empty"))
        _, _, status, own_job = found[0]
        if own_job != job_id:
            return Skip(Reason.of("other_job", job=own_job))
        what = use_of_digest(digest_id)
        hour = yield from self._hour(recipient, [what])
        now, uses = hour.now, hour.beside(what)
        members = yield from self._members(digest_id, recipient, now)
        if status == "waiting" and members:
            at = digest_time(recipient, members, now, uses)
            if at > now:
                return Snooze(at - now, Reason.of("digest_waits", recipient=ref, until=at))
            members = leave_out_quiet(recipient, members, now)
        most = recipient.max_per_hour
        beyond = most if most and uses.taken >= most and not uses.admitted else None
        if not members or (status == "waiting" and len(members) == 1):
            yield from self._disband(digest_id, recipient, members, now, beyond)
            return Skip(Reason("digest_single" if members else "digest_empty"))
        if status == "waiting":
            members = members[:MAX_REMINDERS]
            ids = [member.id for member in members]
            yield from self._dialect.run("digest_close", {"id": digest_id, "members": ids})
        yield from self._dialect.run("use_write", {"ref": ref, "whats": [what]})
        return Digest(
            id=digest_id,
            key=make_digest_key((yield from self._dialect.installation()), digest_id),
            recipient=ref,
            to=recipient,
            reminders=in_order(members),
            beyond=beyond,
        )

    def drop_digest(self, digest_id: int) -> Statements:
        """It is not sent: what was in it is checked again, each by itself."""
        yield from self._dialect.run("digest_delete", {"id": digest_id})

    def digest_sent(
        self, digest: Digest, deliveries: Sequence[dict[str, Any]], *, worker: str
    ) -> Statements:
        """Record that all of it was sent and what its channels did, with the audit events.

        Returns the reminders for which a receipt arrived before this record.
        """
        members = [reminder.id for reminder in digest.reminders]
        reason = Reason.of(
            "sent_in_digest", digest=digest.id, others=len(members) - 1, beyond=digest.beyond
        )
        sent = accepting(deliveries)
        channel, external_id = sent["channel"], sent["external_id"]
        rows = yield from self._dialect.run(
            "digest_sent",
            {"members": members, "channel": channel, "key": digest.key, "status": "sent",
             "attempts": max(sent["attempts"], 1), "external_id": external_id, "reason": reason},
        )  # fmt: skip
        others = [one for one in deliveries if one is not sent]
        documents = [
            {"id": one.id, "round": one.snoozes, "deliveries": others} for one in digest.reminders
        ]
        if others:
            yield from run_many(self._dialect, "delivery_write", documents)
        yield from self._dialect.run("digest_delete", {"id": digest.id})
        yield from self._dialect.run(
            "audit_write",
            [
                {"actor": worker, "action": "reminder.sent", "entity": f"subject:{one.subject}",
                 "before": None, "reason": None,
                 "after": {"why": reason, "reminder": one.id, "rule": one.rule.text,
                           "channel": channel, "recipient": digest.recipient,
                           "external_id": external_id, "digest": digest.key}}
                for one in digest.reminders
            ],
        )  # fmt: skip
        recorded = {row[0] for row in rows}
        return [member for member in members if member not in recorded]

    def _members(
        self, digest_id: int, recipient: Recipient, now: datetime
    ) -> Generator[Statement, list[Row], list[Reminder]]:
        """What is in it, and still to be sent, by due time; at most one more than it may have."""
        rows = yield from self._dialect.run("digest_members", {"id": digest_id})
        members: list[Reminder] = []
        never_expires = {row[0]: bool(row[1]) for row in rows}
        for part in in_parts(list(never_expires), MAX_REMINDERS):
            members += [
                msgspec.structs.replace(one, never_expires=never_expires[one.id])
                for one in (yield from self.find(part))
            ]
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
        self,
        digest_id: int,
        recipient: Recipient,
        members: Sequence[Reminder],
        now: datetime,
        beyond: int | None,
    ) -> Statements:
        """The only one left is let through, as itself. `beyond`: the limit that it exceeds."""
        yield from self._dialect.run("digest_delete", {"id": digest_id})
        for member in members:
            given = {"ref": recipient.ref, "whats": [use_of(member)]}
            yield from self._dialect.run("use_write", given)
            if beyond is not None:
                facts = {"recipient": recipient.ref, "limit": beyond, "expires_at": expiry(member)}
                reason = Reason.of("sent_beyond_limit", **facts)
                yield from self._hold_all({member.id: {"run_at": now, "reason": reason}})
            yield from self._dialect.run("digest_move", {"job": member.job_id, "run_at": now})
