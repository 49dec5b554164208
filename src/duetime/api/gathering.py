"""Enqueues that are made at about the same time share a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.engine.batching import Batcher
from duetime.errors import TransactionConflict, TransientError

if TYPE_CHECKING:
    from duetime.app import Duetime


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

    async def enqueue(self, job: NewJob) -> Enqueued:
        # A job with a key may have to wait for a transaction that holds the key, one without a key
        # never does: they are not enqueued together.
        enqueued = await self._batches.submit(job, group=job.key is not None)
        if enqueued is None:
            store = await self._app.store()
            [enqueued] = await store.enqueue([job])
        return enqueued

    async def _enqueue_together(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | None]:
        """Enqueue jobs of several callers. None: they were refused together and nothing was stored,
        so each caller enqueues its own. Only the one at fault fails, and only the one whose key is
        held by an open transaction waits for it."""
        store = await self._app.store()
        try:
            return await store.enqueue(jobs, waits=False)
        except TransactionConflict:
            pass
        except TransientError:
            raise
        except Exception:
            if len(jobs) == 1:
                raise
        return [None] * len(jobs)
