"""Jobs that leave a worker without having started: given back, or parked for other workers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from duetime.domain.jobs.job import ClaimedJob
from duetime.domain.reasons import Reason
from duetime.engine.followers import Followers, WorkerView
from duetime.engine.holdings import Holdings
from duetime.engine.stopping import Stopping
from duetime.errors import StorageError
from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.worker")

_MAX_PARKED = 10_000


class Returns:
    """Gives jobs back. They count as held until that has succeeded: it keeps their claims open,
    since closing a claim would lose its jobs."""

    def __init__(
        self,
        worker: WorkerView,
        holdings: Holdings,
        followers: Followers,
        stopping: Stopping,
        *,
        failed: Callable[[Exception], bool],
    ) -> None:
        self._worker = worker.name
        self._store = worker.store
        self._events = worker.events
        self._holdings = holdings
        self._followers = followers
        self._stopping = stopping
        self._failed = failed
        self.in_progress: set[asyncio.Task[None]] = set()
        self.waiting: list[ClaimedJob] = []
        """Jobs that could not be given back yet."""
        self.parked: deque[int] = deque(maxlen=_MAX_PARKED)
        """Jobs that this worker left to others, and does not claim again."""

    async def give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        """Give jobs back now; if that fails, `retry` does."""
        if not jobs:
            return
        try:
            async with self._stopping.in_time():
                await self._release(jobs)
        except StorageError as error:
            self.give_back_later(jobs, error)

    def give_back_soon(self, jobs: Sequence[ClaimedJob]) -> None:
        if jobs:
            self._run_in_background(self.give_back(jobs))

    def give_back_later(self, jobs: Sequence[ClaimedJob], error: Exception) -> None:
        """Give jobs back with the next `retry`, because of an error."""
        self.waiting += jobs
        if self._failed(error):
            return
        log_event(
            log,
            logging.WARNING,
            "give_back_failed",
            "Worker %(worker)s could not give back %(jobs)s jobs: %(error)s",
            worker=self._worker,
            jobs=len(jobs),
            error=str(error) or repr(error),
            exc_info=None if isinstance(error, StorageError) else error,
        )

    async def retry(self) -> None:
        """Give back the jobs for which it failed before. Raises if it fails again."""
        if waiting := self.waiting[:]:
            await self._release(waiting)
            del self.waiting[: len(waiting)]

    def park_unknown(self, jobs: Sequence[ClaimedJob]) -> None:
        """Park jobs whose task this worker does not know."""
        for task in sorted({job.task for job in jobs}):
            unknown = [job for job in jobs if job.task == task]
            self._park_soon(unknown, Reason.of("task_unknown", worker=self._worker, tasks=[task]))

    def park_for_others(self, job: ClaimedJob, reason: Reason) -> None:
        """Park a job that this worker cannot run, and do not claim it again."""
        self.parked.append(job.id)
        self._park_soon([job], reason)

    def _park_soon(self, jobs: Sequence[ClaimedJob], reason: Reason) -> None:
        self._events.jobs_parked(self._worker, jobs, reason)
        self._run_in_background(self._park(jobs, reason))

    async def _park(self, jobs: Sequence[ClaimedJob], reason: Reason) -> None:
        try:
            await self._store.park(jobs, reason)
        except StorageError as error:
            self.give_back_later(jobs, error)
        else:
            self._drop(jobs)

    async def _release(self, jobs: Sequence[ClaimedJob]) -> None:
        await self._followers.given_back(jobs)
        await self._store.release(jobs)
        self._drop(jobs)

    def _drop(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            self._holdings.drop(job)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.in_progress.add(task)
        task.add_done_callback(self.in_progress.discard)
