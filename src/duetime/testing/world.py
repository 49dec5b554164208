"""A test world: runs the app's jobs under a clock that moves only when the test moves it."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict, TypeVar, Unpack

from duetime.api.tasks import Task
from duetime.app import Duetime
from duetime.domain.checks import check_arguments, check_moment
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.jobs.job import (
    AttemptOutcome,
    ClaimedJob,
    Enqueued,
    JobFilter,
    JobInfo,
    JobState,
    NewJob,
)
from duetime.domain.jobs.task import TaskDefinition
from duetime.errors import DuetimeError, EndlessWork, InvalidInput, JobFailed, UnknownTask
from duetime.storage.store import Store
from duetime.testing.expectation import Expected, describe_difference
from duetime.testing.solo import Ran, SoloWorker

T = TypeVar("T")

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_INLINE_DEPTH = 30
_WAITING = (JobState.PENDING, JobState.RETRYING, JobState.PARKED)

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("duetime_inline_depth", default=0)


class JobArguments(TypedDict, total=False):
    """The properties of a job that `world.assert_not_enqueued` compares."""

    queue: str | None
    priority: int | None
    at: datetime | str | None
    delay: Duration | None
    key: str | None
    args: Mapping[str, Any] | None


class World:
    """Runs the app's jobs in this process, one at a time, each exactly when it is due.

    Claims, fences, retries, keys and limits are the real ones; only the clock is driven.
    """

    def __init__(self, app: Duetime, store: Store, *, now: datetime, max_extra_jobs: int) -> None:
        self.app = app
        self._store = store
        self._now = now
        self._max_extra_jobs = max_extra_jobs
        self.ran: list[Ran] = []
        """Every attempt, in the order in which they finished."""
        self._loop = asyncio.get_running_loop()
        self._worker = SoloWorker(app, store)

    async def __aenter__(self) -> World:
        await self._worker.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.close()

    # Time

    @property
    def now(self) -> datetime:
        """The time of the clock, the same as `await app.now()`."""
        return self._now

    async def advance(self, by: Duration) -> int:
        """Move the clock forward, stopping at each due time to run the jobs due then; see `drain`.

        Returns how many attempts ran.
        """
        return await self.advance_to(self._now + parse_duration(by, name="by"))

    async def advance_to(self, moment: datetime | str) -> int:
        """`advance` to a given time, which must not be before `now`."""
        target = read_moment(moment, name="moment")
        if target < self._now:
            raise InvalidInput(
                f"The clock is already at {self._now.isoformat()} and cannot go back to "
                f"{target.isoformat()}."
            )
        return await self._on_its_loop(self._advance_to(target))

    async def outage(self, by: Duration) -> None:
        """Move the clock forward without running anything, as if no worker had been up."""
        await self._on_its_loop(self._set_clock(self._now + parse_duration(by, name="by")))

    async def drain(self) -> int:
        """Run the jobs that are due, and those that they enqueue, without moving the clock.

        Returns how many attempts ran. Errors of handlers are recorded, as by a worker: see
        `failed`. Raises `EndlessWork` if there is always another job.
        """
        ran, _ = await self._on_its_loop(self._drain(repairs=True))
        return ran

    async def run_next(self) -> Ran | None:
        """Run the next job, moving the clock to its due time. Returns None if no job waits."""
        return await self._on_its_loop(self._run_next())

    # Attempts and jobs

    @property
    def completed(self) -> list[Ran]:
        """The attempts that completed their job."""
        return [ran for ran in self.ran if ran.outcome is AttemptOutcome.COMPLETED]

    @property
    def failed(self) -> list[Ran]:
        """The attempts that failed, whether the job is retried or dead."""
        return [ran for ran in self.ran if ran.failed]

    async def enqueued(self, task: Task[..., Any] | str | None = None) -> list[JobInfo]:
        """Return the waiting jobs of one task or of all, in the order in which they are due."""
        name = None if task is None else self._definition(task).name
        store = await self.app.store()
        jobs = await store.find(JobFilter(states=_WAITING, task=name, limit=10_000))
        return sorted(jobs, key=lambda job: (job.run_at or _LONG_AGO, job.priority, job.id))

    async def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        *,
        queue: str | None = None,
        priority: int | None = None,
        at: datetime | str | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        args: Mapping[str, Any] | None = None,
        count: int | None = None,
    ) -> list[JobInfo]:
        """Fail unless such a job waits; with `count`, unless exactly that many do. Returns them.

        `at`: its due time; `delay`: the same, from now. `args`: some or all of its arguments.
        """
        __tracebackhide__ = True
        if at is not None and delay is not None:
            raise InvalidInput("at= and delay= cannot be combined.")
        moment = None if at is None else read_moment(at, name="at")
        if delay is not None:
            moment = self._now + parse_duration(delay, name="delay")
        expected = Expected(
            task=self._definition(task),
            queue=queue,
            priority=priority,
            at=moment,
            key=key,
            args=check_arguments(args),
        )
        enqueued = await self.enqueued()
        found = [job for job in enqueued if expected.matches(job)]
        if len(found) == count or (count is None and found):
            return found
        wanted = {None: "a job", 0: "no job", 1: "1 job"}.get(count, f"{count} jobs")
        raise AssertionError(
            describe_difference(
                expected,
                found=found,
                wanted=wanted,
                enqueued=enqueued,
                ran=sum(ran.task == expected.task.name for ran in self.ran),
                now=self._now,
            )
        )

    async def assert_not_enqueued(
        self, task: Task[..., Any] | str, **details: Unpack[JobArguments]
    ) -> None:
        """Fail if such a job waits. Takes what `assert_enqueued` takes, except `count`."""
        __tracebackhide__ = True
        await self.assert_enqueued(task, **details, count=0)

    def _definition(self, task: Task[..., Any] | str) -> TaskDefinition:
        if isinstance(task, Task):
            return task.definition
        if task not in self.app.tasks:
            raise UnknownTask(task)
        return self.app.tasks[task]

    # Work

    async def run_inline(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue jobs and run at once those that can start; raise the error of the first failure.

        A job that is due later, or held up by a pause or a limit, waits.
        """
        return await self._on_its_loop(self._run_inline(jobs))

    async def _run_inline(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        depth = _depth.get()
        if depth >= _MAX_INLINE_DEPTH:
            raise EndlessWork(
                f"Inline jobs have enqueued each other {depth} levels deep; the last one runs the "
                f"task {jobs[0].task!r}. Break the chain, or open the test world with inline=False."
            )
        answers = await self._store.enqueue(jobs)
        reset = _depth.set(depth + 1)
        try:
            for answer in answers:
                if answer.action in ("created", "replaced"):
                    job = await self._worker.claim_this(answer.job_id, self._now)
                    if job is not None:
                        _raise_failure(await self._run(job))
        finally:
            _depth.reset(reset)
        return answers

    async def _advance_to(self, target: datetime) -> int:
        ran, next_at = await self._drain(repairs=True)
        while next_at is not None and next_at <= target:
            await self._set_clock(next_at)
            more, next_at = await self._drain()
            ran += more
        await self._set_clock(target)
        return ran

    async def _run_next(self) -> Ran | None:
        await self._unpark()
        while True:
            job, next_at = await self._worker.claim(self._now)
            if job is not None:
                return await self._run(job)
            if next_at is None:
                return None
            await self._set_clock(next_at)

    async def _unpark(self) -> None:
        """A world works on every queue."""
        queues = [queue.name for queue in await self._store.queues()]
        await self._store.unpark(list(self.app._known_tasks), queues)

    async def _drain(self, *, repairs: bool = False) -> tuple[int, datetime | None]:
        """Returns how many jobs ran, and when there will be more to do."""
        await self._unpark()
        await self._worker.plan(self._now, at_once=repairs)
        allowed = self._max_extra_jobs + sum(queue.due for queue in await self._store.queues())
        ran: Counter[str] = Counter()
        while True:
            job, next_at = await self._worker.claim(self._now)
            if job is None:
                plan_at = await self._worker.next_plan(self._now)
                times = [at for at in (next_at, plan_at) if at is not None]
                return ran.total(), min(times, default=None)
            if ran.total() >= allowed:
                await self._store.release([job])
                often = ", ".join(f"{task!r} {times} times" for task, times in ran.most_common(3))
                raise EndlessWork(
                    f"{ran.total()} jobs ran while the clock stood at {self._now.isoformat()}, "
                    f"{self._max_extra_jobs} more than were due, and more are due: {often}. "
                    "A job that enqueues, snoozes or retries itself without a delay runs forever. "
                    "If this work is finite, open the world with a larger max_extra_jobs=."
                )
            ran[job.task] += 1
            await self._run(job)

    async def _run(self, job: ClaimedJob) -> Ran:
        ran = await self._worker.run(job, self._now)
        self.ran.append(ran)
        return ran

    async def _set_clock(self, moment: datetime) -> None:
        await self._store.drive_clock(moment)
        self._now = moment

    async def _on_its_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        if not self._loop.is_running():
            work.close()
            raise DuetimeError(
                "This test world was opened on another event loop. Open it inside the test: async "
                "with app.testing() as world."
            )
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def read_moment(value: datetime | str, *, name: str) -> datetime:
    """Return an aware datetime, also from ISO 8601 such as `2026-03-08T00:00Z`."""
    if not isinstance(value, str):
        return check_moment(value, name=name)
    try:
        return check_moment(datetime.fromisoformat(value), name=name)
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"{name} {value[:40]!r} is not a valid time. Write it as 2026-03-08T00:00Z."
        ) from None


def _raise_failure(ran: Ran) -> None:
    if ran.failed:
        raise ran.exception or JobFailed(ran.job_id, state=ran.outcome, error=ran.error)
