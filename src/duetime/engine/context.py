"""What a handler can do with its job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.keys import make_job_key, read_run_key
from duetime.engine.executor import write_json
from duetime.errors import ClaimLost, DuetimeError, InvalidInput, JobCancelled
from duetime.storage import transaction
from duetime.storage.store import Dialect, Statements, Store

CANCELLED = "cancelled"
"""Why a job is stopped: somebody has cancelled it."""


class Claimant:
    """A worker on behalf of which a feature claims jobs, in the transaction that makes them."""

    def __init__(
        self, worker_id: int, *, queues: Sequence[str], tasks: Collection[str], most: int
    ) -> None:
        self.worker_id = worker_id
        self.queues = queues
        self.tasks = tasks
        self.most = most
        """How many it can start at once."""
        self.claimed: Sequence[ClaimedJob] = ()
        """What was claimed: they start when the block is left."""


@asynccontextmanager
async def no_claimant(ending: int) -> AsyncIterator[Claimant | None]:
    """What is made is claimed like any other job."""
    yield None


class Context:
    """A running job, as its handler sees it. A parameter annotated `ctx: Context` receives it."""

    def __init__(
        self,
        job: ClaimedJob,
        *,
        worker: str,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        claimed: float | None,
        started_us: int,
        args: Mapping[str, Any],
        holds_lease: Callable[[], bool] = lambda: True,
        hand_over: Callable[[int], AbstractAsyncContextManager[Claimant | None]] = no_claimant,
    ) -> None:
        self.job = job
        self.args = args
        """The arguments of the handler, by name."""
        self.worker = worker
        self._store = store
        self._loop = loop
        self._claimed = claimed
        """By this process's monotonic clock; None: no time passes while the job runs."""
        self._started_us = started_us
        self.holds_lease = holds_lease
        """For features: whether the worker's lease holds, as far as this process knows."""
        self.hand_over = hand_over
        """For features: a transaction that makes jobs may claim them for this worker. Given how
        many jobs end in it, this yields who claims; None: nobody does."""
        self._stop = threading.Event()
        self._stop_reason = CANCELLED
        self.completed = False
        """The job was completed in a transaction of the handler, which may yet be rolled back."""
        self.committed = False
        """The completion is committed."""
        self.closed = False
        """Its transaction has also closed the claim, which held nothing else."""
        self.suspended = False
        """A feature has put the job back into `due`, fenced, and that is committed."""
        self.finish_with: Callable[[Dialect, Any], Statements] | None = None
        """For features: what else to write in the transaction that completes the job."""
        self.known_as: str | None = None
        """For features: `key`, if what the job is about has one of its own."""

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt

    @property
    def key(self) -> str:
        """An idempotency key to pass to the services you call: short and opaque, the same in every
        attempt, and unique to this installation. Your own key is `ctx.job.key`."""
        return self.known_as or make_job_key(
            self.installation, self.job.task, self.job.id, self.job.key
        )

    @property
    def installation(self) -> str:
        """The id of this installation, as it appears in the keys that other systems get."""
        return self._store.installation

    @property
    def tick(self) -> datetime:
        """When this job was due, not when it runs. For a schedule's run this is the tick, the same
        in every attempt; for any other job it is the time at which this attempt was due.
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
        """Whether this job should stop: it was cancelled, timed out, or lost to another worker."""
        return self._stop.is_set()

    @property
    def cancel_requested(self) -> bool:
        """For features: whether somebody has cancelled this job. False if it has to stop for any
        other reason."""
        return self._stop.is_set() and self._stop_reason == CANCELLED

    @property
    def has_to_leave(self) -> bool:
        """For features: whether this attempt should stop although nobody has cancelled the job. It
        was lost to another worker, or this worker stops: the job runs again elsewhere."""
        return self._stop.is_set() and self._stop_reason != CANCELLED

    def check(self) -> None:
        """Raise `JobCancelled` if this job should stop. For handlers that run in threads."""
        if self._stop.is_set():
            raise JobCancelled(self.job.id, self._stop_reason)

    def stop(self, reason: str) -> None:
        self._stop_reason = reason
        self._stop.set()

    async def progress(self, value: Any) -> None:
        """Store the progress of the job for people to see; raise `ClaimLost` if it was lost."""
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

        Everything written through the connection commits together with the completion. If the
        job was lost, `ClaimLost` is raised and nothing is written. An outcome such as `Retry` that
        is raised in the block rolls it back and takes effect.
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
            # It may be unknown whether the commit succeeded.
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
        """Complete this job in your own transaction `tx`: both commit, or neither does."""
        self._refuse_twice()
        statements = self._completion(self._finished(result), result)
        placeholder = self._store.placeholder
        if not await transaction.run_async(tx, statements, placeholder=placeholder):
            raise ClaimLost(self.job.id, self.job.token)
        self.completed = True

    def complete_sync(self, result: Any = None, *, tx: Any) -> None:
        """`complete`, for handlers that run in threads."""
        self._refuse_twice()
        statements = self._completion(self._finished(result), result)
        placeholder = self._store.placeholder
        if not transaction.run(tx, statements, placeholder=placeholder):
            raise ClaimLost(self.job.id, self.job.token)
        self.completed = True

    def _completion(self, finished: FinishedJob, result: Any) -> Statements:
        if self.finish_with is not None:
            yield from self.finish_with(self._store.dialect, result)
        return (yield from self._store.finish_in(finished))

    @property
    def started_us(self) -> int:
        """When the handler started, in microseconds since the claim."""
        return self._started_us

    @property
    def elapsed_us(self) -> int:
        """The microseconds since the claim."""
        if self._claimed is None:
            return 0
        return int((time.monotonic() - self._claimed) * 1e6)

    def _finished(self, result: Any) -> FinishedJob:
        return FinishedJob(
            self.job,
            AttemptOutcome.COMPLETED,
            self._started_us,
            self.elapsed_us,
            result=None if result is None else write_json(result, what="result"),
            log=None if self.job.lines is None else self.job.lines.write(),
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
