"""What alerts read and record, for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from duetime.domain.alert import MISSED_CODES, Alert, DeadJobs, MissedTicks
from duetime.storage.store import Dialect, Statements

MAX_COUNTED = 10_000
"""Of what one message reports, no more is read."""
_MICROSECOND = timedelta(microseconds=1)


class Due(NamedTuple):
    """An alert for which something has happened that was not reported."""

    name: str
    at: datetime
    """When it is to be sent."""
    now: datetime


class Incidents(NamedTuple):
    """What has happened since the last message."""

    dead: list[DeadJobs]
    missed: list[MissedTicks]
    more: bool


class AlertStatements:
    """Every method is one transaction."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def open(self, names: Sequence[str]) -> Statements:
        """Begin to watch: what happened before the first call is not reported."""
        yield from self._dialect.run("alert_open", list(names))

    def next(self, alerts: Sequence[Alert], settle: timedelta) -> Statements:
        """Return a `Due` for each alert for which something has happened. Reads only.

        What happened within `settle` is left to the next message: a transaction that began before
        may yet commit an earlier event.
        """
        rows = yield from self._dialect.run(
            "alert_next",
            {
                "alerts": [
                    {
                        "name": alert.name,
                        "every": alert.every // _MICROSECOND,
                        "jobs": "job_dead" in alert.on,
                        "ticks": "tick_missed" in alert.on,
                    }
                    for alert in alerts
                ],
                "settle": settle // _MICROSECOND,
                "codes": list(MISSED_CODES),
            },
        )
        moment = self._dialect.moment
        return [Due(row[0], moment(row[1]), moment(row[2])) for row in rows]

    def since(self, alert: Alert) -> Statements:
        """Return up to when the alert was reported; None if its last message was sent less than
        `every` ago. Reads only."""
        rows = yield from self._dialect.run(
            "alert_since", {"name": alert.name, "every": alert.every // _MICROSECOND}
        )
        return self._dialect.moment(rows[0][0]) if rows else None

    def incidents(self, alert: Alert, since: datetime, until: datetime) -> Statements:
        """Return the `Incidents` of this time. Reads only."""
        moment = self._dialect.moment
        between = {"since": since, "until": until, "most": MAX_COUNTED, "codes": list(MISSED_CODES)}
        dead: list[DeadJobs] = []
        missed: list[MissedTicks] = []
        if "job_dead" in alert.on:
            rows = yield from self._dialect.run("alert_dead_jobs", between)
            dead = [DeadJobs(row[0], row[1], row[2], row[3]) for row in rows]
        if "tick_missed" in alert.on:
            rows = yield from self._dialect.run("alert_missed_ticks", between)
            missed = [MissedTicks(row[0], row[1], row[2], moment(row[3])) for row in rows]
        counts = (sum(group.count for group in found) for found in (dead, missed))
        return Incidents(dead, missed, any(count >= MAX_COUNTED for count in counts))

    def reported(self, name: str, until: datetime) -> Statements:
        """Record that a message was sent."""
        yield from self._dialect.run("alert_reported", {"name": name, "until": until})
