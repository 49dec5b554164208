"""Schedules on the real thing, whatever happens to them, beside a model that knows every tick.

A story is a list of things that happen under a driven clock. After each of them the ledger, the
jobs and the runs are compared with what a plain count of the ticks expects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from duetime import Context, Discard, Duetime, JobState, Retry, Snooze
from duetime.api.schedules import ScheduleInfo
from duetime.domain.keys import read_run_key
from duetime.domain.schedules.plan import ARMED_AHEAD
from duetime.domain.schedules.schedule import TickStatus
from duetime.errors import InvalidInput
from duetime.storage.schedules.rows import TickInfo
from duetime.testing import World
from tests.conftest import Backend

SQLITE = "sqlite:///unused.db"
"""A world has a database of its own."""
START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
MINUTE = timedelta(minutes=1)
RAN = {TickStatus.FIRED, TickStatus.CAUGHT_UP, TickStatus.BACKFILLED, TickStatus.TRIGGERED}
OPEN = {TickStatus.ARMED, TickStatus.WAITING}


# What happens


class Times(NamedTuple):
    """A timetable of which the model knows every tick."""

    every: int
    excluded_hours: tuple[int, ...] = ()
    jitter: int = 0

    def options(self) -> dict[str, Any]:
        hours = ",".join(map(str, self.excluded_hours))
        return {
            "exclude": [f"* {hours} * * *"] if hours else [],
            "jitter": self.jitter * MINUTE if self.jitter else None,
        }

    @property
    def spec(self) -> dict[str, Any]:
        return {"every": self.every * MINUTE, "start": START}

    def ticks(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Those later than `after`, up to `until`."""
        tick = START - 10_000 * self.every * MINUTE
        tick += (after - tick) // (self.every * MINUTE) * self.every * MINUTE
        while tick <= until:
            if tick > after and tick >= START:
                yield tick
            tick += self.every * MINUTE

    def excludes(self, tick: datetime) -> bool:
        return tick.hour in self.excluded_hours


class Advance(NamedTuple):
    minutes: int


class Outage(NamedTuple):
    """Nobody works; what is missed is seen by whatever comes next."""

    minutes: int


class Blocked(NamedTuple):
    """Workers are there, and the queue is paused: ticks are armed, and not claimed."""

    minutes: int


class Pause(NamedTuple):
    until: int | None


class Resume(NamedTuple):
    missed: bool


class Change(NamedTuple):
    times: Times
    policy: dict[str, Any]


class Trigger(NamedTuple):
    pass


class Reschedule(NamedTuple):
    minutes: int


class Backfill(NamedTuple):
    minutes: int


class Requeue(NamedTuple):
    """A person has the last run that failed tried again: now it succeeds."""


Event = (
    Advance | Outage | Blocked | Pause | Resume | Change | Trigger | Reschedule | Backfill | Requeue
)

TIMES = st.builds(
    Times,
    every=st.sampled_from([15, 20, 30, 60]),
    excluded_hours=st.sampled_from([(), (), (1,), (2, 3)]),
    jitter=st.sampled_from([0, 0, 3]),
)
SPANS = st.sampled_from([timedelta(0), MINUTE, 40 * MINUTE, 120 * MINUTE])
POLICIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "catch_up": st.sampled_from(["skip", "latest", "all"]),
        "overlap": st.sampled_from(["skip", "buffer_one", "buffer_all", "allow", "cancel_other"]),
    },
    optional={
        "max_runs": st.integers(1, 4),
        "max_age": SPANS,
        "pace": SPANS,
        "grace": SPANS,
        "max_concurrent_runs": st.integers(1, 3),
        "burst_allowed": st.booleans(),
    },
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Advance, st.sampled_from([0, 1, 30, 61, 150])),
    st.builds(Outage, st.sampled_from([1, 20, 61, 200])),
    st.builds(Blocked, st.sampled_from([25, 130])),
    st.builds(Pause, st.sampled_from([None, None, 50])),
    st.builds(Resume, st.booleans()),
    st.builds(Change, TIMES, POLICIES),
    st.builds(Trigger),
    st.builds(Reschedule, st.sampled_from([0, 5, 20, 45, 100, 400])),
    st.builds(Backfill, st.sampled_from([45, 150])),
    st.builds(Requeue),
)
OUTCOMES = st.lists(
    st.tuples(st.sampled_from([0, 7, 35, 100]), st.sampled_from(["done", "dead"])),
    min_size=1,
    max_size=4,
)
"""What handlers do, in turn: are tried again after so many minutes, then end so."""


