"""A queue's limits, and what people see of a queue."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from duetime.domain.checks import check_queue
from duetime.domain.duration import Duration, parse_positive_duration
from duetime.errors import InvalidInput

_MAX_LIMIT = 2**31 - 1


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a queue may run. `None` means no limit.

    `running` and `per_partition` bound what runs at once, over all workers;
    `rate` bounds how many start in any span of `period`.
    """

    running: int | None = None
    per_partition: int | None = None
    rate: int | None = None
    period: timedelta | None = None

    @property
    def any(self) -> bool:
        return not (self.running is None and self.per_partition is None and self.rate is None)


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as people see it."""

    name: str
    pending: int
    due: int
    running: int
    parked: int
    next_run_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    limits: Limits
    started: int = 0
    """Jobs that started within the last period of its rate limit; 0 if it has none."""
    counted_all: bool = True
    """False: more jobs wait than were counted."""


def make_limits(
    queue: str,
    *,
    running: int | None = None,
    per_partition: int | None = None,
    rate: int | None = None,
    period: Duration | None = None,
) -> Limits:
    """Check a queue's limits; raise `InvalidInput` if they make no sense."""
    check_queue(queue)
    for name, value in (("running", running), ("per_partition", per_partition), ("rate", rate)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_LIMIT
        ):
            raise InvalidInput(
                f"{name} of queue {queue!r} must be an integer from 1 to {_MAX_LIMIT:,}, "
                f"got {value!r}. To stop a queue, pause it. To remove a limit, leave it out."
            )
    if (rate is None) != (period is None):
        raise InvalidInput(f"A rate limit of queue {queue!r} requires both rate= and period=.")
    span = (
        None
        if period is None
        else parse_positive_duration(period, name=f"period of queue {queue!r}")
    )
    return Limits(running=running, per_partition=per_partition, rate=rate, period=span)
