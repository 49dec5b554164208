"""How a worker works."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a worker reads. Their defaults are in `duetime.settings`."""

    queues: tuple[str, ...]
    concurrency: int
    batch: int
    lease: timedelta
    heartbeat: timedelta
    block_limit: timedelta
    poll: timedelta
    grace: timedelta
    rescue_every: timedelta
    prune_every: timedelta
    retention: Mapping[str, timedelta]
    name: str | None = None
