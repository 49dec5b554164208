"""The jobs that a worker holds, and the finished ones that it has yet to record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duetime.domain.jobs.job import ClaimedJob, FinishedJob


class Holdings:
    """The jobs held under each token; the finished jobs and closed tokens that are to be recorded.

    A token is closed when its last job has finished or was given back, and not before: closing a
    claim in the database forgets the jobs that it still holds.
    """

    def __init__(self) -> None:
        self._held: dict[int, dict[int, ClaimedJob]] = {}
        self.finished: list[FinishedJob] = []
        self.closed: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def __iter__(self) -> Iterator[ClaimedJob]:
        for jobs in self._held.values():
            yield from jobs.values()

    @property
    def tokens(self) -> list[int]:
        """Every token that we know of: of jobs that are held, and of those to be recorded."""
        return [*self._held, *self.closed, *(finished.job.token for finished in self.finished)]

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            self._held.setdefault(job.token, {})[job.id] = job

    def holds(self, job: ClaimedJob) -> bool:
        return job.id in self._held.get(job.token, ())

    def drop(self, job: ClaimedJob, *, is_closed: bool = False) -> bool:
        """Stop holding a job. Returns whether it was held. `is_closed`: its claim is gone."""
        jobs = self._held.get(job.token)
        if jobs is None or jobs.pop(job.id, None) is None:
            return False
        if not jobs:
            del self._held[job.token]
            if not is_closed:
                self.closed.append(job.token)
        return True

    def take_finished(self) -> tuple[list[FinishedJob], list[int]]:
        """Return the finished jobs and the closed tokens, in order to record them."""
        finished, self.finished = self.finished, []
        closed, self.closed = self.closed, []
        return finished, closed

    def put_back(self, finished: Sequence[FinishedJob], closed: Sequence[int]) -> None:
        """They could not be recorded."""
        self.finished = [*finished, *self.finished]
        self.closed = [*closed, *self.closed]

    def forget(self) -> None:
        """The lease is lost: nothing is held any more."""
        self._held.clear()
        self.closed.clear()
