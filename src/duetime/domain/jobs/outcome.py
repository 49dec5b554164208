"""The outcomes of an attempt. A handler returns or raises one; the store sees only the record."""

from __future__ import annotations

from typing import Any

from duetime.domain.duration import Duration, parse_duration
from duetime.domain.reasons import Reason

RESULT_NOT_STORED = "result_not_stored"
"""The error code of an attempt that completed but whose result could not be stored."""
NOT_STORED = "not_stored"
"""The error code of an attempt whose result or error the database refused."""


class Outcome(Exception):
    """The outcome of an attempt. A handler may return or raise it."""


class Completed(Outcome):
    """The job is done. Returning anything that is not an outcome means this."""

    def __init__(self, result: Any = None) -> None:
        super().__init__(result)
        self.result = result


class Retry(Outcome):
    """Retry the job after the given time, or as the task's retry policy says."""

    def __init__(
        self, reason: str | Reason | None = None, *, after: Duration | None = None
    ) -> None:
        super().__init__(reason or Reason("retry"))
        self.reason = reason
        self.after = None if after is None else parse_duration(after, name="after")


class Snooze(Outcome):
    """Run the job again after the given time. The attempt does not count."""

    def __init__(self, after: Duration, reason: str | Reason | None = None) -> None:
        super().__init__(reason or Reason("snoozed"))
        self.reason = reason
        self.after = parse_duration(after, name="after")


class Cancel(Outcome):
    """Stop for good, as cancelled: the work is no longer wanted."""

    code = without_reason = "cancelled_by_handler"

    def __init__(self, reason: str | Reason | None = None) -> None:
        super().__init__(reason or Reason(self.without_reason))
        self.reason = reason


class Skip(Cancel):
    """Of a reminder: do not send it, for this reason."""

    code, without_reason = "skipped", "skipped_by_handler"


class Discard(Outcome):
    """Stop for good, as dead: the failure is permanent, and a retry would not help."""

    def __init__(self, reason: str | Reason | None = None) -> None:
        super().__init__(reason or Reason("discarded"))
        self.reason = reason
