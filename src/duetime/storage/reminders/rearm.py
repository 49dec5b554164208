"""How subjects that are marked as stale are armed again, as statements without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from duetime.domain.reasons import Reason
from duetime.domain.reminders.reminder import REARM_TASK, REMIND_TASK, ReminderStatus
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.store import Statements

_PATIENCE = {"patience": timedelta(seconds=5) // timedelta(microseconds=1)}
"""So long after its time, a mark that is still there may have lost its job."""


class RearmStatements(ReminderStatements):
    """What the task `duetime.rearm` does. Every method is one transaction."""

    def stale(self, after: int, limit: int) -> Statements:
        """Return subjects whose `rearm_at` has come, by id. Reads only."""
        rows = yield from self._dialect.run("rearm_stale", {"after": after, "most": limit})
        return [row[0] for row in rows]

    def nearest(self, limit: int) -> Statements:
        """Return those of them that are due next. Reads only.

        Where SQL arms what a change of a scope concerns, it does so in that order anyway.
        """
        if self._dialect.arms:
            return []
        rows = yield from self._dialect.run("rearm_nearest", {"most": limit})
        return [row[0] for row in rows]

    def check(self) -> Statements:
        """Return whether a worker may have something to repair: a reminder that is due and was not
        sent, a digest that is being sent, a mark that is overdue. Reads only."""
        return bool((yield from self._dialect.run("reminders_check", _PATIENCE)))

    def overdue(self) -> Statements:
        """Return whether `repair` may have something to do. Reads only."""
        return bool((yield from self._dialect.run("rearm_overdue", _PATIENCE)))

    def repair(self) -> Statements:
        """Enqueue the job of marks that lost theirs; return whether that was so.

        It was cancelled, has died or was deleted. If several repair at once, one of them does it.
        """
        [(mine,)] = yield from self._dialect.run("rearm_turn", {})
        if not mine or not (yield from self.overdue()):
            return False
        tasks = {"task": REARM_TASK, "remind": REMIND_TASK}
        if (yield from self._dialect.run("rearm_alive", tasks)):
            return False
        yield from self.request_rearm()
        return True

    def follow_changes(self, most: int) -> Statements:
        """Go on with changes of scopes: arm the next subjects again, at most so many.

        Returns how many that were; -1 if others have locked them; None if nothing is left to do.
        """
        if not self._dialect.arms:
            return None
        [(count,)] = yield from self._dialect.run("follow_changes", {"most": most})
        return count

    def rearm_outdated(self, refs: Sequence[str]) -> Statements:
        """Re-arm those of the subjects that a change of a scope has not reached yet."""
        if self._dialect.arms:
            yield from self._dialect.run("rearm_outdated", {"refs": list(refs)})

    def rearm(self, ids: Sequence[int]) -> Statements:
        """Re-arm those of the subjects that are marked and that nobody else has locked.

        Their scopes are locked first, as everyone does; a subject stays marked if it got another
        scope meanwhile, or if someone is changing a scope around it.
        """
        rows = yield from self._dialect.run("rearm_scopes", {"ids": list(ids)})
        names = sorted({row[0] for row in rows})
        if names:
            yield from self._dialect.run("scope_queue", names)
            names = sorted(row[0] for row in (yield from self._dialect.run("rearm_share", names)))
        rows = yield from self._dialect.run("rearm_lock", {"ids": list(ids), "scopes": names})
        as_of = {row[0]: self._dialect.moment(row[1]) for row in rows}
        if not as_of:
            return 0
        # Before they are armed: that may mark them again, for later.
        yield from self._dialect.run("rearm_clear", list(as_of))
        return (yield from self._revise(list(as_of), None, as_of=as_of))

    def give_up(self, subject_id: int, reason: str) -> Statements:
        """Withdraw what is armed for a subject whose reminders cannot be computed, and audit it."""
        rows = yield from self._dialect.run("rearm_clear", [subject_id])
        found = yield from self._dialect.run("reminder_of", [subject_id])
        armed = [row[0] for row in found if row[6] == ReminderStatus.ARMED]
        problem = Reason.of("not_computable", text=reason)
        if armed:
            yield from self._dialect.run(
                "reminder_withdraw",
                {"ids": armed, "status": ReminderStatus.SUPERSEDED, "reason": problem},
            )
        for row in rows:
            yield from self._dialect.run(
                "audit_write",
                [{"actor": "duetime", "action": "subject.not_armed", "entity": f"subject:{row[1]}",
                  "before": None, "after": {"why": problem}, "reason": None}],
            )  # fmt: skip
