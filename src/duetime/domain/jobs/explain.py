"""Why a job is, or is not, running: one sentence, and the facts behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.duration import format_duration
from duetime.domain.jobs.job import UNREADABLE, JobInfo, JobState
from duetime.domain.jobs.queue import QueueInfo

WorkerFacts = tuple[str, Sequence[str], Sequence[str], datetime]
"""A worker's name, queues, tasks, and the end of its lease."""


class Explanation(msgspec.Struct, frozen=True):
    """`reason` is a short code, `sentence` says it plainly, `facts` are what it rests on."""

    reason: str
    sentence: str
    facts: dict[str, Any]


def explain_job(
    job: JobInfo,
    *,
    queue: QueueInfo | None,
    workers: Sequence[WorkerFacts],
    running_in_partition: int,
    now: datetime,
) -> Explanation:
    """Return the first reason that applies, from the job outwards."""
    facts: dict[str, Any] = {
        "state": job.state.value,
        "queue": job.queue,
        "task": job.task,
        "attempts": f"{job.attempts} of {job.max_attempts}",
        "now": now.isoformat(),
    }
    if job.run_at is not None:
        facts["run_at"] = job.run_at.isoformat()

    def because(reason: str, sentence: str, **more: Any) -> Explanation:
        return Explanation(reason, f"Job {job.id} {sentence}", facts | more)

    if job.state.ended:
        return _ended(job, because)
    if job.state is JobState.RUNNING:
        return _running(job, now, because)
    if job.state is JobState.PARKED and (job.parked_reason or "").startswith(UNREADABLE):
        return because(
            "unreadable",
            f"is set aside: {job.parked_reason}. Cancel it; or correct the row, cancel it and "
            "requeue it.",
        )
    if job.state is JobState.PARKED:
        return because(
            "parked",
            f"is parked: {job.parked_reason}. It runs as soon as a worker of the queue "
            f"{job.queue!r} knows the task {job.task!r}.",
        )
    if job.run_at is not None and job.run_at > now:
        wait = format_duration(_rounded(job.run_at - now))
        again = f" after attempt {job.attempts} failed ({job.error})" if job.attempts else ""
        return because(
            "not_due", f"is not due: it may start at {_at(job.run_at)}, in {wait}{again}."
        )
    if queue is not None and queue.paused_at is not None:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        why = f": {queue.pause_reason}" if queue.pause_reason else ""
        return because(
            "queue_paused",
            f"waits: its queue {job.queue!r} was paused at {_at(queue.paused_at)}{by}{why}.",
            paused_by=queue.paused_by,
        )
    alive = [worker for worker in workers if worker[3] > now]
    on_queue = [worker for worker in alive if job.queue in worker[1]]
    if not on_queue:
        return because(
            "no_worker",
            f"waits: no live worker works on the queue {job.queue!r} ({len(alive)} on others).",
            workers=[worker[0] for worker in alive],
        )
    if not any(job.task in worker[2] for worker in on_queue):
        return because(
            "task_unknown",
            f"waits: none of the {len(on_queue)} workers on the queue {job.queue!r} knows the "
            f"task {job.task!r}.",
            workers=[worker[0] for worker in on_queue],
        )
    if queue is not None:
        limits = queue.limits
        if limits.running is not None and queue.running >= limits.running:
            return because(
                "limit_full",
                f"waits: {queue.running} jobs of the queue {job.queue!r} run, and at most "
                f"{limits.running} may.",
            )
        if (
            limits.per_partition is not None
            and job.partition is not None
            and running_in_partition >= limits.per_partition
        ):
            return because(
                "partition_full",
                f"waits: {running_in_partition} jobs of the partition {job.partition!r} run, and "
                f"at most {limits.per_partition} may.",
                partition=job.partition,
            )
        if limits.rate is not None and limits.period is not None:
            return because(
                "rate_limited",
                f"waits for the rate limit of the queue {job.queue!r}: {limits.rate} in "
                f"{format_duration(limits.period)}.",
            )
        ahead = queue.due - 1
        if ahead > 0:
            return because(
                "in_line",
                f"is due and waits its turn: {ahead} other jobs of its queue are due.",
                ahead=ahead,
            )
    return because(
        "about_to_run", "is due, and a worker that knows it is alive: it starts any moment."
    )


def _rounded(wait: timedelta) -> timedelta:
    """Whole seconds, or whole milliseconds of a wait under a second."""
    step = timedelta(seconds=1) if wait >= timedelta(seconds=1) else timedelta(milliseconds=1)
    return -(-wait // step) * step


def _running(job: JobInfo, now: datetime, because: Any) -> Explanation:
    explanation: Explanation
    if job.lease_until is None:
        explanation = because(
            "worker_dead", "is held by a worker that is gone: it will be rescued within seconds."
        )
    elif job.lease_until <= now:
        explanation = because(
            "worker_dead",
            f"is held by the worker {job.worker}, whose lease ran out at "
            f"{_at(job.lease_until)}: it will be rescued within seconds.",
            worker=job.worker,
        )
    else:
        explanation = because(
            "running",
            f"runs on the worker {job.worker}, whose lease holds until {_at(job.lease_until)}.",
            worker=job.worker,
            lease_until=job.lease_until.isoformat(),
        )
    return explanation


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _ended(job: JobInfo, because: Any) -> Explanation:
    at = _at(job.finished_at) if job.finished_at else "an unknown time"
    sentence = {
        JobState.COMPLETED: f"completed at {at}.",
        JobState.DEAD: f"has been dead since {at}, after {job.attempts} of {job.max_attempts} "
        f"attempts: {job.error}. Requeue it to try again.",
        JobState.CANCELLED: f"was cancelled at {at}: {job.error}.",
        JobState.SUPERSEDED: f"was superseded at {at}: {job.error}.",
        JobState.EXPIRED: f"expired at {at}: {job.error}.",
    }[job.state]
    explanation: Explanation = because(job.state.value, sentence)
    return explanation
