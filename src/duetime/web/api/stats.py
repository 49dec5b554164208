"""`/api/v1/stats`: the numbers that people watch."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query

from duetime.app import Duetime
from duetime.domain.page import Page
from duetime.domain.stats.agenda import AgendaItem, RecipientWeek, SpecPreview
from duetime.domain.stats.now import NowStats, Totals
from duetime.domain.stats.problems import ProblemInfo
from duetime.domain.stats.search import Match
from duetime.domain.stats.series import AttemptSample, Series
from duetime.domain.stats.timeline import HeatMap, Timeline
from duetime.web.access import Access
from duetime.web.api.fields import After, Count, DurationQuery, Limit, MomentQuery, Sought
from duetime.web.api.routing import Routes, page_of

SoughtName = Annotated[str, Query(min_length=1, max_length=2000)]
Zone = Annotated[str, Query(min_length=1, max_length=200)]


class OverviewAnswer(msgspec.Struct):
    """How everything stands, and what is wrong, read at the same time."""

    now: NowStats
    problems: list[ProblemInfo]


class ChangeMarkAnswer(msgspec.Struct):
    mark: str
    """It has no meaning: compare it with an earlier one."""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="stats")

    @routes.get("/stats/now", answer=NowStats)
    async def get_stats_now(late_after: DurationQuery = "1m") -> NowStats:
        """Show how everything stands: what waits, is due, late, runs, is retried or dead."""
        return await app.stats.now(late_after=late_after)

    @routes.get("/stats/totals", answer=Totals)
    async def get_stats_totals() -> Totals:
        """Show how many jobs, schedules, reminders, flows, queues, workers and tables there are."""
        return await app.stats.totals()

    @routes.get("/stats/problems", answer=list[ProblemInfo])
    async def list_problems(late_after: DurationQuery = "1m") -> list[ProblemInfo]:
        """List what is wrong, the worst first, each with what fixes it."""
        return await app.stats.problems(late_after=late_after)

    @routes.get("/stats/overview", answer=OverviewAnswer)
    async def get_stats_overview(late_after: DurationQuery = "1m") -> OverviewAnswer:
        """Show what `/stats/now` and `/stats/problems` show, read at the same time."""
        return OverviewAnswer(*await app.stats.overview(late_after=late_after))

    @routes.get("/stats/change_mark", answer=ChangeMarkAnswer)
    async def get_change_mark() -> ChangeMarkAnswer:
        """Show a text that is different once something has changed, perhaps seconds later."""
        return ChangeMarkAnswer(msgspec.json.encode(await app.stats.change_mark()).decode())

    @routes.get("/stats/search", answer=list[Match])
    async def search(text: SoughtName, limit: Limit = 20) -> list[Match]:
        """List what a text may name, the best match first."""
        return await app.stats.search(text, limit=limit)

    @routes.get("/stats/series", answer=Series)
    async def get_stats_series(window: DurationQuery = "1h", task: Sought = None) -> Series:
        """Show how much was done, how late and for how long, from `window` ago until now."""
        return await app.stats.series(window=window, task=task)

    @routes.get("/stats/samples", answer=list[AttemptSample])
    async def list_samples(
        window: DurationQuery = "1h", task: Sought = None, limit: Limit = 1000
    ) -> list[AttemptSample]:
        """List attempts of the window that were picked at random, the oldest first."""
        return await app.stats.samples(window=window, task=task, limit=limit)

    @routes.get("/stats/timeline", answer=Timeline)
    async def get_timeline(
        since: MomentQuery = None,
        until: MomentQuery = None,
        schedules: Annotated[list[SoughtName], Query(max_length=1000)] = [],  # noqa: B006
        limit: Limit = 50,
        after: After = None,
    ) -> Timeline:
        """Show what schedules did and will do, by default from 12 hours ago to in 6 hours."""
        return await app.stats.timeline(
            since=since, until=until, schedules=schedules or None, limit=limit, after=after
        )

    @routes.get("/stats/heat_map", answer=HeatMap, problems=[404])
    async def get_heat_map(
        schedule: SoughtName,
        days: Annotated[int, Query(ge=1, le=90)] = 28,
        tz: Sought = None,
    ) -> HeatMap:
        """Show how many ticks of a schedule had which result, for each hour of each day."""
        return await app.stats.heat_map(schedule, days=days, tz=tz)

    @routes.get("/stats/agenda", answer=page_of(AgendaItem))
    async def list_agenda(
        since: MomentQuery = None,
        until: MomentQuery = None,
        limit: Limit = 50,
        after: After = None,
    ) -> Page[AgendaItem]:
        """List what comes next: ticks of schedules, reminders, jobs, and runs of flows."""
        return await app.stats.agenda(since=since, until=until, limit=limit, after=after)

    @routes.get("/stats/recipient_week", answer=RecipientWeek)
    async def get_recipient_week(
        recipient: SoughtName,
        since: MomentQuery = None,
        days: Annotated[int, Query(ge=1, le=31)] = 7,
        tz: Zone = "UTC",
    ) -> RecipientWeek:
        """Show which reminders a recipient gets, and when their quiet hours are."""
        return await app.stats.recipient_week(recipient, since=since, days=days, tz=tz)

    @routes.get("/stats/preview", answer=SpecPreview)
    async def preview_specs(
        specs: Annotated[
            list[Annotated[str, Query(max_length=1000)]], Query(min_length=1, max_length=100)
        ],
        tz: Zone = "UTC",
        other_tz: Sought = None,
        exclude: Annotated[
            list[Annotated[str, Query(max_length=200)]], Query(max_length=1000)
        ] = [],  # noqa: B006
        n: Count = 20,
        since: MomentQuery = None,
        within: DurationQuery = "0s",
        but: Sought = None,
    ) -> SpecPreview:
        """Show the next ticks of times in two zones, and which schedules tick at the same time."""
        return await app.stats.preview(
            *specs,
            tz=tz,
            other_tz=other_tz,
            exclude=exclude,
            n=n,
            since=since,
            within=within,
            but=but,
        )

    return routes
