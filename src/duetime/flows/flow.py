"""What a flow's function is given: it replays what is recorded, and records what is new."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec
from msgspec.structs import replace

from duetime.domain.checks import check_name, check_queue
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.flows.flow import (
    LoadedRun,
    NewRecord,
    StepKind,
    StepRecord,
    StepState,
    step_key,
)
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.outcome import Discard, Outcome, Retry, Snooze
from duetime.domain.jobs.retry import RetryPolicy, check_max_attempts
from duetime.domain.jobs.task import TaskDefinition
from duetime.engine.context import Context
from duetime.engine.executor import code_of_error, describe_exception, write_json
from duetime.errors import (
    ClaimLost,
    FlowChanged,
    InvalidInput,
    SignalTimeout,
    StepFailed,
    TransientError,
)
from duetime.flows.calls import Step, StepFunction, step_function
from duetime.flows.recorder import Recorder
from duetime.telemetry.events import log_event

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

log = logging.getLogger("duetime.flows")

COMPLETED = StepState.COMPLETED.value
WAITING = StepState.WAITING.value
RETRYING = StepState.RETRYING.value
FAILED = StepState.FAILED.value
SKIPPED = StepState.SKIPPED.value
REGISTERED = StepState.REGISTERED.value
_OVER = frozenset({COMPLETED, FAILED, SKIPPED})
_IN_PLACE = timedelta(seconds=1)
"""A retry that is due so soon is waited for; else the run is suspended."""
_TURNS = 3
"""A run is suspended when it did nothing for so many turns of the event loop: what `gather` has
just made needs one to start."""
_MAX_CONCURRENCY = 100
_BRANCH_CALLS = 1_000_000
"""Calls in branches are numbered from here, in the order in which they were first made."""
_TIMED_OUT = "timed_out"
_NO_DEFAULT: Any = object()
_random = random.Random()
"""One for all runs: to seed one costs 17 µs."""

Policy = tuple[RetryPolicy, tuple[type[BaseException], ...]]


class Startable(Protocol[P, R_co]):
    """A flow, as `child` takes it."""

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob: ...

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> SupportsResult[R_co]: ...


class SupportsResult(Protocol[R_co]):
    """A run of a flow: it has a result."""

    async def result(self, timeout: Duration = ...) -> R_co: ...


class Suspended(BaseException):
    """Unwinds a flow's function: it waits for something that has not happened yet."""


class Replayed(BaseException):
    """Unwinds a flow's function that only replays: nothing more is recorded."""


class Compensation(NamedTuple):
    """What undoes something, if the run fails."""

    seq: int
    called: StepFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _Branch:
    """An asyncio task that makes calls of a flow, one after the other.

    How fast branches get on differs from one activation to the next, so each counts its own calls.
    """

    __slots__ = ("branches", "calls", "flow", "path", "task")

    def __init__(self, flow: Flow, path: str, task: asyncio.Task[Any] | None) -> None:
        self.flow = flow
        self.path = path
        """Empty for the function itself; else a number for each level: `2`, `2.1`."""
        self.task = task
        self.calls = 0
        self.branches = 0

    def fork(self) -> _Branch:
        self.branches += 1
        return _Branch(self.flow, f"{self.path}.{self.branches}".lstrip("."), None)


_current: ContextVar[_Branch | None] = ContextVar("duetime_flow_branch", default=None)


