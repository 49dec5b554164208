"""Duetime as a user would run it: an app, its worker, its producers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.child import Parent, compute_in_thread
from bench.payload import note_for
from duetime import Context, Duetime, Reminder
from duetime.domain.jobs.job import ClaimedJob, FinishedJob
from duetime.telemetry.events import Events
from duetime.telemetry.tally import Tally

_SHARES = 1000
"""Jobs of the far future are spread over so many moments."""


class Stopwatch(Events):
    """Notes the first claim and the last finish that the database acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.first_claim: float | None = None
        self.last_end: float | None = None
        self.ended = 0
        self.more = asyncio.Event()

    def counts(self, ended: FinishedJob) -> bool:
        return True

    def jobs_claimed(self, worker: str, jobs: Sequence[ClaimedJob]) -> None:
        if self.first_claim is None and jobs:
            self.first_claim = jobs[0].claimed_at.timestamp()
        super().jobs_claimed(worker, jobs)

    def jobs_finished(self, worker: str, ended: Sequence[FinishedJob]) -> None:
        counted = sum(self.counts(one) for one in ended)
        if counted:
            self.last_end = time.time()
            self.ended += counted
            self.more.set()
        super().jobs_finished(worker, ended)


class Bench:
    """The measured app with its tasks."""

    def __init__(self, database: str, parent: Parent | None = None, **settings: Any) -> None:
        self.stopwatch = Stopwatch()
        self.app = Duetime(database, **settings)
        self.app._events = self.stopwatch
        self.runs = 0
        self.ticks: list[tuple[float, float]] = []
        """Of each run of a schedule: its tick, and when its handler began."""
        self.parent = parent
        self.noop = self.app.task(name="noop")(self._noop)
        self.pickup = self.app.task(name="pickup")(self._pickup)
        self.timer = self.app.task(name="timer")(self._timer)
        self.tick = self.app.task(name="tick")(self._tick)
        self.app.on_reminder(self._remind)

    async def _noop(self, number: int, note: str) -> None:
        self.runs += 1

    async def _pickup(self, number: int) -> None:
        at = time.monotonic()
        assert self.parent is not None
        self.parent.say({"number": number, "at": at})

    async def _timer(self, due: float) -> None:
        late = time.time() - due
        assert self.parent is not None
        self.parent.say({"late": late})

    async def _remind(self, reminder: Reminder) -> None:
        late = time.time() - reminder.time.timestamp()
        assert self.parent is not None
        self.parent.say({"late": late})

    async def _tick(self, ctx: Context) -> None:
        at = time.time()
        assert ctx.tick is not None
        # Told at the end: telling now would make the runs behind this one late.
        self.ticks.append((ctx.tick.timestamp(), at))


# Roles: see `bench.child`


async def work(
    parent: Parent,
    *,
    database: str,
    metrics: str = "counted",
    computing: bool = False,
    **settings: Any,
) -> None:
    """A worker. Says how many jobs have ended; when told to stop, its times and its count.

    Its metrics are `counted`, `scraped` every second, too, or `off`. `computing`: beside a thread
    that computes all the time.
    """
    logging.basicConfig(level=logging.WARNING)
    if computing:
        compute_in_thread()
    bench = Bench(database, parent, **settings)
    if metrics == "off":
        bench.stopwatch.tally = Uncounted()
    scraping = asyncio.create_task(_scrape(bench.app)) if metrics == "scraped" else None
    await report_until_stopped(bench, parent)
    if scraping is not None:
        scraping.cancel()


class Uncounted(Tally):
    """Counts nothing."""

    def jobs_claimed(self, worker: str, jobs: Sequence[ClaimedJob]) -> None: ...

    def jobs_finished(self, jobs: Sequence[FinishedJob]) -> None: ...

    def claim_answered(self, claimed: int, seconds: float) -> None: ...


async def _scrape(app: Duetime) -> None:
    while True:
        await app.metrics()
        await asyncio.sleep(1.0)


async def report_until_stopped(bench: Bench, parent: Parent) -> None:
    """Say that it is ready, and run the app's worker when told so."""
    await bench.app.store()
    parent.say("ready")
    await work_until_stopped(bench, parent)


async def work_until_stopped(bench: Bench, parent: Parent) -> None:
    """Run the app's worker when told so."""
    await parent.heard()
    async with bench.app.worker():
        parent.say("started")
        cpu = time.process_time()
        told = asyncio.create_task(parent.heard())
        said = 0
        while not told.done():
            # Nothing wakes an idle worker that would not wake one of a user.
            more = asyncio.create_task(bench.stopwatch.more.wait())
            await asyncio.wait([told, more], return_when=asyncio.FIRST_COMPLETED)
            more.cancel()
            await asyncio.wait([told], timeout=0.1)
            bench.stopwatch.more.clear()
            if bench.stopwatch.ended > said:
                said = bench.stopwatch.ended
                parent.say({"ended": said})
    parent.say(
        {
            "first": bench.stopwatch.first_claim,
            "last": bench.stopwatch.last_end,
            "runs": bench.runs,
            "ticks": bench.ticks,
            "cpu": time.process_time() - cpu,
        }
    )
    await bench.app.close()


