"""`@app.flow` and `app.flows`: durable functions, and their runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

import msgspec

from duetime.api.handle import Handle, bound
from duetime.api.task_registry import module_of
from duetime.api.tasks import BoundTask, Task
from duetime.domain.checks import (
    check_actor,
    check_job_id,
    check_name,
    check_priority,
    check_queue,
    check_task_not_reserved,
)
from duetime.domain.duration import Duration
from duetime.domain.flows.flow import StepInfo
from duetime.domain.jobs.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    JobInfo,
    JobState,
    NewJob,
    OnConflict,
)
from duetime.domain.jobs.retry import (
    MAX_ATTEMPTS,
    Exponential,
    RetryPolicy,
    check_errors,
    check_policy,
)
from duetime.domain.jobs.task import TaskDefinition, TaskOptions
from duetime.errors import FlowNotFound, InvalidInput, JobNotFound
from duetime.storage.flows.runs import FlowStatements

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.flows.flow import Flow

P = ParamSpec("P")
R = TypeVar("R")

_CRASHES = Exponential("1s", max="1m", max_attempts=MAX_ATTEMPTS)
"""How a run's job is tried again: only crashes, and that the database was away, count there."""


class FlowTask(Task[P, R]):
    """A flow: a function whose calls are recorded, so that it survives crashes and waits."""

    def __init__(self, app: Duetime, definition: TaskDefinition, defaults: NewJob) -> None:
        super().__init__(app, definition, msgspec.structs.replace(defaults, flow=True))

    def __repr__(self) -> str:
        return f"<flow {self.name}>"

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """Start a run; it is durable when this returns."""
        return await self.using().start(*args, **kwargs)

    def start_sync(self, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """`start` for sync code."""
        return self.using().start_sync(*args, **kwargs)

    def using(  # type: ignore[override]
        self,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_conflict: OnConflict = "return",
        hold: Duration | None = None,
        tx: Any = None,
    ) -> BoundFlow[P, R]:
        """Return the flow with options for the runs that are started through it.

        `key`: while a run holds it, another start returns that run. `tx`: the caller's transaction.
        """
        return BoundFlow(
            super().using(
                at=at,
                delay=delay,
                queue=queue,
                priority=priority,
                key=key,
                on_conflict=on_conflict,
                hold=hold,
                tx=tx,
            )
        )


class BoundFlow(Generic[P, R]):
    """A flow with options, from `flow.using(…)`."""

    def __init__(self, bound_task: BoundTask[P, R]) -> None:
        self._task = bound_task

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job of a run without starting it, for `app.enqueue_many`."""
        return self._task.job(*args, **kwargs)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """Start a run; with `tx=` in the caller's transaction."""
        started = await self._task.enqueue(*args, **kwargs)
        return FlowRun(self._task._app.flows, started.id, created=started.created)

    def start_sync(self, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """`start` for sync code; `tx=` must be a sync transaction."""
        started = self._task.enqueue_sync(*args, **kwargs)
        return FlowRun(self._task._app.flows, started.id, created=started.created)


class FlowRegistry:
    """`app.flow`: `@app.flow`, or `@app.flow(retry=…, timeout="30d")`."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    @overload
    def __call__(
        self, function: Callable[Concatenate[Flow, P], Awaitable[R]], /
    ) -> FlowTask[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        timeout: Duration | None = None,
    ) -> FlowRegistrar: ...

    def __call__(self, *function: Any, **options: Any) -> Any:
        """Register an async function as a flow. Its first parameter is the `Flow`.

        `retry`, `retry_on`: how its steps are retried, unless their task says otherwise.
        `timeout`: how long a run may take in all, its waits included.
        """
        if (name := options.get("name")) is not None:
            check_task_not_reserved(name)
        if not function:
            return lambda function: self._register(function, **options)
        return self._register(*function, **options)

    def _register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        timeout: Duration | None = None,
    ) -> FlowTask[..., Any]:
        from duetime.flows.execution import flow_handler
        from duetime.flows.flow import Flow

        if not inspect.iscoroutinefunction(function):
            raise InvalidInput(
                f"A flow must be an async function, got {function!r:.100}. Declare it with "
                "`async def`; its steps may be plain functions."
            )
        settings = self._app.settings
        policy = (
            Exponential(settings.retry_base, max_attempts=settings.max_attempts)
            if retry is None
            else check_policy(retry)
        )
        definition = TaskDefinition(
            function,
            name=f"{module_of(function)}.{function.__qualname__}" if name is None else name,
            options=TaskOptions(
                queue=check_queue(queue),
                priority=check_priority(priority),
                retry=_CRASHES,
                retry_on=(),
                max_attempts=MAX_ATTEMPTS,
                timeout=None,
                expires=None,
                keep_result=True,
                max_args_bytes=settings.max_args_bytes,
                flow=True,
                overrides_jobs=True,
            ),
            context_type=Flow,
        )
        if definition.context_name is None:
            raise InvalidInput(
                f"Flow {definition.name!r} needs a parameter annotated as Flow: "
                f"`async def {function.__name__}(flow: Flow, …)`."
            )
        definition.function = flow_handler(
            self._app,
            function,
            flow_name=definition.context_name,
            policy=(policy, check_errors(retry_on)),
        )
        self._app._registrations.add(
            f"task {definition.name!r}",
            function,
            advice="Give each function its own name with name=.",
        )
        self._app.tasks[definition.name] = definition
        defaults = NewJob(
            task=definition.name, queue=queue, priority=priority, max_attempts=MAX_ATTEMPTS
        )
        return FlowTask(self._app, definition, defaults)


class FlowRegistrar(Protocol):
    """`@app.flow(…)`: keeps the function's signature."""

    def __call__(
        self, function: Callable[Concatenate[Flow, P], Awaitable[R]], /
    ) -> FlowTask[P, R]: ...


class Flows:
    """`app.flows`. `app.flows[42]` is one run."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, run_id: int) -> FlowRun[Any]:
        return FlowRun(self, check_job_id(run_id))

    async def get(self, run_id: int) -> JobInfo:
        """Return the run's job; raise `FlowNotFound`."""
        try:
            return await self._app.jobs.get(run_id)
        except JobNotFound:
            raise FlowNotFound(run_id) from None

    async def status(self, run_id: int) -> JobState:
        """Return the state of the run."""
        return (await self.get(run_id)).state

    async def steps(self, run_id: int) -> list[StepInfo]:
        """Return what the run has recorded, in order."""
        check_job_id(run_id)
        steps: list[StepInfo] = await self._app._perform(
            lambda dialect: FlowStatements(dialect).steps(run_id), reads=True
        )
        return steps

    async def signal(
        self,
        run_id: int,
        name: str,
        data: Any = None,
        *,
        key: str | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> bool:
        """Send a signal to a run, which `flow.wait_for(name)` returns. It is kept until then.

        A second signal of the same name and `key` changes nothing: False is returned.
        """
        check_job_id(run_id)
        check_name(name, what="signal's name")
        if key is not None:
            check_name(key, what="key")
        actor = check_actor(by)
        sent: bool = await self._app._perform(
            lambda dialect: FlowStatements(dialect).signal(run_id, name, data, key=key, by=actor),
            tx,
        )
        return sent

    async def result(self, run_id: int, *, timeout: Duration = "60s") -> Any:
        """Wait for the run to end and return what its function returned."""
        return await self._app.jobs.result(run_id, timeout=timeout)


class FlowRun(Handle[Flows, int], Generic[R]):
    """One run of a flow: what `start` returns, and `app.flows[42]`."""

    __slots__ = ("created",)

    def __init__(self, flows: Flows, run_id: int, *, created: bool = False) -> None:
        super().__init__(flows, run_id)
        self.created = created
        """Whether `start` made it; else another run holds the key, and this is that."""

    @property
    def id(self) -> int:
        """The run's number; it is also that of its job."""
        return self._ref

    get = bound(Flows.get)
    status = bound(Flows.status)
    steps = bound(Flows.steps)
    signal = bound(Flows.signal)

    async def result(self, timeout: Duration = "60s") -> R:
        """Wait for the run to end and return what its function returned, as its annotation says.

        Raises `JobFailed` if it ended otherwise, `ResultTimeout` if it has not ended in time.
        """
        return cast("R", await self._noun.result(self._ref, timeout=timeout))
