"""What is done to recipients, as statements without I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from duetime.domain.duration import format_time
from duetime.domain.reasons import Reason
from duetime.domain.reminders.recipient import Disabled, Recipient, Route
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.store import Row, Statement, Statements


class RecipientStatements(ReminderStatements):
    """Every method is one transaction. A recipient is locked before subjects and reminders."""

    def put_recipient(
        self, ref: str, change: Callable[[Recipient | None], Recipient], *, actor: str
    ) -> Statements:
        """Store what `change` makes of the recipient; return `added`, `changed` or `same`.

        Another clock re-arms what follows it; whatever is held for the recipient is checked again.
        """
        yield from self._dialect.run("recipient_own", {"ref": ref})
        before = yield from self.lock_recipient(ref)
        after = change(before)
        if after == before:
            return "same"
        yield from self._dialect.run("recipient_put", recipient_json(after))
        yield from self._changed(ref, before, after, "recipient.put", actor)
        return "added" if before is None else "changed"

    def delete_recipient(self, ref: str, *, actor: str) -> Statements:
        """Forget the recipient; return whether it was there."""
        yield from self._dialect.run("recipient_own", {"ref": ref})
        before = yield from self.lock_recipient(ref)
        if before is None:
            return False
        yield from self._dialect.run("recipient_delete", {"ref": ref})
        yield from self._changed(ref, before, None, "recipient.delete", actor)
        return True

    def disable(
        self, ref: str, *, channel: str, address: str, reason: str, actor: str
    ) -> Statements:
        """An address wants nothing more. Returns whether that was news."""
        before = yield from self.lock_recipient(ref)
        known = before or Recipient(ref=ref)
        if any((one.channel, one.address) == (channel, address) for one in known.disabled):
            return False
        now = yield from self._dialect.now()
        off = Disabled(channel, address, reason, now)
        after = msgspec.structs.replace(known, disabled=(*known.disabled, off))
        yield from self._dialect.run("recipient_put", recipient_json(after))
        yield from self._audit_recipient(ref, before, after, "recipient.disabled", actor)
        return True

    def recipients(self, *, after: str, limit: int) -> Statements:
        """Return recipients by reference, those after one of them. Reads only."""
        rows = yield from self._dialect.run("recipient_list", {"after": after, "limit": limit})
        return [read_recipient(row) for row in rows]

    def recipient(self, ref: str) -> Statements:
        """Return the recipient or None. Reads only."""
        rows = yield from self._dialect.run("recipient_get", {"ref": ref})
        return read_recipient(rows[0]) if rows else None

    def lock_recipient(self, ref: str) -> Generator[Statement, list[Row], Recipient | None]:
        rows = yield from self._dialect.run("recipient_lock", {"ref": ref})
        return read_recipient(rows[0]) if rows else None

    def _changed(
        self,
        ref: str,
        before: Recipient | None,
        after: Recipient | None,
        action: str,
        actor: str,
    ) -> Statements:
        if (before and before.tz) != (after and after.tz):
            yield from self._follow_clock(ref)
        yield from self._dialect.run("recipient_release", {"ref": ref})
        yield from self._audit_recipient(ref, before, after, action, actor)

    def _follow_clock(self, ref: str) -> Statements:
        """Re-arm the open subjects that remind the recipient by their own clock."""
        after = 0
        while rows := (
            yield from self._dialect.run("recipient_subjects", {"ref": ref, "after": after})
        ):
            locked = yield from self._lock(ids=[row[0] for row in rows])
            subjects = yield from self._rearm_late(locked)
            # A revision of its own: what comes back is armed again, beside what it was.
            yield from self._dialect.run("subject_revise", [subject.id for subject in subjects])
            for subject in subjects:
                subject.revision += 1
            yield from self._rearm(subjects, Reason.of("zone_changed", recipient=ref))
            after = rows[-1][0]

    def _audit_recipient(
        self,
        ref: str,
        before: Recipient | None,
        after: Recipient | None,
        action: str,
        actor: str,
    ) -> Statements:
        yield from self._audit(
            actor,
            action,
            f"recipient:{ref}",
            None if before is None else recipient_json(before),
            None if after is None else recipient_json(after),
        )


def read_recipient(row: Row) -> Recipient:
    """Return the recipient of (ref, tz, channels, quiet, muted, max_per_hour, disabled)."""
    return Recipient(
        ref=row[0],
        tz=row[1],
        channels=msgspec.json.decode(row[2], type=tuple[Route, ...]),
        quiet=row[3],
        muted=msgspec.json.decode(row[4], type=tuple[str, ...]),
        max_per_hour=row[5],
        disabled=msgspec.json.decode(row[6], type=tuple[Disabled, ...]),
    )


def recipient_json(recipient: Recipient) -> dict[str, Any]:
    """A recipient as it is stored, and as its audit shows it."""
    return {
        "ref": recipient.ref,
        "tz": recipient.tz,
        "channels": [
            {"channel": route.channel, "address": route.address} for route in recipient.channels
        ],
        "quiet": recipient.quiet,
        "muted": list(recipient.muted),
        "max_per_hour": recipient.max_per_hour,
        "disabled": [
            {
                "channel": off.channel,
                "address": off.address,
                "reason": off.reason,
                "at": format_time(off.at),
            }
            for off in recipient.disabled
        ],
    }
