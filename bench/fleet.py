"""Several workers in one process, on one pool of connections; and who claimed what when."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence

from bench.child import Parent
from bench.duetime_side import Bench
from duetime.domain.jobs.job import ClaimedJob
from duetime.telemetry.events import Events


class ClaimLog(Events):
    """Of each claimed job: when it was due, when the claim looked, when the worker had it."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[tuple[float, float, float]] = []

    def jobs_claimed(self, worker: str, jobs: Sequence[ClaimedJob]) -> None:
        now = time.time()
        self.claims += [(job.run_at.timestamp(), job.claimed_at.timestamp(), now) for job in jobs]
        super().jobs_claimed(worker, jobs)


async def work(parent: Parent, *, database: str, workers: int) -> None:
    """Run `workers` workers; when told to stop, say what was claimed and what began."""
    logging.basicConfig(level=logging.WARNING)
    bench = Bench(database, pool_size=max(4, workers))
    bench.app._events = log = ClaimLog()
    store = await bench.app.store()
    parent.say("ready")
    await parent.heard()
    fleet = [bench.app._make_worker(store, name=f"{os.getpid()}:{n}") for n in range(workers)]
    running = [asyncio.create_task(worker.run()) for worker in fleet]
    await asyncio.gather(*(worker.started.wait() for worker in fleet))
    parent.say("started")
    await parent.heard()
    for worker in fleet:
        worker.stop()
    await asyncio.gather(*running)
    parent.say({"claims": log.claims, "ticks": bench.ticks})
    await bench.app.close()
