"""`app.jobs`: enqueue, inspect and change jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import (
    check_actor,
    check_job_id,
    check_moment,
    check_priority,
    check_sought,
    check_text,
)
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.jobs.explain import explain_job
from duetime.domain.jobs.job import (
    EnqueueAction,
    Enqueued,
    JobFilter,
    JobInfo,
    JobState,
    JobStateLike,
    NewJob,
    Requeued,
)
from duetime.domain.jobs.outcome import NOT_STORED, RESULT_NOT_STORED
from duetime.domain.keys import read_run_key
from duetime.domain.page import DEFAULT_LIMIT, Id, Page, check_limit, make_page, read_cursor
from duetime.domain.reasons import Explanation, Reason
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.errors import (
    IllegalTransition,
    InvalidInput,
    InvalidResult,
    JobFailed,
    JobNotFound,
    KeyConflict,
    ResultTimeout,
)
from duetime.storage import transaction
from duetime.storage.jobs.changes import REQUEUABLE, JobStatements
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.store import Dialect, Statements

if TYPE_CHECKING:
    from duetime.app import Duetime

R = TypeVar("R")

_REQUEUE_PAGE = 500


_LOOKS_PER_SECOND = 1000
"""At results that are awaited, while no notification comes: not more often in all."""


class Jobs:
    """`app.jobs`. `app.jobs[42]` is one of them."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._awaited = 0
        """Results that are awaited now."""

    def __getitem__(self, job_id: int) -> JobHandle[Any]:
        return JobHandle(self, check_job_id(job_id))

    async def _enqueue(self, jobs: Sequence[NewJob], *, tx: Any = None) -> list[JobHandle[Any]]:
        """Enqueue jobs in one transaction, of our own or the caller's: all or none."""
        _check_jobs(jobs)
        if not jobs:
            return []
        if self._app._inline is not None:
            enqueued = await self._app._inline(jobs)
        elif tx is None:
            enqueued = await (await self._app.store()).enqueue(jobs)
        else:
            store = self._app._unopened()
            enqueued = await transaction.run_async(
                tx, store.enqueue_in(jobs), placeholder=store.placeholder
            )
        return self._handles(jobs, enqueued)

    def _enqueue_sync(self, jobs: Sequence[NewJob], *, tx: Any = None) -> list[JobHandle[Any]]:
        """`_enqueue` for sync code."""
        if tx is None or self._app._inline is not None:
            return self._app.sync(self._enqueue(jobs))
        _check_jobs(jobs)
        store = self._app._unopened()
        enqueued = transaction.run(tx, store.enqueue_in(jobs), placeholder=store.placeholder)
        return self._handles(jobs, enqueued)

    def _handles(
        self, jobs: Sequence[NewJob], enqueued: Sequence[Enqueued]
    ) -> list[JobHandle[Any]]:
        return [
            JobHandle(self, answer.job_id, task=job.task, action=answer.action)
            for job, answer in zip(jobs, enqueued, strict=True)
        ]

    async def get(self, job_id: int) -> JobInfo:
        """Return the job with its history; raise `JobNotFound`."""
        check_job_id(job_id)
        job = await (await self._app.store()).get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    async def list(
        self,
        *,
        state: JobStateLike | Sequence[JobStateLike] = (),
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[JobInfo]:
        """Return jobs that match, newest first. `after`: the `next` of the page before."""
        position = read_cursor(after, order="jobs", shape=tuple[Id])
        which = _filter(
            state=state,
            queue=queue,
            task=task,
            key=key,
            before_id=None if position is None else position[0],
            limit=check_limit(limit) + 1,
        )
        found = await (await self._app.store()).find(which)
        return make_page(found, limit=limit, order="jobs", position=lambda job: (job.id,))

    iterate = iterated(list)

    async def cancel(
        self, job_id: int, *, reason: str | None = None, by: str = "unknown", tx: Any = None
    ) -> JobState:
        """Cancel a job that waits, or ask the worker that runs it to stop it.

        Returns the state that it was in. An async handler gets `CancelledError`; one in a thread
        sees `ctx.cancelled`. Cancelling twice is one cancellation.
        """
        check_job_id(job_id)
        if reason is not None:
            check_text(reason, what="The reason")
        why = Reason.of("cancelled", text=reason or None)
        actor = check_actor(by)
        state = await self._change(lambda s: s.cancel(job_id, reason=why, by=actor), tx)
        return self._moved(job_id, state, "cancelled", also=(JobState.RUNNING, JobState.CANCELLED))

    async def reschedule(
        self, job_id: int, at: datetime, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Move a job that waits to another time; a schedule's run, as its `reschedule` does."""
        check_job_id(job_id)
        check_moment(at, name="at")
        actor = check_actor(by)
        state = await self._app._perform(partial(_reschedule, job_id, at, actor), tx)
        self._moved(job_id, state, "rescheduled")

    async def reprioritise(
        self, job_id: int, priority: int, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Change the priority of a job that waits."""
        check_job_id(job_id)
        check_priority(priority)
        actor = check_actor(by)
        state = await self._change(lambda s: s.reprioritise(job_id, priority, by=actor), tx)
        self._moved(job_id, state, "reprioritised")

    async def requeue(
        self, job_id: int, *, at: datetime | None = None, by: str = "unknown", tx: Any = None
    ) -> None:
        """Give a dead, cancelled or expired job new attempts, and its key.

        Raises `KeyConflict` if another job holds the key: nothing is changed. The job of a
        reminder is refused: `app.reminders.resend` sends that again.
        """
        check_job_id(job_id)
        if at is not None:
            check_moment(at, name="at")
        actor = check_actor(by)
        await self._change(lambda s: _requeue(s, job_id, at, actor), tx)

    async def requeue_many(
        self,
        *,
        state: JobStateLike | Sequence[JobStateLike] = JobState.DEAD,
        queue: str | None = None,
        task: str | None = None,
        at: datetime | None = None,
        by: str = "unknown",
    ) -> Requeued:
        """Requeue all that match; return which, and which could not be: another job holds their
        key. Of several with one key the newest is requeued. Jobs of reminders are left out.

        Many are requeued in several transactions, so that there is no `tx=`."""
        if task == REMIND_TASK:
            raise InvalidInput(
                "Jobs of reminders cannot be requeued. Send the reminder again with "
                "app.reminders.resend or `duetime reminders resend ID`."
            )
        if at is not None:
            check_moment(at, name="at")
        actor = check_actor(by)
        which = _filter(
            state=state, queue=queue, task=task, but_task=REMIND_TASK, limit=_REQUEUE_PAGE
        )
        if bad := [state for state in which.states if state not in REQUEUABLE]:
            raise InvalidInput(f"Jobs that are {bad[0]} cannot be requeued.")
        store = await self._app.store()
        requeued = Requeued([], {})
        while found := await store.find(which):
            ids = [job.id for job in found]
            page = await self._app._perform(partial(_requeue_page, ids, at, actor))
            requeued.jobs.extend(page.jobs)
            requeued.conflicts.update(page.conflicts)
            which = msgspec.structs.replace(which, before_id=ids[-1])
        return requeued

    async def result(self, job_id: int, *, timeout: Duration = "60s") -> Any:
        """Wait for the job to complete and return its result. See `JobHandle.result`.

        If the job's task is not registered in this process, the result is plain JSON data.
        """
        seconds = parse_duration(timeout, name="timeout").total_seconds()
        deadline = time.monotonic() + seconds
        check_job_id(job_id)
        store = await self._app.store()
        wait = 0.05
        job = None
        self._awaited += 1
        try:
            while job is None:
                left = deadline - time.monotonic()
                most = max(wait, self._awaited / _LOOKS_PER_SECOND)
                job = await store.wait_finished(job_id, min(max(left, 0.0), most))
                if job is None and left <= 0:
                    raise ResultTimeout(job_id, seconds)
                wait = min(wait * 2, 2.0)
        finally:
            self._awaited -= 1
        if job.state is not JobState.COMPLETED:
            raise JobFailed(job_id, state=job.state, error=job.error, error_code=job.error_code)
        return self._decode_result(job)

    def _decode_result(self, job: JobInfo) -> Any:
        if not job.history:
            return None
        last = job.history[-1]
        if last.error_code in (RESULT_NOT_STORED, NOT_STORED):
            raise InvalidResult(
                f"Job {job.id} completed, but its result was not stored: {last.error}",
                job_id=job.id,
            )
        task = self._app._known_tasks.get(job.task)
        return last.result if task is None else task.decode_result(last.result, job_id=job.id)

    async def explain(self, job_id: int) -> Explanation:
        """Explain why the job is or is not running."""
        store = await self._app.store()
        job = await self.get(job_id)
        queues = {queue.name: queue for queue in await store.queues()}
        beside = 0
        if job.partition is not None:
            running = await store.find(
                JobFilter(states=(JobState.RUNNING,), queue=job.queue, limit=1000)
            )
            beside = sum(other.partition == job.partition for other in running)
        return explain_job(
            job,
            queue=queues.get(job.queue),
            workers=await self._app.workers._facts(),
            running_in_partition=beside,
            now=await store.now(),
        )

    async def audit(
        self, job_id: int, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the job, newest first. It outlives the job itself."""
        entity = f"job:{check_job_id(job_id)}"
        return await self._app.audit.list(entity=entity, limit=limit, after=after)

    def _moved(
        self,
        job_id: int,
        state: JobState | None,
        action: str,
        *,
        also: Sequence[JobState] = (),
    ) -> JobState:
        if state is None:
            raise JobNotFound(job_id)
        waiting = (JobState.PENDING, JobState.RETRYING, JobState.PARKED)
        if state not in (*waiting, *also):
            raise IllegalTransition(job_id, state=state, action=action)
        return state

    async def _change(self, make: Callable[[JobStatements], Statements], tx: Any = None) -> Any:
        return await self._app._perform(lambda dialect: make(JobStatements(dialect)), tx)


class JobHandle(Handle[Jobs, int], Generic[R]):
    """One job: what `enqueue` returns, and `app.jobs[42]`."""

    __slots__ = ("action", "task")

    def __init__(
        self,
        jobs: Jobs,
        job_id: int,
        *,
        task: str | None = None,
        action: EnqueueAction | None = None,
    ) -> None:
        super().__init__(jobs, job_id)
        self.task = task
        """The task's name, if the job was enqueued here."""
        self.action = action
        """Of an enqueue: `created`; or for a held key `existing`, `replaced` or `rejected`."""

    @property
    def id(self) -> int:
        return self._ref

    @property
    def created(self) -> bool:
        return self.action == "created"

    get = bound(Jobs.get)
    cancel = bound(Jobs.cancel)
    reschedule = bound(Jobs.reschedule)
    reprioritise = bound(Jobs.reprioritise)
    requeue = bound(Jobs.requeue)
    explain = bound(Jobs.explain)
    audit = bound(Jobs.audit)

    async def result(self, timeout: Duration = "60s") -> R:
        """Wait for the job to complete and return what its handler returned, as the type that
        its annotation says: a date, a dataclass, a msgspec struct.

        Raises `JobFailed` if it ended otherwise, `ResultTimeout` if it has not ended in time, and
        `InvalidResult` if the result was not stored or does not fit the annotation.
        """
        return cast("R", await self._noun.result(self._ref, timeout=timeout))


def _reschedule(job_id: int, at: datetime, actor: str, dialect: Dialect) -> Statements:
    """Move a schedule's run as the schedule does; any other job as it is."""
    jobs = JobStatements(dialect)
    found = yield from jobs.brief([job_id])
    if job_id in found and read_run_key(found[job_id].key) is not None:
        moved = yield from ScheduleStatements(dialect).reschedule_job(job_id, at, actor=actor)
        if moved:
            return found[job_id].state
    return (yield from jobs.reschedule(job_id, at, by=actor))


def _requeue(jobs: JobStatements, job_id: int, at: datetime | None, actor: str) -> Statements:
    """Requeue one; what cannot be requeued is an error, and nothing is changed."""
    found = yield from jobs.brief([job_id])
    if job_id not in found:
        raise JobNotFound(job_id)
    job = found[job_id]
    if job.task == REMIND_TASK:
        raise InvalidInput(
            f"Job {job_id} belongs to a reminder that is finished and cannot be requeued. Send "
            f"the reminder again: `duetime reminders resend {job.reminder}`."
        )
    requeued = yield from jobs.requeue([job_id], run_at=at, by=actor)
    if holder := requeued.conflicts.get(job_id):
        raise KeyConflict(task=job.task, key=job.key or "", job_id=holder, requeued=job_id)
    if not requeued.jobs:
        raise IllegalTransition(job_id, state=job.state, action="requeued")


def _requeue_page(
    ids: Sequence[int], at: datetime | None, actor: str, dialect: Dialect
) -> Statements:
    return JobStatements(dialect).requeue(ids, run_at=at, by=actor)


def _filter(*, state: Any, **fields: Any) -> JobFilter:
    given = [state] if isinstance(state, str) else list(state)
    try:
        states = tuple(JobState(item) for item in given)
    except ValueError:
        known = ", ".join(JobState)
        raise InvalidInput(f"{given!r} is not a job state. Use one of: {known}.") from None
    for name in ("queue", "task", "key"):
        if fields.get(name) is not None:
            check_sought(fields[name], what=name)
    return JobFilter(states=states, **fields)


def _check_jobs(jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        if not isinstance(job, NewJob):
            raise InvalidInput(f"enqueue_many() takes jobs returned by task.job(), got {job!r}.")
