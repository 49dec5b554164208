"""The handlers' side of a worker: a fixed number of runners, each with one job at a time."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any
from weakref import getweakrefcount

import msgspec

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.jobs.task import TaskDefinition
from duetime.domain.reasons import Reason
from duetime.engine.context import Context
from duetime.engine.executor import COMPLETED, FAILED, TimedOut, end_with, ignore_outcome
from duetime.engine.hooks import Hooks, call_through
from duetime.engine.stacks import stack_of_task, stack_of_thread
from duetime.errors import JobCancelled
from duetime.storage.store import Store
from duetime.telemetry.events import log_event
from duetime.telemetry.job_labels import current_job, label_records

log = logging.getLogger("duetime.worker")

CANCELLED = "cancelled"
LOST = "lost to another worker"
STOPPING = "the worker is stopping"

_HOLD_SECONDS = 0.1
"""About how much work a worker may hold back from others."""
_YIELD_SECONDS = 0.001
_WATCH_SECONDS = 0.0012
"""From so long before a job is due, each turn of the event loop checks whether it is."""
_WATCH_EVERY_SECONDS = 0.02
"""Not more often: it keeps the CPU busy."""
_STUCK_SECONDS = 5.0
"""So long after its time-out a handler that still runs is reported, and again every minute."""
_STUCK_AGAIN_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
_count: Callable[[object], object] = getattr(sys, "getrefcount", lambda _: object())


Held = tuple[ClaimedJob, TaskDefinition, float]
"""A job that waits, its task, and when it was received."""


class Running(msgspec.Struct, eq=False):
    """A job in the hands of its handler."""

    job: ClaimedJob
    task: TaskDefinition
    received: float
    runner: asyncio.Task[Any] | None = None
    """The asyncio task that the handler runs in, or that waits for its thread."""
    reason: str | None = None
    context: Context | None = None
    args: dict[str, Any] | None = None
    started_us: int = 0
    in_thread: bool = False
    thread_id: int | None = None
    timer: asyncio.TimerHandle | None = None
    """Its timeout; once that has passed, the next check whether it still runs."""
    timed_out: bool = False
    recorded: bool = False
    """It ran out of time and went on: its attempt has ended as timed out without it."""
    value: Any = None
    """What the handler returned or raised."""
    ended: float = 0.0

    @property
    def is_given_up(self) -> bool:
        """Whether its end is not for us to record."""
        committed = self.context is not None and self.context.committed
        return self.recorded or (self.reason in (LOST, STOPPING) and not committed)

    @property
    def stack(self) -> str:
        """Where the handler is."""
        if self.in_thread:
            return stack_of_thread(self.thread_id)
        return "" if self.runner is None else stack_of_task(self.runner)

    def stop(self, reason: str) -> None:
        """Stop the handler: an async one is cancelled, one in a thread sees `ctx.cancelled`."""
        if self.reason is None:
            self.reason = reason
            self.interrupt(reason)

    def interrupt(self, reason: str) -> None:
        if self.context is not None:
            self.context.stop(reason)
        if self.runner is not None and not self.in_thread:
            self.runner.cancel()


class Runners:
    """Runs what is `put`; calls `ended(job, end)` for each. `end` is None if it needs no record.

    A job whose `start_by` is over does not start: `late(job, received)`.
    """

    def __init__(
        self,
        tasks: Mapping[str, TaskDefinition],
        *,
        store: Store,
        worker: str,
        concurrency: int,
        ended: Callable[[ClaimedJob, FinishedJob | None], None],
        started: Callable[[ClaimedJob], None],
        late: Callable[[ClaimedJob, float], None],
        stuck: Callable[[ClaimedJob, str, float, str], None],
        hooks: Hooks,
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._worker = worker
        self._concurrency = concurrency
        self._ended = ended
        self._started = started
        self._late = late
        self._stuck = stuck
        self._hooks = hooks
        self._reports: set[asyncio.Task[None]] = set()
        """Failures of handlers that still run, on their way to the `on_error` hooks."""
        self._random = Random()
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="duetime-task")
        self._waiting: deque[Held] = deque()
        self._early: list[Held] = []
        """Claimed ahead of their time, which comes within milliseconds."""
        self._timer: asyncio.Handle | None = None
        self._may_watch = 0.0
        self._idle: list[asyncio.Future[None]] = []
        self._closing = False
        self._last_yield = 0.0
        self._mean_seconds = 0.05
        self.running: set[Running] = set()
        self._runners: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        label_records()
        for _ in range(concurrency):
            self._start_runner()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many more jobs could start at once."""
        return max(0, self._concurrency - self._held)

    def room(self, most: int) -> int:
        """How many more jobs may be claimed: many while handlers are fast, few while slow."""
        ahead = self._concurrency * _HOLD_SECONDS / max(self._mean_seconds, 1e-5)
        return max(0, self._concurrency + int(min(ahead, most)) - self._held)

    @property
    def _held(self) -> int:
        return len(self.running) + len(self._waiting) + len(self._early)

    def put(self, jobs: Sequence[ClaimedJob], *, received: float) -> None:
        """Run them as soon as there is a runner; what was claimed ahead, not before its time."""
        tasks = {name: self._tasks[name] for name in {job.task for job in jobs}}
        for task in tasks.values():
            if task.options.overrides_jobs:
                _override(jobs, task)
        self._line_up([(job, tasks[job.task], received) for job in jobs])

    def _line_up(self, items: list[Held]) -> None:
        now = time.monotonic()
        if early := [item for item in items if item[0].not_before > now]:
            self._early += early
            self._alarm(now)
            items = [item for item in items if item[0].not_before <= now]
        if limited := [item for item in items if item[0].limited]:
            # What waits here counts as running everywhere: it is next.
            self._waiting.extendleft(limited)
            items = [item for item in items if not item[0].limited]
        self._waiting.extend(items)
        self._wake(len(items) + len(limited))

    def _wake(self, count: int) -> None:
        while count and self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                count -= 1

    def _alarm(self, now: float) -> None:
        """Come back when the first of them is due. Event loops count in whole milliseconds, and
        come late: so a little before, to watch for it turn by turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._early:
            left = min(job.not_before for job, _, _ in self._early) - now
            watch = _WATCH_SECONDS if now >= self._may_watch else 0.0
            if left > watch:
                self._timer = self._loop.call_later(left - watch, self._put_due)
            else:
                self._timer = self._loop.call_soon(self._put_due)

    def _put_due(self) -> None:
        now = time.monotonic()
        early, self._early = self._early, []
        if any(job.not_before <= now for job, _, _ in early):
            self._may_watch = now + _WATCH_EVERY_SECONDS
        self._line_up(early)

    def take_back(self, older_than: float = -math.inf) -> list[ClaimedJob]:
        """Remove and return what waits for a runner; if asked, only longer than `older_than` s."""
        limit = time.monotonic() - older_than
        back = [job for job, _, received in (*self._waiting, *self._early) if received <= limit]
        self._waiting = deque(item for item in self._waiting if item[-1] > limit)
        self._early = [item for item in self._early if item[-1] > limit]
        if back:
            # The handlers are slower than they were: claim fewer ahead.
            self._mean_seconds = max(self._mean_seconds, older_than)
        return back

    def cancel(self, job_id: int) -> bool:
        """Stop the handler of a job whose cancellation was asked for."""
        for held in (self._waiting, self._early):
            for index, (job, _, received) in enumerate(held):
                if job.id == job_id:
                    del held[index]
                    at = int((time.monotonic() - received) * 1e6)
                    reason = Reason("cancelled_before_start")
                    end = FinishedJob.because(job, AttemptOutcome.CANCELLED, reason, at_us=at)
                    self._ended(job, end)
                    return True
        for running in self.running:
            # The thread of an earlier attempt may still run.
            if running.job.id == job_id and running.reason is None:
                running.stop(CANCELLED)
                return True
        return False

    def stop_all(self, reason: str) -> None:
        for running in list(self.running):
            running.stop(reason)

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing runs or waits, at most `seconds`; return whether that is so."""
        deadline = time.monotonic() + seconds
        while self._held:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    async def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self.stop_all(STOPPING)
        for runner in self._runners:
            runner.cancel()
        if closing := self._runners | self._reports:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        for running in self.running:
            # A handler that swallows its cancel cannot be ended; it must not keep us here.
            self._stuck(running.job, STOPPING, _CLOSE_SECONDS, running.stack)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # The runners

    def _start_runner(self) -> None:
        name = f"duetime-runner-{next(self._numbers)}"
        runner = self._loop.create_task(self._run_jobs(), name=name)
        self._runners.add(runner)
        runner.add_done_callback(self._runner_ended)

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        """There are always as many as were asked for. One that a handler has left its traces on
        has ended by itself; if another is gone, whatever it had in hand has failed."""
        self._runners.discard(runner)
        if self._closing:
            return
        self._start_runner()
        error = asyncio.CancelledError() if runner.cancelled() else runner.exception()
        in_hand = [running for running in self.running if running.runner is runner]
        if error is not None and (in_hand or not isinstance(error, asyncio.CancelledError)):
            log_event(
                log,
                logging.ERROR,
                "runner_died",
                "A runner of worker %(worker)s ended unexpectedly and was replaced.",
                worker=self._worker,
                exc_info=error,
            )
        for running in in_hand:
            self.running.discard(running)
            if not running.is_given_up:
                self._fail(running, RuntimeError(f"its runner ended: {type(error).__name__}"))

    async def _run_jobs(self) -> None:
        """Run one job after another, for as long as nothing of a handler is left on our task.

        To a handler this is a task of its own: nobody can reach the next one by it. To make one
        for every job would cost a fifth of the throughput; to check costs a hundredth.
        """
        me = asyncio.current_task()
        assert me is not None
        untouched = _traces(me)
        while not self._closing:
            if not self._waiting:
                await self._idle_wait()
                continue
            job, task, received = self._waiting.popleft()
            if job.start_by < time.monotonic():
                self._late(job, received)
                continue
            await self._run_one(Running(job, task, received, me))
            if me.cancelling() or _traces(me) != untouched:
                return
            now = time.monotonic()
            if now - self._last_yield > _YIELD_SECONDS:
                # Handlers that never wait must not keep the loop from the database's answers.
                self._last_yield = now
                await asyncio.sleep(0)

    async def _idle_wait(self) -> None:
        future = self._loop.create_future()
        self._idle.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._idle:
                self._idle.remove(future)
            raise

    async def _run_one(self, running: Running) -> None:
        self.running.add(running)
        label = current_job.set(running.job)
        end = await self.attempt(running)
        current_job.reset(label)
        self.running.discard(running)
        if end is not None or not running.is_given_up:
            self._ended(running.job, end)

    async def attempt(self, running: Running) -> FinishedJob | None:
        """Run the handler and return the record of how it ended; None if none is due.

        Whatever the handler does, returns or raises: it never raises.
        """
        job, task = running.job, running.task
        began = running.ended = time.monotonic()
        running.started_us = started_us = int((began - running.received) * 1e6)
        if job.expires_at is not None and job.expires_at <= job.claimed_at + timedelta(
            microseconds=started_us
        ):
            reason = Reason.of("expired", expires_at=job.expires_at)
            return FinishedJob.because(job, AttemptOutcome.EXPIRED, reason, at_us=started_us)
        self._started(job)
        value: Any
        raised = True
        try:
            args = job.args
            if args is None:
                args = await self._store.args_of(job.id)
            kwargs = running.args = task.decode(args)
            del args
            middleware = self._hooks.middleware
            if middleware or task.context_name is not None:
                running.context = self._make_context(running)
                if task.context_name is not None:
                    kwargs = {**kwargs, task.context_name: running.context}
            if job.timeout is not None:
                seconds = job.timeout.total_seconds()
                running.timer = self._loop.call_later(seconds, self._time_out, running)
            if middleware:
                assert running.context is not None
                call = partial(self._call_handler, running, kwargs)
                value = await call_through(middleware, running.context, call)
            elif task.is_async:
                value = await task.function(**kwargs)
            else:
                value = await self._run_in_thread(running, kwargs)
            raised = False
        except asyncio.CancelledError as error:
            if running.reason is not None:
                value = JobCancelled(job.id, running.reason)
            elif running.timed_out:
                value = _timed_out(job, "the handler was cancelled after")
                value.__cause__ = error
            else:
                # Of something that the handler awaited, or its own doing: nobody has asked for it.
                value = error
        except GeneratorExit as error:
            if asyncio.current_task(self._loop) is not running.runner:
                # Not the handler's: the loop was closed under us, and nothing may be awaited.
                raise
            value = error
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            value = error
        if running.timer is not None:
            running.timer.cancel()
        running.ended = time.monotonic()
        running.value = value
        self._mean_seconds += (running.ended - began - self._mean_seconds) * 0.05
        context = running.context
        if value is None and context is None and running.reason is None:
            # Nothing else can be said of most jobs.
            return FinishedJob(
                job, COMPLETED, started_us, int((running.ended - running.received) * 1e6)
            )
        if context is not None and context.committed:
            if running.reason is None and not running.timed_out:
                ignore_outcome(job, value)
            finished_us = int((running.ended - running.received) * 1e6)
            return FinishedJob(job, COMPLETED, started_us, finished_us, recorded=True)
        if running.recorded or (raised and running.reason in (LOST, STOPPING)):
            # Lost: not ours to record. Stopping: it will be given back.
            return None
        end = self._end_with(running, value)
        if context is not None and context.completed:
            end.completed_before = True
        if running.reason == CANCELLED and end.again_after is not None:
            # It failed after it was requested to stop: it does not run again.
            end.outcome = AttemptOutcome.CANCELLED
            end.again_after = None
        if self._hooks.error and end.outcome in FAILED:
            await self._report_failure(running, value, end)
        return end

    async def _call_handler(self, running: Running, kwargs: dict[str, Any]) -> Any:
        if running.task.is_async:
            return await running.task.function(**kwargs)
        return await self._run_in_thread(running, kwargs)

    def _make_context(self, running: Running) -> Context:
        return Context(
            running.job,
            worker=self._worker,
            store=self._store,
            loop=self._loop,
            claimed=running.received,
            started_us=running.started_us,
            args=running.args or {},
        )

    async def _report_failure(
        self, running: Running, error: BaseException, end: FinishedJob
    ) -> None:
        if running.context is None:
            running.context = self._make_context(running)
        will_retry = end.again_after is not None
        await self._hooks.failed(running.context, error, will_retry=will_retry)

    def _fail(self, running: Running, error: BaseException) -> None:
        """Record that an attempt failed without its handler's doing."""
        end = self._end_with(running, error)
        if self._hooks.error and end.outcome in FAILED:
            report = self._loop.create_task(self._report_failure(running, error, end))
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)
        self._ended(running.job, end)

    def _end_with(self, running: Running, value: Any) -> FinishedJob:
        return end_with(
            running.job,
            running.task,
            value,
            started_us=running.started_us,
            finished_us=int((time.monotonic() - running.received) * 1e6),
            random=self._random,
        )

    async def _run_in_thread(self, running: Running, kwargs: dict[str, Any]) -> Any:
        running.in_thread = True
        call = contextvars.copy_context().run
        future = self._loop.run_in_executor(
            self._threads, lambda: _call_in_thread(call, running, kwargs)
        )
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if self._closing:
                    raise
                # By a stranger, and a thread cannot be cancelled: it still runs.
                log_event(
                    log,
                    logging.WARNING,
                    "cancel_ignored",
                    "Job %(job_id)s runs in a thread: the cancellation of its task has no effect.",
                    job_id=running.job.id,
                )
        # Whatever is still to be awaited, such as middleware, can be cancelled again.
        running.in_thread = False
        value, error = future.result()
        if error is not None:
            raise error
        return value

    # Time-outs

    def _time_out(self, running: Running) -> None:
        running.timed_out = True
        running.timer = self._loop.call_later(_STUCK_SECONDS, self._still_runs, running)
        running.interrupt("out of time")
        if running.in_thread:
            # It cannot be ended from outside. Its place stays taken until it ends.
            self._end_without(running, "its thread still runs")

    def _still_runs(self, running: Running) -> None:
        """It ignores its time-out: say so, and let the job go on without it."""
        running.timer = self._loop.call_later(_STUCK_AGAIN_SECONDS, self._still_runs, running)
        seconds = time.monotonic() - running.received - running.started_us / 1e6
        self._stuck(running.job, "out of time", seconds, running.stack)
        self._end_without(running, "it ignored its cancellation and still runs")

    def _end_without(self, running: Running, why: str) -> None:
        if not running.is_given_up:
            late = _timed_out(running.job, "the handler did not finish within", f"; {why}")
            running.recorded = True
            self._fail(running, late)


def _timed_out(job: ClaimedJob, what: str, why: str = "") -> TimedOut:
    seconds = 0.0 if job.timeout is None else job.timeout.total_seconds()
    return TimedOut(f"{what} {seconds:g} s{why}")


def _traces(task: asyncio.Task[Any]) -> tuple[object, ...]:
    """What changes if somebody keeps the task, or a weak reference to it, or sets a variable in
    its context. (No count, on a Python that does not count: then it is never the same.)"""
    return _count(task), getweakrefcount(task), contextvars.copy_context()


def _override(jobs: Sequence[ClaimedJob], task: TaskDefinition) -> None:
    for job in jobs:
        if job.task == task.name:
            job.max_attempts = task.options.max_attempts
            job.timeout = task.options.timeout


def _call_in_thread(
    call: Callable[..., Any], running: Running, kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    # StopIteration and SystemExit must not travel through a future.
    running.thread_id = threading.get_ident()
    try:
        return call(lambda: running.task.function(**kwargs)), None
    except BaseException as error:  # noqa: BLE001
        return None, error
