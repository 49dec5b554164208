"""Schedules on real workers, real databases and real time.

What becomes of a tick under each policy is in `tests/conformance`, under a driven clock. Here it
fires. A list of moments makes a schedule with ticks closer than a second.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import psycopg
import pytest

from duetime import Constant, Context, Duetime, JobState, Task
from duetime.domain.jobs.job import NewJob
from duetime.domain.reasons import Reason, read_reason
from duetime.domain.schedules.schedule import Overlap, TickStatus
from duetime.storage.schedules.rows import TickInfo
from duetime.storage.schedules.runs import RunStatements
from duetime.storage.store import Statements
from tests import effects, workload
from tests.conformance.hand import Hand
from tests.conftest import Backend
from tests.waiting import until, until_true
from tests.workload import end_worker, start_worker

LEAD = timedelta(milliseconds=50)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SHORT: dict[str, Any] = {
    "lease": "20s", "heartbeat": "500ms", "rescue_every": "200ms", "grace": "5s",
}  # fmt: skip

on_two = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)

MakeApp = Callable[..., Duetime]


@pytest.fixture
async def make_app(backend: Backend) -> AsyncIterator[MakeApp]:
    """Makes any number of apps on one database, as so many deploys would: each knows the task
    `note` of the notes, if they are given."""
    made: list[Duetime] = []

    def make(
        notes: Notes | None = None, *, seconds: float = 0.0, url: str = backend.url, **settings: Any
    ) -> Duetime:
        app = Duetime(url, migrate=True, **SHORT, **settings)
        made.append(app)
        if notes is not None:
            notes.register(app, seconds=seconds)
        return app

    yield make
    for app in made:
        await app.close()


class Start(NamedTuple):
    schedule: str | None
    tick: datetime | None
    at: float
    worker: str
    key: str


class Notes:
    """What ran, in all the apps that know the task."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.ends: list[tuple[datetime | None, str]] = []

    def register(self, app: Duetime, *, seconds: float = 0.0) -> Task[[], None]:
        @app.task(name="note")
        async def note(ctx: Context) -> None:
            self.starts.append(Start(ctx.schedule, ctx.tick, time.time(), ctx.worker, ctx.key))
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.ends.append((ctx.tick, "cancelled"))
                raise
            self.ends.append((ctx.tick, "completed"))

        return note

    @property
    def ticks(self) -> list[datetime | None]:
        return [start.tick for start in self.starts]


@pytest.fixture
def notes() -> Notes:
    return Notes()


@asynccontextmanager
async def workers(*apps: Duetime) -> AsyncIterator[None]:
    """A worker of each app, started together."""
    async with AsyncExitStack() as stack:
        entering = [
            stack.enter_async_context(app.worker(name=f"w{number}"))
            for number, app in enumerate(apps)
        ]
        await asyncio.gather(*entering)
        yield


async def soon(app: Duetime, *seconds: float) -> list[datetime]:
    """Moments so many seconds from now."""
    now = await app.now()
    return [now + number * SECOND for number in seconds]


async def ledger(app: Duetime, name: str = "s") -> list[TickInfo]:
    """Oldest first."""
    return (await app.schedules[name].history(limit=1000))[::-1]


async def closed(app: Duetime, count: int, name: str = "s") -> list[TickInfo]:
    """Wait until so many ticks are recorded with their end; return the ledger."""

    async def recorded() -> list[TickInfo]:
        rows = await ledger(app, name)
        return rows if sum(row.finished_at is not None for row in rows) >= count else []

    return await until(recorded)


def statuses(rows: Sequence[TickInfo]) -> list[str]:
    return [row.status.value for row in rows]


def table(backend: Backend, name: str) -> str:
    return f"duetime.{name}" if backend.is_postgres else f"duetime_{name}"


# Many workers


async def test_ten_workers_and_one_due_schedule_make_one_run(
    make_app: MakeApp, notes: Notes
) -> None:
    """All of them claim at the same moment."""
    apps = [make_app(notes, pool_size=2) for _ in range(10)]
    await apps[0].now()
    async with workers(*apps):
        [tick] = await soon(apps[0], 0.5)
        await apps[0].schedules.put("s", "note", tick)
        [row] = await closed(apps[0], 1)
        jobs = await apps[0].jobs.list(task="note")

    assert notes.ticks == [tick]
    assert [(job.state, job.attempts) for job in jobs] == [(JobState.COMPLETED, 1)]
    assert (row.status, row.job_id) == (TickStatus.FIRED, jobs[0].id)


@on_two
async def test_ten_workers_that_declare_one_schedule_store_it_once(
    make_app: MakeApp, notes: Notes
) -> None:
    """A deploy starts all of them at the same moment."""
    apps = [deploy(make_app(pool_size=2), notes, "@every 1s", overlap="allow") for _ in range(10)]
    await apps[0].now()
    async with workers(*apps):
        await until_true(lambda: len(notes.starts) >= 2)
        await apps[0].schedules["s"].pause()
    rows = await closed(apps[0], len(notes.starts))
    infos = await apps[0].schedules.list()

    assert sorted(Counter(notes.ticks).values()) == [1] * len(notes.starts)
    assert [row.tick for row in rows] == sorted(filter(None, notes.ticks))
    assert [info.name for info in infos] == ["s"]


def deploy(app: Duetime, notes: Notes, spec: str, **options: Any) -> Duetime:
    """An app whose code declares the schedule `s`."""
    app.schedule(spec, name="s", **options)(notes.register(app))
    return app


