"""Whether jobs can run: the database answers, its schema is current, a worker lives.

`check_health` asks from outside, about any worker; `check_live` and `check_ready` are for probes of
a process, about its own workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from duetime.app import Duetime
from duetime.domain.duration import format_duration
from duetime.domain.page import MAX_LIMIT
from duetime.domain.urls import show_url
from duetime.errors import SchemaMismatch, StorageError
from duetime.storage.store import WorkerInfo
from duetime.wiring import file_of


class Check(msgspec.Struct, frozen=True):
    """One question and its answer: `database`, `schema` or `worker`."""

    name: str
    ok: bool
    message: str


async def check_health(
    app: Duetime, *, workers: str | None = None, queues: Collection[str] = (), timeout: timedelta
) -> list[Check]:
    """Return the checks in their order, up to the first that fails.

    A live worker counts if its name is `workers` or begins with it and a colon or a hyphen, as
    the names of a host's workers and of `--processes` do; each of `queues` needs one.
    """
    url = app.settings.database
    where = show_url(url)
    file = file_of(url)
    if file is not None and not await asyncio.to_thread(Path(file).exists):
        return [Check("database", False, f"There is no file {file!r}.")]
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            await app.store()
            found, now = await app.workers.list(limit=MAX_LIMIT), await app.now()
    except (StorageError, TimeoutError) as error:
        return _unusable(error, where, timeout)
    return [
        Check("database", True, where),
        Check("schema", True, "up to date"),
        _check_workers(found, now, workers, queues),
    ]


def check_live(app: Duetime) -> list[Check]:
    """Return whether the workers of this process go on by themselves; if not, restart it.

    A call from an event loop also shows that the loop answers. A database that is away is not
    a reason to restart: see `check_ready`.
    """
    checks = []
    for worker, running in list(app._running_workers):
        if running.done():
            text = f"The worker {worker.name} stopped unexpectedly."
            checks.append(Check("worker", False, text))
        elif worker.is_stuck:
            text = f"The event loop of the worker {worker.name} is blocked."
            checks.append(Check("worker", False, text))
    return checks or [Check("worker", True, "no worker of this process is stuck")]


async def check_ready(
    app: Duetime, *, timeout: timedelta = timedelta(seconds=2), worker: bool = False
) -> list[Check]:
    """Return whether this process can do its work: the database answers, its schema is current,
    and the workers that run here hold their leases. `worker`: there must be one."""
    where = show_url(app.settings.database)
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            await app.now()
    except (StorageError, TimeoutError) as error:
        return _unusable(error, where, timeout)
    return [
        Check("database", True, where),
        Check("schema", True, "up to date"),
        _check_own_workers(app, needed=worker),
    ]


def _check_own_workers(app: Duetime, *, needed: bool) -> Check:
    workers = [worker for worker, _ in app._running_workers]
    if idle := [worker.name for worker in workers if not worker.is_running]:
        return Check("worker", False, f"The worker {', '.join(idle)} claims no jobs.")
    if needed and not workers:
        return Check("worker", False, "No worker runs in this process.")
    return Check("worker", True, f"{len(workers)} of this process")


def _check_workers(
    found: Sequence[WorkerInfo], now: datetime, name: str | None, queues: Collection[str]
) -> Check:
    meant = [one for one in found if name is None or _is_of(one, name)]
    live = [one for one in meant if one.lease_until > now]
    whose = "" if name is None else f" named {name}"
    if not live:
        state = f": the lease of {meant[0].name} has run out" if meant else ""
        return Check("worker", False, f"There is no live worker{whose}{state}.")
    served = sorted({queue for one in live for queue in one.queues})
    if missing := sorted(set(queues) - set(served)):
        text = f"No live worker{whose} serves the queue {', '.join(missing)}."
        return Check("worker", False, text)
    return Check("worker", True, f"{len(live)} live{whose}, on {', '.join(served)}")


def _is_of(worker: WorkerInfo, name: str) -> bool:
    return worker.name == name or worker.name.startswith((f"{name}:", f"{name}-"))


def _unusable(error: Exception, where: str, timeout: timedelta) -> list[Check]:
    """What is said of a database that did not answer, or whose schema is not current."""
    if isinstance(error, SchemaMismatch):
        return [Check("database", True, where), Check("schema", False, str(error))]
    if isinstance(error, TimeoutError):
        text = f"{where} did not answer within {format_duration(timeout)}."
        return [Check("database", False, text)]
    return [Check("database", False, str(error))]
