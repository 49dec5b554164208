"""Timers at random moments: how late their handlers begin. Never early.

Producer, database and worker share the machine's clock, so a handler reads the lateness itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from itertools import chain

import asyncpg

from bench import raw
from bench.duetime_side import Bench
from bench.environment import Environment, duetime_worker, execute
from bench.measures.drain import EMPTY_DUETIME
from bench.processes import Child
from bench.reading import Reading, Wrong, percentile
from bench.scale import Scale
from bench.steal import Steal, say_undisturbed

_HEAD_START = 1.0
"""Seconds until the first timer, so that all are stored and the worker sleeps."""


def measure(environment: Environment) -> dict[str, Reading]:
    return _measure(environment, "lateness", computing=False)


def measure_computing(environment: Environment) -> dict[str, Reading]:
    """The same beside a thread that computes, as a plain handler does."""
    return _measure(environment, "lateness_computing", computing=True)


def _measure(environment: Environment, name: str, *, computing: bool) -> dict[str, Reading]:
    scale = environment.scale
    database = environment.database("plain")
    execute(database, EMPTY_DUETIME, "truncate raw_job")
    ours: list[list[float]] = []
    beside: list[list[float]] = []
    held_up: list[bool] = []
    with Steal() as steal:
        for _ in range(scale.timer_rounds):
            timed = _time_duetime(database, scale, computing=computing)
            held_up += [steal.held_up(due, late) for due, late in timed]
            ours.append([late for _, late in timed])
            beside.append(_time_raw(database, scale, computing=computing))
    return {
        f"{name}_p{share}_ms": Reading(
            percentile([*chain(*ours)], share / 100),
            percentile([*chain(*beside)], share / 100),
            [percentile(one, share / 100) for one in ours],
            [percentile(one, share / 100) for one in beside],
            note=f"latest {max(map(max, ours)):.1f} ms, raw {max(map(max, beside)):.1f} ms"
            + say_undisturbed([*chain(*ours)], held_up)
            if share == 99
            else "",
        )
        for share in (50, 99)
    }


def _time_duetime(database: str, scale: Scale, *, computing: bool) -> list[tuple[float, float]]:
    """Return of each timer when it was due, and the milliseconds that it was late."""

    async def enqueue() -> None:
        bench = Bench(database)
        await bench.app.enqueue_many(
            bench.timer.using(at=datetime.fromtimestamp(due, UTC)).job(due=due)
            for due in _moments(scale)
        )
        await bench.app.close()

    with duetime_worker(database, computing=computing) as worker:
        asyncio.run(enqueue())
        timed = _hear(worker, scale.timers)
    early = -min(late for _, late in timed)
    if early > 0:
        raise Wrong(f"a timer began {early:.3f} ms early")
    return timed


def _time_raw(database: str, scale: Scale, *, computing: bool) -> list[float]:
    async def enqueue() -> None:
        connection = await asyncpg.connect(database)
        await connection.executemany(
            raw.INSERT,
            [(f'{{"due": {due!r}}}', datetime.fromtimestamp(due, UTC)) for due in _moments(scale)],
        )
        await connection.close()

    with Child("raw_sleeper", dsn=database, computing=computing) as worker:
        worker.hear()
        asyncio.run(enqueue())
        worker.tell("go")
        return [late for _, late in _hear(worker, scale.timers)]


def _moments(scale: Scale) -> list[float]:
    begin = time.time() + _HEAD_START
    # Whole microseconds, as the database stores them.
    return [round(begin + random.uniform(0, scale.timer_seconds), 6) for _ in range(scale.timers)]


def _hear(worker: Child, timers: int) -> list[tuple[float, float]]:
    timed: list[tuple[float, float]] = []
    while len(timed) < timers:
        said = worker.hear()
        if "late" in said:
            timed.append((time.time() - said["late"], said["late"] * 1e3))
    return timed
