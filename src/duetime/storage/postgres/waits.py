"""Who in this process waits for the result of a job, and what its own workers know of that job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob, JobResult, JobState

_COMPLETED = AttemptOutcome.COMPLETED
_CLAIM_SECONDS = 0.05
"""A claim that waits for a lock is not waited for any longer."""
_FEW = 8
_WAKE_SECONDS = 0.002
"""How long a worker of this process that sleeps may take to claim what was enqueued just now."""


class Wait:
    """Somebody waits for a job. `answer` is its result, or None: read the job."""

    __slots__ = ("answer", "token")

    def __init__(self) -> None:
        self.answer: asyncio.Future[JobResult | None] = asyncio.get_running_loop().create_future()
        self.token: int | None = None
        """The claim of a worker of this process that holds the job."""

    def set_answer(self, answer: JobResult | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Waits:
    """The waits of a store, by job.

    A caller that enqueues a job in the process of its worker, and awaits the result, gets it as
    soon as the finish is committed, without a notification and without reading it again.
    """

    def __init__(self) -> None:
        self._of: dict[int, list[Wait]] = {}
        self._claims = 0
        """Claims that are being made."""
        self._claimed: asyncio.Future[None] | None = None
        """Done with the next answer to a claim."""
        self._held: dict[int, int] = {}
        """The jobs of the last claim that took only a few, with their tokens, until they finish: a
        job may be claimed before whoever enqueued it begins to wait."""
        self._enqueued: int | None = None
        """The last job that was enqueued here, until somebody has waited for it."""

    @contextmanager
    def on(self, job_id: int) -> Iterator[Wait]:
        wait = Wait()
        self._of.setdefault(job_id, []).append(wait)
        try:
            yield wait
        finally:
            self._of[job_id].remove(wait)
            if not self._of[job_id]:
                del self._of[job_id]

    async def until_claimed(self, job_id: int, wait: Wait, *, idle: bool) -> None:
        """Return once it is known whether a worker of this process holds the job: `wait.token`.
        `idle`: one sleeps, and is notified of what was enqueued here."""
        is_new, self._enqueued = self._enqueued == job_id, None
        wait.token = self._held.get(job_id)
        if wait.token is None and is_new and idle and not self._claims:
            await self._next_claim(_WAKE_SECONDS)
        if wait.token is None and self._claims:
            await self._next_claim(_CLAIM_SECONDS)

    async def _next_claim(self, seconds: float) -> None:
        if self._claimed is None:
            self._claimed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._claimed], timeout=seconds)

    def enqueued(self, job_id: int) -> None:
        self._enqueued = job_id

    @contextmanager
    def claiming(self) -> Iterator[None]:
        self._claims += 1
        try:
            yield
        finally:
            self._claims -= 1
            if self._claimed is not None:
                self._claimed.set_result(None)
                self._claimed = None

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        if jobs and len(jobs) <= _FEW:
            self._held = {job.id: job.token for job in jobs}
        for job in jobs if self._of else ():
            for wait in self._of.get(job.id, ()):
                wait.token = job.token

    def finished(
        self, finished: Sequence[FinishedJob], closed: Sequence[int], *, refused: frozenset[int]
    ) -> None:
        """Jobs have finished, and claims are closed. `refused`: it is not recorded so."""
        if self._held:
            ended = {one.job.id for one in finished}
            self._held = {
                job: token
                for job, token in self._held.items()
                if job not in ended and token not in closed
            }
        if not self._of:
            return
        for one in finished:
            if waits := self._of.get(one.job.id):
                answer = None if one.job.id in refused else _result_of(one)
                for wait in waits:
                    wait.set_answer(answer)
        for waits in self._of.values() if closed else ():
            for wait in waits:
                # Suspended, given back, or completed by its handler's own transaction.
                if wait.token in closed:
                    wait.set_answer(None)

    def forget(self, job_id: int) -> None:
        """Rely no longer on a worker of this process that was known to hold the job."""
        self._held.pop(job_id, None)

    def announced(self, job_id: int | None) -> None:
        """A notification says that the job has finished; None: any of them may have."""
        for one in list(self._of) if job_id is None else [job_id]:
            for wait in self._of.get(one, ()):
                wait.set_answer(None)


def _result_of(finished: FinishedJob) -> JobResult | None:
    if finished.outcome is not _COMPLETED or finished.error_code is not None:
        return None
    result = None if finished.result is None else msgspec.json.decode(finished.result)
    return JobResult(
        task=finished.job.task,
        state=JobState.COMPLETED,
        result=result,
        error_code=None,
        error=None,
    )