async def enqueue_for(
    parent: Parent, *, database: str, connections: int, seconds: float, notify: bool
) -> None:
    """A producer on each connection, one durable enqueue after another, by the SQL function.

    What the Python API adds would load this process and not the server.
    """
    import asyncpg

    jobs = json.dumps([{"task": "noop", "args": {"number": 0, "note": note_for(0)}}])
    pool = [await asyncpg.connect(database) for _ in range(connections)]
    enqueues = [
        await connection.prepare("select * from duetime.enqueue_many($1, $2)")
        for connection in pool
    ]

    async def produce(enqueue: Any, until: float) -> int:
        done = 0
        while time.monotonic() < until:
            await enqueue.fetch(jobs, notify)
            done += 1
        return done

    await asyncio.gather(*(produce(enqueue, time.monotonic() + 0.1) for enqueue in enqueues))
    parent.say("ready")
    await parent.heard()
    began = time.monotonic()
    counts = await asyncio.gather(*(produce(enqueue, began + seconds) for enqueue in enqueues))
    parent.say({"count": sum(counts), "seconds": time.monotonic() - began})
    for connection in pool:
        await connection.close()


async def enqueue_calls(
    parent: Parent, *, database: str, callers: int, jobs: int, seconds: float
) -> None:
    """Callers on one event loop, each with one call after another, of one job or of many."""
    bench = Bench(database)
    note = note_for(0)

    async def call() -> None:
        if jobs == 1:
            await bench.noop.enqueue(number=0, note=note)
        else:
            await bench.app.enqueue_many(bench.noop.job(number=0, note=note) for _ in range(jobs))

    await call_for(parent, [call] * callers, seconds)
    await bench.app.close()


async def call_for(
    parent: Parent, callers: Sequence[Callable[[], Awaitable[object]]], seconds: float
) -> None:
    """Let each caller repeat its call, first to warm up; say how many calls there were."""

    async def repeat(call: Callable[[], Awaitable[object]], until: float) -> int:
        done = 0
        while time.monotonic() < until:
            await call()
            done += 1
        return done

    async def repeat_all(span: float) -> tuple[int, float]:
        began = time.monotonic()
        counts = await asyncio.gather(*(repeat(call, began + span) for call in callers))
        return sum(counts), time.monotonic() - began

    await repeat_all(0.2)
    parent.say("ready")
    await parent.heard()
    count, took = await repeat_all(seconds)
    parent.say({"count": count, "seconds": took})


async def enqueue_bulk(parent: Parent, *, database: str, jobs: int) -> None:
    """All jobs in one call, from arguments to committed."""
    bench = Bench(database)
    await bench.app.store()
    notes = [note_for(number) for number in range(jobs)]
    parent.say("ready")
    await parent.heard()
    began = time.perf_counter()
    await bench.app.enqueue_many(
        bench.noop.job(number=number, note=note) for number, note in enumerate(notes)
    )
    parent.say({"seconds": time.perf_counter() - began})
    await bench.app.close()


# For the process that measures


def load(database: str, jobs: int) -> None:
    """Store jobs that are due now."""

    async def enqueue() -> None:
        bench = Bench(database)
        await bench.app.enqueue_many(
            bench.noop.job(number=number, note=note_for(number)) for number in range(jobs)
        )
        await bench.app.close()

    asyncio.run(enqueue())


def set_paused(database: str, *, paused: bool) -> float:
    """Pause the queue or resume it; return when that began."""

    async def change() -> float:
        bench = Bench(database)
        await bench.app.store()
        began = time.time()
        await (bench.app.queues.pause if paused else bench.app.queues.resume)("default")
        await bench.app.close()
        return began

    return asyncio.run(change())


def load_future(database: str, jobs: int) -> None:
    """Store jobs that are due tomorrow and later, in no order."""

    async def enqueue() -> None:
        bench = Bench(database)
        begin = datetime.now(UTC) + timedelta(days=1)
        share = jobs // _SHARES
        moments = [
            bench.noop.using(at=begin + timedelta(minutes=(number * 367) % _SHARES))
            for number in range(_SHARES)
        ]
        for part in range(0, share, 100):
            await bench.app.enqueue_many(
                moment.job(number=number, note=note_for(number))
                for number in range(part, min(part + 100, share))
                for moment in moments
            )
        await bench.app.close()

    asyncio.run(enqueue())


def put_schedules(database: str, count: int, spec: str) -> None:
    """Store schedules that all tick at the same times."""

    async def put() -> None:
        bench = Bench(database)
        schedules = bench.app.schedules
        await schedules.apply(
            schedules.define(f"bench-{number}", bench.tick, spec) for number in range(count)
        )
        await bench.app.close()

    asyncio.run(put())