@on_two
async def test_five_workers_fire_each_tick_once_and_none_early(
    make_app: MakeApp, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes and two more workers, four schedules, ticks of a second.

    Each process has a time zone of its own, and still makes the same keys.
    """
    apps = [make_app(), make_app()]
    await apps[0].now()
    effects.run(backend.url, effects.CREATE)
    for app in apps:
        workload.task_of(app, "effect")
    names = {number: f"s{number}" for number in range(4)}
    with ExitStack() as stack:
        for number, zone in enumerate(["Asia/Tokyo", "America/St_Johns", "UTC"]):
            monkeypatch.setenv("TZ", zone)
            monkeypatch.setenv("PGTZ", zone)
            monkeypatch.setenv("PYTHONHASHSEED", str(number))
            process = await asyncio.to_thread(start_worker, backend.url, **SHORT)
            stack.callback(end_worker, process)
        async with workers(*apps):
            for number, name in names.items():
                await apps[0].schedules.put(
                    name, "effect", "@every 1s", args={"n": number}, overlap="allow"
                )
            await until_true(lambda: effects.count(backend.url) >= 4 * len(names))
            for name in names.values():
                await apps[0].schedules[name].pause()
            ended = {
                name: await closed(apps[0], len(await ledger(apps[0], name)), name)
                for name in names.values()
            }
    found = effects.run(backend.url, "select n, job_id, at from effect")
    jobs = {job.id: job for job in await apps[0].jobs.list(task="effect", limit=1000)}

    for number, name in names.items():
        rows = ended[name]
        at = {job_id: moment for n, job_id, moment in found if n == number}
        assert [row.job_id for row in rows] == list(at), "each tick once, in order"
        assert statuses(rows) == ["fired"] * len(rows)
        assert {later.tick - row.tick for row, later in pairwise(rows)} == {SECOND}
        assert len(rows) >= 3
        for row in rows:
            assert at[row.job_id] >= row.tick.timestamp(), "early"
            assert jobs[row.job_id or 0].key == f"tick:{name}@{row.tick:%Y-%m-%dT%H:%M:%S}Z"


# The next run


NEXT = {
    # Clocks go forward on 8 March 2026 in New York, and back on 1 November.
    "nine, before spring": ("2026-03-07T20:00Z", "0 9 * * *", "America/New_York",
                            ["2026-03-08T13:00Z", "2026-03-09T13:00Z"]),
    "nine, before autumn": ("2026-10-31T10:00Z", "0 9 * * *", "America/New_York",
                            ["2026-10-31T13:00Z", "2026-11-01T14:00Z"]),
    "in the gap": ("2026-03-08T00:00Z", "30 2 * * *", "America/New_York",
                   ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]),
    "twice on the clock": ("2026-11-01T04:00Z", "30 1 * * *", "America/New_York",
                           ["2026-11-01T05:30Z", "2026-11-02T06:30Z"]),
    "steps go on": ("2026-11-01T05:15Z", "*/30 * * * *", "America/New_York",
                    ["2026-11-01T05:30Z", "2026-11-01T06:00Z"]),
    "half an hour": ("2026-04-04T14:50Z", "0 * * * *", "Australia/Lord_Howe",
                     ["2026-04-04T15:30Z", "2026-04-04T16:30Z"]),
    "elapsed": ("2026-03-08T06:10Z", "@every 90m", "America/New_York",
                ["2026-03-08T07:30Z", "2026-03-08T09:00Z"]),
    "the last day": ("2026-01-31T12:00Z", "0 0 L * *", "UTC",
                     ["2026-02-28T00:00Z", "2026-03-31T00:00Z"]),
    "the 31st": ("2026-03-31T12:00Z", "0 12 31 * *", "UTC",
                 ["2026-05-31T12:00Z", "2026-07-31T12:00Z"]),
    "the last day of a leap year": ("2028-02-01T00:00Z", "0 6 L * *", "UTC",
                                    ["2028-02-29T06:00Z", "2028-03-31T06:00Z"]),
    "29 February": ("2026-03-01T00:00Z", "0 0 29 2 *", "UTC",
                    ["2028-02-29T00:00Z", "2032-02-29T00:00Z"]),
    "no leap year in 2100": ("2096-03-01T00:00Z", "0 0 29 2 *", "UTC",
                             ["2104-02-29T00:00Z", "2108-02-29T00:00Z"]),
    "the year's end": ("2026-12-31T23:59:59Z", "@yearly", "Pacific/Auckland",
                       ["2027-12-31T11:00Z", "2028-12-31T11:00Z"]),
}  # fmt: skip


async def test_the_stored_next_run_is_right_across_clock_changes_and_month_ends(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    """The API and SQL agree on it, and the armed jobs are due at exactly those times."""
    app = make_app(notes)
    store = await app.store()
    for name, (now, spec, tz, _) in NEXT.items():
        await store.drive_clock(datetime.fromisoformat(now))
        await app.schedules.put(name, "note", spec, tz=tz)
    await store.drive_clock(None)
    shown = {info.name: info.next_run_at for info in await app.schedules.list()}
    sql = f"select name, next_run_at from {table(backend, 'schedules')}"
    by_sql = dict(effects.run(backend.url, sql))
    armed = {name: [row.run_at for row in await ledger(app, name)] for name in NEXT}
    due = sorted(job.run_at for job in await app.jobs.list(task="note", limit=100) if job.run_at)

    expected = {
        name: [datetime.fromisoformat(moment) for moment in moments]
        for name, (_, _, _, moments) in NEXT.items()
    }
    assert armed == expected
    assert shown == {name: moments[0] for name, moments in expected.items()}
    if not backend.is_postgres:
        by_sql = {name: datetime.fromtimestamp(us / 1e6, UTC) for name, us in by_sql.items()}
    assert by_sql == shown
    assert due == sorted(moment for moments in expected.values() for moment in moments)


# Backfill


@on_two
async def test_schedules_of_another_scheduler_are_taken_over_once(
    make_app: MakeApp, notes: Notes
) -> None:
    """The import is idempotent, and the audit shows what it did."""
    app = make_app(notes)
    define = app.schedules.define
    legacy = [
        define("nightly", "note", "0 3 * * *", tz="Europe/Berlin"),
        define("hourly", "note", "@hourly"),
    ]
    first = await app.schedules.apply(legacy, by="migration")
    again = await app.schedules.apply(legacy, by="migration")
    infos = await app.schedules.list()
    events = await app.audit.list(kind="schedule")

    assert first == {"nightly": "added", "hourly": "added"}
    assert again == {"nightly": "same", "hourly": "same"}
    assert [(info.name, info.revision) for info in infos] == [("hourly", 1), ("nightly", 1)]
    assert {(event.entity, event.actor, event.action) for event in events} == {
        ("schedule:hourly", "migration", "schedule.add"),
        ("schedule:nightly", "migration", "schedule.add"),
    }
    assert len(await app.jobs.list(task="note")) == 4


@on_two
async def test_a_backfill_runs_past_ticks_once_and_in_order(
    make_app: MakeApp, notes: Notes
) -> None:
    """Calling it again starts no further runs."""
    app = make_app(notes)
    await app.schedules.put("s", "note", "@hourly")
    async with app.worker():
        now = await app.now()
        count = await app.schedules["s"].backfill(now - 3 * HOUR, now, by="ann")
        rows = await closed(app, count)
        again = await app.schedules["s"].backfill(now - 3 * HOUR, now)
    [event, *_] = [e for e in await app.schedules.audit("s") if e.action == "schedule.backfill"][1:]

    assert (count, again) == (3, 0)
    assert notes.ticks == [row.tick for row in rows if row.tick <= now]
    assert statuses(rows) == ["backfilled"] * 3 + ["armed"] * 2
    assert (event.actor, event.after["runs"]) == ("ann", 3)


@on_postgres
async def test_a_backfill_of_many_runs_goes_on_without_a_pause(
    make_app: MakeApp, notes: Notes
) -> None:
    """Each run that ends lets the next one start, not a look every few seconds."""
    app = make_app(notes)
    await app.schedules.put("s", "note", "@hourly")
    async with app.worker():
        now = await app.now()
        count = await app.schedules["s"].backfill(now - 60 * HOUR, now)
        await until_true(lambda: len(notes.starts) == count)

    assert notes.ticks == sorted(filter(None, notes.ticks))


# Keys


@on_postgres
async def test_workers_of_all_time_zones_make_the_same_keys(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    """The key is made from the stored tick, whatever time zone and date style a session has."""
    zones = ["UTC", "Asia/Kolkata", "America/St_Johns", "Pacific/Apia", "Etc/GMT+12"]
    apps = [
        make_app(notes, url=f"{backend.url}?options=-c%20timezone%3D{zone.replace('+', '%2B')}")
        for zone in zones
    ]
    for number, app in enumerate(apps):
        await app.schedules.put(f"s{number}", "note", "@hourly")
        now = await app.now()
        await app.schedules[f"s{number}"].backfill(now - HOUR, now)
    jobs = await apps[0].jobs.list(task="note", limit=100)
    hour = (await apps[0].now()).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    hours = [hour, hour + HOUR, hour + 2 * HOUR]

    assert {job.key for job in jobs} == {
        f"tick:s{number}@{moment:%Y-%m-%dT%H}:00:00Z" for number in range(5) for moment in hours
    }


@on_postgres
async def test_a_trigger_in_another_time_zone_has_a_key_in_utc(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    """The key does not depend on the time zone of the session."""
    app = make_app(notes, url=f"{backend.url}?options=-c%20timezone%3DAsia/Kolkata")
    await app.schedules.put("s", "note", "@hourly")
    job = await app.jobs.get(await app.schedules["s"].trigger())

    assert job.key is not None
    assert job.key.endswith("Z")


# From put to history


async def test_end_to_end(make_app: MakeApp, notes: Notes) -> None:
    """Put, fire, complete; the history has the worker, the times, the duration and the result."""
    app = make_app(notes, seconds=0.1)
    async with app.worker(name="ann's"):
        [tick] = await soon(app, 0.5)
        answer = await app.schedules.put("s", "note", tick, by="ann")
        before = await app.schedules.get("s")
        [row] = await closed(app, 1)
    after = await app.schedules.get("s")
    job = await app.jobs.get(row.job_id or 0)
    [start] = notes.starts

    assert answer == "added"
    assert (before.next_run_at, before.last_run_at) == (tick, None)
    assert before.last_enqueued_at is not None
    assert (start.schedule, start.tick) == ("s", tick)
    assert job.key == f"tick:s@{tick.isoformat().replace('+00:00', 'Z')}"
    assert (row.tick, row.run_at, row.status) == (tick, tick, TickStatus.FIRED)
    assert row.enqueued_at is not None
    assert row.claimed_at is not None
    assert row.started_at is not None
    assert row.finished_at is not None
    assert row.enqueued_at < tick <= row.claimed_at
    assert tick <= row.started_at < row.finished_at
    assert row.duration is not None
    assert 0.1 <= row.duration.total_seconds() < 10
    assert (row.claimed_by, row.succeeded, row.error) == ("ann's", True, None)
    assert job.state is JobState.COMPLETED
    assert (after.next_run_at, after.last_run_at) == (None, row.started_at)


@on_two
async def test_a_run_that_fails_is_recorded_with_its_error(make_app: MakeApp) -> None:
    """A retry is the same run, with the same tick and key."""
    app = make_app()
    seen: list[tuple[str | None, datetime | None, str]] = []

    @app.task(name="fail", retry=Constant("50ms", max_attempts=2))
    async def fail(ctx: Context) -> None:
        seen.append((ctx.schedule, ctx.tick, ctx.key))
        raise ValueError("broken pipe dream")

    @app.task(name="plain")
    async def plain(ctx: Context) -> str | None:
        return ctx.schedule

    async with app.worker():
        [tick] = await soon(app, 0.5)
        await app.schedules.put("s", fail, tick)
        [row] = await closed(app, 1)
        of_no_schedule = await (await plain.enqueue()).result("30s")

    assert len(seen) == 2
    assert {one[:2] for one in seen} == {("s", tick)}
    assert len({key for _, _, key in seen}) == 1
    assert (row.status, row.succeeded, row.error) == (TickStatus.FIRED, False, "broken pipe dream")
    assert row.duration is not None
    assert (await app.schedules.get("s")).failures == 1
    assert of_no_schedule is None


@on_two
async def test_a_failed_run_can_be_requeued(make_app: MakeApp) -> None:
    """Its key is unique among runs that wait, run or completed; a failed one may run again."""
    app = make_app()
    ticks: list[datetime | None] = []

    @app.task(name="flaky", max_attempts=1)
    async def flaky(ctx: Context) -> None:
        ticks.append(ctx.tick)
        if len(ticks) == 1:
            raise ConnectionError("down")

    async with app.worker():
        [tick] = await soon(app, 0.5)
        await app.schedules.put("s", flaky, tick)
        [row] = await closed(app, 1)
        await app.jobs.requeue(row.job_id or 0)
        await until_true(lambda: len(ticks) == 2)
        await until(lambda: in_state(app, row.job_id or 0, JobState.COMPLETED))

    assert ticks == [tick, tick]


async def in_state(app: Duetime, job_id: int, state: JobState) -> bool:
    return (await app.jobs.get(job_id)).state is state


# Pause, resume and the other verbs, while workers run


@on_two
async def test_pause_and_resume_while_workers_run(make_app: MakeApp, notes: Notes) -> None:
    """No run starts during the pause, and the history has every tick."""
    apps = [make_app(notes) for _ in range(3)]
    app = apps[0]
    async with workers(*apps):
        ticks = await soon(app, *(0.5 + 0.12 * number for number in range(12)))
        await app.schedules.put("s", "note", *ticks, overlap="allow")
        await until_true(lambda: len(notes.starts) >= 3)
        await app.schedules["s"].pause(reason="holiday", by="ann")
        answered = await app.now()
        paused = await app.schedules.get("s")
        waiting = [job for job in await app.jobs.list(state="pending") if job.task == "note"]
        await until(lambda: passed(app, ticks[7]))
        await app.schedules["s"].resume(by="bob")
        resumed = await app.now()
        rows = await closed(app, len(ticks))

    assert paused.paused_at is not None
    assert (paused.enabled, paused.next_run_at, waiting) == (False, None, [])
    ran = [tick for tick in ticks if not paused.paused_at < tick <= resumed]
    # A run that was claimed at the moment of the pause may have been stopped at the gate; one whose
    # tick was less than 50 ms away when the pause was committed may have been let through.
    ahead = [tick for tick in ticks if paused.paused_at < tick < answered + LEAD]
    started = sorted(filter(None, notes.ticks))
    assert set(started) <= {*ran, *ahead}
    assert len(started) == len(set(started)) >= len(ran) - 1
    assert [row.tick for row in rows] == ticks
    for row in rows:
        assert (row.status is TickStatus.FIRED) == (row.tick in started)
        if row.status is TickStatus.SKIPPED:
            assert str(row.reason) == "paused by ann: holiday"
    assert Counter(statuses(rows))["skipped"] >= 3


async def passed(app: Duetime, moment: datetime) -> bool:
    return await app.now() > moment


@on_postgres
async def test_a_pause_ends_by_itself_while_a_worker_runs(make_app: MakeApp, notes: Notes) -> None:
    app = make_app(notes)
    async with app.worker():
        ticks = await soon(app, 1.0, 3.5)
        await app.schedules.put("s", "note", *ticks, catch_up="skip", grace="400ms")
        await app.schedules["s"].pause(until="1500ms")
        rows = await closed(app, 2)

    assert notes.ticks == ticks[1:]
    assert statuses(rows) == ["skipped", "fired"]


@on_two
async def test_trigger_and_reschedule_while_a_worker_runs(make_app: MakeApp, notes: Notes) -> None:
    """A trigger leaves the next run as it is; a reschedule moves only that run."""
    app = make_app(notes)
    async with app.worker():
        [tick] = await soon(app, 3600)
        await app.schedules.put("s", "note", tick)
        asked = await app.now()
        job_id = await app.schedules["s"].trigger(by="ann")
        await until_true(lambda: len(notes.starts) == 1)
        between = await app.schedules.get("s")
        moved = await app.schedules["s"].reschedule("200ms")
        rows = await closed(app, 2)

    triggered, fired = rows
    assert (triggered.status, triggered.job_id) == (TickStatus.TRIGGERED, job_id)
    assert asked <= triggered.tick
    assert between.next_run_at == tick
    assert moved == fired.tick == tick
    assert fired.status is TickStatus.FIRED
    assert notes.starts[1].tick == tick
    assert fired.run_at.timestamp() <= notes.starts[1].at < fired.run_at.timestamp() + 2


@on_two
async def test_a_run_that_waits_for_the_decision_on_another_has_not_begun(
    make_app: MakeApp, notes: Notes
) -> None:
    """A pause stops it: it is not in the ledger as fired."""
    app = make_app(notes)
    ticks = await soon(app, 0.5, 0.6)
    await app.schedules.put("s", "note", *ticks)
    await until(lambda: passed(app, ticks[1]))
    # Another worker has claimed the first, and is slow to look.
    store = await app.store()
    slow = await Hand.register(store, ["default"], MINUTE, "slow")
    job = await slow.claim_one()

    async def looked_at() -> bool:
        return (await ledger(app))[1].claimed_by == "w0"

    async with workers(app):
        await until(looked_at)
        # It looks again, every now and then.
        looked = await app.now()
        await until(lambda: passed(app, looked + SECOND / 2))
        await app.schedules["s"].pause()
        await slow.finish(job)
        await store.transact(RunStatements(store.dialect).record_finished([job.id]))
        rows = await closed(app, 2)

    assert notes.starts == []
    assert statuses(rows) == ["fired", "skipped"]


@on_two
async def test_a_run_is_given_back_whatever_fails_before_it_starts(
    make_app: MakeApp, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only an error of the database."""
    look, failures = RunStatements.gate, [ZeroDivisionError("a defect")]

    def gate(self: RunStatements, jobs: Sequence[int]) -> Statements:
        if failures:
            raise failures.pop()
        return look(self, jobs)

    monkeypatch.setattr(RunStatements, "gate", gate)
    monkeypatch.setattr("duetime.engine.loop._RETRY_FOLLOWER_AFTER", SECOND / 5)
    app = make_app(notes)
    async with workers(app):
        [tick] = await soon(app, 0.3)
        await app.schedules.put("s", "note", tick)
        [row] = await closed(app, 1)
        job = await app.jobs.get(row.job_id or 0)

    assert (failures, notes.ticks) == ([], [tick])
    assert (row.status, job.attempts) == (TickStatus.FIRED, 1)


@on_two
async def test_a_worker_that_dies_right_after_it_skipped_a_run_leaves_it_skipped(
    make_app: MakeApp, notes: Notes
) -> None:
    app = make_app(notes)
    [tick] = await soon(app, 0.2)
    await app.schedules.put("s", "note", tick, catch_up="skip", grace="0s")
    await until(lambda: passed(app, tick + SECOND / 10))
    store = await app.store()
    dying = await Hand.register(store, ["default"], SECOND, "dying")
    job = await dying.claim_one()
    statements = RunStatements(store.dialect)
    looked = await store.transact(statements.gate([job.id]), reads=True)
    await store.transact(statements.decide(looked, "dying"))

    async def cancelled() -> bool:
        return (await app.jobs.get(job.id)).state is JobState.CANCELLED

    async with workers(app):
        await until(cancelled)

    assert notes.starts == []
    assert statuses(await ledger(app)) == ["skipped"]


# A tick that is due while no runner is free


class Busy:
    """A handler that keeps the only runner of its worker until it is told to end."""

    def __init__(self, app: Duetime) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

        @app.task(name="busy")
        async def busy() -> None:
            self.begun.set()
            await self.ended.wait()

        self.enqueue = busy.enqueue


@on_two
@pytest.mark.parametrize("given_back", [False, True], ids=["held", "given back"])
async def test_a_tick_that_finds_no_runner_in_time_is_late_and_keeps_no_place(
    make_app: MakeApp, notes: Notes, given_back: bool
) -> None:
    """A run begins when its handler does. What has waited for a runner for a second is given back;
    held or not, it is decided on again."""
    app = make_app(notes, concurrency=1)
    busy = Busy(app)
    async with workers(app):
        await busy.enqueue()
        await busy.begun.wait()
        ticks = await soon(app, 0.2, 3.5)
        await app.schedules.put("s", "note", *ticks, catch_up="skip", grace="300ms")
        if given_back:
            await until(lambda: is_first(app, JobState.RUNNING))
            await until(lambda: is_first(app, JobState.PENDING))
        else:
            await until(lambda: passed(app, ticks[0] + SECOND * 0.7))
        begun = [row.claimed_at for row in await ledger(app)]
        busy.ended.set()
        rows = await closed(app, 2)

    assert begun == [None, None]
    assert statuses(rows) == ["skipped", "fired"]
    assert rows[0].reason is not None
    assert rows[0].reason.code.startswith("late_")
    assert notes.ticks == [ticks[1]]


async def is_first(app: Duetime, state: JobState) -> bool:
    """Whether the first tick's job is in that state."""
    job_id = (await ledger(app))[0].job_id
    return (await app.jobs.get(job_id or 0)).state is state


@on_two
async def test_a_run_that_finds_no_runner_gives_its_place_back(
    make_app: MakeApp, notes: Notes
) -> None:
    """It was decided on, since it comes after another; and is decided on again by the worker that
    has a runner."""
    full, free = make_app(notes, concurrency=1), make_app(notes)
    busy = Busy(full)
    [tick] = await soon(full, 1.0)
    await full.schedules.put("s", "note", tick, catch_up="all", grace="0s")
    await until(lambda: passed(full, tick))
    await busy.enqueue()
    async with workers(full):
        held = await until(lambda: let_start(full))
        async with free.worker(name="free"):
            [row] = await closed(full, 1)
        busy.ended.set()

    assert held is not None
    assert (held.status, held.claimed_at) == (TickStatus.CAUGHT_UP, None)
    assert (row.status, row.claimed_by) == (TickStatus.CAUGHT_UP, "free")
    assert notes.ticks == [tick]


async def let_start(app: Duetime) -> TickInfo | None:
    [row] = await ledger(app)
    return row if row.status is TickStatus.CAUGHT_UP else None


# Overlap


OVERLAPS: dict[Overlap, tuple[list[int], list[str]]] = {
    "skip": ([0, 3], ["fired", "skipped", "skipped", "fired"]),
    "buffer_one": ([0, 1, 3], ["fired", "fired", "skipped", "fired"]),
    "buffer_all": ([0, 1, 2, 3], ["fired"] * 4),
    "allow": ([0, 1, 2, 3], ["fired"] * 4),
}


@on_two
async def test_overlap_with_a_handler_that_takes_long(make_app: MakeApp, notes: Notes) -> None:
    """Two workers, and a schedule of each kind; the last tick comes when most have ended."""
    # Long enough for a busy machine to decide on the second tick while the first one runs.
    apps = [make_app(notes, seconds=1.0) for _ in range(2)]
    app = apps[0]
    async with workers(*apps):
        ticks = await soon(app, 0.6, 1.0, 1.35, 3.35)
        await app.schedules.apply(
            app.schedules.define(overlap, "note", *ticks, overlap=overlap) for overlap in OVERLAPS
        )
        rows = {overlap: await closed(app, 4, overlap) for overlap in OVERLAPS}

    for overlap, (ran, became) in OVERLAPS.items():
        starts = [start for start in notes.starts if start.schedule == overlap]
        assert [start.tick for start in starts] == [ticks[place] for place in ran], overlap
        assert statuses(rows[overlap]) == became, overlap
        if overlap != "allow":
            gaps = [after.at - before.at for before, after in pairwise(starts)]
            assert min(gaps) >= 1.0, "one at a time"
        # What waits goes on as soon as there is a place, and not only when it looks again.
        assert starts[-1].at - ticks[3].timestamp() < 3.0, overlap
    first = ticks[0].isoformat().replace("+00:00", "Z")
    assert rows["skip"][1].reason == Reason("overlap", {"tick": first})


@on_two
async def test_a_run_that_ends_just_before_the_next_tick_is_no_overlap(
    make_app: MakeApp, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is claimed ahead of its time, when the one before it still runs."""
    monkeypatch.setattr("duetime.engine.pace.Pace.lead", 0.5)
    app = make_app(notes, seconds=0.6)
    async with app.worker():
        ticks = await soon(app, 0.8, 1.8)
        await app.schedules.apply([app.schedules.define("s", "note", *ticks, overlap="skip")])
        rows = await closed(app, 2)

    assert statuses(rows) == ["fired", "fired"]
    assert all(
        start.at >= tick.timestamp() for start, tick in zip(notes.starts, ticks, strict=True)
    )


@on_two
async def test_cancel_other_stops_the_run_before_and_starts_at_once(
    make_app: MakeApp, notes: Notes
) -> None:
    app = make_app(notes, seconds=1.5)
    names = [f"s{number}" for number in range(10)]
    async with app.worker():
        ticks = await soon(app, 0.6, 1.1)
        await app.schedules.apply(
            app.schedules.define(name, "note", *ticks, overlap="cancel_other") for name in names
        )
        rows = {name: await closed(app, 2, name) for name in names}

    assert Counter(notes.ends) == {(ticks[0], "cancelled"): 10, (ticks[1], "completed"): 10}
    for name in names:
        assert statuses(rows[name]) == ["fired", "fired"]
        assert [row.succeeded for row in rows[name]] == [None, True]
        states = [(await app.jobs.get(row.job_id or 0)).state for row in rows[name]]
        assert states == [JobState.CANCELLED, JobState.COMPLETED]
    assert max(start.at for start in notes.starts) - ticks[1].timestamp() < 3.0


# Deploys


@on_two
async def test_a_schedule_that_code_changed_is_changed_by_the_next_deploy(
    make_app: MakeApp, notes: Notes
) -> None:
    old = deploy(make_app(), notes, "@hourly")
    new = deploy(make_app(), notes, "30 * * * *", overlap="allow")
    async with old.worker():
        first = await old.schedules.get("s")
    async with old.worker():
        restarted = await old.schedules.get("s")
    async with new.worker():
        changed = await new.schedules.get("s")
    pending = await new.jobs.list(state="pending")
    superseded = await new.jobs.list(state="superseded")
    events = [(event.actor, event.action) for event in await new.schedules.audit("s")]

    assert (first.revision, restarted.revision, changed.revision) == (1, 1, 2)
    assert changed.declared
    assert changed.when == "cron 30 * * * * (UTC)"
    assert changed.next_run_at is not None
    assert changed.next_run_at.minute == 30
    assert {job.run_at.minute for job in pending if job.run_at} == {30}
    assert (len(pending), len(superseded)) == (2, 2)
    assert events == [("code", "schedule.change"), ("code", "schedule.add")]


@on_two
async def test_an_operators_pause_survives_new_workers_and_deploys(
    make_app: MakeApp, notes: Notes
) -> None:
    old = deploy(make_app(), notes, "@every 1s")
    new = deploy(make_app(), notes, "@every 1s", overlap="allow")
    async with old.worker():
        await old.schedules["s"].pause(reason="incident", by="ann")
    notes.starts.clear()
    async with old.worker(), new.worker():
        moment = await new.now()
        # Longer than the repair's interval: no planner arms it.
        await until(lambda: passed(new, moment + 1.2 * SECOND))
    info = await new.schedules.get("s")

    assert (info.paused_by, info.pause_reason) == ("ann", "incident")
    assert notes.starts == []
    assert await new.jobs.list(state="pending") == []


@on_postgres
async def test_a_worker_of_the_old_deploy_that_lost_its_lease_reverts_nothing(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    """Both deploys run side by side. The old one's worker registers anew, as after an outage."""
    old = deploy(make_app(), notes, "@hourly")
    new = deploy(make_app(), notes, "30 * * * *")
    async with old.worker(name="old"), new.worker(name="new"):
        before = await old.workers.list()
        gone = (
            f"update {table(backend, 'worker')} set lease_until = '2020-01-01Z' where name = 'old'"
        )
        effects.run(backend.url, gone)

        async def registered_anew() -> bool:
            ids = {worker.id for worker in await old.workers.list() if worker.name == "old"}
            return bool(ids - {worker.id for worker in before})

        await until(registered_anew)
        # The declarations are stored before it listens, hence before it serves.
        await until(lambda: serves(old, "old"))
        info = await new.schedules.get("s")

    assert info.when == "cron 30 * * * * (UTC)"
    assert info.revision == 2


async def serves(app: Duetime, worker: str) -> bool:
    """Whether the worker runs a job."""
    [enqueued] = await app.enqueue_many([NewJob(task="note")])
    await until(lambda: in_state(app, enqueued.id, JobState.COMPLETED))
    return (await app.jobs.get(enqueued.id)).history[-1].worker == worker


# Stored schedules that cannot be read


Write = Callable[[str, str, str], None]


@pytest.fixture
def write(backend: Backend) -> Write:
    """Write a column of a schedule by SQL, so that it is due for the planner."""

    def write(name: str, column: str, value: str) -> None:
        past = "'2020-01-01Z'" if backend.is_postgres else "1577836800000000"
        effects.run(
            backend.url,
            f"update {table(backend, 'schedule')} set {column} = '{value}', plain = null,"
            f" next_run_at = {past} where name = '{name}'",
        )

    return write


UNREADABLE = {
    "no object": ("timetable", "[]", "A timetable is a JSON object"),
    "no cron": ("timetable", '{"specs": ["every day"], "tz": "UTC"}', "every day"),
    "a strange key": ("timetable", '{"specs": ["@daily"], "colour": 1}', "no 'colour'"),
    "no zone": ("timetable", '{"specs": ["@daily"], "tz": "Mars/Base"}', "Mars/Base"),
    "no policy": ("policy", "null", "policy cannot be read"),
    "a strange policy": ("policy", '{"overlap": "sometimes"}', "sometimes"),
    "a policy of other types": ("policy", '{"max_runs": "many"}', "max_runs"),
}


async def stored_reason(app: Duetime, backend: Backend, name: str) -> Reason | None:
    """Why the schedule was set aside: stored, not only found by the reader."""
    text = "broken::text" if backend.is_postgres else "broken"
    sql = f"select {text} from {table(backend, 'schedule')} where name = '{name}'"
    return read_reason((await asyncio.to_thread(effects.run, backend.url, sql))[0][0])


@on_two
async def test_what_cannot_be_read_is_set_aside_and_stops_no_other(
    make_app: MakeApp, notes: Notes, backend: Backend, write: Write
) -> None:
    """One bad schedule is logged and skipped; the others run."""
    app = make_app(notes)
    for name, (column, value, _) in UNREADABLE.items():
        await app.schedules.put(name, "note", "@hourly")
        write(name, column, value)
    async with app.worker():
        await app.schedules.put("good", "note", *await soon(app, 0.5, 1.8), overlap="allow")
        rows = await closed(app, 2, "good")
        reasons = {
            name: await until(lambda name=name: stored_reason(app, backend, name))  # type: ignore[misc]
            for name in UNREADABLE
        }
    pending = await app.jobs.list(state="pending")
    infos = {info.name: info for info in await app.schedules.list()}
    events = await app.audit.list(kind="schedule")

    assert statuses(rows) == ["fired", "fired"]
    for name, (_, _, reason) in UNREADABLE.items():
        assert reason in str(reasons[name]), name
        broken = infos[name].broken
        assert broken is not None
        assert (broken.code, str(broken)) == ("definition_unusable", str(reasons[name]))
        assert not infos[name].enabled
    assert pending == [], "what was armed before is superseded"
    aside = [event for event in events if event.action == "schedule.set_aside"]
    assert sorted(event.entity for event in aside) == sorted(f"schedule:{n}" for n in UNREADABLE)


@on_two
async def test_what_is_set_aside_is_kept_as_it_was_written(
    make_app: MakeApp, notes: Notes, backend: Backend, write: Write
) -> None:
    """So that a person, or a newer time-zone database, can repair it."""
    app = make_app(notes)
    await app.schedules.put("s", "note", "@hourly", catch_up="all", max_runs=7)
    write("s", "timetable", '{"specs": ["0 9 * * *"], "tz": "Mars/Base"}')
    async with app.worker():
        await until(lambda: stored_reason(app, backend, "s"))
    await app.schedules["s"].pause()
    sql = f"select timetable, policy from {table(backend, 'schedule')}"
    [(timetable, policy)] = effects.run(backend.url, sql)

    assert "Mars/Base" in str(timetable)
    assert "7" in str(policy)


OUT_OF_RANGE = {
    "grace": '{"grace": "P999999999D"}',
    "expires": '{"expires": "P999999999D"}',
    "pace": '{"catch_up": "all", "grace": "PT0S", "pace": "P999999999D"}',
    "max_concurrent_runs": '{"max_concurrent_runs": 99999999999}',
}


@on_two
async def test_a_policy_out_of_range_stops_no_other(
    make_app: MakeApp, notes: Notes, backend: Backend, write: Write
) -> None:
    """One bad schedule is logged and skipped; the others run."""
    app = make_app(notes)
    for name in (*OUT_OF_RANGE, "good"):
        await app.schedules.put(name, "note", *await soon(app, 0.5, 0.6, 2.5))
    for name, policy in OUT_OF_RANGE.items():
        write(name, "policy", policy)
    # It needs the same repair as they do.
    write("good", "kind", "task")
    now = await app.now()
    await until(lambda: passed(app, now + SECOND))
    async with app.worker():
        await until_true(lambda: "good" in {start.schedule for start in notes.starts})
        for name in OUT_OF_RANGE:
            await until(lambda name=name: stored_reason(app, backend, name))  # type: ignore[misc]

    assert {start.schedule for start in notes.starts} == {"good"}


@on_sqlite
async def test_text_that_is_no_json_stops_no_other(
    make_app: MakeApp, notes: Notes, backend: Backend, write: Write
) -> None:
    """SQLite stores any text."""
    app = make_app(notes)
    columns = ("timetable", "policy", "args")
    for name in (*columns, "good"):
        await app.schedules.put(name, "note", *await soon(app, 2.0))
    for name in columns:
        write(name, name, "{")
    write("good", "kind", "task")
    async with app.worker():
        await until_true(lambda: "good" in {start.schedule for start in notes.starts})
        for name in columns:
            await until(lambda name=name: stored_reason(app, backend, name))  # type: ignore[misc]
        shown = {info.name: info.broken for info in await app.schedules.list()}

    assert {start.schedule for start in notes.starts} == {"good"}
    assert [name for name, broken in shown.items() if not broken] == ["good"]


@on_two
async def test_a_worker_starts_though_its_declared_schedule_was_broken_by_hand(
    make_app: MakeApp, notes: Notes, backend: Backend, write: Write
) -> None:
    """The schedule that the code declares replaces the broken one."""
    app = deploy(make_app(), notes, "@hourly")
    async with app.worker():
        pass
    write("s", "timetable", '{"specs": ["every day"], "tz": "UTC"}')
    async with app.worker():
        info = await app.schedules.get("s")

    assert info.broken is None
    assert info.when == "cron 0 * * * * (UTC)"


@on_two
async def test_a_run_whose_schedule_was_broken_by_hand_is_not_held_forever(
    make_app: MakeApp, notes: Notes, write: Write
) -> None:
    """It was armed, and is claimed before any planner has checked the schedule."""
    app = make_app(notes)
    [tick] = await soon(app, 0.5)
    await app.schedules.put("s", "note", tick)
    write("s", "timetable", "[]")
    await until(lambda: passed(app, tick))
    async with app.worker():
        [row] = await closed(app, 1)
        job = await app.jobs.get(row.job_id or 0)

    assert job.state in {JobState.CANCELLED, JobState.SUPERSEDED}
    assert row.status is TickStatus.SKIPPED


# By plain SQL


@pytest.mark.parametrize("backend", ["postgres15", "postgres18"], indirect=True)
async def test_a_schedule_written_by_sql_is_planned_by_a_running_worker(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    app = make_app(notes)

    async def planned() -> list[datetime]:
        rows = await ledger(app, "n") if await app.schedules.list() else []
        return [row.tick for row in rows]

    async with app.worker():
        before = time.monotonic()
        effects.run(backend.url, "select duetime.schedule('n', 'note', '*/5 * * * *')")
        effects.run(backend.url, "select duetime.schedule('bad', 'note', 'now and then')")
        first = await until(planned)
        took = time.monotonic() - before
        reason = await until(lambda: stored_reason(app, backend, "bad"))
        sql = "select duetime.schedule('n', 'note', '30 9 * * *', tz => 'Asia/Kolkata')"
        effects.run(backend.url, sql)

        async def moved() -> list[datetime]:
            ticks = [tick for tick in await planned() if (tick.hour, tick.minute) == (4, 0)]
            # One of them may be a tick of every five minutes.
            return ticks if len(ticks) == 2 else []

        second = await until(moved)
        info = await app.schedules.get("n")
        jobs = await app.jobs.list(state="pending")
    actors = {(event.actor, event.action) for event in await app.schedules.audit("n")}

    assert took < 3.0
    assert [tick.minute % 5 for tick in first] == [0, 0]
    assert second[1] - second[0] == 24 * HOUR
    assert sorted(job.run_at for job in jobs if job.run_at) == second
    assert info.next_run_at == second[0]
    assert "now and then" in str(reason)
    assert actors == {("duetime", "schedule.put")}


# In the caller's transaction


class Caller(NamedTuple):
    tx: Any
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


@asynccontextmanager
async def transaction_of(backend: Backend) -> AsyncIterator[Caller]:
    """psycopg's asynchronous connection, or sqlite3's."""
    if backend.is_postgres:
        async with await psycopg.AsyncConnection.connect(backend.url) as connection:
            yield Caller(connection, connection.commit, connection.rollback)
        return
    file = sqlite3.connect(backend.url.removeprefix("sqlite:///"), timeout=10)

    async def commit() -> None:
        file.commit()

    async def rollback() -> None:
        file.rollback()

    try:
        yield Caller(file, commit, rollback)
    finally:
        file.close()


def contents(backend: Backend) -> list[Any]:
    names = ("schedule", "schedule_tick", "job", "job_key", "due", "attempt", "audit")
    return [
        sorted(effects.run(backend.url, f"select * from {table(backend, name)}"), key=repr)
        for name in names
    ]


@on_two
async def test_what_is_rolled_back_with_the_callers_transaction_did_not_happen(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    app = make_app(notes)
    await app.schedules.put("s", "note", "@hourly")
    await app.schedules.put("paused", "note", "@hourly")
    await app.schedules["paused"].pause()
    s = app.schedules["s"]
    now = await app.now()
    acts: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "put": lambda tx: app.schedules.put("t", "note", "@hourly", tx=tx),
        "change": lambda tx: app.schedules.put("s", "note", "@daily", tx=tx),
        "pause": lambda tx: s.pause(tx=tx),
        "resume": lambda tx: app.schedules["paused"].resume(tx=tx),
        "trigger": lambda tx: s.trigger(tx=tx),
        "reschedule": lambda tx: s.reschedule("30m", tx=tx),
        "backfill": lambda tx: s.backfill(now - 2 * HOUR, now, tx=tx),
        "delete": lambda tx: s.delete(tx=tx),
    }
    before = contents(backend)
    for act in acts.values():
        async with transaction_of(backend) as caller:
            await act(caller.tx)
            await caller.rollback()
    after = contents(backend)

    assert after == before


@on_two
async def test_what_the_caller_commits_happens_at_once(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    app = make_app(notes)
    async with app.worker():
        [tick] = await soon(app, 1.0)
        async with transaction_of(backend) as caller:
            await app.schedules.put("s", "note", tick, tx=caller.tx)
            triggered = await app.schedules["s"].trigger(tx=caller.tx)
            unseen = effects.run(backend.url, f"select * from {table(backend, 'schedule')}")
            await caller.commit()
        await until(lambda: in_state(app, triggered, JobState.COMPLETED), seconds=0.9)
        rows = await closed(app, 2)
        async with transaction_of(backend) as caller:
            await app.schedules["s"].pause(reason="moved", by="ann", tx=caller.tx)
            await caller.commit()
        info = await app.schedules.get("s")

    assert unseen == []
    assert statuses(rows) == ["triggered", "fired"]
    assert (info.paused_by, info.pause_reason) == ("ann", "moved")


@on_two
async def test_a_backfill_sees_what_its_transaction_wrote(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    app = make_app(notes)
    now = await app.now()
    async with transaction_of(backend) as caller:
        await app.schedules.put("s", "note", "@hourly", tx=caller.tx)
        count = await app.schedules["s"].backfill(now - 3 * HOUR, now, tx=caller.tx)
        await caller.commit()

    assert count == 3
    assert statuses(await ledger(app)) == ["armed"] * 5


@on_two
async def test_two_triggers_in_one_transaction_are_two_runs(
    make_app: MakeApp, notes: Notes, backend: Backend
) -> None:
    """Even in the same microsecond, as under a driven clock."""
    app = make_app(notes)
    store = await app.store()
    await store.drive_clock(await app.now())
    await app.schedules.put("s", "note", "@hourly")
    async with transaction_of(backend) as caller:
        jobs = [await app.schedules["s"].trigger(tx=caller.tx) for _ in range(2)]
        await caller.commit()
    await store.drive_clock(None)
    async with app.worker():
        rows = await closed(app, 2)

    assert len(set(jobs)) == 2
    assert [row.job_id for row in rows if row.status is TickStatus.TRIGGERED] == jobs
