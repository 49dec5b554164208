"""Why a job is, or is not, running: a code, one sentence, and the facts behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from duetime.domain.count import Count
from duetime.domain.jobs.job import UNREADABLE, JobInfo, JobState
from duetime.domain.jobs.queue import QueueInfo
from duetime.domain.reasons import Check, Explanation, Question, make_checks, make_explanation


class WorkerFacts(NamedTuple):
    """What an explanation needs to know about a worker."""

    name: str
    queues: Sequence[str]
    tasks: Sequence[str]
    lease_until: datetime
    running: int = 0
    concurrency: int = 1


JOB_SENTENCES = {
    # It has finished, or runs.
    "completed": "Job {job} completed at {finished_at:utc}.",
    "dead": "Job {job} has been dead since {finished_at:utc}, after {attempts} of {max_attempts} "
    "attempts[: {error}]. Requeue it to try again.",
    "cancelled": "Job {job} was cancelled at {finished_at:utc}[: {error}].",
    "superseded": "Job {job} was superseded at {finished_at:utc}[: {error}].",
    "expired": "Job {job} expired at {finished_at:utc}[: {error}].",
    "running": "Job {job} is running on the worker {worker}, whose lease is valid until "
    "{lease_until:utc}.",
    "worker_lost": "Job {job} is held by the worker {worker}, whose lease expired at "
    "{lease_until:utc}: it will be rescued within seconds.",
    "worker_gone": "Job {job} is held by a worker that no longer exists: it will be rescued within "
    "seconds.",
    # It waits: what keeps it from starting.
    "unreadable": "Job {job} is parked[: {reason:reason}]. Cancel it; or correct the row, then "
    "cancel and requeue it.",
    "parked": "Job {job} is parked[: {reason:reason}]. It runs as soon as a worker of the queue "
    "{queue!r} knows the task {task!r}.",
    "not_due": "Job {job} is not due: it may start at {run_at:utc}, in {wait:span}"
    "[, after attempt {attempts} failed ({error})].",
    "queue_paused": "Job {job} waits: its queue {queue!r} was paused at {paused_at:utc}"
    "[ by {paused_by}][: {text}].",
    "no_worker": "Job {job} waits: no live worker serves the queue {queue!r} "
    "({elsewhere:serves/serve} other queues).",
    "task_unknown": "Job {job} waits: no worker on the queue {queue!r} knows the task {task!r} "
    "({count:live worker/live workers}).",
    "limit_full": "Job {job} waits: the queue {queue!r} has {running:running job/running jobs}, "
    "and the limit is {limit}.",
    "partition_full": "Job {job} waits: the partition {partition!r} has {running:running job/"
    "running jobs}, and the limit is {limit}.",
    "rate_limited": "Job {job} waits: {started:job/jobs} of the queue {queue!r} started in the "
    "last {period:span}, and the limit is {limit}.",
    "in_line": "Job {job} is due and waits its turn: {ahead:other job of its queue is/other "
    "jobs of its queue are} due.",
    "about_to_run": "Job {job} is due, and a live worker can run it: it should start at any "
    "moment.",
    # What was checked before, and does not keep it from starting.
    "replay": "It is a replay of job {replay_of}.",
    "due": "It has been due since {run_at:utc}.",
    "queue_open": "Its queue {queue!r} is not paused.",
    "workers_alive": "{count:live worker serves/live workers serve} the queue {queue!r}.",
    "task_known": "The worker {worker} knows the task {task!r}.",
    "below_limit": "The queue {queue!r} has {running:running job/running jobs}, and the limit is "
    "{limit}.",
    "below_partition_limit": "The partition {partition!r} has {running:running job/running jobs}, "
    "and the limit is {limit}.",
    "below_rate": "{started:job/jobs} of the queue {queue!r} started in the last {period:span}, "
    "and the limit is {limit}.",
    # What only the chain of checks tells.
    "no_limit": "No limit of the queue {queue!r} applies to it.",
    "begun": "It has begun {attempts} of at most {max_attempts} attempts.",
}
_DUE = Question("Is it due?", ["due"], ["not_due"])
_TURN = Question("Is it its turn?", ["about_to_run"], ["in_line"])
_BEGUN = Question("Has it begun?", ["begun"])
_COMPLETED = Question(
    "Has it completed?", ["completed"], ["dead", "cancelled", "superseded", "expired"]
)
_QUESTIONS_OF_WAITING = (
    _DUE,
    Question("Is its queue open?", ["queue_open"], ["queue_paused"]),
    Question("Does a live worker serve the queue?", ["workers_alive"], ["no_worker"]),
    Question("Does such a worker know its task?", ["task_known"], ["task_unknown"]),
    Question(
        "Is there room within the limits?",
        ["below_limit", "below_partition_limit", "below_rate", "no_limit"],
        ["limit_full", "partition_full", "rate_limited"],
    ),
    _TURN,
)
_QUESTIONS_OF_RUNNING = (
    _BEGUN,
    Question("Is its worker alive?", ["running"], ["worker_lost", "worker_gone"]),
    _COMPLETED,
)
_QUESTIONS_OF_PARKED = (
    Question("Can the workers that met it run it?", (), ["parked", "unreadable"]),
    _TURN,
)


def explain_job(
    job: JobInfo,
    *,
    queue: QueueInfo | None,
    workers: Sequence[WorkerFacts],
    running_in_partition: int,
    now: datetime,
) -> Explanation:
    """Return the first reason that applies, from the job outwards. Its steps are what was checked
    before, and does not keep the job from starting; its chain also has what was not reached.
    """
    facts: dict[str, Any] = {
        "job": job.id,
        "state": job.state.value,
        "queue": job.queue,
        "task": job.task,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "now": now,
        "run_at": job.run_at,
    }
    checks: list[Explanation] = []
    for code, more in _look(job, queue, workers, running_in_partition, now):
        if code not in _PASSED:
            found = make_explanation(JOB_SENTENCES, code, facts | more, steps=checks)
            return msgspec.structs.replace(found, checks=_make_chain(job, found))
        named = {"queue": job.queue, "task": job.task, "run_at": job.run_at}
        checks.append(make_explanation(JOB_SENTENCES, code, named | more))
    raise AssertionError("unreachable")


def _make_chain(job: JobInfo, found: Explanation) -> tuple[Check, ...]:
    facts = [*found.steps, found]
    if job.state.finished or job.state is JobState.RUNNING:
        begun = make_explanation(JOB_SENTENCES, "begun", found.facts)
        questions = _QUESTIONS_OF_RUNNING if job.state is JobState.RUNNING else (_BEGUN, _COMPLETED)
        if not job.attempts:
            return make_checks(questions[1:], facts)
        return make_checks(questions, [begun, *facts])
    if job.state is JobState.PARKED:
        return make_checks(_QUESTIONS_OF_PARKED, facts)
    if found.code in ("in_line", "about_to_run"):
        none = make_explanation(JOB_SENTENCES, "no_limit", {"queue": job.queue})
        limited = any(step.code.startswith("below_") for step in found.steps)
        facts = facts if limited else [none, *facts]
    return make_checks(_QUESTIONS_OF_WAITING, facts)


_PASSED = {
    "replay", "due", "queue_open", "workers_alive", "task_known", "below_limit",
    "below_partition_limit", "below_rate",
}  # fmt: skip


def _look(
    job: JobInfo,
    queue: QueueInfo | None,
    workers: Sequence[WorkerFacts],
    running_in_partition: int,
    now: datetime,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the codes of the checks that passed, then the one that explains the job's state."""
    if job.replay_of is not None:
        yield "replay", {"replay_of": job.replay_of}
    if job.state.finished or job.state is JobState.RUNNING or job.state is JobState.PARKED:
        yield _stands(job, now)
        return
    if job.run_at is not None and job.run_at > now:
        error = {"error": job.error or job.error_code} if job.attempts else {}
        yield "not_due", {"wait": round_wait(job.run_at - now), **error}
        return
    yield "due", {}
    if queue is not None and queue.paused_at is not None:
        yield "queue_paused", pause_facts(queue)
        return
    yield "queue_open", {}
    alive = [worker for worker in workers if worker.lease_until > now]
    on_queue = [worker for worker in alive if job.queue in worker.queues]
    if not on_queue:
        yield "no_worker", {"elsewhere": len(alive), "workers": [worker.name for worker in alive]}
        return
    names = [worker.name for worker in on_queue]
    yield "workers_alive", {"count": len(names), "workers": names}
    knowing = [worker.name for worker in on_queue if job.task in worker.tasks]
    if not knowing:
        yield "task_unknown", {"count": len(names), "workers": names}
        return
    yield "task_known", {"worker": knowing[0]}
    if queue is not None:
        yield from _look_at_limits(job, queue, running_in_partition)
    yield "about_to_run", {}


