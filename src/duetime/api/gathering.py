"""Enqueues that are made at about the same time share a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.engine.batching import Batcher, process_alone_if_refused
from duetime.errors import TransactionConflict, TransientError

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.engine.worker import Worker
    from duetime.storage.store import Store


class Gathering:
    """Enqueues single jobs: those that arrive while a transaction commits share the next one.

    Nobody waits for a batch to fill, and each caller is answered after the commit of its own job.
    If the commit's answer is lost, no caller of that transaction knows whether its job was stored.
    """

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._batches: Batcher[NewJob, Enqueued | None] = Batcher(
            self._enqueue_together, at_once=True, wait_on_cancel=True
        )
        self._keyed: Batcher[NewJob, Enqueued | Exception] = Batcher(
            self._enqueue_in_turn, at_once=True, stop_abandoned=True
        )

    async def enqueue(self, job: NewJob) -> Enqueued:
        # A job with a key may have to wait for a transaction that holds the key, one without a key
        # never does: they are not enqueued together.
        enqueued = await self._batches.submit(job, group=job.key is not None)
        if enqueued is not None:
            return enqueued
        if job.key is None:
            store = await self._app.store()
            [enqueued] = await store.enqueue([job])
            return enqueued
        # However many wait for a key that an open transaction holds, they occupy one connection.
        answer = await self._keyed.submit(job, group=(job.task, job.key))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _enqueue_together(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | None]:
        """Enqueue jobs of several callers. None: they were refused together and nothing was stored,
        so each caller enqueues its own. Only the one at fault fails, and only the one whose key is
        held by an open transaction waits for it."""
        store = await self._app.store()
        try:
            if len(jobs) == 1 and (worker := self._idle_worker(store, jobs[0])) is not None:
                return [await _enqueue_for(worker, store, jobs[0])]
            return await store.enqueue(jobs, waits=False)
        except TransactionConflict:
            pass
        except TransientError:
            raise
        except Exception:
            if len(jobs) == 1:
                raise
        return [None] * len(jobs)

    async def _enqueue_in_turn(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | Exception]:
        """Enqueue jobs that have the same key, after the transaction that holds it."""
        store = await self._app.store()
        return await process_alone_if_refused(store.enqueue, jobs)

    def _idle_worker(self, store: Store, job: NewJob) -> Worker | None:
        """A worker of this event loop that would claim the job next.

        Only runs of flows: their caller mostly waits for them. Other jobs go to whichever
        worker of any process is first.
        """
        if not job.flow or not store.hands_over:
            return None
        if job.key is not None or job.run_at is not None or job.delay is not None:
            return None
        workers = (worker for worker, _ in self._app._running_workers)
        return next((worker for worker in workers if worker.is_idle_for(job)), None)


async def _enqueue_for(worker: Worker, store: Store, job: NewJob) -> Enqueued:
    """Enqueue a job that the worker holds with the same commit. If the answer is lost, the worker
    gives back what it does not know of."""
    async with worker.loop.hand_over(0) as claimant:
        if claimant is None:
            [enqueued] = await store.enqueue([job], waits=False)
            return enqueued
        enqueued, claimed = await store.enqueue_held(job, claimant.worker_id)
        if claimed is not None:
            claimant.claimed = [claimed]
    return enqueued
