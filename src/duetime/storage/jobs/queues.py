"""What people do to queues: pause, resume, limit. Statements without I/O, for every backend.

What changes something is in the audit, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from typing import Any

import msgspec

from duetime.domain.jobs.queue import Limits
from duetime.storage.jobs.audit import QueueRow, queue_events
from duetime.storage.store import Dialect, Row, Statement, Statements

_MICROSECOND = timedelta(microseconds=1)


class QueueStatements:
    """Every method is one transaction."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def pause(self, queue: str, *, by: str, reason: str) -> Statements:
        """Start no more of its jobs. The first pause keeps its time."""
        given = {"by": by, "reason": reason}
        yield from self._change(queue, "pause", given, by=by, reason=reason)

    def resume(self, queue: str, *, by: str) -> Statements:
        """Let it go on, and wake its workers."""
        yield from self._change(queue, "resume", {}, by=by)

    def limit(self, queue: str, limits: Limits, *, by: str) -> Statements:
        """Set all its limits, and wake its workers."""
        period = None if limits.period is None else limits.period // _MICROSECOND
        given = msgspec.structs.asdict(limits) | {"period": period}
        yield from self._change(queue, "limit", given, by=by)

    def _change(
        self, queue: str, action: str, given: dict[str, Any], *, by: str, reason: str | None = None
    ) -> Statements:
        before = yield from self._row(queue)
        yield from self._dialect.run(f"{action}_queue", {"queue": queue} | given)
        yield from self._dialect.run("drop_plain_queue", {"queue": queue})
        after = yield from self._row(queue)
        if events := queue_events(action, queue, before, after, by=by, reason=reason):
            yield from self._dialect.run("audit_write", events)

    def _row(self, queue: str) -> Generator[Statement, list[Row], QueueRow | None]:
        for row in (yield from self._dialect.run("queue_row", {"queue": queue})):
            paused_at = None if row[0] is None else self._dialect.moment(row[0])
            period = None if row[6] is None else timedelta(microseconds=row[6])
            limits = Limits(running=row[3], per_partition=row[4], rate=row[5], period=period)
            return QueueRow(paused_at, row[1], row[2], limits)
        return None
