"""What a handler may ask of its job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

import msgspec

from duetime import transaction
from duetime.domain.job import ClaimedJob, EndedAs, EndedJob
from duetime.domain.schedule import read_run_key
from duetime.errors import ClaimLost, InvalidInput, JobCancelled
from duetime.storage.store import Store


class Context:
    """A running job, seen from its handler. Ask for it by annotation: `ctx: Context`."""

    def __init__(
        self,
        job: ClaimedJob,
        *,
        worker: str,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        claimed: float,
        started_us: int,
    ) -> None:
        self.job = job
        self.worker = worker
        self._store = store
        self._loop = loop
        self._claimed = claimed
        self._started_us = started_us
        self._stop = threading.Event()
        self._stop_reason = "cancelled"
        self.completed = False
        """The job was completed in a transaction of the handler's (which may yet roll back)."""
        self.committed = False
        """The job was completed and that is committed."""

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt

    @property
    def key(self) -> str:
        """The idempotency key: the same in every attempt. Hand it to whom you call."""
        return self.job.key or f"duetime:{self.job.id}"

    @property
    def tick(self) -> datetime:
        """When this job was to run, not when it does. Of a schedule's run it is the tick, the same
        in every attempt; of another job the time at which this attempt was due.
        """
        run = read_run_key(self.job.key)
        return self.job.run_at if run is None else run[1]

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that made this job."""
        run = read_run_key(self.job.key)
        return None if run is None else run[0]

    @property
    def token(self) -> int:
        """The fencing token: larger in every later claim of this job."""
        return self.job.token

    @property
    def cancelled(self) -> bool:
        """Whether this job should stop: cancelled, out of time, or lost to another worker."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise `JobCancelled` if this job should stop. For handlers that run in threads."""
        if self._stop.is_set():
            raise JobCancelled(self.job.id, self._stop_reason)

    def stop(self, reason: str) -> None:
        self._stop_reason = reason
        self._stop.set()

    async def progress(self, value: Any) -> None:
        """Store how far the job is, for people to see; raise `ClaimLost` if it is not ours."""
        if not await self._store.set_progress(self.job, _to_json(value)):
            raise ClaimLost(self.job.id, self.job.token)

    def progress_sync(self, value: Any) -> None:
        """`progress`, for handlers that run in threads."""
        self.check()
        asyncio.run_coroutine_threadsafe(self.progress(value), self._loop).result()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction on Duetime's database that also completes this job.

        What is written through the connection and the completion commit together. If the job
        was lost, `ClaimLost` is raised and nothing is written.
        """
        async with self._store.transaction() as connection:
            yield connection
            await self.complete(tx=connection)
        self.committed = True

    @contextmanager
    def transaction_sync(self) -> Iterator[Any]:
        """`transaction`, for handlers that run in threads."""
        with self._store.transaction_sync() as connection:
            yield connection
            self.complete_sync(tx=connection)
        self.committed = True

    async def complete(self, result: Any = None, *, tx: Any) -> None:
        """Complete this job in the handler's own transaction `tx`, which commits both or none."""
        statements = self._store.finish_in(self._ended(result))
        placeholder = self._store.capabilities.placeholder
        if not await transaction.run_async(tx, statements, placeholder=placeholder):
            raise ClaimLost(self.job.id, self.job.token)
        self.completed = True

    def complete_sync(self, result: Any = None, *, tx: Any) -> None:
        """`complete`, for handlers that run in threads."""
        statements = self._store.finish_in(self._ended(result))
        placeholder = self._store.capabilities.placeholder
        if not transaction.run(tx, statements, placeholder=placeholder):
            raise ClaimLost(self.job.id, self.job.token)
        self.completed = True

    def _ended(self, result: Any) -> EndedJob:
        return EndedJob(
            self.job,
            EndedAs.COMPLETED,
            self._started_us,
            int((time.monotonic() - self._claimed) * 1e6),
            result=None if result is None else _to_json(result),
        )


def _to_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{value!r} cannot be written as JSON: {error}.") from None