class Flow:
    """A run of a flow, seen from its function.

    What a call returns is recorded: when the function runs again, after a crash or a wait, the call
    returns the same without doing anything. So whatever has an effect, or could turn out otherwise,
    must be a call of the flow.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        recorder: Recorder,
        loaded: LoadedRun,
        policy: Policy,
        run_id: int | None = None,
    ) -> None:
        self._ctx = ctx
        self._run_id = ctx.id if run_id is None else run_id
        self._replays = run_id is not None
        """The run has ended: it only replays, for its compensations."""
        self._compensations: list[Compensation] = []
        self._recorder = recorder
        self._records = loaded.steps
        self._signals = loaded.signals
        self._policy = policy
        self._main = _Branch(self, "", asyncio.current_task())
        self._called: set[int] = set()
        self._places = {
            record.place: seq for seq, record in self._records.items() if record.place is not None
        }
        """The numbers of calls in branches, by where they are made."""
        self._place_of = {seq: place for place, seq in self._places.items()}
        self._last_in_branches = max(self._place_of, default=_BRANCH_CALLS)
        self._active = 0
        self._moves = 0
        """Counts the calls and branches that began: whether the function gets on."""
        self._blocked: list[asyncio.Future[None]] = []
        self._suspending = False
        self._waits: list[int] = []
        """The calls that wait, of which none can go on."""
        self._unrecorded: dict[int, NewRecord] = {}
        """What is to be written with the next record, by its number."""
        failed = self._records.get(0)
        self._failures = 0 if failed is None else failed.attempt
        if failed is not None and failed.state == RETRYING:
            # Its pause is over.
            self._later(self._new(0, "error", failed.name, COMPLETED, None, failed.attempt))

    @property
    def id(self) -> int:
        """The run, which is a job, too."""
        return self._run_id

    @property
    def key(self) -> str:
        """The run's idempotency key, to hand to whom you call. The same in every attempt."""
        return self._ctx.key

    # Steps

    # The first that fits counts: with `on=` the arguments are not checked.
    @overload
    def step(
        self, function: Callable[..., Awaitable[R]], /, *args: Any, on: str, **kwargs: Any
    ) -> Awaitable[R]: ...
    @overload
    def step(
        self, function: Callable[..., R], /, *args: Any, on: str, **kwargs: Any
    ) -> Awaitable[R]: ...
    @overload
    def step(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def step(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...

    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call a function or a task, once: what it returns is stored, and it never runs again.

        After a crash in between it may run twice. It is retried as its task says, else as the flow
        does; then `StepFailed` is raised. `on`: run a task as a job of its own, in this queue.
        """
        if "on" in kwargs:
            queue = check_queue(kwargs.pop("on"))
            task = _task(function, "step(…, on=)")
            job = self._new_job(task, args, kwargs, queue=queue)
            return self._jobs([(*self._call("job", task.definition.name), job)], task, one=True)
        called = step_function(function)
        return self._step(called, *self._call("step", _name(called)), args, kwargs)

    @overload
    def map(
        self,
        function: Callable[[A], Awaitable[R]],
        items: Iterable[A],
        *,
        concurrency: int = _MAX_CONCURRENCY,
        on: str | None = None,
    ) -> Awaitable[list[R]]: ...
    @overload
    def map(
        self,
        function: Callable[[A], R],
        items: Iterable[A],
        *,
        concurrency: int = _MAX_CONCURRENCY,
        on: str | None = None,
    ) -> Awaitable[list[R]]: ...

    def map(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        concurrency: int = _MAX_CONCURRENCY,
        on: str | None = None,
    ) -> Awaitable[list[Any]]:
        """Call a function for each item, a step each, and return the results in their order.

        `concurrency`: how many run at a time. `on`: run each as a job of its own, in this queue,
        whose limits then say how many run at a time.
        """
        check_max_attempts(concurrency, name="concurrency")
        if on is not None:
            task, queue = _task(function, "map(…, on=)"), check_queue(on)
            made = [self._new_job(task, (item,), {}, queue=queue) for item in items]
            name = task.definition.name
            return self._jobs([(*self._call("job", name), job) for job in made], task, one=False)
        called = step_function(function)
        name = _name(called)
        calls = [(*self._call("step", name), item) for item in items]
        return self._map(called, calls, concurrency)

    def child(self, flow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Run another flow, and wait for what it returns. `StepFailed` is raised if it fails; if
        this run fails or is cancelled meanwhile, so is the child."""
        task = _task(flow, "child()")
        if not isinstance(task.definition.name, str) or not getattr(task, "is_flow", False):
            raise InvalidInput(f"child() takes a flow, got {flow!r:.100}. Use step() for a task.")
        job = self._new_job(task, args, kwargs)
        return self._jobs([(*self._call("child", task.definition.name), job)], task, one=True)

    async def transaction(
        self,
        function: Callable[Concatenate[Any, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function with a connection, as a step whose own writes and whose record are one
        commit: exactly once. `await flow.transaction(reserve, order_id)`, where
        `async def reserve(connection, order_id)`."""
        called = step_function(function)
        name = _name(called)
        seq, record = self._call("transaction", name)
        return cast("R", await self._transaction(called, name, seq, record, args, kwargs))

    def on_failure(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register what undoes the step before: it runs if the flow fails or is cancelled, in
        reverse order, and is retried as a step is."""
        if self._suspending:
            raise Suspended
        called = step_function(function)
        name, seq = _name(called), -len(self._compensations) - 1
        record = self._records.get(seq)
        if record is not None and record.name != name:
            recorded, now = f"compensation {record.name!r}", f"on_failure {name!r}"
            raise FlowChanged(self.id, seq=seq, recorded=recorded, called=now)
        self._compensations.append(Compensation(seq, called, args, kwargs))
        if record is None and not self._replays:
            self._later(self._new(seq, "compensation", name, REGISTERED))

    @overload
    def gather(self, one: Awaitable[A], /) -> Awaitable[tuple[A]]: ...
    @overload
    def gather(self, one: Awaitable[A], two: Awaitable[B], /) -> Awaitable[tuple[A, B]]: ...
    @overload
    def gather(
        self, one: Awaitable[A], two: Awaitable[B], three: Awaitable[C], /
    ) -> Awaitable[tuple[A, B, C]]: ...
    @overload
    def gather(
        self, one: Awaitable[A], two: Awaitable[B], three: Awaitable[C], four: Awaitable[D], /
    ) -> Awaitable[tuple[A, B, C, D]]: ...
    @overload
    def gather(self, *calls: Awaitable[A]) -> Awaitable[tuple[A, ...]]: ...

    def gather(self, *calls: Awaitable[Any]) -> Awaitable[Any]:
        """Wait for several calls, side by side. All end before the first error is raised.

        Coroutines that make several calls of the flow are branches, which run side by side too.
        """
        here = self._branch()
        return _gather([_in_branch(here.fork(), call) for call in calls])

    # Waits

    def sleep(self, duration: Duration) -> Awaitable[None]:
        """Wait, for seconds or months. No worker is held meanwhile."""
        wait = parse_duration(duration, name="duration")
        return self._sleep(*self._call("sleep", "sleep"), wait)

    @overload
    def wait_for(
        self, name: str, *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Awaitable[Any]: ...
    @overload
    def wait_for(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        default: T,
        correlation: str | None = None,
    ) -> Awaitable[T]: ...

    def wait_for(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        default: Any = _NO_DEFAULT,
        correlation: str | None = None,
    ) -> Awaitable[Any]:
        """Wait for a signal and return its data. One that was sent before is taken at once; several
        of one name are taken in the order in which they were sent.

        After `timeout` it returns `default`, or raises `SignalTimeout`. `correlation`: whoever
        signals can name this in place of the run.
        """
        check_name(name, what="signal's name")
        if correlation is not None:
            check_name(correlation, what="correlation")
        if timeout is None and default is not _NO_DEFAULT:
            raise InvalidInput("wait_for: default= requires timeout=.")
        wait = None if timeout is None else parse_positive_duration(timeout, name="timeout")
        return self._wait_for(*self._call("signal", name), name, wait, default, correlation)

    # Recorded values

    async def now(self) -> datetime:
        """The time, recorded: the same whenever the function runs again."""
        claimed = self._ctx.job.claimed_at
        return await self._value(
            "now", lambda: claimed + timedelta(microseconds=self._ctx.elapsed_us), datetime
        )

    async def random(self) -> float:
        """A random number from 0 to 1, recorded."""
        return await self._value("random", _random.random, float)

    async def uuid(self) -> uuid.UUID:
        """A random UUID, recorded."""
        return await self._value("uuid", uuid.uuid4, uuid.UUID)

    async def version(self, name: str) -> bool:
        """Whether this run may use code that was added under this name: True for runs that come
        here for the first time, False for those that had passed before the code was there."""
        check_name(name, what="version's name")
        here = self._branch()
        record = self._records.get(self._number(here, here.calls + 1))
        if record is not None and (record.kind, record.name) != ("version", name):
            return False
        seq, record = self._call("version", name)
        if record is None:
            await self._record(self._new(seq, "version", name, COMPLETED))
        return True

    # Replay

    def _call(self, kind: StepKind, name: str) -> tuple[int, StepRecord | None]:
        """Take the next number, and what is recorded under it."""
        if self._suspending:
            raise Suspended
        here = self._branch()
        seq, record = self._next(here)
        while record is not None and record.kind == "version" and kind != "version":
            # Code that no longer asks for a version is newer than it.
            seq, record = self._next(here)
        if record is not None and (record.kind, record.name) != (kind, name):
            raise FlowChanged(
                self.id,
                seq=seq,
                recorded=f"{record.kind} {record.name!r}",
                called=f"{kind} {name!r}",
            )
        if self._replays and not _is_over(record):
            raise Replayed
        return seq, record

    def _branch(self) -> _Branch:
        """The branch that makes a call. A task that was made by other means than `gather` becomes
        one when it makes its first call."""
        task = asyncio.current_task()
        branch = _current.get()
        if branch is None or branch.flow is not self:
            branch = self._main
        if branch.task is not task:
            branch = branch.fork()
            branch.task = task
            _current.set(branch)
        return branch

    def _next(self, branch: _Branch) -> tuple[int, StepRecord | None]:
        branch.calls += 1
        self._moves += 1
        seq = self._number(branch, branch.calls)
        self._called.add(seq)
        return seq, self._records.get(seq)

    def _number(self, branch: _Branch, call: int) -> int:
        """The number under which this call of a branch is recorded, or will be."""
        if branch is self._main:
            return call
        place = f"{branch.path}:{call}"
        seq = self._places.get(place)
        if seq is None:
            self._last_in_branches += 1
            seq = self._places[place] = self._last_in_branches
            self._place_of[seq] = place
        return seq

    def _check_finished(self) -> None:
        """Nothing may be recorded that the function did not come to."""
        later = [
            record
            for record in self._records.values()
            if record.seq > 0 and record.seq not in self._called and record.kind != "version"
        ]
        if later:
            record = min(later, key=lambda record: record.seq)
            recorded = f"{record.kind} {record.name!r}"
            raise FlowChanged(self.id, seq=record.seq, recorded=recorded, called=None)

    async def _step(
        self,
        called: StepFunction,
        seq: int,
        record: StepRecord | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        attempt = 0
        if record is not None:
            if record.state == COMPLETED:
                return _decode(called.decoder, record.output)
            if record.state == FAILED:
                raise _failure(record)
            attempt = record.attempt
            if record.state == RETRYING and not record.is_due:
                await self._block(seq)
        name = _name(called)
        self._start()
        try:
            if any(number < 0 for number in self._unrecorded):
                # Whatever ends the run from now on, it is known what has to be undone.
                await self._recorder.record(self._ctx, self._take_unrecorded())
            while True:
                attempt += 1
                started = self._ctx.elapsed_us
                try:
                    value = await called.call(args, kwargs, self._make_step(seq, attempt))
                    if isinstance(value, Outcome):
                        raise value
                    output = _encode(name, value)
                except (ClaimLost, TransientError):
                    raise
                except Exception as error:
                    wait = self._retry_after(called.retry or self._policy, attempt, error)
                    if isinstance(error, Snooze):
                        attempt -= 1
                    if wait is None:
                        await self._record(self._failed(seq, name, attempt, error, started))
                        raise _failed_as(name, seq, error) from error
                    if wait > _IN_PLACE:
                        failed = self._failed(seq, name, attempt, error, started, wait=wait)
                        self._later(failed)
                        break
                    await asyncio.sleep(wait.total_seconds())
                else:
                    await self._record(
                        self._new(seq, "step", name, COMPLETED, output, attempt, started)
                    )
                    return _decode(called.decoder, output)
        finally:
            self._stop()
        return await self._block(seq)

    def _make_step(self, seq: int, attempt: int) -> Step:
        return Step(self.id, seq, key=f"{self.key}_{seq}", attempt=attempt)

    async def _transaction(
        self,
        called: StepFunction,
        name: str,
        seq: int,
        record: StepRecord | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """As `_step`; but nothing that failed has happened, and it is not retried in place."""
        if record is not None and record.state == COMPLETED:
            return _decode(called.decoder, record.output)
        if record is not None and record.state == FAILED:
            raise _failure(record)
        if record is not None and not record.is_due:
            await self._block(seq)
        attempt = 1 if record is None else record.attempt + 1
        self._start()
        started = self._ctx.elapsed_us
        done = self._new(seq, "transaction", name, COMPLETED, None, attempt, started)
        try:
            async with self._recorder.transaction(self._ctx, done) as connection:
                value = await called.call(
                    (connection, *args), kwargs, self._make_step(seq, attempt)
                )
                if isinstance(value, Outcome):
                    raise value
                output = _encode(name, value)
                done.output = None if output is None else msgspec.Raw(output.encode())
                done.finished = self._ctx.elapsed_us
            return _decode(called.decoder, output)
        except (ClaimLost, TransientError):
            raise
        except Exception as error:
            wait = self._retry_after(called.retry or self._policy, attempt, error)
            failed = self._failed(seq, name, attempt, error, started, wait=wait)
            failed.kind = "transaction"
            if wait is None:
                await self._record(failed)
                raise _failed_as(name, seq, error) from error
            self._later(failed)
        finally:
            self._stop()
        return await self._block(seq)

    def _new_job(
        self, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], **changes: Any
    ) -> NewJob:
        job: NewJob = task.job(*args, **kwargs)
        return replace(job, **changes)

    async def _jobs(
        self,
        calls: Sequence[tuple[int, StepRecord | None, NewJob]],
        task: Any,
        *,
        one: bool,
    ) -> Any:
        """Have jobs do steps, and wait for them."""
        batch = None if one or not calls else calls[0][0]
        if fresh := [(seq, job) for seq, record, job in calls if record is None]:
            self._start()
            try:
                starts = []
                for seq, job in fresh:
                    kind: StepKind = "child" if getattr(task, "is_flow", False) else "job"
                    waiting = self._new(seq, kind, job.task, WAITING)
                    waiting.batch = batch
                    starts.append((waiting, replace(job, key=step_key(self.id, seq))))
                if self._unrecorded:
                    await self._recorder.record(self._ctx, self._take_unrecorded())
                await self._recorder.start_jobs(self._ctx, starts)
            finally:
                self._stop()
        if waiting_for := [
            seq for seq, record, _ in calls if record is None or not _is_over(record)
        ]:
            self._waits += waiting_for[1:]
            await self._block(waiting_for[0])
        results = []
        for _, record, _ in calls:
            assert record is not None
            if record.state == FAILED:
                raise _failure(record)
            results.append(_decode_as(task.definition, record.output, self.id))
        return results[0] if one else results

    async def _map(
        self,
        called: StepFunction,
        calls: Sequence[tuple[int, StepRecord | None, Any]],
        concurrency: int,
    ) -> list[Any]:
        results: list[Any] = [None] * len(calls)
        places = iter(range(len(calls)))
        failed = False

        async def work() -> None:
            nonlocal failed
            for place in places:
                seq, record, item = calls[place]
                try:
                    results[place] = await self._step(called, seq, record, (item,), {})
                except BaseException:
                    failed = True
                    raise
                if failed:
                    return

        await _gather([work() for _ in range(min(concurrency, len(calls)))])
        return results

    async def _sleep(self, seq: int, record: StepRecord | None, wait: timedelta) -> None:
        if record is not None and (record.state == COMPLETED or record.is_due):
            if record.state != COMPLETED:
                self._later(self._new(seq, "sleep", "sleep", COMPLETED))
            return
        if record is None:
            self._later(self._new(seq, "sleep", "sleep", WAITING, wait=wait))
        await self._block(seq)

    async def _wait_for(
        self,
        seq: int,
        record: StepRecord | None,
        name: str,
        wait: timedelta | None,
        default: Any,
        correlation: str | None,
    ) -> Any:
        if record is None or record.state == WAITING:
            signal = next((signal for signal in self._signals if signal.name == name), None)
            if signal is not None:
                self._signals.remove(signal)
                taken = self._new(seq, "signal", name, COMPLETED, signal.data)
                taken.signal = signal.id
                await self._record_active(taken)
                return None if signal.data is None else msgspec.json.decode(signal.data)
            if record is None or not record.is_due:
                if record is None:
                    waiting = self._new(seq, "signal", name, WAITING, wait=wait)
                    waiting.correlation = correlation
                    self._later(waiting)
                await self._block(seq)
            late = self._new(seq, "signal", name, COMPLETED)
            late.code = _TIMED_OUT
            await self._record_active(late)
        elif record.error_code != _TIMED_OUT:
            return _decode(None, record.output)
        if default is _NO_DEFAULT:
            raise SignalTimeout(name)
        return default

    async def _value(self, kind: StepKind, make: Callable[[], T], type_: type[T]) -> T:
        seq, record = self._call(kind, kind)
        if record is not None:
            return msgspec.json.decode(record.output or "null", type=type_)
        output = msgspec.json.encode(make()).decode()
        await self._record_active(self._new(seq, kind, kind, COMPLETED, output))
        return msgspec.json.decode(output, type=type_)

    def _finish(self) -> list[NewRecord]:
        """The function returned: what is left to write. Nothing has to be undone any more."""
        self._check_finished()
        for compensation in self._compensations:
            if compensation.seq in self._records:
                name = _name(compensation.called)
                self._later(self._new(compensation.seq, "compensation", name, SKIPPED))
            else:
                self._unrecorded.pop(compensation.seq, None)
        return self._take_unrecorded()

    def _fail(self, error: BaseException) -> list[NewRecord]:
        """The run fails for good: what is left to write, and which call has failed."""
        seq = error.seq if isinstance(error, StepFailed) else max(self._called, default=0) + 1
        record = self._failed(0, "flow", self._failures + 1, error, self._ctx.elapsed_us)
        record.kind, record.output = "failure", msgspec.Raw(b'{"seq": %d}' % seq)
        self._later(record)
        return self._take_unrecorded()

    async def _undo(self, compensation: Compensation) -> timedelta | None:
        """Run a compensation, and record it. Returns how long to wait before it is tried again."""
        seq, called, args, kwargs = compensation
        record = self._records.get(seq)
        if record is not None and record.state in (COMPLETED, FAILED):
            return None
        attempt = 1 if record is None or record.state != RETRYING else record.attempt + 1
        started, name, wait = self._ctx.elapsed_us, _name(called), None
        try:
            value = await called.call(args, kwargs, self._make_step(seq, attempt))
            if isinstance(value, Outcome):
                raise value
            done = self._new(seq, "compensation", name, COMPLETED, None, attempt, started)
        except (ClaimLost, TransientError):
            raise
        except Exception as error:  # noqa: BLE001 -- it may raise anything.
            wait = self._retry_after(called.retry or self._policy, attempt, error)
            done = self._failed(seq, name, attempt, error, started, wait=wait)
            done.kind = "compensation"
            if wait is None:
                log_event(
                    log,
                    logging.ERROR,
                    "compensation_failed",
                    "The compensation %(step)s of run %(run_id)s failed, and is not tried again: "
                    "%(error)s",
                    job_id=self._ctx.id,
                    run_id=self.id,
                    step=name,
                    error=done.error,
                    exc_info=error,
                )
        await self._recorder.record(self._ctx, [done])
        return wait

    def _retry_later(self, error: Exception) -> bool:
        """The function itself raised an error: have it run again later, unless its attempts are
        used up. Returns whether it does."""
        attempt = self._failures + 1
        wait = self._retry_after(self._policy, attempt, error)
        if wait is None:
            return False
        record = self._failed(0, "flow", attempt, error, self._ctx.elapsed_us, wait=wait)
        record.kind = "error"
        self._later(record)
        return True

    # Records

    def _new(
        self,
        seq: int,
        kind: StepKind,
        name: str,
        state: str,
        output: str | None = None,
        attempt: int = 1,
        started: int | None = None,
        *,
        wait: timedelta | None = None,
    ) -> NewRecord:
        now = self._ctx.elapsed_us
        return NewRecord(
            run=self.id,
            token=self._ctx.token,
            seq=seq,
            kind=kind,
            name=name,
            state=state,
            attempt=attempt,
            place=self._place_of.get(seq),
            output=None if output is None else msgspec.Raw(output.encode()),
            wait=None if wait is None else wait // timedelta(microseconds=1),
            started=now if started is None else started,
            finished=now if state in _OVER else None,
            holder=None if self._run_id == self._ctx.id else self._ctx.id,
        )

    def _failed(
        self,
        seq: int,
        name: str,
        attempt: int,
        error: BaseException,
        started: int,
        *,
        wait: timedelta | None = None,
    ) -> NewRecord:
        state = FAILED if wait is None else RETRYING
        record = self._new(seq, "step", name, state, None, attempt, started, wait=wait)
        record.code, record.error = code_of_error(error), describe_exception(error)
        return record

    async def _record(self, record: NewRecord) -> None:
        """Write a record, and what waits to be written; it is committed when this returns."""
        self._later(record)
        await self._recorder.record(self._ctx, self._take_unrecorded())

    def _later(self, record: NewRecord) -> None:
        """Write a record with the next one: what it says is not handed on before."""
        self._unrecorded[record.seq] = record

    def _take_unrecorded(self) -> list[NewRecord]:
        records, self._unrecorded = [*self._unrecorded.values()], {}
        return records

    async def _record_active(self, record: NewRecord) -> None:
        self._start()
        try:
            await self._record(record)
        finally:
            self._stop()

    def _retry_after(self, given: Policy, attempt: int, error: BaseException) -> timedelta | None:
        """How long to wait before the next attempt; None: there is none."""
        policy, retry_on = given
        if isinstance(error, Snooze):
            return error.after
        if isinstance(error, Discard) or attempt >= policy.max_attempts:
            return None
        if isinstance(error, Retry):
            if error.after is not None:
                return error.after
        elif isinstance(error, Outcome) or not isinstance(error, retry_on):
            return None
        return parse_duration(policy.delay(attempt, error, _random), name="the retry's delay")

    # Suspension

    def _start(self) -> None:
        if self._suspending:
            raise Suspended
        self._active += 1

    def _stop(self) -> None:
        self._active -= 1
        if self._blocked and not self._active:
            self._check(_TURNS, self._moves)

    async def _block(self, seq: int) -> None:
        """Wait for something outside of this process: the run goes on in another activation."""
        if self._suspending:
            raise Suspended
        if self._active and self._unrecorded:
            # Other branches still run: the wait begins now, not when they are done.
            records = self._take_unrecorded()
            self._start()
            try:
                await self._recorder.record(self._ctx, records)
            finally:
                self._stop()
        self._waits.append(seq)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._blocked.append(future)
        if not self._active:
            self._check(_TURNS, self._moves)
        await future

    def _check(self, turns: int, moves: int) -> None:
        """Suspend the run if nothing of it runs, and nothing begins to."""
        if self._active or self._suspending:
            return
        if self._moves != moves:
            turns, moves = _TURNS, self._moves
        if turns:
            asyncio.get_running_loop().call_soon(self._check, turns - 1, moves)
            return
        self._suspending = True
        for future in self._blocked:
            if not future.done():
                future.set_exception(Suspended())


async def _in_branch(branch: _Branch, call: Awaitable[Any]) -> Any:
    branch.task = asyncio.current_task()
    branch.flow._moves += 1
    _current.set(branch)
    return await call


async def _gather(calls: Iterable[Awaitable[Any]]) -> Any:
    results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        # A branch that waits comes before one that failed: the other may go on meanwhile.
        if isinstance(error, Suspended):
            raise error
    if errors:
        raise errors[0]
    return tuple(results)


def _encode(name: str, value: Any) -> str | None:
    """Return a step's output as JSON. What it did is done: another attempt would do it again."""
    try:
        return None if value is None else write_json(value, what=f"output of step {name!r}")
    except InvalidInput as error:
        raise Discard(str(error)) from None


def _name(called: StepFunction) -> str:
    if called.name is None:
        raise InvalidInput(
            f"The step {called.function!r:.100} has no name. Wrap it in a function that has one."
        )
    return called.name


def _decode(decoder: msgspec.json.Decoder[Any] | None, output: str | None) -> Any:
    if output is None:
        return None
    return msgspec.json.decode(output) if decoder is None else decoder.decode(output)


def _decode_as(definition: TaskDefinition, output: str | None, run_id: int) -> Any:
    plain = None if output is None else msgspec.json.decode(output)
    return definition.decode_result(plain, job_id=run_id)


def _task(given: Any, what: str) -> Any:
    if not isinstance(getattr(given, "definition", None), TaskDefinition):
        raise InvalidInput(
            f"{what} needs a task or a flow, which workers find by its name, got {given!r:.100}. "
            "Decorate it with @app.task."
        )
    return given


def _is_over(record: StepRecord | None) -> bool:
    """Whether the call returns or raises when it is replayed."""
    if record is None:
        return False
    return record.state in _OVER or (record.kind == "sleep" and record.is_due)


def _failure(record: StepRecord) -> StepFailed:
    return StepFailed(record.name, seq=record.seq, error=record.error, error_code=record.error_code)


def _failed_as(name: str, seq: int, error: BaseException) -> StepFailed:
    return StepFailed(
        name, seq=seq, error=describe_exception(error), error_code=code_of_error(error)
    )
