"""One job at a time for an idle worker in another process: from the commit to the handler.

The clock starts when the enqueue has returned to the producer, and stops at the first line of
the handler. It is monotonic and the same for all processes of a machine. Duetime and the raw
worker, which waits in LISTEN, take turns; each sleeps again before its next turn.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg

from bench import raw, raw_sqlite
from bench.duetime_side import Bench
from bench.environment import Environment, duetime_worker, execute
from bench.measures.drain import EMPTY_DUETIME
from bench.processes import Child
from bench.reading import Reading, Wrong, percentile

_WARM_UP = 5
_GAP_SECONDS = (0.03, 0.06)
"""Between two turns. A worker has two gaps and a turn of the other to fall asleep."""
Sample = tuple[float, float]
"""Milliseconds to the handler: from the enqueue's return, and from its call."""


def measure(environment: Environment) -> dict[str, Reading]:
    database = environment.database("plain")
    execute(database, EMPTY_DUETIME, "truncate raw_job")
    with duetime_worker(database) as worker, Child("raw_listener", dsn=database) as listener:
        listener.hear()
        ours, beside = asyncio.run(
            _take_turns(database, environment.scale.pickups, worker, listener)
        )
    called = [f"{percentile([sample[1] for sample in side], 0.5):.1f}" for side in (ours, beside)]
    note = f"from the call instead of the commit: p50 {called[0]} ms, raw {called[1]} ms"
    return {
        f"pickup_p{share}_ms": Reading(
            percentile([sample[0] for sample in ours], share / 100),
            percentile([sample[0] for sample in beside], share / 100),
            note=note if share == 50 else "",
        )
        for share in (50, 99)
    }


def measure_sqlite(environment: Environment) -> dict[str, Reading]:
    """The same on SQLite, beside a loop that polls the file every 20 ms."""
    with tempfile.TemporaryDirectory(dir=environment.directory) as directory:
        ours, beside = (str(Path(directory) / name) for name in ("ours.db", "by_hand.db"))
        raw_sqlite.create(beside)
        database = f"sqlite:///{ours}"
        with duetime_worker(database) as worker, Child("sqlite_poller", path=beside) as poller:
            poller.hear()
            samples, polled = asyncio.run(
                _take_turns_on_sqlite(database, beside, environment.scale.pickups, worker, poller)
            )
    p99 = percentile([sample[0] for sample in samples], 0.99)
    return {
        "sqlite_pickup_p50_ms": Reading(
            percentile([sample[0] for sample in samples], 0.5),
            percentile([sample[0] for sample in polled], 0.5),
            note=f"p99 {p99:.1f} ms",
        )
    }


async def _take_turns_on_sqlite(
    database: str, by_hand: str, count: int, worker: Child, poller: Child
) -> tuple[list[Sample], list[Sample]]:
    bench = Bench(database)
    connection = raw_sqlite.connect(by_hand)

    async def enqueue_duetime(number: int) -> None:
        await bench.pickup.enqueue(number=number)

    async def enqueue_raw(number: int) -> None:
        connection.execute(raw_sqlite.INSERT, (f'{{"number": {number}}}', 0))

    ours: list[Sample] = []
    beside: list[Sample] = []
    for number in range(-_WARM_UP, count):
        ours.append(await _time(number, enqueue_duetime, worker))
        beside.append(await _time(number, enqueue_raw, poller))
    connection.close()
    await bench.app.close()
    return ours[_WARM_UP:], beside[_WARM_UP:]


async def _take_turns(
    database: str, count: int, worker: Child, listener: Child
) -> tuple[list[Sample], list[Sample]]:
    bench = Bench(database)
    connection = await asyncpg.connect(database)
    insert = await connection.prepare(raw.INSERT)

    async def enqueue_duetime(number: int) -> None:
        await bench.pickup.enqueue(number=number)

    async def enqueue_raw(number: int) -> None:
        async with connection.transaction():
            await insert.fetch(f'{{"number": {number}}}', None)
            await connection.execute("select pg_notify('raw_job', '')")

    ours: list[Sample] = []
    beside: list[Sample] = []
    for number in range(-_WARM_UP, count):
        ours.append(await _time(number, enqueue_duetime, worker))
        beside.append(await _time(number, enqueue_raw, listener))
    await connection.close()
    await bench.app.close()
    return ours[_WARM_UP:], beside[_WARM_UP:]


async def _time(number: int, enqueue: Callable[[int], Awaitable[None]], worker: Child) -> Sample:
    await asyncio.sleep(random.uniform(*_GAP_SECONDS))
    called = time.monotonic()
    await enqueue(number)
    committed = time.monotonic()
    while "number" not in (said := await asyncio.to_thread(worker.hear)):
        pass  # The worker also says how many jobs have ended.
    if said["number"] != number:
        raise Wrong(f"job {number} was enqueued, job {said['number']} was picked up")
    # The handler may begin before the producer has read the answer to its commit: then at once.
    return max(said["at"] - committed, 1e-6) * 1e3, (said["at"] - called) * 1e3
