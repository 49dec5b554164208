"""What a worker does for the jobs that runs of graphs have started: it wakes a run when one of them
has ended without having told it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from duetime.domain.checks import STEP_KEYS
from duetime.domain.flows.flow import read_step_key
from duetime.domain.jobs.job import FinishedJob
from duetime.engine.followers import Follower, Upkeep, WorkerView
from duetime.errors import DatabaseCorrupted, StorageError
from duetime.storage.flows.graphs import GraphStatements
from duetime.storage.store import Statements
from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.flows")

_REPAIR_SECONDS = 10.0


class GraphFollower(Follower):
    """Follows the jobs of steps for one worker."""

    name = "graphs"
    key_prefix = STEP_KEYS

    def __init__(self, worker: WorkerView) -> None:
        self._worker = worker.name
        self._store = worker.store
        self._statements = GraphStatements(worker.store.dialect)
        self._ended: set[int] = set()
        self._wakes = Upkeep("duetime-graphs", self._wake)

    def finished(self, jobs: Sequence[FinishedJob]) -> None:
        # A step that completed has released what waits for it in the transaction of its end.
        for done in jobs:
            where = read_step_key(done.job.key)
            if where is not None and not done.recorded:
                self._ended.add(where[0])
        if self._ended:
            self._wakes.soon()

    async def flush(self) -> None:
        await self._wakes.done()

    async def _wake(self) -> None:
        ended, self._ended = self._ended, set()
        try:
            await self._store.transact(self._wake_runs(ended))
        except StorageError as error:
            # Repaired within seconds, by this worker or another.
            if not isinstance(error, DatabaseCorrupted):
                log_event(
                    log,
                    logging.WARNING,
                    "run_not_woken",
                    "Runs whose steps have ended could not be woken at once: %(error)s",
                    worker=self._worker,
                    error=str(error),
                )

    def _wake_runs(self, runs: set[int]) -> Statements:
        yield from self._statements.lock(runs)
        yield from self._statements.wake(runs)

    async def repair(self) -> float:
        """Wake runs that nobody woke."""
        if runs := await self._store.transact(self._statements.unsettled(), reads=True):
            await self._store.transact(self._wake_runs(set(runs)))
        return _REPAIR_SECONDS
