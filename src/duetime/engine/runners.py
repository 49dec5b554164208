"""Runs the handlers of a worker: a fixed number of runners, each with one job at a time."""

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
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import getweakrefcount

import msgspec

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.jobs.log_lines import DEFAULT_LOG_LINES, LogLines
from duetime.domain.jobs.outcome import Snooze
from duetime.domain.jobs.task import TaskDefinition
from duetime.domain.reasons import Reason
from duetime.engine.context import CANCELLED, Claimant, Context, no_claimant
from duetime.engine.executor import (
    COMPLETED,
    FAILED,
    TimedOut,
    make_finished_job,
    warn_of_ignored_outcome,
)
from duetime.engine.hooks import Hooks, call_through
from duetime.engine.stacks import stack_of_task, stack_of_thread
from duetime.engine.threads import catch
from duetime.errors import JobCancelled
from duetime.storage.store import Store
from duetime.telemetry.events import log_event
from duetime.telemetry.job_labels import current_job, label_records
from duetime.telemetry.traces import find_tracer, trace_attempt

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger("duetime.worker")

LOST = "lost to another worker"
STOPPING = "the worker is stopping"

_PREFETCH_SECONDS = 0.1
"""About how much work a worker claims ahead of its handlers."""
_SOON_SECONDS = 0.02
"""Of jobs that fall due at the same moment, a worker takes so many that the last one waits about
so long for the others."""
_MAX_SOON = 4.0
"""At most this many for each runner, unless handlers are quick."""
_START_SECONDS = 4e-5
"""About how long the worker itself needs for a job."""
_YIELD_SECONDS = 0.001
_SPIN_SECONDS = 0.0012
"""Shortly before a job is due, each iteration of the event loop checks whether it is."""
_SPIN_EVERY_SECONDS = 0.02
"""Not more often than this, since it keeps the CPU busy."""
_STUCK_SECONDS = 5.0
"""A handler that still runs this long after its timeout is reported, and again every minute."""
_STUCK_AGAIN_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
_reference_count: Callable[[object], object] = getattr(sys, "getrefcount", lambda _: object())


Waiting = tuple[ClaimedJob, TaskDefinition, float]
"""A job that waits for a runner, its task, and when it was received."""


