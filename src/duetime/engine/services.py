"""What a worker does every so often: the one loop that all services run in, and two that every
worker has: the rescuer and the pruner of jobs. There is no leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import uniform
from typing import NamedTuple

from duetime.domain.jobs.job import AttemptOutcome
from duetime.errors import DatabaseCorrupted, TransactionConflict, TransientError
from duetime.settings import Settings
from duetime.storage.audit import prune_audit
from duetime.storage.store import Store
from duetime.telemetry.events import Events, Outage, log_event

log = logging.getLogger("duetime.worker")

BACKOFF = (1.0, 2.0, 4.0, 8.0)
OUTAGE_SECONDS = 1.0
"""How long to wait before asking again a database that is away, however long it has been away."""
PRUNE_BATCH = 1000
AGAIN_SECONDS = 0.1
"""When the pruner continues after a full batch."""
GO_ON_SECONDS = 1.0
"""When it continues if there are more old rows to check: it may have to keep all of them."""
_FIRST_SECONDS = 10.0
"""Within so long the pruner begins."""
_CANCEL_AGAIN_SECONDS = 2.0

Prune = Callable[[], Awaitable[float | None]]
"""Removes a batch of old rows. Returns after how many seconds to continue; None: all is done."""


class Service(NamedTuple):
    """Something that a worker does again and again."""

    name: str
    work: Callable[[], Awaitable[float]]
    """Returns the seconds until the next time."""
    wait: float = 0.0
    """The seconds until the first time."""


def make_rescuer(
    store: Store, settings: Settings, events: Events, worker_id: Callable[[], int]
) -> Service:
    """Return what dead workers held, soon after their lease has run out.

    A fenced worker does not rescue itself: it gives back what it has not started.
    """

    async def rescue() -> float:
        for rescued in await store.rescue(sparing=worker_id()):
            events.job_rescued(rescued)
        # Not all workers at the same moment.
        return settings.rescue_every.total_seconds() * uniform(0.75, 1.25)

    return Service("rescuer", rescue)


def make_pruner(store: Store, settings: Settings, others: Sequence[Prune]) -> Service:
    """Remove old jobs with their history and old audit events, and end jobs that were parked for
    too long; then have the `others` remove what is theirs. In small batches, so that no statement
    takes long."""
    audit, parked = settings.retention["audit"], settings.retention["parked"]
    retention = {
        how: settings.retention[how] for how in AttemptOutcome if how in settings.retention
    }
    after = 0
    """The id of the job to continue after."""

    async def prune_jobs() -> float | None:
        nonlocal after
        pruned, after = await store.prune(retention, after=after, batch=PRUNE_BATCH)
        if ended := await store.end_parked(parked, batch=PRUNE_BATCH):
            log_event(
                log,
                logging.ERROR,
                "parked_jobs_died",
                "%(count)s parked jobs, which no worker could run, are dead now: %(jobs)s",
                count=len(ended),
                jobs=ended[:10],
            )
        pruned = max(pruned, await store.transact(prune_audit(store.dialect, audit)))
        if pruned >= PRUNE_BATCH:
            return AGAIN_SECONDS
        return GO_ON_SECONDS if after else None

    async def prune() -> float:
        pause = settings.prune_every.total_seconds() * uniform(0.75, 1.25)
        wishes = [await one() for one in (prune_jobs, *others)]
        return min([pause, *(wish for wish in wishes if wish is not None)])

    # Not while the worker starts: its jobs come first.
    wait = uniform(0.0, min(settings.prune_every.total_seconds(), _FIRST_SECONDS))
    return Service("pruner", prune, wait)


def backoff(failures: int) -> float:
    """How long to wait after so many failures in a row: 1, 2, 4, 8 s."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1] if failures else 0.0


async def repeat(service: Service, *, stopping: asyncio.Event, outage: Outage) -> None:
    """Do what a service does, again and again. No error ends the loop but a damaged database.

    `stopping` does, between two rounds: a round that is cancelled in the middle of a database call
    costs its connection.
    """
    name, work, wait = service
    failures = 0
    while not await _stopped(stopping, wait):
        try:
            wait = await work()
            failures = 0
            outage.worked(name)
        except TransactionConflict as error:
            wait = OUTAGE_SECONDS
            log_event(
                log,
                logging.WARNING,
                "transaction_conflict",
                "The %(service)s service tries again in %(retry_in_s)g s: %(error)s",
                service=name,
                error=str(error),
                retry_in_s=wait,
            )
        except TransientError as error:
            wait = OUTAGE_SECONDS
            outage.failed(name, error, wait)
        except DatabaseCorrupted:
            raise
        except Exception as error:  # noqa: BLE001 - no error ends the loop
            failures += 1
            wait = backoff(failures)
            log_event(
                log,
                logging.ERROR,
                "service_failed",
                "The %(service)s service failed and tries again in %(retry_in_s)g s.",
                service=name,
                retry_in_s=wait,
                exc_info=error,
            )


async def _stopped(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until it is set; return whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
    return stopping.is_set()


async def end_all(services: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Wait until services that were stopped have finished; what takes longer is cancelled.

    Until all have ended: before Python 3.12 `wait_for`, which drivers use, may swallow a cancel
    that comes at the moment of its answer. Not too often: a second cancel would hit the driver
    while it clears up after the first.
    """
    _, left = await asyncio.wait(services, timeout=seconds)
    while left:
        for service in left:
            service.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_SECONDS)
