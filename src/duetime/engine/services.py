"""What a worker does regularly: the loop that every service runs in, and two services that every
worker has, the rescuer and the pruner of jobs. There is no leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import uniform
from typing import NamedTuple

from duetime.domain.jobs.job import AttemptOutcome
from duetime.engine.polling import Check, Polled, Poller
from duetime.errors import DatabaseCorrupted, StorageError, TransactionConflict, TransientError
from duetime.settings import Settings
from duetime.storage.access.pruning import prune_access
from duetime.storage.audit import prune_audit
from duetime.storage.store import PollResult, Store
from duetime.telemetry.events import Events, Outage, log_event

log = logging.getLogger("duetime.worker")

BACKOFF = (1.0, 2.0, 4.0, 8.0)
OUTAGE_SECONDS = 1.0
"""How long to wait between attempts to reach the database, however long the outage lasts."""
PRUNE_BATCH = 1000
AGAIN_SECONDS = 0.1
"""How long the pruner waits after a full batch."""
GO_ON_SECONDS = 1.0
"""How long it waits if there are more old rows to check: it may have to keep all of them."""
_FIRST_SECONDS = 10.0
"""The pruner starts within this time."""
_CANCEL_AGAIN_SECONDS = 2.0

Prune = Callable[[], Awaitable[float | None]]
"""Deletes a batch of old rows. Returns the seconds until the next batch, None if none is left."""


class Service(NamedTuple):
    """Something that a worker does regularly."""

    name: str
    work: Callable[[], Awaitable[float]]
    """Returns the seconds until the next round."""
    wait: float = 0.0
    """The seconds until the first round."""
    check: Check | None = None
    """Returns whether a round has something to do. If it has not, the round is left out."""
    sees: Callable[[PollResult], bool] | None = None
    """The same, if the result of every poll contains the answer."""
    every: float = 1.0
    """The seconds until the next check after one that found nothing."""


def make_rescuer(
    store: Store, settings: Settings, events: Events, worker_id: Callable[[], int]
) -> Service:
    """Release the jobs of dead workers soon after their lease has run out.

    A fenced worker does not rescue its own jobs: it gives back those that it has not started.
    """

    async def rescue() -> float:
        for rescued in await store.rescue(sparing=worker_id()):
            events.job_rescued(rescued)
        # Not all workers at the same moment.
        return settings.rescue_every.total_seconds() * uniform(0.75, 1.25)

    return Service(
        "rescuer",
        rescue,
        check=lambda: store.any_dead(sparing=worker_id()),
        every=settings.rescue_every.total_seconds(),
    )


def make_pruner(store: Store, settings: Settings, others: Sequence[Prune]) -> Service:
    """Delete old jobs with their history, old audit events, invalid tokens and ended sessions,
    and mark jobs that were parked for too long as dead; then call the `others`. In small batches,
    so that no statement takes long."""
    audit, parked = settings.retention["audit"], settings.retention["parked"]
    retention = {
        how: settings.retention[how] for how in AttemptOutcome if how in settings.retention
    }
    after = 0
    """The id of the job to continue after."""

    async def prune_jobs() -> float | None:
        nonlocal after
        pruned, after = await store.prune(retention, after=after, batch=PRUNE_BATCH)
        if died := await store.end_parked(parked, batch=PRUNE_BATCH):
            log_event(
                log,
                logging.ERROR,
                "parked_jobs_died",
                "%(count)s parked jobs, which no worker could run, are dead now: %(jobs)s",
                count=len(died),
                jobs=died[:10],
            )
        pruned = max(pruned, await store.transact(prune_audit(store.dialect, audit)))
        access = prune_access(store.dialect, audit, idle=settings.session_idle)
        pruned = max(pruned, await store.transact(access))
        if pruned >= PRUNE_BATCH:
            return AGAIN_SECONDS
        return GO_ON_SECONDS if after else None

    async def prune() -> float:
        pause = settings.prune_every.total_seconds() * uniform(0.75, 1.25)
        waits = [await one() for one in (prune_jobs, *others)]
        return min([pause, *(wait for wait in waits if wait is not None)])

    # Not while the worker starts: its jobs come first.
    wait = uniform(0.0, min(settings.prune_every.total_seconds(), _FIRST_SECONDS))
    return Service("pruner", prune, wait)


def backoff(failures: int) -> float:
    """How long to wait after a number of failures in a row: 1, 2, 4, 8 s."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1] if failures else 0.0


async def repeat(
    service: Service, *, stopping: asyncio.Event, outage: Outage, poller: Poller | None = None
) -> None:
    """Run a service's rounds until `stopping`. Of all errors, only a corrupted database stops it.

    It stops between two rounds: cancelling a database call would cost its connection.
    """
    name, work, wait, check, sees, every = service
    failures = 0
    while not stopping.is_set():
        try:
            if poller is None or (check is None and sees is None):
                if await _stopped(stopping, wait):
                    return
                wait = await work()
            else:
                seen = await _seen(poller.request(wait, check))
                if seen is None:
                    return
                if isinstance(seen, StorageError):
                    # The round finds out what is wrong, and may know what to do about it.
                    has_work = True
                else:
                    has_work = seen.answer if sees is None else sees(seen.result)
                wait = await work() if has_work else every
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
        except Exception as error:  # noqa: BLE001 - no error stops the loop
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
    """Wait up to `seconds` for the event; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
    return stopping.is_set()


async def _seen(answer: asyncio.Future[Polled | None]) -> Polled | StorageError | None:
    """Wait for a poll. None: the service has to stop. An error: only this check has failed."""
    try:
        return await answer
    except (TransientError, DatabaseCorrupted):
        raise
    except StorageError as error:
        return error


async def end_all(services: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Wait until services have stopped; cancel those that take longer than `seconds`.

    It cancels again until all have stopped: before Python 3.12, `wait_for`, which drivers use, may
    swallow a cancellation. But not too often: a second one would interrupt the driver while it
    cleans up after the first.
    """
    _, left = await asyncio.wait(services, timeout=seconds)
    while left:
        for service in left:
            service.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_SECONDS)
