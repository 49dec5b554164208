"""What people do to jobs and queues, on a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from duetime.domain.jobs.job import JobFilter, JobState, Requeued
from duetime.domain.jobs.queue import Limits
from duetime.domain.reasons import Reason
from duetime.storage.jobs.changes import JobStatements
from duetime.storage.jobs.queues import QueueStatements
from duetime.storage.store import Store


async def cancel(store: Store, job_id: int, *, reason: Reason) -> JobState | None:
    statements = JobStatements(store.dialect).cancel(job_id, reason=reason, by="test")
    state: JobState | None = await store.transact(statements)
    return state


async def cancel_many(store: Store, job_ids: Sequence[int], *, reason: Reason) -> None:
    await store.transact(JobStatements(store.dialect).cancel_many(job_ids, reason=reason))


async def reschedule(store: Store, job_id: int, run_at: datetime) -> JobState | None:
    statements = JobStatements(store.dialect).reschedule(job_id, run_at, by="test")
    state: JobState | None = await store.transact(statements)
    return state


async def reprioritise(store: Store, job_id: int, priority: int) -> JobState | None:
    statements = JobStatements(store.dialect).reprioritise(job_id, priority, by="test")
    state: JobState | None = await store.transact(statements)
    return state


async def requeue(store: Store, which: JobFilter, *, run_at: datetime | None) -> Requeued:
    ids = [job.id for job in await store.find(which)]
    statements = JobStatements(store.dialect).requeue(ids, run_at=run_at, by="test")
    requeued: Requeued = await store.transact(statements)
    return requeued


async def pause_queue(store: Store, queue: str, *, by: str, reason: str) -> None:
    await store.transact(QueueStatements(store.dialect).pause(queue, by=by, reason=reason))


async def resume_queue(store: Store, queue: str) -> None:
    await store.transact(QueueStatements(store.dialect).resume(queue, by="test"))


async def limit_queue(store: Store, queue: str, limits: Limits) -> None:
    await store.transact(QueueStatements(store.dialect).limit(queue, limits, by="test"))