def _stands(job: JobInfo, now: datetime) -> tuple[str, dict[str, Any]]:
    if job.state.finished:
        facts = {"error": job.error, "error_code": job.error_code, "finished_at": job.finished_at}
        return job.state.value, facts
    if job.state is JobState.PARKED:
        why = job.parked_reason
        unreadable = why is not None and why.code == UNREADABLE
        return "unreadable" if unreadable else "parked", {"reason": why}
    if job.lease_until is None:
        return "worker_gone", {}
    held = {"worker": job.worker, "lease_until": job.lease_until}
    return "worker_lost" if job.lease_until <= now else "running", held


def _look_at_limits(
    job: JobInfo, queue: QueueInfo, running_in_partition: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    limits = queue.limits
    yield from check_running(queue)
    if limits.per_partition is not None and job.partition is not None:
        full = running_in_partition >= limits.per_partition
        counts = {"running": running_in_partition, "limit": limits.per_partition}
        code = "partition_full" if full else "below_partition_limit"
        yield code, counts | {"partition": job.partition}
    yield from check_rate(queue)
    if (ahead := queue.due - 1) > 0:
        yield "in_line", {"ahead": count_waiting(queue, ahead)}


def count_waiting(queue: QueueInfo, count: int) -> int | Count:
    """How many jobs wait, as a fact: a `Count` if there are more than were counted."""
    return count if queue.counted_all else Count(count, "at_least")


def check_running(queue: QueueInfo) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whether as many jobs run as may."""
    limit = queue.limits.running
    if limit is not None:
        counts = {"running": queue.running, "limit": limit}
        yield "limit_full" if queue.running >= limit else "below_limit", counts


def check_rate(queue: QueueInfo) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whether as many jobs have started as may in a period."""
    limit = queue.limits.rate
    if limit is not None:
        counts = {"started": queue.started, "limit": limit, "period": queue.limits.period}
        yield "rate_limited" if queue.started >= limit else "below_rate", counts


def pause_facts(queue: QueueInfo) -> dict[str, Any]:
    """Since when, by whom and why a queue is paused."""
    return {
        "paused_at": queue.paused_at,
        "paused_by": queue.paused_by,
        "text": queue.pause_reason or None,
    }


def round_wait(wait: timedelta) -> timedelta:
    """Whole seconds, or whole milliseconds of a wait under a second."""
    step = timedelta(seconds=1) if wait >= timedelta(seconds=1) else timedelta(milliseconds=1)
    return -(-wait // step) * step
