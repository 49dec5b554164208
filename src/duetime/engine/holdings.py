"""What a worker holds, and what it has to send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duetime.domain.jobs.job import ClaimedJob, FinishedJob


class Holdings:
    """The jobs held under each token; the ends and the closed tokens that wait to be sent.

    A token is closed when its last job has ended or left the claim, and not before: closing a
    claim forgets what it held.
    """

    def __init__(self) -> None:
        self._held: dict[int, dict[int, ClaimedJob]] = {}
        self.ended: list[FinishedJob] = []
        self.closed: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def __iter__(self) -> Iterator[ClaimedJob]:
        for jobs in self._held.values():
            yield from jobs.values()

    @property
    def tokens(self) -> list[int]:
        """Every token that we know of: of what is held, and of what is still to be sent."""
        return [*self._held, *self.closed, *(end.job.token for end in self.ended)]

    @property
    def to_send(self) -> bool:
        return bool(self.ended or self.closed)

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            self._held.setdefault(job.token, {})[job.id] = job

    def holds(self, job: ClaimedJob) -> bool:
        return job.id in self._held.get(job.token, ())

    def drop(self, job: ClaimedJob) -> bool:
        """Hold the job no longer. False: it was not held."""
        jobs = self._held.get(job.token)
        if jobs is None or jobs.pop(job.id, None) is None:
            return False
        if not jobs:
            del self._held[job.token]
            self.closed.append(job.token)
        return True

    def take(self) -> tuple[list[FinishedJob], list[int]]:
        """Take what is to be sent."""
        ended, self.ended = self.ended, []
        closed, self.closed = self.closed, []
        return ended, closed

    def put_back(self, ended: Sequence[FinishedJob], closed: Sequence[int]) -> None:
        """It could not be sent."""
        self.ended = [*ended, *self.ended]
        self.closed = [*closed, *self.closed]

    def forget(self) -> None:
        """Nothing is held any more: the lease is lost."""
        self._held.clear()
        self.closed.clear()
