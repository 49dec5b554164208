"""What a handler may ask of its job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.keys import make_job_key, read_run_key
from duetime.engine.executor import write_json
from duetime.errors import ClaimLost, DuetimeError, InvalidInput, JobCancelled
from duetime.storage import transaction
from duetime.storage.store import Dialect, Statements, Store


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
        args: Mapping[str, Any],
    ) -> None:
        self.job = job
        self.args = args
        """The arguments that the handler gets, by name."""
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
        self.finish_with: Callable[[Dialect, Any], Statements] | None = None
        """For features: what else is written in the transaction that completes the job."""

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt

    @property
    def key(self) -> str:
        """The idempotency key to hand to whom you call: short and opaque, the same in every
        attempt, and for no job of any other installation. Your own key is `ctx.job.key`."""
        return make_job_key(self._store.installation, self.job.task, self.job.id, self.job.key)

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
        if not await self._store.set_progress(self.job, write_json(value, what="progress")):
            raise ClaimLost(self.job.id, self.job.token)

    def progress_sync(self, value: Any) -> None:
        """`progress`, for handlers that run in threads."""
        self._refuse_on_the_loop()
        self.check()
        asyncio.run_coroutine_threadsafe(self.progress(value), self._loop).result()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction on Duetime's database that also completes this job.

        What is written through the connection and the completion commit together. If the job
        was lost, `ClaimLost` is raised and nothing is written. An outcome that is raised in the
        block rolls it back, and holds.
        """
        self._refuse_twice()
        earlier, self.completed = self.completed, False

        async def complete(connection: Any) -> None:
            if not self.completed:
                await self.complete(tx=connection)

        try:
            async with self._store.transaction(before_commit=complete) as connection:
                yield connection
        except BaseException:
            # What became of a commit may be unknown.
            self.completed = self.completed or earlier
            raise
        self.committed = True

    @contextmanager
    def transaction_sync(self) -> Iterator[Any]:
        """`transaction`, for handlers that run in threads."""
        self._refuse_on_the_loop()
        self._refuse_twice()
        earlier, self.completed = self.completed, False

        def complete(connection: Any) -> None:
            if not self.completed:
                self.complete_sync(tx=connection)

        try:
            with self._store.transaction_sync(before_commit=complete) as connection:
                yield connection
        except BaseException:
            self.completed = self.completed or earlier
            raise
        self.committed = True

    async def complete(self, result: Any = None, *, tx: Any) -> None:
        """Complete this job in the handler's own transaction `tx`, which commits both or none."""
        self._refuse_twice()
        statements = self._completion(self._ended(result), result)
        placeholder = self._store.placeholder
        if not await transaction.run_async(tx, statements, placeholder=placeholder):
            raise ClaimLost(self.job.id, self.job.token)
        self.completed = True

    def complete_sync(self, result: Any = None, *, tx: Any) -> None:
        """`complete`, for handlers that run in threads."""
        self._refuse_twice()
        statements = self._completion(self._ended(result), result)
        placeholder = self._store.placeholder
        if not transaction.run(tx, statements, placeholder=placeholder):
            raise ClaimLost(self.job.id, self.job.token)
        self.completed = True

    def _completion(self, ended: FinishedJob, result: Any) -> Statements:
        if self.finish_with is not None:
            yield from self.finish_with(self._store.dialect, result)
        return (yield from self._store.finish_in(ended))

    def _ended(self, result: Any) -> FinishedJob:
        return FinishedJob(
            self.job,
            AttemptOutcome.COMPLETED,
            self._started_us,
            int((time.monotonic() - self._claimed) * 1e6),
            result=None if result is None else write_json(result, what="result"),
        )

    def _refuse_twice(self) -> None:
        if self.committed:
            raise InvalidInput(
                f"Job {self.job.id} was already completed by ctx.transaction(), which can be used "
                "once per job. Write everything in that block, or use your own connection."
            )

    def _refuse_on_the_loop(self) -> None:
        if _running_loop() is self._loop:
            raise DuetimeError(
                "A synchronous call in an async handler would block the event loop. Await the "
                "asynchronous version instead."
            )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
