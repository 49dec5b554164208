"""What any worker does for all of them: the rescuer and the pruner. No leader."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from random import uniform
from typing import Protocol

from duetime.domain.job import EndedAs
from duetime.engine.service import repeat
from duetime.storage.store import Store
from duetime.telemetry.events import Events

_PRUNE_BATCH = 1000


class Housekeeping(Protocol):
    """The options that housekeeping reads."""

    @property
    def rescue_every(self) -> timedelta: ...
    @property
    def prune_every(self) -> timedelta: ...
    @property
    def retention(self) -> Mapping[str, timedelta]: ...


async def rescue_forever(store: Store, options: Housekeeping, events: Events) -> None:
    """Return what dead workers held, soon after their lease has run out."""

    async def rescue() -> float:
        for rescued in await store.rescue():
            events.job_rescued(rescued)
        # Not all workers at the same moment.
        return options.rescue_every.total_seconds() * uniform(0.75, 1.25)

    await repeat("rescuer", rescue)


async def prune_forever(store: Store, options: Housekeeping) -> None:
    """Remove old history in small batches, so that no statement is long."""
    retention = {EndedAs(name): age for name, age in options.retention.items()}

    async def prune() -> float:
        if retention and await store.prune(retention, batch=_PRUNE_BATCH) >= _PRUNE_BATCH:
            return 0.1
        return options.prune_every.total_seconds() * uniform(0.75, 1.25)

    await repeat("pruner", prune)
