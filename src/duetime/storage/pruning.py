"""Reminders, runs of schedules and the audit: what is old is removed, as statements without I/O."""

from __future__ import annotations

from datetime import timedelta

from duetime.storage.store import Dialect, Statements

MOST_LOOKED_AT = 2000
_SCHEDULES = 1000
_MICROSECOND = timedelta(microseconds=1)


class PruneStatements:
    """Every method is one transaction, which looks at some rows and removes what may go."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def prune(self, age: timedelta, after: int) -> Statements:
        """Remove what ended longer ago than `age`; return (how many, the id to go on after).

        That is 0 when all were looked at. What stays is what keeps a subject from being reminded
        of twice: its place is taken.
        """
        given = {"age": age // _MICROSECOND, "after": after, "most": MOST_LOOKED_AT}
        rows = yield from self._dialect.run("prune_look", given)
        old = [row[0] for row in rows if row[1]]
        gone = []
        if old:
            gone = yield from self._dialect.run("prune_reminders", given | {"ids": old})
        return len(gone), rows[-1][0] if len(rows) == MOST_LOOKED_AT else 0

    def prune_ledger(self, age: timedelta, after: int, *, batch: int) -> Statements:
        """Remove runs that were due and ended longer ago than `age`, of some schedules.

        Returns (how many, the schedule to go on after): 0 when all were looked at. If a batch is
        full, there may be more of the same schedules.
        """
        rows = yield from self._dialect.run("schedule_page", {"after": after, "most": _SCHEDULES})
        ids = [row[0] for row in rows]
        if not ids:
            return 0, 0
        given = {"ids": ids, "age": age // _MICROSECOND, "most": batch}
        gone = yield from self._dialect.run("schedule_prune", given)
        if len(gone) == batch:
            return batch, after
        return len(gone), ids[-1] if len(ids) == _SCHEDULES else 0

    def prune_audit(self, age: timedelta) -> Statements:
        """Remove some of the events that are older than `age`; return how many."""
        return len((yield from self._dialect.run("audit_prune", {"age": age // _MICROSECOND})))
