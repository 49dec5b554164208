"""Bulk actions: `cancel_all`, `requeue_all`, `reschedule_all`, and the task that carries them out.

The task `duetime.bulk` is known to every worker. It goes through the jobs that match, newest first,
some at a time. How far it has come is recorded with each batch, so that another worker continues
there after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from duetime.api.requeueing import requeue_jobs
from duetime.domain.audit import make_event
from duetime.domain.checks import OWN_TASKS, check_actor, check_moment, check_text
from duetime.domain.jobs.bulk import (
    BULK_TASK,
    BulkProgress,
    BulkRequest,
    BulkVerb,
    describe_filter,
    read_progress,
)
from duetime.domain.jobs.job import ClaimedJob, JobFilter, JobState, NewJob, Requeued
from duetime.domain.jobs.task import OWN_RETRY, TaskDefinition, own_options
from duetime.domain.keys import read_run_key
from duetime.domain.reasons import Reason
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.engine.context import Context
from duetime.errors import ClaimLost, InvalidInput
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.jobs.changes import REQUEUABLE, JobStatements
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.store import Dialect, Statements, Store

if TYPE_CHECKING:
    from duetime.app import Duetime

_BATCH = 500
"""How many jobs are changed in one transaction."""
_COUNTED = 2_000
"""How many are counted at a time."""
_EXAMINED = 20_000
"""How many rows one search examines: no statement takes long."""
_WAITING = (JobState.PENDING, JobState.RETRYING, JobState.PARKED)
_STATES = {
    "cancel": (*_WAITING, JobState.RUNNING),
    "requeue": REQUEUABLE,
    "reschedule": _WAITING,
}
_DEFAULT_STATES = _STATES | {"requeue": (JobState.DEAD,)}


def make_request(
    action: BulkVerb,
    which: JobFilter,
    *,
    by: str,
    reason: str | None = None,
    at: datetime | None = None,
) -> BulkRequest:
    """Return what a bulk action is to do; raise `InvalidInput`."""
    if reason is not None:
        check_text(reason, what="The reason")
    if at is not None:
        check_moment(at, name="at")
    request = BulkRequest(action=action, which=which, by=check_actor(by), reason=reason, at=at)
    return msgspec.structs.replace(request, which=_check_filter(request))


async def start_action(app: Duetime, request: BulkRequest) -> int:
    """Enqueue the job of a bulk action on what matches now; return its id."""
    store = await app.store()
    newest = await store.find(JobFilter(limit=1))
    which = msgspec.structs.replace(
        request.which,
        before_id=newest[0].id + 1 if newest else 0,
        ended_by=await store.now(),
    )
    request = msgspec.structs.replace(request, which=which)
    args = msgspec.Raw(msgspec.json.encode({"request": request}))
    job = NewJob(task=BULK_TASK, args=args, priority=0, max_attempts=OWN_RETRY.max_attempts)
    job_id: int = await store.transact(_request_action(store, job, request))
    return job_id


def _check_filter(request: BulkRequest) -> JobFilter:
    """Return the filter, with the states and tasks that the action is for."""
    verb, which = f"{request.action}_all", request.which
    if which == JobFilter() and request.action != "requeue":
        raise InvalidInput(f"{verb}() needs at least one filter, such as queue= or state=.")
    able = _STATES[request.action]
    if bad := [state for state in which.states if state not in able]:
        raise InvalidInput(
            f"{verb}() is for jobs that are {', '.join(able)}, and state= has {bad[0]}."
        )
    if which.task == BULK_TASK or (which.task == REMIND_TASK and request.action == "requeue"):
        raise InvalidInput(f"{verb}() cannot change the jobs of the task {which.task}.")
    return msgspec.structs.replace(
        which,
        states=which.states or _default_states(request),
        but_tasks=OWN_TASKS if which.task is None else None,
    )


def _default_states(request: BulkRequest) -> tuple[JobState, ...]:
    if request.which.due_since or request.which.due_before:
        return _WAITING
    return _DEFAULT_STATES[request.action]


def bulk_task(app: Duetime) -> TaskDefinition:
    """Return the task `duetime.bulk` of an app."""

    async def bulk(ctx: Context, request: BulkRequest) -> BulkProgress:
        return await carry_out(app, ctx.job, request)

    options = own_options(keep_result=True)
    return TaskDefinition(bulk, name=BULK_TASK, options=options, context_type=Context)


async def carry_out(app: Duetime, job: ClaimedJob, request: BulkRequest) -> BulkProgress:
    """Act on all jobs that match, from where an earlier attempt has stopped."""
    store = await app.store()
    info = await store.get(job.id)
    progress = read_progress(None if info is None else info.progress)
    if progress.matched is None:
        matched = 0
        async for ids in _matching(store, request.which, _COUNTED):
            matched += len(ids)
        progress = await store.transact(
            _record(store.dialect, msgspec.structs.replace(progress, matched=matched), job)
        )
    which = request.which
    if progress.below is not None:
        which = msgspec.structs.replace(which, before_id=progress.below)
    async for ids in _matching(store, which, _BATCH):
        progress = await store.transact(_act_on(store.dialect, request, ids, progress, job))
    return progress


async def _matching(store: Store, which: JobFilter, limit: int) -> AsyncIterator[list[int]]:
    """Yield the ids of jobs that match, newest first."""
    which = msgspec.structs.replace(which, limit=limit, examine=_EXAMINED)
    while True:
        found = await store.find(which)
        if found:
            yield [job.id for job in found]
        below = found.below if found.below is not None else found[-1].id if found else None
        if below is None or (found.below is None and len(found) < limit):
            return
        which = msgspec.structs.replace(which, before_id=below)


def _request_action(store: Store, job: NewJob, request: BulkRequest) -> Statements:
    """Enqueue the job that does it, and record who requested it. Returns the job's id."""
    [enqueued] = yield from store.enqueue_in([job])
    event = make_event(
        request.by,
        f"job.{request.action}_all",
        f"job:{enqueued.job_id}",
        after=msgspec.to_builtins(describe_filter(request.which)),
        reason=request.reason,
    )
    yield from store.dialect.run("audit_write", [event])
    return enqueued.job_id


