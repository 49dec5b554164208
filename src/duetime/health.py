"""Whether jobs can run: the database answers, its schema is current, a worker lives."""

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
    except SchemaMismatch as error:
        return [Check("database", True, where), Check("schema", False, str(error))]
    except StorageError as error:
        return [Check("database", False, str(error))]
    except TimeoutError:
        text = f"{where} did not answer within {format_duration(timeout)}."
        return [Check("database", False, text)]
    return [
        Check("database", True, where),
        Check("schema", True, "up to date"),
        _check_workers(found, now, workers, queues),
    ]


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
