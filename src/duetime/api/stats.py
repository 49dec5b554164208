"""`app.stats`: the numbers that people watch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from duetime.domain.checks import check_moment, check_sought
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.page import Moment, Page, check_limit, make_cursor, read_cursor
from duetime.domain.reminders.recipient import Recipient
from duetime.domain.schedules.cron import parse_zone
from duetime.domain.schedules.timetable import Exclusions, Spec, timetable
from duetime.domain.stats.agenda import AgendaItem, RecipientWeek, SpecPreview, preview_spec
from duetime.domain.stats.now import NowStats, Totals
from duetime.domain.stats.problems import ProblemInfo
from duetime.domain.stats.search import Match
from duetime.domain.stats.series import MAX_WINDOW, AttemptSample, Series, check_window
from duetime.domain.stats.timeline import HEAT_MAP_MAX_DAYS as MAX_DAYS
from duetime.domain.stats.timeline import HeatMap, Timeline, check_span
from duetime.errors import InvalidInput, RecipientNotFound
from duetime.storage.stats.agenda import ORDER as AGENDA_ORDER
from duetime.storage.stats.agenda import ReadAgenda
from duetime.storage.stats.attempts import AttemptStats
from duetime.storage.stats.now import ReadStats
from duetime.storage.stats.problems import FindProblems
from duetime.storage.stats.search import Search
from duetime.storage.stats.timeline import ORDER as TIMELINE_ORDER
from duetime.storage.stats.timeline import ReadTimeline

if TYPE_CHECKING:
    from duetime.app import Duetime

_MAX_WEEK_DAYS = 31
_MAX_NEAR = timedelta(hours=1)


class Stats:
    """`app.stats`. Every verb reads few rows, however many jobs wait or have finished."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def now(self, *, late_after: Duration = "1m") -> NowStats:
        """Return how many jobs wait, are due, late, running, retried and dead, in all and for each
        queue and task.

        `late_after`: for how long a job must have been due to count as late. Large sets are
        counted up to a limit: see `Count`.
        """
        after = parse_positive_duration(late_after, name="late_after")
        workers = await (await self._app.store()).workers()
        found: NowStats = await self._app._perform(
            lambda dialect: ReadStats(dialect).now(workers, late_after=after), snapshot=True
        )
        return found

    async def problems(self, *, late_after: Duration = "1m") -> list[ProblemInfo]:
        """Return what is wrong, the worst first, each with what fixes it. If all is well, the list
        is empty.

        For example dead jobs (by task and error), queues that no worker serves or that are paused
        while jobs wait, jobs that have been due for longer than `late_after`, schedules that are
        broken or fail, workers that were lost, parked jobs, reminders that were not sent.
        """
        after = parse_positive_duration(late_after, name="late_after")
        workers = await (await self._app.store()).workers()
        found: list[ProblemInfo] = await self._app._perform(
            lambda dialect: FindProblems(dialect).find(workers, late_after=after), snapshot=True
        )
        return found

    async def overview(self, *, late_after: Duration = "1m") -> tuple[NowStats, list[ProblemInfo]]:
        """Return what `now()` and `problems()` return, read at the same time: it costs half, and
        both agree."""
        after = parse_positive_duration(late_after, name="late_after")
        workers = await (await self._app.store()).workers()
        found: tuple[NowStats, list[ProblemInfo]] = await self._app._perform(
            lambda dialect: FindProblems(dialect).overview(workers, late_after=after), snapshot=True
        )
        return found

    async def change_mark(self) -> Any:
        """Return a value that is different once something has changed, perhaps seconds later.

        It reads no rows: pages use it to refresh only if something has changed.
        """
        return await (await self._app.store()).change_mark()

    async def totals(self) -> Totals:
        """Return how many jobs, schedules, reminders, flows, queues, workers and tracked tables
        there are."""
        workers = await (await self._app.store()).workers()
        found: Totals = await self._app._perform(
            lambda dialect: ReadStats(dialect).totals(workers), snapshot=True
        )
        return found

    async def series(self, *, window: Duration = "1h", task: str | None = None) -> Series:
        """Return how many attempts there were, how late and how long, from `window` ago until now.

        `window`: at most 35 days. Up to four hours there is a point for each minute, up to three
        days for each ten minutes, else for each hour. `task`: only of this task.
        """
        span = check_window(parse_positive_duration(window, name="window", most=MAX_WINDOW))
        if task is not None:
            check_sought(task, what="task")
        found: Series = await self._app._perform(
            lambda dialect: AttemptStats(dialect).series(span, task), snapshot=True
        )
        return found

    async def samples(
        self, *, window: Duration = "1h", task: str | None = None, limit: int = 2000
    ) -> list[AttemptSample]:
        """Return attempts of the window that were picked at random, the oldest first: when each
        was due, started and finished."""
        span = check_window(parse_positive_duration(window, name="window", most=MAX_WINDOW))
        if task is not None:
            check_sought(task, what="task")
        most = check_limit(limit)
        found: list[AttemptSample] = await self._app._perform(
            lambda dialect: AttemptStats(dialect).samples(span, task, most), snapshot=True
        )
        return found

    async def timeline(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        schedules: Sequence[str] | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Timeline:
        """Return what schedules did and will do from `since` (12 hours ago) to `until` (6 hours
        from now): the runs of each, by name, and its future ticks.

        `schedules`: only these. `after`: the `next` of the previous timeline. If a schedule has
        more than 100 runs in the window, they are counted for parts of it.
        """
        for name, moment in (("since", since), ("until", until)):
            if moment is not None:
                check_moment(moment, name=name)
        start, end = since, until
        if start is None or end is None:
            now = await self._app.now()
            start = now - timedelta(hours=12) if start is None else start
            end = max(now, start) + timedelta(hours=6) if end is None else end
        check_span(start, end)
        for schedule in schedules or ():
            check_sought(schedule, what="schedule")
        position = read_cursor(after, order=TIMELINE_ORDER, shape=tuple[str])
        found: Timeline = await self._app._perform(
            lambda dialect: ReadTimeline(dialect).timeline(
                since=start,
                until=end,
                names=schedules,
                after=None if position is None else position[0],
                limit=check_limit(limit),
            ),
            snapshot=True,
            computes=True,
        )
        return found

    async def heat_map(self, schedule: str, *, days: int = 28, tz: str | None = None) -> HeatMap:
        """Return how many ticks of a schedule had which result, for each hour of each day.

        `days`: how many, up to and including today; at most 90. `tz`: the time zone of the days
        and hours, by default the schedule's. Raises `ScheduleNotFound`.
        """
        check_sought(schedule, what="schedule")
        if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MAX_DAYS:
            raise InvalidInput(f"days must be 1 to {MAX_DAYS}, got {days!r:.60}.")
        zone = None if tz is None else parse_zone(tz).key
        found: HeatMap = await self._app._perform(
            lambda dialect: ReadTimeline(dialect).heat_map(schedule, days=days, tz=zone),
            snapshot=True,
            computes=True,
        )
        return found

    async def agenda(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[AgendaItem]:
        """Return what comes next, in order of time: ticks of schedules, reminders, jobs, and runs
        of flows that start or continue.

        What comes after `since`, by default now, up to `until`. `after`: the `next` of the
        previous page. The ticks are those of the 500 schedules that run next.
        """
        for name, moment in (("since", since), ("until", until)):
            if moment is not None:
                check_moment(moment, name=name)
        most = check_limit(limit)
        position = read_cursor(after, order=AGENDA_ORDER, shape=tuple[Moment, int, int, str])
        start = await self._app.now() if since is None else since.astimezone(UTC)
        items, more = await self._app._perform(
            lambda dialect: ReadAgenda(dialect).agenda(start, until, position, most),
            snapshot=True,
            computes=True,
        )
        return Page(items, next=None if more is None else make_cursor(AGENDA_ORDER, more))

    async def _armed_times(self, until: datetime, limit: int) -> Sequence[datetime]:
        """Return when the next reminders are due, in order: the calendar counts them."""
        found: Sequence[datetime] = await self._app._perform(
            lambda dialect: ReadAgenda(dialect).armed_times(until, limit), reads=True
        )
        return found

    async def recipient_week(
        self, recipient: str, *, since: datetime | None = None, days: int = 7, tz: str = "UTC"
    ) -> RecipientWeek:
        """Return which reminders a recipient gets from `since` (now) on, and when their quiet hours
        are; with a `since` in the past also which they got, and which could not be sent.
        `days`: at most 31. `tz`: the zone of a recipient who has none.
        """
        check_sought(recipient, what="recipient")
        if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= _MAX_WEEK_DAYS:
            raise InvalidInput(f"days must be 1 to {_MAX_WEEK_DAYS}, got {days!r:.60}.")
        if since is not None:
            check_moment(since, name="since")
        zone = parse_zone(tz).key
        try:
            known = await self._app.recipients.get(recipient)
        except RecipientNotFound:
            known = Recipient(ref=recipient)
        start = await self._app.now() if since is None else since.astimezone(UTC)
        found: RecipientWeek = await self._app._perform(
            lambda dialect: ReadAgenda(dialect).week(known, known.tz or zone, start, days),
            snapshot=True,
            computes=True,
        )
        return found

    async def preview(
        self,
        *specs: Spec,
        tz: str = "UTC",
        other_tz: str | None = None,
        exclude: Exclusions = (),
        n: int = 20,
        since: datetime | None = None,
        within: Duration = "0s",
        but: str | None = None,
    ) -> SpecPreview:
        """Return the next ticks that a spec would have, in its time zone and another one, with what
        clock changes do to them, and which schedules tick at the same time.

        `within`: schedules that tick this close to each other collide. `but`: the schedule that is
        being edited, which is left out. Raises `InvalidSchedule`.
        """
        near = parse_duration(within, name="within", most=_MAX_NEAR)
        if since is not None:
            check_moment(since, name="since")
        if other_tz is not None:
            parse_zone(other_tz)
        plan = await asyncio.to_thread(timetable, *specs, tz=tz, exclude=exclude)
        start = await self._app.now() if since is None else since.astimezone(UTC)
        others, complete = await self._app._perform(
            lambda dialect: ReadAgenda(dialect).schedules(), reads=True
        )
        return await asyncio.to_thread(
            preview_spec,
            plan,
            start,
            n,
            other_tz=other_tz,
            others=[other for other in others if other.name != but],
            within=near,
            all_others=complete,
        )

    async def search(self, text: str, *, limit: int = 20) -> list[Match]:
        """Return what a text may name, the best match first.

        Jobs, runs of flows and reminders by their number; jobs and runs also by their key.
        Subjects, recipients and scopes by the beginning of their reference. Schedules, tasks,
        flows, queues, workers and tracked tables by any part of their name, in upper or lower case.
        """
        sought = check_sought(text, what="text").strip()
        most = check_limit(limit)
        if not sought:
            return []
        workers = await (await self._app.store()).workers()
        found: list[Match] = await self._app._perform(
            lambda dialect: Search(dialect).find(sought, workers, most), snapshot=True
        )
        return found