def _act_on(
    dialect: Dialect,
    request: BulkRequest,
    ids: Sequence[int],
    progress: BulkProgress,
    job: ClaimedJob,
) -> Statements:
    """Change the jobs, and record how far the action has come: both or neither.

    Fenced by the claim of the action's own job: if it was lost, `ClaimLost` rolls all back, since
    another worker goes on from what is recorded. Returns the progress.
    """
    yield from _hold_claim(dialect, job)
    if request.action == "reschedule":
        # Before the jobs: everyone who changes a schedule and its runs locks the schedule first.
        yield from ScheduleStatements(dialect).lock_owners(ids)
    # In one order: two bulk actions on the same jobs wait for each other, and cannot deadlock.
    if request.action == "requeue":
        yield from dialect.run("lock_jobs", list(ids))
    else:
        yield from dialect.run("lock_waiting", list(ids))
    done = yield from _change(dialect, request, ids, job.id)
    progress = msgspec.structs.replace(
        progress,
        done=progress.done + done,
        skipped=progress.skipped + len(ids) - done,
        below=min(ids),
    )
    return (yield from _record(dialect, progress, job))


def _record(dialect: Dialect, progress: BulkProgress, job: ClaimedJob) -> Statements:
    yield from _hold_claim(dialect, job)
    given = {"job": job.id, "token": job.token, "progress": msgspec.to_builtins(progress)}
    yield from dialect.run("bulk_progress", given)
    return progress


def _hold_claim(dialect: Dialect, job: ClaimedJob) -> Statements:
    if not (yield from dialect.run("hold_claim", {"job": job.id, "token": job.token})):
        raise ClaimLost(job.id, job.token)


def _change(dialect: Dialect, request: BulkRequest, ids: Sequence[int], bulk: int) -> Statements:
    """Return how many jobs were changed."""
    jobs = JobStatements(dialect)
    why = f"bulk action {bulk}" + (f": {request.reason}" if request.reason else "")
    match request.action:
        case "cancel":
            reason = Reason.of("cancelled", text=why)
            return (yield from jobs.cancel_all(ids, reason=reason, by=request.by))
        case "requeue":
            requeued: Requeued = yield from requeue_jobs(
                dialect, ids, run_at=request.at, by=request.by, reason=why
            )
            return len(requeued.jobs)
        case "reschedule":
            assert request.at is not None
            done = 0
            for job_id in ids:
                try:
                    state = yield from reschedule_job(
                        dialect, job_id, request.at, by=request.by, reason=why
                    )
                except InvalidInput:
                    continue
                done += state is not None and not state.finished
            return done


def reschedule_job(
    dialect: Dialect, job_id: int, at: datetime, *, by: str, reason: str | None = None
) -> Statements:
    """Move a schedule's run as the schedule does; any other job as it is. Returns its state. Raises
    `InvalidInput` for a run of a flow that has begun."""
    jobs = JobStatements(dialect)
    found = yield from jobs.brief([job_id])
    job = found.get(job_id)
    is_open_run = job is not None and job.is_run and not job.state.finished
    if is_open_run and (yield from FlowStatements(dialect).steps(job_id)):
        raise InvalidInput(
            f"Run {job_id} has begun and continues when what it waits for happens: it cannot be "
            f"rescheduled. `duetime flows show {job_id}` shows what it waits for."
        )
    if job is not None and read_run_key(job.key) is not None:
        moved = yield from ScheduleStatements(dialect).reschedule_job(job_id, at, actor=by)
        if moved:
            return job.state
    return (yield from jobs.reschedule(job_id, at, by=by, reason=reason))
