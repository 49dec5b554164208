"""Old reminders are removed, as statements without I/O."""

from __future__ import annotations

from datetime import timedelta

from duetime.storage.store import Dialect, Statements

MAX_CHECKED = 2000
_MICROSECOND = timedelta(microseconds=1)


class PruneStatements:
    """Every method is one transaction, which checks some rows and deletes old ones."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def prune(self, age: timedelta, after: int) -> Statements:
        """Remove what ended longer ago than `age`; return (how many, the id to continue after).

        That is 0 when all were checked. What stays is what keeps a subject from being reminded
        of twice: its place is taken.
        """
        given = {"age": age // _MICROSECOND, "after": after, "most": MAX_CHECKED}
        rows = yield from self._dialect.run("prune_look", given)
        old = [row[0] for row in rows if row[1]]
        gone = []
        if old:
            gone = yield from self._dialect.run("prune_reminders", given | {"ids": old})
        return len(gone), rows[-1][0] if len(rows) == MAX_CHECKED else 0