class Story(NamedTuple):
    times: Times
    policy: dict[str, Any]
    outcomes: list[tuple[int, str]]
    events: list[Event]


def in_time(events: list[tuple[Event, Event | None]]) -> list[Event]:
    return [event for pair in events for event in pair if event is not None]


WHILES = st.sampled_from([None, Advance(1), Advance(30), Advance(61)])
STORIES = st.builds(
    Story,
    TIMES,
    POLICIES,
    OUTCOMES,
    st.lists(st.tuples(EVENTS, WHILES), min_size=1, max_size=6).map(in_time),
)


# What the model knows


class Epoch(NamedTuple):
    """A timetable, and since when it holds."""

    since: datetime
    times: Times


@dataclass
class Run:
    """A run that has begun, as its handler saw it."""

    tick: datetime
    job_id: int
    started_at: datetime
    beside: list[datetime]
    """The open runs that it found."""
    policy: dict[str, Any]
    paused: bool
    open: bool = True


@dataclass
class Model:
    app: Duetime
    world: World
    story: Story
    epochs: list[Epoch]
    policy: dict[str, Any]
    runs: dict[datetime, Run] = field(default_factory=dict)
    added: set[datetime] = field(default_factory=set)
    """Ticks that were triggered or backfilled."""
    triggered: set[datetime] = field(default_factory=set)
    moved: set[datetime] = field(default_factory=set)
    requeued: set[datetime] = field(default_factory=set)
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    recorded_until: datetime | None = None
    """In a pause: up to when the ledger goes."""
    touched_at: datetime = START
    """When the schedule was last paused, resumed or changed."""
    gaps: int = 0
    """How often ticks may have been missed."""
    policies: int = 1
    faults: list[str] = field(default_factory=list)
    jobs_seen: set[int] = field(default_factory=set)

    @property
    def now(self) -> datetime:
        return self.world.now

    @property
    def times(self) -> Times:
        return self.epochs[-1].times

    def expected(self, until: datetime) -> dict[datetime, bool]:
        """The ticks up to then, and whether each is excluded."""
        ends = [epoch.since for epoch in self.epochs[1:]] + [until]
        return {
            tick: epoch.times.excludes(tick)
            for epoch, end in zip(self.epochs, ends, strict=True)
            for tick in epoch.times.ticks(epoch.since, min(end, until))
        }

    async def work(self, ctx: Context) -> None:
        """The handler."""
        tick = ctx.tick
        assert tick is not None
        run = self.runs.get(tick)
        if tick in self.requeued:
            if run is None or run.job_id != ctx.id:
                self.faults.append(f"{tick} was requeued, and ran as another job")
            return
        if ctx.attempt == 1:
            if run is not None:
                self.faults.append(f"{tick} ran twice")
            run = Run(
                tick, ctx.id, self.now, await self._open_ticks(), self.policy, self._is_paused()
            )
            self.runs[tick] = run
        assert run is not None
        if run.job_id != ctx.id or not run.open:
            self.faults.append(f"{tick} went on as another job, or after its end")
        outcomes = self.story.outcomes
        minutes, end = outcomes[list(self.runs).index(tick) % len(outcomes)]
        if minutes and ctx.attempt == 1:
            raise Retry("not yet", after=minutes * MINUTE)
        run.open = False
        if end == "dead":
            raise Discard("never")

    async def _open_ticks(self) -> list[datetime]:
        for run in self.runs.values():
            if run.open and (await self.app.jobs.get(run.job_id)).state is JobState.CANCELLED:
                run.open = False
        return [
            run.tick for run in self.runs.values() if run.open and run.tick not in self.triggered
        ]

    def _is_paused(self) -> bool:
        until = self.paused_until
        return self.paused_at is not None and (until is None or self.now < until)

    # What happens

    async def happens(self, event: Event) -> None:
        schedule = self.app.schedules["s"]
        before = self.now
        match event:
            case Advance(minutes):
                await self.world.advance(minutes * MINUTE)
                await self.drain()
                await self.check_drained(since=before)
            case Outage(minutes):
                await self.world.outage(minutes * MINUTE)
                self.gaps += 1
            case Blocked(minutes):
                await self.app.queues.pause("default")
                for _ in range(minutes // 5):
                    await self.world.advance("5m")
                await self.drain()
                await self.app.queues.resume("default")
                self.gaps += 1
            case Pause(until):
                await schedule.pause(until=None if until is None else until * MINUTE)
                self.paused_at = self.paused_at or self.now
                self.recorded_until = self.recorded_until or self.now
                self.paused_until = None if until is None else self.now + until * MINUTE
                self.touched_at = self.now
            case Resume(missed):
                await schedule.resume(missed=missed)
                self.end_pause()
            case Change(times, policy):
                await self.change(times, policy)
            case Trigger():
                job = await self.app.jobs.get(await schedule.trigger())
                _, tick = read_run_key(job.key) or ("", START)
                self.triggered.add(tick)
                self.added.add(tick)
            case Reschedule(minutes):
                await self.reschedule(self.now + minutes * MINUTE)
            case Backfill(minutes):
                await self.backfill(self.now - minutes * MINUTE)
            case Requeue():
                await self.requeue()
        await self.check()

    async def drain(self) -> None:
        await self.world.drain()
        if self.paused_until is not None and self.paused_until <= self.now:
            self.end_pause()

    def end_pause(self) -> None:
        if self.paused_at is not None:
            self.paused_at = self.paused_until = self.recorded_until = None
            self.touched_at = self.now
            self.gaps += 1

    async def change(self, times: Times, policy: dict[str, Any]) -> None:
        await put(self.app, times, policy)
        if times != self.times:
            self.epochs.append(Epoch(self.now, times))
            if self.paused_at is not None:
                # What was missed under the old times is skipped.
                self.recorded_until = self.now
        if policy != self.policy:
            self.policies += 1
        self.policy = policy
        self.touched_at = self.now

    async def reschedule(self, at: datetime) -> None:
        rows = [row for row in await self.ledger() if row.status in OPEN]
        try:
            tick = await self.app.schedules["s"].reschedule(at)
        except InvalidInput:
            assert self.paused_at is not None
            return
        assert tick in {row.tick for row in rows}
        self.moved.add(tick)

    async def backfill(self, since: datetime) -> None:
        known = {row.tick: row.status for row in await self.ledger()}
        ticks = {
            tick
            for tick in self.times.ticks(since - MINUTE, self.now)
            if since <= tick < self.now
            and not self.times.excludes(tick)
            and known.get(tick) in (None, TickStatus.SKIPPED, TickStatus.COALESCED)
        }
        count = await self.app.schedules["s"].backfill(since, self.now)
        assert count == len(ticks)
        self.added |= ticks

    async def requeue(self) -> None:
        failed = [row for row in await self.ledger() if row.succeeded is False]
        if failed:
            self.requeued.add(failed[0].tick)
            await self.app.jobs.requeue(failed[0].job_id or 0)
            await self.drain()

    # What must be so

    async def ledger(self) -> list[TickInfo]:
        return await self.app.schedules["s"].history(limit=10_000)

    async def check(self) -> None:
        """What holds at any moment."""
        rows = {row.tick: row for row in await self.ledger()}
        assert self.faults == []
        expected = self.expected(max([self.now, *rows]))
        # A run that was moved forward stays, even if its tick is no longer one.
        assert rows.keys() <= {*expected, *self.added, *self.moved}
        for tick, row in rows.items():
            self._check_row(row, excluded=expected.get(tick, False))
            if row.job_id is not None and row.job_id not in self.jobs_seen:
                job = await self.app.jobs.get(row.job_id)
                assert (job.task, job.key) == ("work", f"tick:s@{tick.isoformat()[:-6]}Z")
                self.jobs_seen.add(row.job_id)
        assert set(self.runs) <= set(rows)
        if self.policies == 1:
            caught_up = sum(row.status is TickStatus.CAUGHT_UP for row in rows.values())
            most = {"skip": 0, "latest": self.gaps}.get(self.policy["catch_up"], len(rows))
            assert caught_up <= most

    def _check_row(self, row: TickInfo, *, excluded: bool) -> None:
        run = self.runs.get(row.tick)
        assert (run is not None) == (row.status in RAN)
        # A run that was moved forward has run before its tick came to be excluded.
        if excluded and row.tick not in self.added | self.moved:
            assert row.status is TickStatus.SKIPPED
            assert row.reason is not None
            assert row.reason.code == "excluded_mask"
        if row.status is TickStatus.CAUGHT_UP:
            assert row.tick not in self.added
        if row.status in (TickStatus.SKIPPED, TickStatus.COALESCED):
            assert row.reason
        if run is None:
            return
        if row.tick in self.requeued:
            assert (row.succeeded, row.error) == (True, None)
        assert run.started_at >= row.run_at
        assert row.run_at >= row.tick or row.tick in self.moved | self.triggered
        assert not (run.paused and row.status is TickStatus.FIRED)
        asked_for = row.status in (TickStatus.CAUGHT_UP, TickStatus.BACKFILLED)
        burst = asked_for and run.policy.get("burst_allowed", False)
        if (
            row.status is not TickStatus.TRIGGERED
            and run.policy["overlap"] != "allow"
            and not burst
        ):
            assert len(run.beside) < run.policy.get("max_concurrent_runs", 1)

    async def check_drained(self, *, since: datetime) -> None:
        """What holds when a worker has done all that is due; it was up since then."""
        rows = {row.tick: row for row in await self.ledger()}
        info = await self.app.schedules.get("s")
        assert (info.paused_at is not None) == (self.paused_at is not None)
        # Of two triggers at one moment, the second has a tick a microsecond later.
        added = {tick for tick in self.added if tick <= self.now}
        expected = {*self.expected(self.recorded_until or self.now), *added}
        # Excluded ticks, and runs that were moved forward, are known before a pause.
        known = {tick for tick, excluded in self.expected(self.now).items() if excluded}
        found = {tick for tick in rows if tick <= self.now}
        assert expected <= found <= expected | known | self.moved
        self._check_armed(rows, info)
        if self.paused_at is None:
            for tick, excluded in self.expected(self.now).items():
                row = rows[tick]
                if tick > max(since, self.touched_at) and row.run_at <= self.now and not excluded:
                    self._check_on_time(row, rows)

    def _check_armed(self, rows: dict[datetime, TickInfo], info: ScheduleInfo) -> None:
        waiting = [row for row in rows.values() if row.status in OPEN]
        assert all(row.run_at > self.now for row in waiting if row.status is TickStatus.ARMED)
        if self.paused_at is not None:
            assert info.next_run_at is None
            return
        ahead = [row.run_at for row in waiting if row.run_at > self.now]
        assert len(ahead) >= ARMED_AHEAD
        assert info.next_run_at == min(ahead)

    def _check_on_time(self, row: TickInfo, rows: dict[datetime, TickInfo]) -> None:
        """A run that had its place to itself began at its very time."""
        if row.tick in self.added or row.tick in self.moved:
            return
        in_the_way = [
            other
            for other in rows.values()
            if other.tick != row.tick
            and other.job_id is not None
            and (other.finished_at is None or other.finished_at >= row.run_at)
            and (other.tick < row.tick or (other.started_at or self.now) <= row.run_at)
        ]
        if self.policy["overlap"] == "allow" or not in_the_way:
            assert row.status is TickStatus.FIRED
            assert self.runs[row.tick].started_at == row.run_at


async def put(app: Duetime, times: Times, policy: dict[str, Any]) -> None:
    await app.schedules.put("s", "work", times.spec, **times.options(), **policy)


async def play(url: str, story: Story) -> None:
    app = Duetime(url)
    async with app.testing(now=START) as world:
        model = Model(app, world, story, [Epoch(START, story.times)], story.policy)

        @app.task(name="work", max_attempts=2)
        async def work(ctx: Context) -> None:
            await model.work(ctx)

        await put(app, story.times, story.policy)
        for number, event in enumerate([*story.events, Advance(30)]):
            try:
                await model.happens(event)
            except BaseException as error:
                error.add_note(f"at {world.now}, by event {number}: {event}")
                raise


@pytest.fixture(autouse=True)
def _look_again_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waits for another looks again now and then: here not hundreds of times."""
    monkeypatch.setattr("duetime.domain.schedules.decide_run.RETRY_WAIT", 4 * MINUTE)


# Shrinking a story that fails takes its time.
LONG = pytest.mark.timeout(600)
# What `make test` plays: a few stories, the same ones each time. `make chaos` plays many.
FEW = settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@FEW
@given(STORIES)
def test_no_story_of_a_few_loses_or_doubles_a_tick_on_sqlite(story: Story) -> None:
    asyncio.run(play(SQLITE, story))


@settings(FEW, max_examples=4)
@given(STORIES)
def test_no_story_of_a_few_loses_or_doubles_a_tick_on_postgres(pg_url: str, story: Story) -> None:
    asyncio.run(play(pg_url, story))


@pytest.mark.chaos
@LONG
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(STORIES)
def test_no_story_loses_or_doubles_a_tick_on_sqlite(story: Story) -> None:
    asyncio.run(play(SQLITE, story))


@pytest.mark.chaos
@LONG
@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.generate],  # Play a story that fails here on SQLite to have it shrunk.
    suppress_health_check=list(HealthCheck),
)
@given(STORIES)
def test_no_story_loses_or_doubles_a_tick_on_postgres(pg_url: str, story: Story) -> None:
    asyncio.run(play(pg_url, story))


SOME_POLICIES: list[dict[str, Any]] = [
    {"catch_up": "all", "overlap": "buffer_all", "grace": timedelta(0)},
    {"catch_up": "latest", "overlap": "skip"},
    {"catch_up": "all", "overlap": "allow", "max_runs": 2, "pace": 7 * MINUTE},
    {"catch_up": "skip", "overlap": "buffer_one"},
    {"catch_up": "all", "overlap": "skip", "max_age": 90 * MINUTE, "max_concurrent_runs": 2},
    {"catch_up": "latest", "overlap": "cancel_other"},
    {"catch_up": "all", "overlap": "buffer_one", "burst_allowed": True},
]
SOME_EVENTS: list[Event] = [
    Advance(61),
    Outage(200),
    Blocked(60),
    Pause(None),
    Pause(50),
    Change(Times(30), {"catch_up": "all", "overlap": "skip"}),
    Change(Times(40), {"catch_up": "latest", "overlap": "buffer_one"}),
    Trigger(),
    Reschedule(5),
    Backfill(150),
    Requeue(),
]


@pytest.mark.parametrize("number", range(len(SOME_EVENTS)))
def test_no_two_events_in_a_row_lose_or_double_a_tick(number: int) -> None:
    first, policy = SOME_EVENTS[number], SOME_POLICIES[number % len(SOME_POLICIES)]
    events: list[Event] = []
    for second in SOME_EVENTS:
        events += [first, second, Resume(missed=len(events) % 8 == 0), Advance(70)]
    outcomes = [(0, "done"), (45, "done"), (0, "dead")]

    asyncio.run(play(SQLITE, Story(Times(50), policy, outcomes, events)))


# A single outage, tick by tick

OUTAGES = (TIMES, POLICIES, st.integers(1, 300), st.sampled_from([0, 4, 30]))


@settings(FEW, max_examples=25)
@given(*OUTAGES)
def test_a_few_outages_end_as_the_policy_says(
    times: Times, policy: dict[str, Any], minutes: int, seconds: int
) -> None:
    """Two ticks were armed before it and are decided on when claimed; the others are planned."""
    policy |= {"overlap": "allow"}
    asyncio.run(play_outage(times, policy, minutes * MINUTE + timedelta(seconds=seconds)))


@pytest.mark.chaos
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(*OUTAGES)
def test_an_outage_ends_as_the_policy_says(
    times: Times, policy: dict[str, Any], minutes: int, seconds: int
) -> None:
    policy |= {"overlap": "allow"}
    asyncio.run(play_outage(times, policy, minutes * MINUTE + timedelta(seconds=seconds)))


async def play_outage(times: Times, policy: dict[str, Any], span: timedelta) -> None:
    app = Duetime(SQLITE)
    app.task(name="work")(nothing)
    async with app.testing(now=START) as world:
        await put(app, times, policy)
        await world.outage(span)
        await world.drain()
        rows = {
            row.tick: row
            for row in await app.schedules["s"].history(limit=10_000)
            if row.tick <= world.now
        }
        run_at = {
            tick: (await app.schedules._find("s")).timetable.run_at("s", tick) for tick in rows
        }

    now, grace = world.now, policy.get("grace", timedelta(seconds=10))
    due = [tick for tick in times.ticks(START, now) if not times.excludes(tick)]
    late = [tick for tick in due if now - run_at[tick] > grace]
    max_age = policy.get("max_age", now - START)
    chosen = {
        "skip": [],
        "latest": [tick for tick in late if tick == due[-1]],
        "all": late[-policy.get("max_runs", len(late) + 1) :],
    }[policy["catch_up"]]
    caught_up = [tick for tick in chosen if now - run_at[tick] <= max_age]
    assert list(rows) == list(reversed(list(times.ticks(START, now))))
    for tick, row in rows.items():
        if row.status is TickStatus.ARMED:
            # It keeps the pace, or its jitter.
            assert row.run_at > now
            assert tick in caught_up or run_at[tick] > now
        elif times.excludes(tick):
            assert row.status is TickStatus.SKIPPED
        elif tick not in late:
            assert row.status is TickStatus.FIRED
        elif tick in caught_up:
            assert row.status is TickStatus.CAUGHT_UP
        else:
            young = policy["catch_up"] == "latest" and now - run_at[tick] <= max_age
            assert row.status is (TickStatus.COALESCED if young else TickStatus.SKIPPED)


async def nothing(ctx: Context) -> None:
    pass


# What the model found


class Runs:
    """An app whose runs note their tick and moment, in minutes, and stay open for a while."""

    def __init__(self, url: str) -> None:
        self.app = app = Duetime(url)
        self.began: list[tuple[float, float]] = []
        self.open_for: dict[float, int] = {}
        self.snoozed_for: dict[float, int] = {}

        @app.task(name="work", max_attempts=2)
        async def work(ctx: Context, n: int = 0) -> None:
            assert ctx.tick is not None
            tick = minute(ctx.tick)
            snooze = self.snoozed_for.pop(tick, None)
            if tick not in dict(self.began):
                self.began.append((tick, minute(await app.now())))
            if snooze is not None:
                raise Snooze(snooze * MINUTE)
            if ctx.attempt == 1 and tick in self.open_for:
                raise Retry("not yet", after=self.open_for[tick] * MINUTE)

        self.work = work
        self.schedule = app.schedules["s"]

    async def put(self, spec: str = "@hourly", **options: Any) -> None:
        await self.app.schedules.put("s", self.work, spec, **options)

    async def statuses(self) -> dict[float, str]:
        rows = await self.schedule.history(limit=100)
        return {minute(row.tick): row.status.value for row in reversed(rows)}


@pytest.fixture
def runs(backend: Backend) -> Runs:
    return Runs(backend.url)


def minute(moment: datetime) -> float:
    return round((moment - START) / MINUTE, 3)


@pytest.mark.parametrize("spec", ["@hourly", "*/30 * * * *"], ids=["same times", "other times"])
async def test_a_change_leaves_a_tick_that_is_due(runs: Runs, spec: str) -> None:
    """A deploy, with a schedule that is declared a little differently."""
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await world.outage("1h3s")
        await runs.put(spec, args={"n": 1})
        await world.drain()

    assert runs.began == [(60, 60.05)]


async def test_what_was_missed_before_a_change_is_caught_up(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put(catch_up="all")
        await world.outage("3h30m")
        await runs.put(catch_up="all", args={"n": 1})
        await world.drain()

    assert [tick for tick, _ in runs.began] == [60, 120, 180]


async def test_what_was_missed_before_a_pause_is_judged_without_it(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put(catch_up="all")
        await world.outage("3h30m")
        await runs.schedule.pause()
        await runs.schedule.resume(missed=True)
        await world.drain()
        found = await runs.statuses()

    assert len({found[tick] for tick in (60, 120, 180)}) == 1


async def test_a_change_leaves_a_run_that_its_jitter_delays(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put("0 1 * * *", jitter="6h")
        await world.advance("61m")
        await runs.put("0 1 * * *", jitter="6h", args={"n": 1})
        await world.advance("9h")

    assert [tick for tick, _ in runs.began] == [60]


async def test_an_exclusion_taken_back_lets_the_tick_run(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put("0 12 * * *", exclude=["2026-03-02"])
        await runs.put("0 12 * * *")
        await world.advance("13h")

    assert runs.began == [(720, 720)]


async def test_of_runs_that_wait_the_earlier_goes_first_and_they_come_to_an_end(
    runs: Runs,
) -> None:
    """That of 0 was backfilled after that of 120 was armed: its job is the younger one."""
    runs.open_for = {60: 100}
    async with runs.app.testing(now=START) as world:
        await runs.put(overlap="buffer_all")
        await world.advance("130m")
        await runs.schedule.backfill(START, START + MINUTE)
        async with asyncio.timeout(20):
            await world.advance("40m")

    assert runs.began == [(60, 60), (0, 160), (120, 160)]


async def test_a_run_that_waits_does_not_begin_in_a_pause(runs: Runs) -> None:
    runs.open_for = {60: 65}
    async with runs.app.testing(now=START) as world:
        await runs.put(overlap="buffer_one")
        await world.advance("121m")
        await runs.schedule.pause()
        await world.advance("20m")

    assert runs.began == [(60, 60)]


async def test_a_change_in_a_pause_leaves_no_gap_in_the_ledger(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await runs.schedule.pause()
        await world.outage("150m")
        await runs.put("30 * * * *")
        await world.outage("1h")
        await runs.schedule.resume()
        found = await runs.statuses()

    assert [tick for tick in found if tick <= 210] == [60, 120, 210]


async def test_a_run_moved_behind_the_next_one_keeps_to_its_place(runs: Runs) -> None:
    runs.open_for = {120: 30}
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await runs.schedule.reschedule("130m")
        await world.advance("140m")

    # The run of 120 is open until 150.
    assert runs.began == [(120, 120)]


async def test_runs_moved_far_away_do_not_hold_up_those_after_them(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await runs.schedule.reschedule("10h")
        await runs.schedule.reschedule("10h")
        await world.advance("5h30m")

    assert runs.began == [(180, 180), (240, 240), (300, 300)]


async def test_a_run_that_waits_and_is_moved_is_not_early(runs: Runs) -> None:
    runs.open_for = {60: 65}
    async with runs.app.testing(now=START) as world:
        await runs.put(overlap="buffer_one")
        await world.advance("121m")
        [waiting] = [row for row in await runs.schedule.history() if row.status == "waiting"]
        await runs.app.jobs.reschedule(waiting.job_id or 0, START + 140 * MINUTE)
        await world.advance("30m")

    # The run of 60 ends at 125; that of 120 waits for it, and is moved to 140.
    assert runs.began == [(60, 60), (120, 140)]


async def test_a_run_moved_forward_is_not_the_next_run_again(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await runs.schedule.reschedule("5m")
        await world.advance("10m")
        await runs.schedule.pause()
        await runs.schedule.resume(missed=True)
        info = await runs.app.schedules.get("s")
        armed = await world.enqueued("work")

    assert runs.began == [(60, 5)]
    assert info.next_run_at == START + 120 * MINUTE
    assert len(armed) == ARMED_AHEAD


async def test_runs_to_be_caught_up_stop_in_a_pause(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put(catch_up="all", pace="10m")
        await world.outage("6h5m")
        await world.drain()
        began = list(runs.began)
        await runs.schedule.pause()
        await world.advance("1h")

    assert runs.began == began


async def test_all_that_is_caught_up_keeps_the_pace(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put(catch_up="all", pace="10m")
        await world.outage("3h5m")
        await world.advance("30m")

    assert runs.began == [(60, 185), (120, 195), (180, 205)]


async def test_a_snoozed_run_keeps_its_place(runs: Runs) -> None:
    runs.snoozed_for = {60: 90}
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await world.advance("170m")
        found = await runs.statuses()

    assert runs.began == [(60, 60)]
    assert found[120] == "skipped"


async def test_a_snoozed_run_is_not_skipped_after_it_began(runs: Runs) -> None:
    runs.snoozed_for, runs.open_for = {60: 90}, {120: 50}
    async with runs.app.testing(now=START) as world:
        await runs.put(overlap="allow")
        await world.advance("121m")
        await runs.put(overlap="skip")
        await world.advance("50m")
        found = await runs.statuses()

    assert found[60] == "fired"


async def test_a_run_whose_job_is_rescheduled_is_not_late(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put(catch_up="skip")
        [job, _] = await world.enqueued("work")
        await runs.app.jobs.reschedule(job.id, START + 90 * MINUTE)
        await world.advance("100m")

    assert runs.began == [(60, 90)]


async def test_a_pause_that_ends_by_itself_ends_while_the_clock_is_advanced(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await runs.schedule.pause(until="50m")
        await world.advance("3h")

    assert runs.began == [(60, 60), (120, 120), (180, 180)]


async def test_trigger_at_the_moment_of_a_tick_runs_beside_it(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put()
        await world.advance("1h")
        await runs.schedule.trigger()
        await world.drain()

    assert len(world.completed) == 2


async def test_cancel_other_cancels_nothing_that_has_not_begun(runs: Runs) -> None:
    async with runs.app.testing(now=START) as world:
        await runs.put(overlap="cancel_other")
        await world.outage("1m")
        await runs.schedule.trigger()
        await runs.schedule.reschedule("0s")
        await world.advance("10m")

    assert sorted(tick for tick, _ in runs.began) == [1, 60]
