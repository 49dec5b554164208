"""The database's clock, as a worker sees it between two answers."""

from __future__ import annotations

import time
from datetime import datetime, timedelta


class DatabaseClock:
    """Follows the database's clock with this process's monotonic one; the wall clock is not asked.

    An estimate: good for deciding how long to sleep. What is due, the database decides.
    """

    def __init__(self) -> None:
        self._moment: datetime | None = None
        self._at = 0.0

    def set(self, moment: datetime, *, sent: float, received: float) -> None:
        """`moment` was read between the monotonic times `sent` and `received`."""
        self._moment = moment
        self._at = (sent + received) / 2

    def seconds_until(self, moment: datetime) -> float:
        """How long until the database's clock shows `moment`; 0 if that is past or unknown."""
        if self._moment is None:
            return 0.0
        passed = time.monotonic() - self._at
        return max(0.0, (moment - self._moment).total_seconds() - passed)

    def now(self) -> datetime | None:
        if self._moment is None:
            return None
        return self._moment + timedelta(seconds=time.monotonic() - self._at)
