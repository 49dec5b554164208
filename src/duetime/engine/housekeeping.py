"""What any worker does for all of them: the rescuer and the pruner. No leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from random import uniform
from typing import Protocol

from duetime.domain.jobs.job import AttemptOutcome
from duetime.engine.services import repeat
from duetime.storage.pruning import PruneStatements
from duetime.storage.store import Store
from duetime.telemetry.events import Events, log_event
from duetime.telemetry.outage import Outage

log = logging.getLogger("duetime.worker")

_PRUNE_BATCH = 1000
_AGAIN_SECONDS = 0.1
"""After a batch that was full."""
_FIRST_SECONDS = 10.0
"""Within so long the first time."""
_GO_ON_SECONDS = 1.0
"""While there are old jobs or schedules to look at: all of it may be kept."""


class Housekeeping(Protocol):
    """The options that housekeeping reads."""

    @property
    def rescue_every(self) -> timedelta: ...
    @property
    def prune_every(self) -> timedelta: ...
    @property
    def retention(self) -> Mapping[str, timedelta]: ...


async def keep_rescuing(
    store: Store,
    options: Housekeeping,
    events: Events,
    worker_id: Callable[[], int],
    *,
    stopping: asyncio.Event,
    outage: Outage,
) -> None:
    """Return what dead workers held, soon after their lease has run out.

    A worker that is fenced gives back by itself what has not begun: it does not rescue itself.
    """

    async def rescue() -> float:
        for rescued in await store.rescue(sparing=worker_id()):
            events.job_rescued(rescued)
        # Not all workers at the same moment.
        return options.rescue_every.total_seconds() * uniform(0.75, 1.25)

    await repeat("rescuer", rescue, stopping=stopping, outage=outage)


async def keep_pruning(
    store: Store, options: Housekeeping, *, stopping: asyncio.Event, outage: Outage
) -> None:
    """Remove old history in small batches, so that no statement is long."""
    ages = dict(options.retention)
    audit, ledger = ages.pop("audit", None), ages.pop("tick", None)
    reminders, parked = ages.pop("reminder", None), ages.pop("parked", None)
    retention = {AttemptOutcome(name): age for name, age in ages.items()}
    statements = PruneStatements(store.dialect)
    job = schedule = reminder = 0
    """After which of them to go on."""

    async def prune() -> float:
        nonlocal job, schedule, reminder
        pruned = gone = 0
        if retention:
            pruned, job = await store.prune(retention, after=job, batch=_PRUNE_BATCH)
        if parked is not None and (ended := await store.end_parked(parked, batch=_PRUNE_BATCH)):
            log_event(
                log,
                logging.ERROR,
                "parked_jobs_died",
                "%(count)s parked jobs, which no worker could run, are dead now: %(jobs)s",
                count=len(ended),
                jobs=ended[:10],
            )
        if audit is not None:
            pruned = max(pruned, await store.transact(statements.prune_audit(audit)))
        if ledger is not None:
            look = statements.prune_ledger(ledger, schedule, batch=_PRUNE_BATCH)
            ran, schedule = await store.transact(look)
            pruned = max(pruned, ran)
        if reminders is not None:
            gone, reminder = await store.transact(statements.prune(reminders, reminder))
        if pruned >= _PRUNE_BATCH or (gone and reminder):
            return _AGAIN_SECONDS
        pause = options.prune_every.total_seconds() * uniform(0.75, 1.25)
        return min(pause, _GO_ON_SECONDS) if job or schedule else pause

    # Not while the worker starts: its jobs come first.
    wait = uniform(0.0, min(options.prune_every.total_seconds(), _FIRST_SECONDS))
    await repeat("pruner", prune, stopping=stopping, outage=outage, wait=wait)
