"""Old reminders and what nothing refers to are removed, as statements without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.storage.store import Dialect, Statements

MAX_CHECKED = 2000
MAX_SCANNED = 10_000
MAX_RULES = 5_000
_MICROSECOND = timedelta(microseconds=1)
_RETIRED_FOR = timedelta(days=1)
_SCAN_AGAIN = timedelta(hours=20)


class RuleScan(msgspec.Struct):
    """A pass over all reminders, some at a time: the rules that they refer to."""

    began: datetime
    last: int
    """The last rule that there was."""
    used: set[int] = msgspec.field(default_factory=set)
    after: int = 0
    """The id of the reminder to continue after."""
    is_complete: bool = False


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

    def gone_scopes(self) -> Statements:
        """Return some scopes whose rows are gone and that have nothing inside. Reads only."""
        return [row[0] for row in (yield from self._dialect.run("prune_scopes_look", {}))]

    def drop_scopes(self, refs: Sequence[str]) -> Statements:
        """Delete those of the scopes that have nothing inside."""
        yield from self._dialect.run("prune_scopes", list(refs))

    # Rules that no reminder refers to. An index would tax every arming, so all reminders are read,
    # some at a time. An unused rule is retired: from then on, who arms does not find it. But a
    # transaction that found it just before may yet commit reminders that refer to it. So it is
    # deleted only by a scan that begins a day later and does not find it used: by then, such a
    # transaction has ended.

    def begin_rule_scan(self, *, enough: int) -> Statements:
        """Return a scan that has yet to read the reminders; None: there are few rules, or a worker
        has retired some lately. Reads only."""
        rows = yield from self._dialect.run("prune_rules_begin", {"most": enough})
        [(at, last, count, retired_at)] = rows
        now = self._dialect.moment(at)
        if count < enough or (
            retired_at is not None and now - self._dialect.moment(retired_at) < _SCAN_AGAIN
        ):
            return None
        return RuleScan(now, last)

    def scan_rules(self, scan: RuleScan, *, most: int = MAX_SCANNED) -> Statements:
        """Read some more reminders. Reads only."""
        given = {"after": scan.after, "most": most}
        [(last, count, used)] = yield from self._dialect.run("prune_rules_used", given)
        scan.used.update(msgspec.json.decode(used))
        scan.after = last or scan.after
        scan.is_complete = count < most

    def drop_rules(self, scan: RuleScan) -> Statements:
        """Delete and retire some rules, after a complete scan; return whether there may be more."""
        given: dict[str, Any] = {"used": sorted(scan.used), "last": scan.last, "most": MAX_RULES}
        before = scan.began - _RETIRED_FOR
        deleted = yield from self._dialect.run("prune_rules", given | {"before": before})
        retired = yield from self._dialect.run("prune_rules_retire", given)
        return max(len(deleted), len(retired)) == MAX_RULES