class Running(msgspec.Struct, eq=False):
    """A job whose handler runs."""

    job: ClaimedJob
    task: TaskDefinition
    received: float
    runner: asyncio.Task[Any] | None = None
    """The asyncio task that the handler runs in, or that waits for its thread."""
    reason: str | None = None
    """Why it was stopped."""
    context: Context | None = None
    args: dict[str, Any] | None = None
    started_us: int = 0
    in_thread: bool = False
    thread_id: int | None = None
    timer: asyncio.TimerHandle | None = None
    """Its timeout; once that has passed, the next check whether it still runs."""
    timed_out: bool = False
    recorded: bool = False
    """It still runs after its timeout, and the attempt was recorded as timed out."""
    value: Any = None
    """What the handler returned or raised."""

    @property
    def is_abandoned(self) -> bool:
        """Whether its outcome does not count any more."""
        committed = self.context is not None and (self.context.committed or self.context.suspended)
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
    """Runs the jobs that are `put`, and calls `finished(job, record)` for each. `record` is None if
    nothing is to be recorded. A handler that returns only after its job was recorded or lost has
    occupied its runner until then: `freed()` is called.

    A job whose `start_by` has passed is not started: `too_late(job, received)` is called.
    """

    def __init__(
        self,
        tasks: Mapping[str, TaskDefinition],
        *,
        store: Store,
        worker: str,
        concurrency: int,
        started: Callable[[ClaimedJob], None],
        finished: Callable[[ClaimedJob, FinishedJob | None], None],
        freed: Callable[[], None],
        too_late: Callable[[ClaimedJob, float], None],
        stuck: Callable[[ClaimedJob, str, float, str], None],
        hooks: Hooks,
        holds_lease: Callable[[], bool] = lambda: True,
        hand_over: Callable[[int], AbstractAsyncContextManager[Claimant | None]] = no_claimant,
        log_lines: int = DEFAULT_LOG_LINES,
        clock_stands_still: bool = False,
    ) -> None:
        self._log_lines = log_lines
        self._clock_stands_still = clock_stands_still
        """For tests: by the clock of the database, handlers take no time."""
        self._tasks = tasks
        self._store = store
        self._worker = worker
        self._concurrency = concurrency
        self._started = started
        self._finished = finished
        self._freed = freed
        self._too_late = too_late
        self._stuck = stuck
        self._hooks = hooks
        self._holds_lease = holds_lease
        self._hand_over = hand_over
        self._reports: set[asyncio.Task[None]] = set()
        """Calls of `on_error` hooks for handlers that still run."""
        self._random = Random()
        self._tracer: Tracer | None = None
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="duetime-task")
        self.waiting: deque[Waiting] = deque()
        self._early: list[Waiting] = []
        """Jobs that fall due within milliseconds."""
        self._timer: asyncio.Handle | None = None
        self._may_spin_at = 0.0
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

    # Claimed jobs

    @property
    def free(self) -> int:
        """How many more jobs could start at once."""
        return max(0, self._concurrency - self._held)

    @property
    def soon(self) -> int:
        """How many more jobs could start within milliseconds: several on each runner while handlers
        are fast, and hundreds while they are so quick that they could run one after another."""
        each = min(_MAX_SOON, _SOON_SECONDS / max(self._mean_seconds, 1e-5))
        quick = _SOON_SECONDS / (self._mean_seconds + _START_SECONDS)
        return max(0, int(max(self._concurrency * max(1.0, each), quick)) - self._held)

    def room(self, max_prefetch: int) -> int:
        """How many more jobs may be claimed: many while handlers are fast, few while slow."""
        prefetch = self._concurrency * _PREFETCH_SECONDS / max(self._mean_seconds, 1e-5)
        return max(0, self._concurrency + int(min(prefetch, max_prefetch)) - self._held)

    @property
    def _held(self) -> int:
        return len(self.running) + len(self.waiting) + len(self._early)

    @property
    def occupied(self) -> int:
        """How many runners are not expected to be free soon: each has run the same job for longer
        than is claimed ahead. Jobs of limited queues are left out, unless they were abandoned."""
        before = time.monotonic() - _PREFETCH_SECONDS
        return sum(
            (not running.job.limited or running.is_abandoned)
            and running.received + running.started_us / 1e6 < before
            for running in self.running
        )

    def put(self, jobs: Sequence[ClaimedJob], *, received: float) -> None:
        """Run jobs as soon as a runner is free, those claimed early not before they are due."""
        tasks = {name: self._tasks[name] for name in {job.task for job in jobs}}
        # Asked often, since a startup hook may set it up.
        self._tracer = find_tracer()
        for task in tasks.values():
            if task.options.overrides_jobs:
                _override_options(jobs, task)
        self._queue([(job, tasks[job.task], received) for job in jobs])

    def _queue(self, items: list[Waiting]) -> None:
        now = time.monotonic()
        if early := [item for item in items if item[0].not_before > now]:
            self._early += early
            self._set_timer(now)
            items = [item for item in items if item[0].not_before <= now]
        if limited := [item for item in items if item[0].limited]:
            # They come first: while they wait here, other workers count them as running. Those
            # that already wait were claimed before them, and stay before them.
            place = sum(job.limited for job, _, _ in self.waiting)
            for index, item in enumerate(limited, place):
                self.waiting.insert(index, item)
            items = [item for item in items if not item[0].limited]
        self.waiting.extend(items)
        self._wake_runners(len(items) + len(limited))

    def _wake_runners(self, count: int) -> None:
        while count and self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                count -= 1

    def _set_timer(self, now: float) -> None:
        """Continue when the first early job is due.

        Timers of event loops have a resolution of a millisecond and fire late. So this one fires a
        little before, and then each iteration of the loop checks the time.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._early:
            left = min(job.not_before for job, _, _ in self._early) - now
            spin = _SPIN_SECONDS if now >= self._may_spin_at else 0.0
            if left > spin:
                self._timer = self._loop.call_later(left - spin, self._queue_due)
            else:
                self._timer = self._loop.call_soon(self._queue_due)

    def _queue_due(self) -> None:
        now = time.monotonic()
        early, self._early = self._early, []
        if any(job.not_before <= now for job, _, _ in early):
            self._may_spin_at = now + _SPIN_EVERY_SECONDS
        self._queue(early)

    def take_back(self, older_than: float = -math.inf) -> list[ClaimedJob]:
        """Remove and return the jobs that wait for a runner, or have for `older_than` seconds."""
        limit = time.monotonic() - older_than
        back = [job for job, _, received in (*self.waiting, *self._early) if received <= limit]
        self.waiting = deque(item for item in self.waiting if item[-1] > limit)
        self._early = [item for item in self._early if item[-1] > limit]
        if back:
            # The handlers are slower than before: claim fewer jobs ahead.
            self._mean_seconds = max(self._mean_seconds, older_than)
        return back

    # Stopping

    def cancel(self, job_id: int) -> bool:
        """Stop a job whose cancellation was requested. Returns whether it is here."""
        for held in (self.waiting, self._early):
            for index, (job, _, received) in enumerate(held):
                if job.id == job_id:
                    del held[index]
                    at = int((time.monotonic() - received) * 1e6)
                    reason = Reason("cancelled_before_start")
                    record = FinishedJob.because(job, AttemptOutcome.CANCELLED, reason, at_us=at)
                    self._finished(job, record)
                    return True
        for running in self.running:
            # An earlier attempt may still run, although it was lost or has timed out.
            if running.job.id == job_id and running.reason is None and not running.is_abandoned:
                running.stop(CANCELLED)
                return True
        return False

    def stop_all(self, reason: str) -> None:
        for running in list(self.running):
            running.stop(reason)

    async def drained(self, seconds: float) -> bool:
        """Wait up to `seconds` until no job runs or waits; return whether that is so."""
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
            # A handler that ignores its cancellation cannot be stopped. Do not wait for it.
            self._stuck(running.job, STOPPING, _CLOSE_SECONDS, running.stack)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Runners

    def _start_runner(self) -> None:
        name = f"duetime-runner-{next(self._numbers)}"
        runner = self._loop.create_task(self._run_jobs(), name=name)
        self._runners.add(runner)
        runner.add_done_callback(self._runner_stopped)

    def _runner_stopped(self, runner: asyncio.Task[None]) -> None:
        """Replace a runner. It has stopped by itself if a handler kept a reference to its task. If
        it stopped for any other reason, the job that it was running has failed."""
        self._runners.discard(runner)
        if self._closing:
            return
        self._start_runner()
        error = asyncio.CancelledError() if runner.cancelled() else runner.exception()
        unfinished = [running for running in self.running if running.runner is runner]
        if error is not None and (unfinished or not isinstance(error, asyncio.CancelledError)):
            log_event(
                log,
                logging.ERROR,
                "runner_died",
                "A runner of worker %(worker)s stopped unexpectedly and was replaced.",
                worker=self._worker,
                exc_info=error,
            )
        for running in unfinished:
            self.running.discard(running)
            if running.is_abandoned:
                self._freed()
            else:
                self._fail(running, RuntimeError(f"its runner stopped: {type(error).__name__}"))

    async def _run_jobs(self) -> None:
        """Run one job after another, as long as no handler keeps a reference to this task.

        A handler sees a task of its own: nothing that it does to it may reach the next job. A new
        task for each job would cost a fifth of the throughput; this check costs a hundredth.
        """
        me = asyncio.current_task()
        assert me is not None
        untouched = _traces_on(me)
        while not self._closing:
            if not self.waiting:
                await self._wait_for_job()
                continue
            job, task, received = self.waiting.popleft()
            if job.start_by < time.monotonic():
                self._too_late(job, received)
                continue
            await self._run_job(Running(job, task, received, me))
            if me.cancelling() or _traces_on(me) != untouched:
                return
            now = time.monotonic()
            if now - self._last_yield > _YIELD_SECONDS:
                # Handlers that never wait must not keep the event loop from everything else.
                self._last_yield = now
                await asyncio.sleep(0)

    async def _wait_for_job(self) -> None:
        future = self._loop.create_future()
        self._idle.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._idle:
                self._idle.remove(future)
            raise

    async def _run_job(self, running: Running) -> None:
        job = running.job
        self.running.add(running)
        if self._log_lines != DEFAULT_LOG_LINES:
            job.lines = LogLines(self._log_lines)
        label = current_job.set(job)
        record = await (
            self.attempt(running) if self._tracer is None else self._traced_attempt(running)
        )
        current_job.reset(label)
        self.running.discard(running)
        if job.lines is not None and record is not None:
            record.log = job.lines.write()
        if record is not None or not running.is_abandoned:
            self._finished(job, record)
        else:
            self._freed()

    async def _traced_attempt(self, running: Running) -> FinishedJob | None:
        assert self._tracer is not None
        with trace_attempt(self._tracer, running.job, self._worker) as span:
            record = await self.attempt(running)
            span.ended(record)
        return record

    # One attempt

    async def attempt(self, running: Running) -> FinishedJob | None:
        """Run the handler and return the record of its outcome, None if there is none to record.

        Never raises, whatever the handler does, returns or raises.
        """
        job = running.job
        started_at = time.monotonic()
        running.started_us = started_us = int((started_at - running.received) * 1e6)
        if job.expires_at is not None and job.expires_at <= job.claimed_at + timedelta(
            microseconds=started_us
        ):
            reason = Reason.of("expired", expires_at=job.expires_at)
            return FinishedJob.because(job, AttemptOutcome.EXPIRED, reason, at_us=started_us)
        self._started(job)
        value: Any
        raised = True
        try:
            value = await self._call_handler(running)
            raised = False
        except asyncio.CancelledError as error:
            if running.reason is not None:
                value = JobCancelled(job.id, running.reason)
            elif running.timed_out:
                value = _timed_out(job, "the handler was cancelled after")
                value.__cause__ = error
            else:
                # Something that the handler awaited was cancelled, or the handler raised it.
                value = error
        except GeneratorExit as error:
            if asyncio.current_task(self._loop) is not running.runner:
                # Not from the handler: the event loop was closed, and nothing may be awaited.
                raise
            value = error
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            value = error
        if running.timer is not None:
            running.timer.cancel()
        running.value = value
        finished_at = time.monotonic()
        self._mean_seconds += (finished_at - started_at - self._mean_seconds) * 0.05
        finished_us = int((finished_at - running.received) * 1e6)
        if value is None and running.context is None and running.reason is None:
            # The fast path of most jobs.
            return FinishedJob(job, COMPLETED, started_us, finished_us)
        return await self._record_outcome(running, value, raised=raised, finished_us=finished_us)

    async def _call_handler(self, running: Running) -> Any:
        """Decode the arguments, start the timeout, and call the handler through the middleware."""
        job, task = running.job, running.task
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
        call = task.function if task.is_async else partial(self._run_in_thread, running)
        if middleware:
            assert running.context is not None
            return await call_through(middleware, running.context, partial(call, **kwargs))
        return await call(**kwargs)

    async def _run_in_thread(self, running: Running, /, **kwargs: Any) -> Any:
        running.in_thread = True
        run = contextvars.copy_context().run
        future = self._loop.run_in_executor(self._threads, _call_in_thread, run, running, kwargs)
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if self._closing:
                    raise
                # Somebody else cancelled this task. A thread cannot be cancelled: it still runs.
                log_event(
                    log,
                    logging.WARNING,
                    "cancel_ignored",
                    "Job %(job_id)s runs in a thread: the cancellation of its task has no effect.",
                    job_id=running.job.id,
                )
        # Whatever is still awaited, such as middleware, can be cancelled again.
        running.in_thread = False
        value, error = future.result()
        if error is not None:
            raise error
        return value

    def _make_context(self, running: Running) -> Context:
        return Context(
            running.job,
            worker=self._worker,
            store=self._store,
            loop=self._loop,
            claimed=None if self._clock_stands_still else running.received,
            started_us=0 if self._clock_stands_still else running.started_us,
            args=running.args or {},
            holds_lease=self._holds_lease,
            hand_over=self._hand_over,
        )

    async def _record_outcome(
        self, running: Running, value: Any, *, raised: bool, finished_us: int
    ) -> FinishedJob | None:
        job, context = running.job, running.context
        if context is not None and context.suspended:
            if isinstance(value, Snooze):
                record = self._make_record(running, value)
                record.recorded, record.closed = True, context.closed
                return record
            again, outcome = timedelta(0), AttemptOutcome.SNOOZED
            return FinishedJob(
                job,
                outcome,
                running.started_us,
                finished_us,
                again,
                recorded=True,
                closed=context.closed,
            )
        if context is not None and context.committed:
            if running.reason is None and not running.timed_out:
                warn_of_ignored_outcome(job, value)
            return FinishedJob(
                job,
                COMPLETED,
                running.started_us,
                finished_us,
                recorded=True,
                closed=context.closed,
            )
        if running.recorded or (raised and running.reason in (LOST, STOPPING)):
            # Lost: another worker records it. Stopping: it will be given back.
            return None
        record = self._make_record(running, value)
        if context is not None and context.completed:
            record.completed_before = True
        if running.reason == CANCELLED and record.again_after is not None:
            # It failed after its cancellation was requested: it is not retried.
            record.outcome = AttemptOutcome.CANCELLED
            record.again_after = None
        if self._hooks.error and record.outcome in FAILED:
            await self._call_error_hooks(running, value, record)
        return record

    def _make_record(self, running: Running, value: Any) -> FinishedJob:
        return make_finished_job(
            running.job,
            running.task,
            value,
            started_us=running.started_us,
            finished_us=int((time.monotonic() - running.received) * 1e6),
            random=self._random,
        )

    async def _call_error_hooks(
        self, running: Running, error: BaseException, record: FinishedJob
    ) -> None:
        if running.context is None:
            running.context = self._make_context(running)
        will_retry = record.again_after is not None
        await self._hooks.failed(running.context, error, will_retry=will_retry)

    def _fail(self, running: Running, error: BaseException) -> None:
        """Record that an attempt failed, whatever its handler still does."""
        record = self._make_record(running, error)
        if self._hooks.error and record.outcome in FAILED:
            report = self._loop.create_task(self._call_error_hooks(running, error, record))
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)
        if running.job.lines is not None:
            record.log = running.job.lines.write()
        self._finished(running.job, record)

    # Timeouts

    def _time_out(self, running: Running) -> None:
        running.timed_out = True
        running.timer = self._loop.call_later(_STUCK_SECONDS, self._still_runs, running)
        running.interrupt("out of time")
        if running.in_thread:
            # A thread cannot be stopped from outside. It occupies its runner until it returns.
            self._fail_as_timed_out(running, "its thread still runs")

    def _still_runs(self, running: Running) -> None:
        """The handler ignores its timeout: log that, and record the attempt without it."""
        running.timer = self._loop.call_later(_STUCK_AGAIN_SECONDS, self._still_runs, running)
        seconds = time.monotonic() - running.received - running.started_us / 1e6
        self._stuck(running.job, "out of time", seconds, running.stack)
        self._fail_as_timed_out(running, "it ignored its cancellation and still runs")

    def _fail_as_timed_out(self, running: Running, why: str) -> None:
        if not running.is_abandoned:
            error = _timed_out(running.job, "the handler did not finish within", f"; {why}")
            running.recorded = True
            self._fail(running, error)


def _timed_out(job: ClaimedJob, what: str, why: str = "") -> TimedOut:
    seconds = 0.0 if job.timeout is None else job.timeout.total_seconds()
    return TimedOut(f"{what} {seconds:g} s{why}")


def _traces_on(task: asyncio.Task[Any]) -> tuple[object, ...]:
    """Return what changes if somebody keeps a reference to the task, a weak one included, or sets a
    variable in its context. On a Python without reference counts, it changes with every call."""
    return _reference_count(task), getweakrefcount(task), contextvars.copy_context()


def _override_options(jobs: Sequence[ClaimedJob], task: TaskDefinition) -> None:
    for job in jobs:
        if job.task == task.name:
            job.max_attempts = task.options.max_attempts
            job.timeout = task.options.timeout


def _call_in_thread(
    run: Callable[..., Any], running: Running, kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    running.thread_id = threading.get_ident()
    return catch(run, partial(running.task.function, **kwargs))
