"""`client.stats`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.client.connection import Connection
from duetime.client.schedules import list_exclusions, write_specs
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.page import Page
from duetime.domain.schedules.timetable import Exclusions, Spec
from duetime.domain.stats.agenda import AgendaItem, RecipientWeek, SpecPreview
from duetime.domain.stats.now import NowStats, Totals
from duetime.domain.stats.problems import ProblemInfo
from duetime.domain.stats.search import Match
from duetime.domain.stats.series import AttemptSample, Series
from duetime.domain.stats.timeline import HeatMap, Timeline


class _Overview(msgspec.Struct):
    now: NowStats
    problems: list[ProblemInfo]


class _ChangeMark(msgspec.Struct):
    mark: str


class Stats:
    """`client.stats`: the verbs of `app.stats`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def now(self, *, late_after: Duration = "1m") -> NowStats:
        """Return how everything stands: what waits, is due, late, runs, is retried or dead."""
        query = {"late_after": parse_duration(late_after, name="late_after")}
        return await self._connection.call("GET /stats/now", NowStats, query=query)

    async def totals(self) -> Totals:
        """Return how many jobs, schedules, reminders, flows, queues, workers and tables exist."""
        return await self._connection.call("GET /stats/totals", Totals)

    async def problems(self, *, late_after: Duration = "1m") -> list[ProblemInfo]:
        """Return what is wrong, the worst first, each with what fixes it."""
        query = {"late_after": parse_duration(late_after, name="late_after")}
        return await self._connection.call("GET /stats/problems", list[ProblemInfo], query=query)

    async def overview(self, *, late_after: Duration = "1m") -> tuple[NowStats, list[ProblemInfo]]:
        """Return what `now()` and `problems()` return, read at the same time: both agree."""
        query = {"late_after": parse_duration(late_after, name="late_after")}
        found = await self._connection.call("GET /stats/overview", _Overview, query=query)
        return found.now, found.problems

    async def change_mark(self) -> str:
        """Return a text that is different once something has changed, perhaps seconds later."""
        return (await self._connection.call("GET /stats/change_mark", _ChangeMark)).mark

    async def search(self, text: str, *, limit: int = 20) -> list[Match]:
        """Return what a text may name, the best match first."""
        query = {"text": text, "limit": limit}
        return await self._connection.call("GET /stats/search", list[Match], query=query)

    async def series(self, *, window: Duration = "1h", task: str | None = None) -> Series:
        """Return how much was done, how late and for how long, from `window` ago until now."""
        query = {"window": parse_duration(window, name="window"), "task": task}
        return await self._connection.call("GET /stats/series", Series, query=query)

    async def samples(
        self, *, window: Duration = "1h", task: str | None = None, limit: int = 1000
    ) -> list[AttemptSample]:
        """Return attempts of the window that were picked at random, the oldest first."""
        query = {"window": parse_duration(window, name="window"), "task": task, "limit": limit}
        return await self._connection.call("GET /stats/samples", list[AttemptSample], query=query)

    async def timeline(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        schedules: Sequence[str] | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Timeline:
        """Return what schedules did and will do from `since` (12 hours ago) to `until` (in 6
        hours)."""
        query: dict[str, Any] = {"since": since, "until": until, "limit": limit, "after": after}
        query["schedules"] = list(schedules or ())
        return await self._connection.call("GET /stats/timeline", Timeline, query=query)

    async def heat_map(self, schedule: str, *, days: int = 28, tz: str | None = None) -> HeatMap:
        """Return how many ticks of a schedule had which result, for each hour of each day."""
        query = {"schedule": schedule, "days": days, "tz": tz}
        return await self._connection.call("GET /stats/heat_map", HeatMap, query=query)

    async def agenda(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[AgendaItem]:
        """Return what comes next: ticks of schedules, reminders, jobs, and runs of flows."""
        query = {"since": since, "until": until, "limit": limit, "after": after}
        return await self._connection.page("GET /stats/agenda", AgendaItem, query=query)

    async def recipient_week(
        self, recipient: str, *, since: datetime | None = None, days: int = 7, tz: str = "UTC"
    ) -> RecipientWeek:
        """Return which reminders a recipient gets, and when their quiet hours are."""
        query = {"recipient": recipient, "since": since, "days": days, "tz": tz}
        return await self._connection.call("GET /stats/recipient_week", RecipientWeek, query=query)

    async def preview(
        self,
        *specs: Spec,
        tz: str = "UTC",
        other_tz: str | None = None,
        exclude: Exclusions = (),
        n: int = 20,
        since: datetime | None = None,
        within: Duration = 0,
        but: str | None = None,
    ) -> SpecPreview:
        """Return the next ticks of times in two zones, and which schedules tick at the same
        time."""
        query = {
            "specs": write_specs(specs),
            "tz": tz,
            "other_tz": other_tz,
            "exclude": list_exclusions(exclude),
            "n": n,
            "since": since,
            "within": parse_duration(within, name="within"),
            "but": but,
        }
        return await self._connection.call("GET /stats/preview", SpecPreview, query=query)
