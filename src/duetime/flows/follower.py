"""What a worker does for flows beside running them: it tells runs that a job they wait for has
ended, has failed runs undone, and repairs what a crash left undone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from duetime.domain.checks import STEP_KEYS
from duetime.domain.flows.flow import RUN_ENDED
from duetime.domain.jobs.job import AttemptOutcome, FinishedJob
from duetime.domain.reasons import Reason
from duetime.engine.followers import Follower, Upkeep, WorkerView
from duetime.errors import DatabaseCorrupted, StorageError
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.jobs.changes import JobStatements
from duetime.storage.store import Statements, Store
from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.flows")

_REPAIR_SECONDS = 5.0
_BUSY_SECONDS = 0.02
"""When runs are notified that another transaction had locked."""


class FlowFollower(Follower):
    """Follows the runs of flows, and the jobs that they have started, for one worker."""

    name = "flows"
    key_prefix = STEP_KEYS
    check_every = _REPAIR_SECONDS

    def __init__(self, worker: WorkerView) -> None:
        tasks = worker.tasks.items()
        self.tasks = frozenset(name for name, task in tasks if task.options.flow)
        self._worker = worker.name
        self._store = worker.store
        self._statements = FlowStatements(worker.store.dialect)
        self._jobs: set[int] = set()
        """Jobs of steps that have ended."""
        self._failed: set[int] = set()
        """Runs that ended without success."""
        self._records = Upkeep("duetime-flows", self._record)
        self._looked_to = (0, 0)
        """The job and the run to go on after, in the next repair."""

    def finished(self, jobs: Sequence[FinishedJob]) -> None:
        for end in jobs:
            # A step of a graph that completed has released what waits for it, in the transaction
            # of its finish.
            key = None if end.recorded else end.job.key
            if key is not None and key.startswith(STEP_KEYS):
                self._jobs.add(end.job.id)
            if end.job.task in self.tasks and end.outcome is not AttemptOutcome.COMPLETED:
                self._failed.add(end.job.id)
        if self._jobs or self._failed:
            self._records.soon()

    async def flush(self) -> None:
        await self._records.done()

    async def _record(self) -> None:
        jobs, self._jobs = self._jobs, set()
        failed, self._failed = self._failed, set()
        try:
            if jobs:
                left = await self._store.transact(self._statements.jobs_finished(sorted(jobs)))
                if left:
                    self._jobs.update(left)
                    asyncio.get_running_loop().call_later(_BUSY_SECONDS, self._records.soon)
            if failed:
                await clean_up(self._store, sorted(failed))
        except StorageError as error:
            # Repaired within seconds, by this worker or another.
            if not isinstance(error, DatabaseCorrupted):
                log_event(
                    log,
                    logging.WARNING,
                    "flows_delayed",
                    "Runs of flows could not be notified at once: %(error)s",
                    worker=self._worker,
                    error=str(error),
                )

    def check(self) -> Statements:
        return self._statements.check()

    async def repair(self) -> float:
        """Do what was left undone, for some of the runs each time."""
        after_job, after_run = self._looked_to
        steps = await self._store.transact(self._statements.job_steps(after_job), reads=True)
        if ended := [job for job, has_ended, _ in steps if has_ended]:
            await self._store.transact(self._statements.jobs_finished(ended))
        if orphans := [job for job, has_ended, stops in steps if stops and not has_ended]:
            await _cancel(self._store, orphans)
        runs = await self._store.transact(self._statements.compensations(after_run), reads=True)
        if runs:
            await self._store.transact(self._statements.undo(self._store, runs))
        await self._store.transact(self._statements.wake_signalled())
        self._looked_to = (steps[-1][0] if steps else 0, runs[-1] if runs else 0)
        return _REPAIR_SECONDS


async def clean_up(store: Store, runs: Sequence[int]) -> None:
    """Runs have ended without success: cancel the jobs that they wait for, and have their
    compensations run, after those of runs that they wait for and that end with this."""
    statements = FlowStatements(store.dialect)
    if jobs := await store.transact(_jobs_of_ended(store, runs), snapshot=True):
        await _cancel(store, jobs)
        found = await store.transact(JobStatements(store.dialect).brief(jobs), reads=True)
        # Those that a worker runs are cleaned up when it has stopped them.
        ended = [job for job, known in found.items() if known.is_run and known.state.finished]
        if ended:
            await clean_up(store, ended)
    await store.transact(statements.undo(store, runs))


def _jobs_of_ended(store: Store, runs: Sequence[int]) -> Statements:
    """The jobs that these runs wait for, but of runs that were retried since."""
    jobs = yield from FlowStatements(store.dialect).jobs_of(runs)
    if not jobs:
        return jobs
    found = yield from JobStatements(store.dialect).brief(runs)
    ended = [run for run in runs if run not in found or found[run].state.finished]
    return (yield from FlowStatements(store.dialect).jobs_of(ended))


async def _cancel(store: Store, jobs: Sequence[int]) -> None:
    """Cancel jobs of runs that have ended, and record it in the runs: one that is retried starts
    them again at once, and does not wait for the jobs that are gone."""
    statements = JobStatements(store.dialect)
    await store.transact(statements.cancel_many(jobs, reason=Reason(RUN_ENDED)))
    await store.transact(FlowStatements(store.dialect).jobs_finished(jobs))
