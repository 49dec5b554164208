"""What a flow's function is given: its calls."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from duetime.domain.checks import check_name, check_queue
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.retry import check_max_attempts
from duetime.domain.jobs.task import TaskDefinition
from duetime.errors import InvalidInput
from duetime.flows import steps
from duetime.flows.calls import RANDOM, step_function
from duetime.flows.journal import COMPLETED
from duetime.flows.replay import Replay

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_MAX_CONCURRENCY = 100


class Startable(Protocol[P, R_co]):
    """A flow, as `child` takes it."""

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob: ...

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> SupportsResult[R_co]: ...


class SupportsResult(Protocol[R_co]):
    """A run of a flow: it has a result."""

    async def result(self, timeout: Duration = ...) -> R_co: ...


class Flow:
    """A run of a flow, seen from its function.

    What a call returns is recorded: when the function runs again, after a crash or a wait, the call
    returns the same without doing anything. So whatever has an effect, or could turn out otherwise,
    must be a call of the flow.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    @property
    def id(self) -> int:
        """The run, which is a job, too."""
        return self._replay.run_id

    @property
    def key(self) -> str:
        """The run's idempotency key, to hand to whom you call. The same in every attempt."""
        return self._replay.ctx.key

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
            job = steps.new_job(task, args, kwargs, queue=queue)
            call = self._replay.call(steps.kind_of_job(task), task.definition.name)
            return steps.run_jobs(self._replay, [(*call, job)], task, one=True)
        called = step_function(function)
        return steps.call_step(
            self._replay, called, *self._replay.call("step", called.name), args, kwargs
        )

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
            made = [steps.new_job(task, (item,), {}, queue=queue) for item in items]
            kind, name = steps.kind_of_job(task), task.definition.name
            return steps.run_jobs(
                self._replay,
                [(*self._replay.call(kind, name), job) for job in made],
                task,
                one=False,
            )
        called = step_function(function)
        name = called.name
        calls = [(*self._replay.call("step", name), item) for item in items]
        return steps.call_for_each(self._replay, called, calls, concurrency)

    def child(self, flow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Run another flow, and wait for what it returns. `StepFailed` is raised if it fails; if
        this run fails or is cancelled meanwhile, so is the child."""
        task = _task(flow, "child()")
        if not task.definition.options.flow:
            raise InvalidInput(f"child() takes a flow, got {flow!r:.100}. Use step() for a task.")
        job = steps.new_job(task, args, kwargs)
        return steps.run_jobs(
            self._replay, [(*self._replay.call("child", task.definition.name), job)], task, one=True
        )

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
        name = called.name
        seq, record = self._replay.call("transaction", name)
        return cast(
            "R",
            await steps.call_in_transaction(self._replay, called, name, seq, record, args, kwargs),
        )

    def on_failure(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register what undoes the step before: it runs if the flow fails or is cancelled, in
        reverse order, and is retried as a step is."""
        self._replay.register(step_function(function), args, kwargs)

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
        here = self._replay.branch()
        branches = [here.gather() for _ in calls]
        return steps.gather(calls, lambda place: self._replay.enter(branches[place]))

    # Waits

    def sleep(self, duration: Duration) -> Awaitable[None]:
        """Wait, for seconds or months. No worker is held meanwhile."""
        wait = parse_duration(duration, name="duration")
        return steps.sleep(self._replay, *self._replay.call("sleep", "sleep"), wait)

    @overload
    def wait_for(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        default: None = ...,
        correlation: str | None = None,
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
        default: Any = steps.NO_DEFAULT,
        correlation: str | None = None,
    ) -> Awaitable[Any]:
        """Wait for a signal and return its data. One that was sent before is taken at once; several
        of one name are taken in the order in which they were sent.

        After `timeout` it returns `default`, or raises `SignalTimeout`. `correlation`: a
        signal can name this instead of the run.
        """
        check_name(name, what="signal's name")
        if correlation is not None:
            check_name(correlation, what="correlation")
        if timeout is None and default is not steps.NO_DEFAULT:
            raise InvalidInput("wait_for: default= requires timeout=.")
        wait = None if timeout is None else parse_positive_duration(timeout, name="timeout")
        return steps.wait_for_signal(
            self._replay, *self._replay.call("signal", name), name, wait, default, correlation
        )

    # Recorded values

    async def now(self) -> datetime:
        """The time, recorded: the same whenever the function runs again."""
        claimed = self._replay.ctx.job.claimed_at
        return await steps.record_value(
            self._replay,
            "now",
            lambda: claimed + timedelta(microseconds=self._replay.ctx.elapsed_us),
            datetime,
        )

    async def random(self) -> float:
        """A random number from 0 to 1, recorded."""
        return await steps.record_value(self._replay, "random", RANDOM.random, float)

    async def uuid(self) -> uuid.UUID:
        """A random UUID, recorded."""
        return await steps.record_value(self._replay, "uuid", uuid.uuid4, uuid.UUID)

    async def version(self, name: str) -> bool:
        """Whether this run may use code that was added under this name: True for runs that come
        here for the first time, False for those that had passed before the code was there."""
        check_name(name, what="version's name")
        here = self._replay.branch()
        record = self._replay.records.get(self._replay.numbers.of_call(here, here.calls + 1))
        if record is None:
            if self._replay.numbers.has_passed(here):
                return False
        elif (record.kind, record.name) != ("version", name):
            return False
        seq, record = self._replay.call("version", name)
        await self._replay.in_turn(record)
        if record is None:
            await self._replay.record(
                self._replay.journal.new_record(seq, "version", name, COMPLETED)
            )
        return True


def _task(given: Any, what: str) -> Any:
    if not isinstance(getattr(given, "definition", None), TaskDefinition):
        raise InvalidInput(
            f"{what} needs a task or a flow, which workers find by its name, got {given!r:.100}. "
            "Decorate it with @app.task."
        )
    return given
