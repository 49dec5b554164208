"""Requeue jobs: a run of a flow as its `retry` does, any other job as it is.

Statements without I/O: one job alone, in the caller's transaction if there is one, or many.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from duetime.domain.flows.flow import read_step_key
from duetime.domain.jobs.job import Requeued
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.errors import IllegalTransition, InvalidInput, JobNotFound, KeyConflict
from duetime.storage.flows.graphs import GraphStatements
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.jobs.changes import REQUEUABLE, BriefJob, JobStatements
from duetime.storage.store import Dialect, Statements


def requeue_job(dialect: Dialect, job_id: int, at: datetime | None, *, by: str) -> Statements:
    """Requeue one; what cannot be requeued is an error, and nothing is changed."""
    jobs = JobStatements(dialect)
    found = yield from jobs.brief([job_id])
    if job_id not in found:
        raise JobNotFound(job_id)
    job = found[job_id]
    if job.task == REMIND_TASK:
        raise InvalidInput(
            f"Job {job_id} belongs to a reminder that is finished and cannot be requeued. Send "
            f"the reminder again: `duetime reminders resend {job.reminder}`."
        )
    if (step := read_step_key(job.key)) is not None:
        raise InvalidInput(
            f"Job {job_id} does a step of run {step[0]} of a flow and cannot be requeued by "
            f"itself. Retry the run: `duetime flows retry {step[0]}`."
        )
    if job.state not in REQUEUABLE:
        # Before anything is written: in the caller's transaction nobody would undo it.
        raise IllegalTransition(job_id, state=job.state, action="requeued")
    if job.is_run:
        yield from _retry(dialect, job_id, job, at, by=by)
    else:
        yield from _requeue_alone(dialect, job_id, job, at, by=by)


def retry_run(dialect: Dialect, run: int, *, by: str) -> Statements:
    """Have a run that has ended go on from the call that failed."""
    job = (yield from JobStatements(dialect).brief([run]))[run]
    yield from _retry(dialect, run, job, None, by=by)


def rerun_steps(
    dialect: Dialect, run: int, from_step: str | int, calls: Sequence[int], *, by: str
) -> Statements:
    """Have a run that has ended do steps again: of a graph `from_step` on, of a function the
    `calls`."""
    job = (yield from JobStatements(dialect).brief([run]))[run]
    is_graph = yield from GraphStatements(dialect).repeat(run, from_step=from_step)
    yield from _requeue_alone(dialect, run, job, None, by=by)
    if not is_graph:
        yield from FlowStatements(dialect).forget(run, calls)


def _retry(
    dialect: Dialect, run: int, job: BriefJob, at: datetime | None, *, by: str
) -> Statements:
    calls = yield from _repeat(dialect, run)
    yield from _requeue_alone(dialect, run, job, at, by=by)
    yield from FlowStatements(dialect).forget(run, calls)


def _requeue_alone(
    dialect: Dialect, job_id: int, job: BriefJob, at: datetime | None, *, by: str
) -> Statements:
    requeued: Requeued = yield from JobStatements(dialect).requeue([job_id], run_at=at, by=by)
    if holder := requeued.conflicts.get(job_id):
        raise KeyConflict(task=job.task, key=job.key or "", job_id=holder, requeued=job_id)
    if not requeued.jobs:
        raise IllegalTransition(job_id, state=job.state, action="requeued")


def requeue_jobs(
    dialect: Dialect,
    ids: Sequence[int],
    *,
    run_at: datetime | None,
    by: str,
    reason: str | None = None,
) -> Statements:
    """Requeue those that can be, and return `Requeued`. Runs that cannot be retried are left out,
    and so are the jobs of their steps."""
    jobs = JobStatements(dialect)
    # In one order: two that requeue the same jobs wait for each other, and cannot deadlock.
    yield from dialect.run("lock_jobs", list(ids))
    found = yield from jobs.brief(ids)
    able: list[int] = []
    calls: dict[int, Sequence[int]] = {}
    for job_id, job in found.items():
        if job.state not in REQUEUABLE or read_step_key(job.key) is not None:
            continue
        if job.is_run:
            try:
                calls[job_id] = yield from _repeat(dialect, job_id)
            except (InvalidInput, IllegalTransition):
                continue
        able.append(job_id)
    requeued: Requeued = yield from jobs.requeue(able, run_at=run_at, by=by, reason=reason)
    for run in requeued.jobs:
        if run in calls:
            yield from FlowStatements(dialect).forget(run, calls[run])
    return requeued


def _repeat(dialect: Dialect, run: int) -> Statements:
    """Have a run that has ended do again what failed, and return the calls that are to be forgotten
    once it is requeued. Raises `InvalidInput` if what it did was undone."""
    if (yield from GraphStatements(dialect).repeat(run, from_step=None)):
        return []
    return (yield from FlowStatements(dialect).calls_to_repeat(run))
