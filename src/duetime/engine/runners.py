"""The handlers' side of a worker: a fixed number of runners, each with one job at a time."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from duetime.domain.job import ClaimedJob, EndedAs, EndedJob
from duetime.domain.task import TaskDefinition
from duetime.engine.context import Context
from duetime.engine.executor import COMPLETED, TimedOut, end_with, run_timed
from duetime.errors import JobCancelled
from duetime.storage.store import Store

log = logging.getLogger("duetime.worker")

CANCELLED = "cancelled"
LOST = "lost to another worker"
STOPPING = "the worker is stopping"

_HOLD_SECONDS = 0.1
"""About how much work a worker may hold back from others."""
_YIELD_SECONDS = 0.001
_WATCH_SECONDS = 0.0012
"""From so long before a job is due, each turn of the event loop looks whether it is."""
_WATCH_EVERY_SECONDS = 0.02
"""Not more often: it keeps the CPU busy."""


Held = tuple[ClaimedJob, TaskDefinition, float]
"""A job that waits, its task, and when it was received."""


class Running(msgspec.Struct, eq=False):
    """A job in the hands of its handler."""

    job: ClaimedJob
    task: TaskDefinition
    runner: asyncio.Task[Any]
    reason: str | None = None
    context: Context | None = None
    in_thread: bool = False
    value: Any = None
    """What the handler returned or raised."""
    ended: float = 0.0

    @property
    def is_given_up(self) -> bool:
        """Whether its end is not for us to record."""
        committed = self.context is not None and self.context.committed
        return self.reason in (LOST, STOPPING) and not committed

    def stop(self, reason: str) -> None:
        """Ask the handler to stop: an async one is cancelled, one in a thread is told."""
        if self.reason is None:
            self.reason = reason
            if self.context is not None:
                self.context.stop(reason)
            if not self.in_thread:
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
        ended: Callable[[ClaimedJob, EndedJob | None], None],
        started: Callable[[ClaimedJob], None],
        late: Callable[[ClaimedJob, float], None],
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._worker = worker
        self._concurrency = concurrency
        self._ended = ended
        self._started = started
        self._late = late
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
        self._runners = [
            asyncio.create_task(self._run_forever(), name=f"duetime-runner-{number}")
            for number in range(concurrency)
        ]

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
        for _ in range(min(len(items) + len(limited), len(self._idle))):
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)

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

    def has(self, job: ClaimedJob) -> bool:
        """Whether the job runs here, or waits for a runner or its time."""
        waiting = any(held is job for held, _, _ in (*self._waiting, *self._early))
        return waiting or any(running.job is job for running in self.running)

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
                    error = "cancelled before it began"
                    self._ended(job, EndedJob(job, EndedAs.CANCELLED, at, at, error=error))
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
        for runner in self._runners:
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run_forever(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while not self._closing:
            if not self._waiting:
                future = self._loop.create_future()
                self._idle.append(future)
                await future
                continue
            job, task, received = self._waiting.popleft()
            if job.start_by < time.monotonic():
                self._late(job, received)
                continue
            running = Running(job, task, me)
            self.running.add(running)
            try:
                end = await self.attempt(running, received)
            finally:
                self.running.discard(running)
            if running.reason is not None:
                await _absorb_cancel(me)
            if end is not None or not running.is_given_up:
                self._ended(job, end)
            if running.ended - self._last_yield > _YIELD_SECONDS:
                # Handlers that never wait must not keep the loop from the database's answers.
                await asyncio.sleep(0)
                self._last_yield = time.monotonic()

    async def attempt(self, running: Running, received: float) -> EndedJob | None:
        """Run the handler and return the record of how it ended; None if none is due."""
        job, task = running.job, running.task
        began = running.ended = time.monotonic()
        started_us = int((began - received) * 1e6)
        if job.expires_at is not None and job.expires_at <= job.claimed_at + timedelta(
            microseconds=started_us
        ):
            error = f"it was to start before {job.expires_at.isoformat()}"
            return EndedJob(job, EndedAs.EXPIRED, started_us, started_us, error=error)
        self._started(job)
        value: Any
        try:
            kwargs = task.decode(job.args)
            if task.context_name is not None:
                running.context = kwargs[task.context_name] = Context(
                    job,
                    worker=self._worker,
                    store=self._store,
                    loop=self._loop,
                    claimed=received,
                    started_us=started_us,
                )
            seconds = None if job.timeout is None else job.timeout.total_seconds()
            if not task.is_async:
                value = await self._run_in_thread(running, task, kwargs, seconds, received)
            elif seconds is None:
                value = await task.function(**kwargs)
            else:
                value = await run_timed(task, kwargs, seconds)
        except asyncio.CancelledError as error:
            if running.reason is not None:
                value = JobCancelled(job.id, running.reason)
            elif running.runner.cancelling():
                raise
            else:
                # Of something that the handler awaited; nobody has cancelled the handler.
                value = error
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            value = error
        running.ended = time.monotonic()
        running.value = value
        self._mean_seconds += (running.ended - began - self._mean_seconds) * 0.05
        finished_us = int((running.ended - received) * 1e6)
        context = running.context
        if value is None and context is None and running.reason is None:
            # Nothing else can be said of most jobs.
            return EndedJob(job, COMPLETED, started_us, finished_us)
        if context is not None and context.committed:
            return EndedJob(job, COMPLETED, started_us, finished_us, recorded=True)
        if running.reason in (LOST, STOPPING) and isinstance(value, BaseException):
            # Lost: not ours to record. Stopping: it will be given back.
            return None
        end = end_with(
            job,
            task,
            value,
            started_us=started_us,
            finished_us=finished_us,
            random=self._random,
        )
        if context is not None and context.completed:
            end.completed_before = True
        if running.reason == CANCELLED and end.again_after is not None:
            # It failed after it was told to stop: it does not run again.
            end.ended_as = EndedAs.CANCELLED
            end.again_after = None
        return end

    async def _run_in_thread(
        self,
        running: Running,
        task: TaskDefinition,
        kwargs: dict[str, Any],
        seconds: float | None,
        received: float,
    ) -> Any:
        running.in_thread = True
        call = contextvars.copy_context().run
        future = self._loop.run_in_executor(
            self._threads, lambda: _call_in_thread(call, task, kwargs)
        )
        done, _ = await asyncio.wait([future], timeout=seconds)
        if done:
            value, error = future.result()
            if error is not None:
                raise error
            return value
        # A thread cannot be ended from outside: tell it, say so, and keep its place taken.
        late = TimedOut(f"the handler did not end within {seconds:g} s; its thread still runs")
        if running.context is not None:
            running.context.stop("out of time")
        log.warning("thread_overran", extra={"job_id": running.job.id, "task": task.name})
        started_us = 0 if running.context is None else running.context._started_us
        end = end_with(
            running.job,
            task,
            late,
            started_us=started_us,
            finished_us=int((time.monotonic() - received) * 1e6),
            random=self._random,
        )
        self._ended(running.job, end)
        running.reason = LOST
        await asyncio.wait([future])
        raise late


def _call_in_thread(
    call: Callable[..., Any], task: TaskDefinition, kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    # StopIteration and SystemExit must not travel through a future.
    try:
        return call(lambda: task.function(**kwargs)), None
    except BaseException as error:  # noqa: BLE001
        return None, error


async def _absorb_cancel(me: asyncio.Task[Any]) -> None:
    """A cancel that came when the handler had already ended must not hit the next job."""
    if me.cancelling():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        while me.cancelling():
            me.uncancel()
