"""The ledgers of schedules, as timelines and heat maps show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from duetime.domain.page import make_cursor
from duetime.domain.schedules.cron import parse_zone
from duetime.domain.stats.timeline import (
    HeatMap,
    Timeline,
    TimelineRow,
    TimelineRun,
    make_heat_map,
    make_row,
    outcome_of,
)
from duetime.errors import ScheduleNotFound
from duetime.storage.schedules.rows import read_schedule
from duetime.storage.store import Dialect, Row, Statements

ORDER = "timeline"
_MAX_TICKS = 10_000
"""So many rows of the ledgers are read, of all schedules together."""
_MAX_OF_ONE = 1000
_MAX_OF_HEAT_MAP = 50_000


class ReadTimeline:
    """Statements that read what became of ticks."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def timeline(
        self,
        *,
        since: datetime,
        until: datetime,
        names: Sequence[str] | None,
        after: str | None,
        limit: int,
    ) -> Statements:
        """Return the `Timeline` of some schedules, by name."""
        now = yield from self._dialect.now()
        if names is None:
            given: dict[str, Any] = {"after": after or "", "limit": limit + 1}
            rows = yield from self._dialect.run("schedule_list", given)
        else:
            rows = yield from self._dialect.run("schedule_find", {"names": list(names)})
        schedules = [read_schedule(row, self._dialect.moment) for row in rows]
        shown = schedules[:limit]
        most = max(20, min(_MAX_OF_ONE, _MAX_TICKS // max(len(shown), 1)))
        ticks = yield from self._ticks([one.id for one in shown], since, min(until, now), most)
        found: list[TimelineRow] = []
        for schedule in shown:
            runs = ticks.get(schedule.id, [])
            found.append(
                make_row(
                    schedule,
                    runs,
                    since=since,
                    until=until,
                    now=now,
                    complete_since=runs[0].tick if len(runs) >= most else since,
                )
            )
        more = len(schedules) > limit
        return Timeline(
            since=since,
            until=until,
            now=now,
            rows=tuple(found),
            next=make_cursor(ORDER, (shown[-1].name,)) if more else None,
        )

    def heat_map(self, name: str, *, days: int, tz: str | None) -> Statements:
        """Return the `HeatMap` of one schedule."""
        rows = yield from self._dialect.run("schedule_find", {"names": [name]})
        if not rows:
            raise ScheduleNotFound(name)
        schedule = read_schedule(rows[0], self._dialect.moment)
        zone = parse_zone(schedule.timetable.tz if tz is None else tz)
        now = yield from self._dialect.now()
        last_day = now.astimezone(zone).date()
        first_day = last_day - timedelta(days=days - 1)
        given = {
            "schedule": schedule.id,
            # A day more: the zone decides which ticks are of the first one.
            "since": now - timedelta(days=days + 1),
            "until": now,
            "most": _MAX_OF_HEAT_MAP,
        }
        rows = yield from self._dialect.run("heat_map_ticks", given)
        ticks = [(self._dialect.moment(row[0]), _outcome(row[1:6]), row[6]) for row in rows]
        found: HeatMap = make_heat_map(
            name,
            ticks,
            tz=zone.key,
            first_day=first_day,
            last_day=last_day,
            complete=sum(count for _, _, count in ticks) < _MAX_OF_HEAT_MAP,
        )
        return found

    def _ticks(
        self, schedules: Sequence[int], since: datetime, until: datetime, most: int
    ) -> Statements:
        """Return the runs of each schedule, the oldest first."""
        found: defaultdict[int, list[TimelineRun]] = defaultdict(list)
        if schedules and since <= until:
            given = {"schedules": list(schedules), "since": since, "until": until, "most": most}
            for row in (yield from self._dialect.run("timeline_ticks", given)):
                found[row[0]].append(self._run(row))
        return found

    def _run(self, row: Row) -> TimelineRun:
        _, tick, status, begun_at, started_at, finished_at, succeeded, job_id = row
        return TimelineRun(
            tick=self._dialect.moment(tick),
            outcome=_outcome(
                (
                    status,
                    begun_at is not None,
                    finished_at is not None,
                    succeeded,
                    started_at is not None,
                )
            ),
            started_at=self._maybe(started_at),
            finished_at=self._maybe(finished_at),
            job_id=job_id,
        )

    def _maybe(self, value: Any) -> datetime | None:
        return None if value is None else self._dialect.moment(value)


def _outcome(facts: Sequence[Any]) -> str:
    status, begun, finished, succeeded, started = facts
    return outcome_of(
        status,
        begun=bool(begun),
        finished=bool(finished),
        succeeded=None if succeeded is None else bool(succeeded),
        started=bool(started),
    )
