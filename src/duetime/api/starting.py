"""Starts a worker beside the caller's own code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Unpack

from duetime.engine.services import OUTAGE_SECONDS
from duetime.engine.worker import Worker
from duetime.errors import TransientError
from duetime.settings import WorkerArguments
from duetime.telemetry.events import Outage

if TYPE_CHECKING:
    from duetime.app import Duetime


async def start_worker(
    app: Duetime, **options: Unpack[WorkerArguments]
) -> tuple[Worker, asyncio.Task[None]]:
    """Start a worker; return it and the asyncio task that it runs in.

    Waits until the database can be reached.
    """
    app._worker_settings(options)
    outage = Outage(options.get("name"))
    while True:
        try:
            worker = app._make_worker(await app.store(), **options)
            worker.outage = outage
            running = asyncio.create_task(worker.run(), name="duetime-worker")
            await _until_started(worker, running)
            _keep_track(app, worker, running)
            return worker, running
        except TransientError as error:
            outage.failed("start", error, OUTAGE_SECONDS)
            await asyncio.sleep(OUTAGE_SECONDS)


def _keep_track(app: Duetime, worker: Worker, running: asyncio.Task[None]) -> None:
    """For probes: which workers run here. One that stops unasked is still listed."""
    entry = (worker, running)
    app._running_workers.append(entry)

    def ended(_: object) -> None:
        if worker.stopping.requested.is_set() and worker.stopping.corruption is None:
            app._running_workers.remove(entry)

    running.add_done_callback(ended)


async def _until_started(worker: Worker, running: asyncio.Task[None]) -> None:
    started = asyncio.create_task(worker.started.wait())
    try:
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    except asyncio.CancelledError:
        worker.stop(now=True)
        await running
        raise
    finally:
        started.cancel()
