"""A worker without a loop: it claims and runs one job at a time, when the world calls it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from duetime.app import Duetime
from duetime.domain.checks import LAST_PRIORITY
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.reasons import Reason
from duetime.engine.executor import TimedOut, mark_completed
from duetime.engine.followers import Follower, Followers, WorkerView
from duetime.engine.runners import Runners, Running
from duetime.engine.worker import task_defaults
from duetime.storage.store import Lane, Store
from duetime.telemetry.job_labels import current_job

_NAME = "test world"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_LEASE = timedelta(days=36525)
"""Long enough however far the clock is moved."""
_THREADS = 64
_SECOND = 1.0
"""A follower whose next repair is within a second has more to do."""
_FAILED = (AttemptOutcome.RETRIED, AttemptOutcome.DEAD)


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that the world made."""

    job_id: int
    task: str
    args: dict[str, Any]
    attempt: int
    at: datetime
    """The time of the world's clock."""
    outcome: AttemptOutcome
    error: str | None = None
    exception: BaseException | None = None
    """What a failed attempt raised."""

    @property
    def failed(self) -> bool:
        return self.outcome in _FAILED


class SoloWorker:
    """Real claims, fences and outcomes; each handler runs in an asyncio task of its own."""

    def __init__(self, app: Duetime, store: Store) -> None:
        self._app = app
        self._store = store
        self._overran: dict[int, FinishedJob] = {}
        self._claiming = asyncio.Lock()
        self._log_started = app._events.job_started(_NAME)
        view = WorkerView(_NAME, store, app._events, app._known_tasks)
        self._followers = Followers([make(view) for make in app._followers(app.settings)])
        self._repair_at: dict[Follower, datetime] = {}
        """When each follower repairs next, by the world's clock."""

    async def open(self) -> None:
        tasks = self._app._known_tasks
        self._worker_id = await self._store.register_worker(
            name=_NAME,
            queues=self._app.settings.queues,
            tasks={name: task_defaults(task) for name, task in tasks.items()},
            concurrency=1,
            lease=_LEASE,
        )
        for follower in self._followers:
            await follower.open()
        self._runners = Runners(
            tasks,
            store=self._store,
            worker=_NAME,
            concurrency=_THREADS,
            started=self._started,
            finished=self._overrun,
            freed=lambda: None,
            too_late=lambda *_: None,
            stuck=partial(self._app._events.job_stuck, _NAME),
            hooks=self._app._hook_registry.hooks,
            clock_stands_still=True,
        )

        try:
            await self._app._hook_registry.hooks.start()
        except BaseException:
            await self._leave()
            raise

    async def close(self) -> None:
        try:
            await self._leave()
        finally:
            await self._app._hook_registry.hooks.stop()

    async def _leave(self) -> None:
        await self._runners.close()
        await self._followers.flush()
        await self._followers.close()
        await self._store.disown(self._worker_id, [])
        await self._store.remove_worker(self._worker_id)

    async def claim(self, now: datetime) -> tuple[ClaimedJob | None, datetime | None]:
        """Claim the first job that may start now, or return when the next one may."""
        queues = await self._store.queues()
        lanes = [
            Lane(queue.name, priority, _LONG_AGO)
            for priority in range(LAST_PRIORITY + 1)
            for queue in queues
            if not queue.limits.any
        ]
        sources: list[dict[str, Any]] = [{"lanes": lanes}] if lanes else []
        sources += [{"limited": [queue.name]} for queue in queues if queue.limits.any]
        times: list[datetime] = []
        while sources:
            answer = await self._store.exchange(
                self._worker_id, **sources[0], want=1, look_ahead=True
            )
            for job in answer.claimed:
                if job.task not in self._app._known_tasks:
                    await self._park(job)
                elif await self._admit(job):
                    return job, None
            if answer.claimed:
                continue
            if answer.next_run_at is not None and answer.next_run_at > now:
                times.append(answer.next_run_at)
            del sources[0]
        return None, min(times, default=None)

    async def _admit(self, job: ClaimedJob) -> bool:
        """Whether a claimed job may run, as its follower decides."""
        _, gated = self._followers.split([job])
        for follower in gated:
            gate = _Gate(self._store)
            await follower.before_start([job], time.monotonic(), gate)
            for finished in gate.skipped:
                await self._store.exchange(self._worker_id, finished=[finished], closed=[job.token])
                self._followers.finished([finished])
            await self._followers.flush()
            return gate.started
        return True

    async def plan(self, now: datetime, *, at_once: bool) -> None:
        """Run the followers' repairs and services, as a worker does, until all is done. `at_once`:
        also repairs that are not due yet, since the test may have changed something."""
        for follower in self._followers:
            if at_once or self._repair_at.get(follower, now) <= now:
                while (rest := await follower.repair()) < _SECOND:
                    pass
                self._repair_at[follower] = now + timedelta(seconds=rest)
            for service in follower.services():
                await service.work()

    async def next_plan(self, now: datetime) -> datetime | None:
        """When a follower will have something to repair, if no job is claimed before then."""
        times = [(await follower.next_repair(), follower) for follower in self._followers]
        found = [(at, follower) for at, follower in times if at is not None and at > now]
        first = min((at for at, _ in found), default=None)
        for at, follower in found:
            if at == first:
                # The next `plan`, at that time, must not leave it out.
                self._repair_at.pop(follower, None)
        return first

    async def claim_this(self, job_id: int, now: datetime) -> ClaimedJob | None:
        """Claim one particular job if it may start now; release the others."""
        aside: list[ClaimedJob] = []
        async with self._claiming:
            job, _ = await self.claim(now)
            while job is not None and job.id != job_id:
                aside.append(job)
                job, _ = await self.claim(now)
            if aside:
                await self._followers.given_back(aside)
                await self._store.release(aside)
        return job

    async def run(self, job: ClaimedJob, now: datetime) -> Ran:
        """Run the handler and record its outcome."""
        me = asyncio.current_task()
        assert me is not None
        before = me.cancelling()
        running = Running(job, self._app._known_tasks[job.task], time.monotonic())
        label = current_job.set(job)
        running.runner = asyncio.create_task(self._runners.attempt(running))
        current_job.reset(label)
        finished = await running.runner
        if job.lines is not None and finished is not None:
            finished.log = job.lines.write()
        if me.cancelling() > before:
            # The caller was cancelled, not the handler, which has ended with it.
            raise asyncio.CancelledError
        finished = finished or self._overran.pop(job.token, None)
        if finished is not None:
            # The clock did not move.
            finished.started_us = finished.finished_us = 0
        answer = await self._store.exchange(
            self._worker_id,
            finished=[finished] if finished and not finished.recorded else [],
            closed=[job.token],
        )
        outcome = self._report(finished, refused=job.id in answer.refused)
        if finished is not None:
            self._followers.finished([finished])
        # Followers also record that it started, even if it will be retried.
        await self._followers.flush()
        return Ran(
            job_id=job.id,
            task=job.task,
            args=msgspec.json.decode(job.args or await self._store.args_of(job.id)),
            attempt=job.attempt,
            at=now,
            outcome=outcome,
            error=None if finished is None else finished.message,
            exception=_exception(finished, running.value) if outcome in _FAILED else None,
        )

    def _started(self, job: ClaimedJob) -> None:
        self._log_started(job)
        self._followers.started(job)

    def _report(self, finished: FinishedJob | None, *, refused: bool) -> AttemptOutcome:
        if finished is None:
            # The handler's own transaction completed it.
            return AttemptOutcome.COMPLETED
        if refused and not finished.completed_before:
            self._app._events.claim_lost(_NAME, finished)
            return AttemptOutcome.LOST
        if refused:
            mark_completed(finished)
        self._followers.attempted([finished])
        self._app._events.jobs_finished(_NAME, [finished])
        return finished.outcome

    def _overrun(self, job: ClaimedJob, finished: FinishedJob | None) -> None:
        """A handler in a thread timed out: its outcome is known before the thread returns."""
        if finished is not None:
            self._overran[job.token] = finished

    async def _park(self, job: ClaimedJob) -> None:
        reason = Reason.of("task_unknown", worker=_NAME, tasks=[job.task])
        self._app._events.jobs_parked(_NAME, [job], reason)
        await self._store.park([job], reason)


class _Gate:
    """Records what a follower decided about one claimed job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.started = False
        self.skipped: list[FinishedJob] = []

    def start(self, jobs: Sequence[ClaimedJob]) -> Sequence[ClaimedJob]:
        self.started = self.started or bool(jobs)
        return []

    def skip(self, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason) -> None:
        self.skipped.append(FinishedJob.because(job, outcome, reason))

    async def postpone(self, jobs: Sequence[ClaimedJob]) -> None:
        await self._store.release(jobs)

    def park(self, job: ClaimedJob, reason: Reason) -> None:
        # There is no other worker, so it runs and fails because of its arguments.
        self.started = True


def _exception(finished: FinishedJob | None, value: Any) -> BaseException | None:
    if finished is not None and finished.error_code == "timed_out":
        return TimedOut(finished.error)
    return value if isinstance(value, BaseException) else None
