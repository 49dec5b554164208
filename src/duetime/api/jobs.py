"""`app.jobs`: enqueue, inspect and change jobs."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

import msgspec

from duetime.api.bulk import make_request, reschedule_job, start_action
from duetime.api.gathering import Gathering
from duetime.api.handle import Handle, bound, iterated
from duetime.api.job_filters import JobFilters, make_filter
from duetime.api.requeueing import check_requeuable, requeue_job, requeue_jobs
from duetime.api.tasks import JobOptions, Task, default_job, unless_rejected
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import (
    LAST_PRIORITY,
    check_actor,
    check_arguments,
    check_job_id,
    check_moment,
    check_name,
    check_priority,
    check_task_not_reserved,
    check_text,
)
from duetime.domain.count import check_count_to
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.jobs.bulk import (
    BULK_TASK,
    BulkAction,
    BulkProgress,
    BulkRequest,
    read_bulk_action,
)
from duetime.domain.jobs.explain import explain_job
from duetime.domain.jobs.facets import FAILED, MOST_COUNTED, MOST_GROUPED, ErrorGroup, JobFacets
from duetime.domain.jobs.job import (
    DEFAULT_MAX_ARGS_BYTES,
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
from duetime.domain.page import (
    DEFAULT_LIMIT,
    Id,
    Page,
    check_limit,
    make_cursor,
    make_page,
    read_cursor,
)
from duetime.domain.reasons import Explanation, Reason
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.engine.executor import write_json
from duetime.errors import (
    IllegalTransition,
    InvalidInput,
    InvalidResult,
    JobFailed,
    JobNotFound,
    ResultTimeout,
    UnknownTask,
)
from duetime.storage import transaction
from duetime.storage.flows.find import FindRuns
from duetime.storage.jobs.audit import replay_events
from duetime.storage.jobs.changes import REQUEUABLE, JobStatements
from duetime.storage.store import Statements
from duetime.telemetry.traces import trace_enqueue

if TYPE_CHECKING:
    from duetime.app import Duetime

R = TypeVar("R")

_REQUEUE_PAGE = 500
_EXAMINED = 10_000
"""How many rows one page of a list examines."""

_NAMES = ", ".join(FAILED)
_FIRST_LOOK_SECONDS = 0.05
"""After so long a job that is awaited is read again, then less and less often."""
_LOOKS_PER_SECOND = 1000
"""At results that are awaited, while no notification comes: not more often in all."""


class Jobs:
    """`app.jobs`. `app.jobs[42]` is one of them."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._gathering = Gathering(app)
        self._awaited = 0
        """Results that are awaited now."""

    def __getitem__(self, job_id: int) -> JobHandle[Any]:
        return JobHandle(self, check_job_id(job_id))

    async def _enqueue(self, jobs: Sequence[NewJob], *, tx: Any = None) -> list[JobHandle[Any]]:
        """Enqueue jobs in one transaction, of our own or the caller's: all or none."""
        _check_jobs(jobs)
        if not jobs:
            return []
        with trace_enqueue(jobs) as traced:
            if self._app._inline is not None:
                enqueued = await self._app._inline(traced.jobs)
            elif tx is None and len(traced.jobs) == 1:
                enqueued = [await self._gathering.enqueue(traced.jobs[0])]
            elif tx is None:
                enqueued = await (await self._app.store()).enqueue(traced.jobs)
            else:
                store = self._app._unopened()
                enqueued = await transaction.run_async(
                    tx, store.enqueue_in(traced.jobs), placeholder=store.placeholder
                )
            traced.done(enqueued)
        return self._handles(jobs, enqueued)

    def _enqueue_sync(self, jobs: Sequence[NewJob], *, tx: Any = None) -> list[JobHandle[Any]]:
        """`_enqueue` for sync code."""
        if tx is None or self._app._inline is not None:
            return self._app.sync(self._enqueue(jobs))
        _check_jobs(jobs)
        store = self._app._unopened()
        with trace_enqueue(jobs) as traced:
            enqueued = transaction.run(
                tx, store.enqueue_in(traced.jobs), placeholder=store.placeholder
            )
            traced.done(enqueued)
        return self._handles(jobs, enqueued)

    def _handles(
        self, jobs: Sequence[NewJob], enqueued: Sequence[Enqueued]
    ) -> list[JobHandle[Any]]:
        return [
            JobHandle(self, answer.job_id, task=job.task, action=answer.action)
            for job, answer in zip(jobs, enqueued, strict=True)
        ]

    async def enqueue(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        tx: Any = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle[Any]:
        """Enqueue a job by the name of its task, if you do not have the task itself for
        `task.using(…).enqueue(…)`. The options are those of `using`.

        Raises `UnknownTask` if the task is not registered in this process, and `KeyConflict`.
        """
        job = self.define(task, args, **options)
        [handle] = await self._enqueue([job], tx=tx)
        return unless_rejected(job, handle)

    def define(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
    ) -> NewJob:
        """Return a job, checked but not stored, for `app.enqueue_many`. See `enqueue`."""
        check_name(task, what="task")
        check_task_not_reserved(task)
        definition = self._app.tasks.get(task)
        if definition is None:
            raise UnknownTask(task)
        named: Task[..., Any] = Task(self._app, definition, default_job(definition))
        return named.using(**options).job(**check_arguments(args))

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
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
        **filters: Unpack[JobFilters],
    ) -> Page[JobInfo]:
        """Return jobs that match, newest first. `after`: the `next` of the previous page.

        Some filters, such as `args`, cannot use an index. Then a page examines the newest 10,000
        jobs that are left. If the page is not full by then, `page.examined` is set, and
        `page.next` continues the search.
        """
        position = read_cursor(after, order="jobs", shape=tuple[Id])
        which = make_filter(
            **filters,
            before_id=None if position is None else position[0],
            limit=check_limit(limit) + 1,
            examine=_EXAMINED,
        )
        found = await (await self._app.store()).find(which)
        if found.below is not None:
            cursor = make_cursor("jobs", (found.below,))
            return Page(found, next=cursor, examined=found.examined)
        return make_page(found, limit=limit, order="jobs", position=lambda job: (job.id,))

    iterate = iterated(list)

    async def facets(
        self, *, count_to: int = MOST_COUNTED, **filters: Unpack[JobFilters]
    ) -> JobFacets:
        """Return how many jobs match, by state, queue and task: up to `count_to` of each state, at
        most 10,000.

        `state=` applies to queues and tasks: all states are counted. If a state has more jobs than
        that, only a part of them is read to count its queues and tasks.
        """
        most = check_count_to(count_to, most=MOST_COUNTED)
        return await (await self._app.store()).facets(make_filter(**filters, examine=most))

    async def errors(
        self, *, count_to: int = MOST_GROUPED, **filters: Unpack[JobFilters]
    ) -> builtins.list[ErrorGroup]:
        """Return how jobs failed, the most frequent errors first: by task, error code and message.

        Groups dead jobs, unless `state=` says otherwise: the newest `count_to` that match, at most
        5,000.
        """
        most = check_count_to(count_to, most=MOST_GROUPED)
        which = make_filter(**({"state": JobState.DEAD} | filters), examine=most)
        if bad := [state for state in which.states if state not in FAILED]:
            raise InvalidInput(f"Jobs that are {bad[0]} have no error. Use one of: {_NAMES}.")
        return await (await self._app.store()).errors(which)

    async def cancel(
        self, job_id: int, *, reason: str | None = None, by: str = "unknown", tx: Any = None
    ) -> JobState:
        """Cancel a job that waits, or ask the worker that runs it to stop it.

        Returns the state that the job was in. An async handler gets `CancelledError`; one in a
        thread sees `ctx.cancelled`. Cancelling it twice has no further effect.
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
        """Move a waiting job to another time; a schedule's run as `schedules.reschedule` does.

        Raises `InvalidInput` if the job would have expired by then.
        """
        check_job_id(job_id)
        check_moment(at, name="at")
        actor = check_actor(by)
        state = await self._app._perform(
            lambda dialect: reschedule_job(dialect, job_id, at, by=actor), tx
        )
        self._moved(job_id, state, "rescheduled")

    async def reprioritise(
        self, job_id: int, priority: int, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Change the priority of a waiting job."""
        check_job_id(job_id)
        check_priority(priority)
        actor = check_actor(by)
        state = await self._change(lambda s: s.reprioritise(job_id, priority, by=actor), tx)
        self._moved(job_id, state, "reprioritised")

    async def requeue(
        self, job_id: int, *, at: datetime | None = None, by: str = "unknown", tx: Any = None
    ) -> None:
        """Give a dead, cancelled, expired or superseded job fresh attempts, and its key again.

        A run of a flow continues from the call that failed, as with `app.flows.retry`. Raises
        `KeyConflict` if another job holds the key; then nothing is changed. The job of a reminder
        is refused (use `app.reminders.resend`), and so is the job of a flow's step.
        """
        check_job_id(job_id)
        if at is not None:
            check_moment(at, name="at")
        actor = check_actor(by)
        await self._app._perform(lambda dialect: requeue_job(dialect, job_id, at, by=actor), tx)

    async def replay(
        self,
        job_id: int,
        args: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
        by: str = "unknown",
    ) -> JobHandle[Any]:
        """Run a finished job again, as a new job that names it as its `replay_of`.

        `args`: all its arguments, instead of the old ones; they are checked if the task is
        registered in this process. Values in them that are redacted stay as they were. Queue,
        priority, partition, attempts and timeout are those of the old job. The new one has no key.
        Runs of flows and jobs of Duetime itself are refused.
        """
        if at is not None:
            check_moment(at, name="at")
        actor = check_actor(by)
        job = await self.get(job_id)
        if not job.state.finished:
            raise IllegalTransition(job_id, state=job.state, action="replayed")
        await self._check_replayable(job)
        given = job.args if args is None else args
        if isinstance(given, Mapping):
            given = self._app._redaction.restore(dict(given), job.args, job.task)
        raw = self._write_arguments(job, given)
        new = NewJob(
            task=job.task,
            args=raw,
            queue=job.queue,
            priority=min(job.priority, LAST_PRIORITY),
            run_at=at,
            partition=job.partition,
            max_attempts=max(job.max_attempts, 1),
            timeout=job.timeout,
        )
        changed = _changed(job.args, msgspec.json.decode(raw))
        store = await self._app.store()

        def enqueue() -> Statements:
            [enqueued] = yield from store.enqueue_in([new])
            replay = enqueued.job_id
            yield from store.dialect.run("mark_replay", {"job": replay, "of": job_id})
            events = replay_events(job_id, replay, changed, by=actor)
            yield from store.dialect.run("audit_write", events)
            return replay

        replay: int = await store.transact(enqueue())
        return JobHandle(self, replay, task=job.task, action="created")

    async def _check_replayable(self, job: JobInfo) -> None:
        if job.task == REMIND_TASK:
            raise InvalidInput(
                f"Job {job.id} belongs to a reminder and cannot be replayed. Send the reminder "
                "again with app.reminders.resend or `duetime reminders resend ID`."
            )
        check_task_not_reserved(job.task)
        runs = await self._app._perform(
            lambda dialect: FindRuns(dialect).infos([job.id]), snapshot=True
        )
        if runs:
            raise InvalidInput(
                f"Job {job.id} is a run of a flow and cannot be replayed. Start the flow again, or "
                "go on from one of its steps with app.flows.rerun or `duetime flows retry ID "
                "--from-step STEP`."
            )

    def _write_arguments(self, job: JobInfo, args: Any) -> msgspec.Raw:
        """Return the arguments of a replay as JSON; raise `InvalidArguments`."""
        args = check_arguments(args)
        task = self._app.tasks.get(job.task)
        if task is not None:
            return task.encode((), args)
        raw = write_json(args, what="arguments", most=DEFAULT_MAX_ARGS_BYTES).encode()
        return msgspec.Raw(raw)

    async def requeue_many(
        self,
        *,
        state: JobStateLike | Sequence[JobStateLike] = JobState.DEAD,
        queue: str | None = None,
        task: str | None = None,
        at: datetime | None = None,
        by: str = "unknown",
    ) -> Requeued:
        """Requeue all jobs that match; return them, and those whose key another job holds, which
        stay as they are. Of several with one key the newest is requeued. Jobs of reminders and of
        flows' steps are left out, and runs whose compensations have run.

        Many jobs are requeued in several transactions, so there is no `tx=`."""
        check_requeuable(task)
        if at is not None:
            check_moment(at, name="at")
        actor = check_actor(by)
        which = make_filter(
            state=state, queue=queue, task=task, but_tasks=REMIND_TASK, limit=_REQUEUE_PAGE
        )
        if not which.states:
            raise InvalidInput("state= must name at least one state, for example 'dead'.")
        if bad := [state for state in which.states if state not in REQUEUABLE]:
            raise InvalidInput(f"Jobs that are {bad[0]} cannot be requeued.")
        store = await self._app.store()
        requeued = Requeued([], {})
        while found := await store.find(which):
            ids = [job.id for job in found]
            page = await self._app._perform(partial(requeue_jobs, ids=ids, run_at=at, by=actor))
            requeued.jobs.extend(page.jobs)
            requeued.conflicts.update(page.conflicts)
            which = msgspec.structs.replace(which, before_id=ids[-1])
        return requeued

    async def cancel_all(
        self, *, reason: str | None = None, by: str = "unknown", **filters: Unpack[JobFilters]
    ) -> JobHandle[BulkProgress]:
        """Cancel all jobs that match now, as a bulk action: a job that you can follow, and cancel.

        It takes the filters of `list`, at least one. Jobs that are finished by the time it reaches
        them are skipped. Duetime's own jobs are left out, unless `task=` names theirs.
        """
        request = make_request("cancel", make_filter(**filters), by=by, reason=reason)
        return await self._start(request)

    async def requeue_all(
        self, *, at: datetime | None = None, by: str = "unknown", **filters: Unpack[JobFilters]
    ) -> JobHandle[BulkProgress]:
        """Requeue all jobs that match now, dead ones unless `state=` says otherwise, as a bulk
        action. Those whose key another job holds are skipped, and so are jobs of reminders."""
        return await self._start(make_request("requeue", make_filter(**filters), by=by, at=at))

    async def reschedule_all(
        self, at: datetime, *, by: str = "unknown", **filters: Unpack[JobFilters]
    ) -> JobHandle[BulkProgress]:
        """Move all waiting jobs that match now to another time, as a bulk action."""
        check_moment(at, name="at")
        return await self._start(make_request("reschedule", make_filter(**filters), by=by, at=at))

    async def _start(self, request: BulkRequest) -> JobHandle[BulkProgress]:
        return JobHandle(self, await start_action(self._app, request), task=BULK_TASK)

    async def bulk_action(self, job_id: int) -> BulkAction:
        """Return what a bulk action does and how far it has come; raise `JobNotFound`, also for a
        job that is not a bulk action."""
        job = await self.get(job_id)
        if job.task != BULK_TASK:
            raise JobNotFound(
                job_id,
                f"Job {job_id} is not a bulk action: its task is {job.task!r}. "
                f"`duetime jobs get {job_id}` shows it.",
            )
        return read_bulk_action(job)

    async def result(self, job_id: int, *, timeout: Duration = "60s") -> Any:
        """Wait for the job to complete and return its result. See `JobHandle.result`.

        If the job's task is not registered in this process, the result is plain JSON data.
        """
        seconds = parse_duration(timeout, name="timeout").total_seconds()
        deadline = time.monotonic() + seconds
        check_job_id(job_id)
        store = await self._app.store()
        wait = _FIRST_LOOK_SECONDS
        finished = None
        self._awaited += 1
        try:
            while finished is None:
                left = deadline - time.monotonic()
                most = max(wait, self._awaited / _LOOKS_PER_SECOND)
                finished = await store.wait_finished(job_id, min(max(left, 0.0), most))
                if finished is None and left <= 0:
                    raise ResultTimeout(job_id, seconds)
                wait = min(wait * 2, 2.0)
        finally:
            self._awaited -= 1
        error, code = finished.error, finished.error_code
        if finished.state is not JobState.COMPLETED:
            raise JobFailed(job_id, state=finished.state, error=error, error_code=code)
        if code in (RESULT_NOT_STORED, NOT_STORED):
            raise InvalidResult(
                f"Job {job_id} completed, but its result was not stored: {error}", job_id=job_id
            )
        task = self._app._known_tasks.get(finished.task)
        result = finished.result
        return result if task is None else task.decode_result(result, job_id=job_id)

    async def explain(self, job_id: int) -> Explanation:
        """Explain why the job is or is not running."""
        store = await self._app.store()
        job = await self.get(job_id)
        queues = await store.queues(only=job.queue, count_to=MOST_COUNTED)
        beside = 0
        if job.partition is not None:
            running = await store.find(
                JobFilter(states=(JobState.RUNNING,), queue=job.queue, limit=1000)
            )
            beside = sum(other.partition == job.partition for other in running)
        return explain_job(
            job,
            queue=queues[0] if queues else None,
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

    task: str | None = None
    """The task's name, if the job was enqueued here."""
    action: EnqueueAction | None = None
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
    replay = bound(Jobs.replay)
    explain = bound(Jobs.explain)
    audit = bound(Jobs.audit)

    async def result(self, timeout: Duration = "60s") -> R:
        """Wait for the job to complete and return what its handler returned, with the type of its
        annotation: a date, a dataclass, a msgspec struct.

        Raises `JobFailed` if it finished without success, `ResultTimeout` if it did not finish in
        time, and `InvalidResult` if the result was not stored or does not fit the annotation.
        """
        return cast("R", await self._noun.result(self._ref, timeout=timeout))


def _changed(before: Any, after: Any) -> builtins.list[str]:
    """The names of the arguments that differ."""
    if not isinstance(before, dict):
        return sorted(after)
    missing = object()
    names = before.keys() | after.keys()
    return sorted(n for n in names if before.get(n, missing) != after.get(n, missing))


def _check_jobs(jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        if not isinstance(job, NewJob):
            raise InvalidInput(f"enqueue_many() takes jobs returned by task.job(), got {job!r}.")
