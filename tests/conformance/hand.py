"""A worker moved by hand: claims and ends jobs, and closes its claims as the engine does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from duetime.domain.jobs.job import (
    AttemptOutcome,
    ClaimedJob,
    Enqueued,
    FinishedJob,
    JobInfo,
    NewJob,
)
from duetime.domain.reasons import Reason
from duetime.storage.store import Exchange, Lane, Statements, Store

FLOOR = datetime(1970, 1, 1, tzinfo=UTC)


class Hand:
    def __init__(
        self, store: Store, worker_id: int, queues: Sequence[str], lease: timedelta
    ) -> None:
        self.store = store
        self.id = worker_id
        self.queues = queues
        self.lease = lease
        self._open: dict[int, set[int]] = {}

    @classmethod
    async def register(
        cls, store: Store, queues: Sequence[str], lease: timedelta, name: str
    ) -> Hand:
        worker_id = await store.register_worker(
            name=name, queues=queues, tasks={}, concurrency=10, lease=lease
        )
        return cls(store, worker_id, queues, lease)

    async def exchange(
        self,
        *ended: FinishedJob,
        want: int = 100,
        limited: Sequence[str] = (),
        look_ahead: bool = False,
        lead: float = 0.0,
    ) -> Exchange:
        answer = await self.store.exchange(
            self.id,
            finished=ended,
            closed=self._close(end.job for end in ended),
            lanes=lanes(*(queue for queue in self.queues if queue not in limited)),
            limited=limited,
            want=want,
            look_ahead=look_ahead,
            lead=lead,
        )
        self._remember(answer.claimed)
        return answer

    async def claim(self, want: int = 100, *, limited: Sequence[str] = ()) -> list[ClaimedJob]:
        return (await self.exchange(want=want, limited=limited)).claimed

    async def claim_one(self) -> ClaimedJob:
        [job] = await self.claim(1)
        return job

    async def claim_quarantined(self) -> list[ClaimedJob]:
        jobs = await self.store.claim_quarantined(self.id, self.queues)
        self._remember(jobs)
        return jobs

    async def finish(self, *jobs: ClaimedJob) -> frozenset[int]:
        """Complete the jobs; return those refused."""
        return await self.end(*(ended(job) for job in jobs))

    async def end(self, *ends: FinishedJob) -> frozenset[int]:
        return (await self.exchange(*ends, want=0)).refused

    async def release(self, *jobs: ClaimedJob) -> None:
        self._close(jobs)
        await self.store.release(jobs)

    async def park(self, *jobs: ClaimedJob) -> None:
        self._close(jobs)
        await self.store.park(jobs, Reason.of("task_unknown", worker="w1", tasks=["strange"]))

    def _remember(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            self._open.setdefault(job.token, set()).add(job.id)

    def _close(self, jobs: Iterable[ClaimedJob]) -> list[int]:
        """The tokens that hold nothing more, once these jobs are gone."""
        closed = []
        for job in jobs:
            left = self._open.get(job.token)
            if left is None:
                continue
            left.discard(job.id)
            if not left:
                del self._open[job.token]
                closed.append(job.token)
        return closed


def lanes(*queues: str) -> list[Lane]:
    return [Lane(queue, priority, FLOOR) for queue in queues for priority in range(10)]


def ended(
    job: ClaimedJob,
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED,
    *,
    again_after: timedelta | None = None,
    **more: Any,
) -> FinishedJob:
    return FinishedJob(job, outcome, 1000, 2000, again_after, **more)


def retried(job: ClaimedJob, after: timedelta) -> FinishedJob:
    return ended(
        job,
        AttemptOutcome.RETRIED,
        again_after=after,
        error_code="Boom",
        error="it broke",
        traceback="line 1",
    )


async def enqueue(store: Store, task: str = "noop", **options: Any) -> int:
    """Enqueue one job; return its id."""
    return (await answer(store, task, **options)).job_id


async def answer(store: Store, task: str = "noop", **options: Any) -> Enqueued:
    [given] = await store.enqueue([NewJob(task=task, **options)])
    return given


async def enqueue_many(store: Store, count: int, **options: Any) -> list[int]:
    jobs = [NewJob(task="noop", **options) for _ in range(count)]
    return [given.job_id for given in await store.enqueue(jobs)]


async def get(store: Store, job_id: int) -> JobInfo:
    job = await store.get(job_id)
    assert job is not None
    return job


async def drive(connection: Any, statements: Statements) -> Any:
    """Run statements on a connection of the driver's own, psycopg's (async) or sqlite3's."""
    try:
        sql, parameters = next(statements)
        while True:
            cursor = connection.execute(sql, parameters)
            if hasattr(cursor, "__await__"):
                cursor = await cursor
            rows = cursor.fetchall() if cursor.description else []
            if hasattr(rows, "__await__"):
                rows = await rows
            sql, parameters = statements.send(rows)
    except StopIteration as stop:
        return stop.value


def ids(jobs: Iterable[ClaimedJob | JobInfo]) -> list[int]:
    return [job.id for job in jobs]
