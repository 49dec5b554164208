"""Requeue jobs: a run of a flow as its `retry` does, any other job as it is.

Statements without I/O: one job alone, in the caller's transaction if there is one, or many.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from duetime.domain.flows.flow import BRANCH_CALLS, StepInfo, read_step_key
from duetime.domain.flows.run import FlowInfo, FlowState
from duetime.domain.jobs.job import Requeued
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.errors import (
    FlowNotFound,
    IllegalTransition,
    InvalidInput,
    JobNotFound,
    KeyConflict,
)
from duetime.storage.flows.find import FindRuns
from duetime.storage.flows.graphs import GraphStatements, Repeat
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.jobs.changes import REQUEUABLE, BriefJob, JobStatements
from duetime.storage.store import Dialect, Statements


def check_requeuable(task: str | None) -> None:
    """Raise `InvalidInput` if the jobs of this task cannot be requeued."""
    if task == REMIND_TASK:
        raise InvalidInput(
            "Jobs of reminders cannot be requeued. Send the reminder again with "
            "app.reminders.resend or `duetime reminders resend ID`."
        )


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
    _check_independent(job_id, job)
    if job.state not in REQUEUABLE:
        # Before anything is written: in the caller's transaction nobody would undo it.
        raise IllegalTransition(job_id, state=job.state, action="requeued")
    if job.is_run:
        yield from _requeue_run(dialect, job_id, at=at, by=by)
    else:
        yield from _requeue_alone(dialect, job_id, job, at, by=by)


def retry_run(dialect: Dialect, run: int, *, by: str) -> Statements:
    """Have a run that has ended go on from the call that failed."""
    yield from _requeue_run(dialect, run, by=by)


def rerun_steps(dialect: Dialect, run: int, from_step: str | int, *, by: str) -> Statements:
    """Have a run that has ended do its steps again from one of them on."""
    yield from _requeue_run(dialect, run, from_step=from_step, by=by)


def _requeue_run(
    dialect: Dialect,
    run: int,
    *,
    from_step: str | int | None = None,
    at: datetime | None = None,
    by: str,
) -> Statements:
    # What it has recorded is read under the lock: it may have been retried, and have failed again.
    yield from dialect.run("lock_jobs", [run])
    found = yield from JobStatements(dialect).brief([run])
    if run not in found:
        raise FlowNotFound(run)  # It was pruned meanwhile.
    job = found[run]
    _check_independent(run, job)
    again = yield from _plan_repeat(dialect, run, from_step)
    yield from _requeue_alone(dialect, run, job, at, by=by)
    yield from _repeat(dialect, run, again)


def _check_independent(job_id: int, job: BriefJob) -> None:
    """Raise `InvalidInput` if a run waits for this job, or did: it has recorded how the job ended,
    and would not receive another result."""
    if (step := read_step_key(job.key)) is not None:
        raise InvalidInput(
            f"Job {job_id} does a step of run {step[0]} of a flow and cannot be requeued by "
            f"itself. Retry the run: `duetime flows retry {step[0]}`."
        )


def _plan_repeat(dialect: Dialect, run: int, from_step: str | int | None = None) -> Statements:
    """Return what a run that has ended does again: a `Repeat` of a graph, or the calls of a
    function. Raises `InvalidInput` if what it did was undone. Writes nothing: a run whose key
    another one holds is not requeued, and keeps what it has recorded."""
    repeat: Repeat | None = yield from GraphStatements(dialect).plan_repeat(
        run, from_step=from_step
    )
    if repeat is not None:
        return repeat
    calls: Sequence[int]
    if from_step is None:
        calls = yield from FlowStatements(dialect).calls_to_repeat(run)
    else:
        calls = yield from _calls_since(dialect, run, from_step)
    yield from _check_jobs(dialect, run, calls)
    return calls


def _check_jobs(dialect: Dialect, run: int, calls: Sequence[int]) -> Statements:
    """Raise `InvalidInput` if the job of one of these calls has not ended. The call would take its
    result, though the arguments may be others this time."""
    jobs: list[int] = yield from FlowStatements(dialect).jobs_of([run])
    found = yield from JobStatements(dialect).brief(jobs)
    for job_id, job in found.items():
        step = read_step_key(job.key)
        if step is not None and step[1] in calls and not job.state.finished:
            raise InvalidInput(
                f"Run {run} cannot be retried yet: job {job_id} of its step {job.task!r}, which is "
                "to run again, has not ended."
            )


def _repeat(dialect: Dialect, run: int, again: Repeat | Sequence[int]) -> Statements:
    """Have a run that was requeued do this again."""
    if isinstance(again, Repeat):
        yield from GraphStatements(dialect).repeat(again)
    else:
        yield from FlowStatements(dialect).forget(run, again)


def _calls_since(dialect: Dialect, run: int, from_step: str | int) -> Statements:
    """The calls of a function's run that were made since this step began, and compensations."""
    steps: list[StepInfo] = yield from FlowStatements(dialect).steps(run)
    found = [step for step in steps if step.seq > 0 and from_step in (step.name, step.seq)]
    if not found:
        known = ", ".join(f"{step.seq} {step.name}" for step in steps if step.seq > 0)
        raise InvalidInput(
            f"Run {run} has no step {from_step!r}. It has recorded: {known or 'none'}."
        )
    infos: list[FlowInfo] = yield from FindRuns(dialect).infos([run])
    if any(info.state is FlowState.COMPENSATING for info in infos):
        raise InvalidInput(
            f"The compensations of run {run} are running. Wait until they are done: "
            "run.result() does."
        )
    first = found[0]
    return [
        step.seq
        for step in steps
        if step.seq < 0 or step.seq == first.seq or _began_later(step, first)
    ]


def _began_later(step: StepInfo, first: StepInfo) -> bool:
    """Whether a call was made after another one. The numbers of those that began at the same time
    say it, unless just one of them is in a branch."""
    if step.started_at is None or first.started_at is None:
        return False
    if step.started_at == first.started_at and (
        (step.seq > BRANCH_CALLS) == (first.seq > BRANCH_CALLS)
    ):
        return step.seq > first.seq
    return step.started_at >= first.started_at


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
    repeats: dict[int, Repeat | Sequence[int]] = {}
    for job_id, job in found.items():
        if job.state not in REQUEUABLE or read_step_key(job.key) is not None:
            continue
        if job.is_run:
            try:
                repeats[job_id] = yield from _plan_repeat(dialect, job_id)
            except (InvalidInput, IllegalTransition):
                continue
        able.append(job_id)
    requeued: Requeued = yield from jobs.requeue(able, run_at=run_at, by=by, reason=reason)
    for run in requeued.jobs:
        if run in repeats:
            yield from _repeat(dialect, run, repeats[run])
    return requeued
