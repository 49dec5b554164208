"""What is logged of a database that is away: that it is, now and then that it still is, and that
it is back."""

from __future__ import annotations

import logging
import time

from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.events")

_AGAIN_SECONDS = 30.0


class LogThrottle:
    """Lets the first of many equal log lines pass, and then one every so many seconds."""

    def __init__(self, seconds: float = _AGAIN_SECONDS) -> None:
        self._seconds = seconds
        self._last = -seconds

    def passes(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Outage:
    """One worker's view of its database. All that it does for itself fails at once: that is one
    outage, and is logged once."""

    def __init__(self, worker: str | None) -> None:
        self._worker = worker
        self._failing: set[str] = set()
        self._since = 0.0
        self._seldom = LogThrottle()

    def failed(self, service: str, error: Exception, wait: float) -> None:
        """`service` could not do its work, and tries again after `wait` seconds."""
        if not self._failing:
            self._since = time.monotonic()
            self._seldom = LogThrottle()
        self._failing.add(service)
        if self._seldom.passes():
            self._say(
                "database_unreachable",
                "The database cannot be reached; %(service)s tries again in %(retry_in_s)g s: "
                "%(error)s",
                error=str(error),
                service=service,
                retry_in_s=wait,
                outage_s=self._away,
            )

    def worked(self, service: str) -> None:
        """`service` did its work. If it had failed, the outage is over."""
        if service in self._failing:
            self._failing.clear()
            self._say(
                "database_reconnected",
                "The database is back after %(outage_s)g s.",
                outage_s=self._away,
            )

    @property
    def _away(self) -> float:
        return round(time.monotonic() - self._since, 3)

    def _say(self, event: str, sentence: str, **fields: object) -> None:
        log_event(log, logging.WARNING, event, sentence, worker_id=self._worker, **fields)
