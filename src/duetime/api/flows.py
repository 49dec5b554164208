"""`@app.flow` and `app.flows`: durable functions, and their runs."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
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

from duetime.api.handle import Handle, bound, iterated
from duetime.api.job_filters import list_states
from duetime.api.requeueing import rerun_steps, retry_run
from duetime.api.task_registry import choose_policy, module_of
from duetime.api.tasks import BoundTask, Task
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import (
    check_actor,
    check_arguments,
    check_job_id,
    check_name,
    check_priority,
    check_queue,
    check_sought,
    check_task_not_reserved,
    check_text,
)
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.flows.explain import explain_run
from duetime.domain.flows.flow import StepInfo, StepState, undo_key
from duetime.domain.flows.run import FlowInfo, FlowState, FlowStateLike
from duetime.domain.jobs.job import (
    DEFAULT_MAX_ARGS_BYTES,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    JobState,
    NewJob,
    OnConflict,
)
from duetime.domain.jobs.retry import (
    MAX_ATTEMPTS,
    Exponential,
    RetryPolicy,
    check_errors,
)
from duetime.domain.jobs.task import TaskDefinition, TaskOptions
from duetime.domain.page import DEFAULT_LIMIT, Id, Page, check_limit, make_page, read_cursor
from duetime.domain.reasons import Explanation
from duetime.engine.executor import write_json
from duetime.errors import (
    FlowEnded,
    FlowNotFound,
    IllegalTransition,
    InvalidInput,
    JobFailed,
    UnknownFlow,
)
from duetime.flows.follower import clean_up
from duetime.settings import Settings
from duetime.storage.flows.find import FindRuns, RunFilter
from duetime.storage.flows.graphs import END, GraphStatements
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.store import Dialect, Statements

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.flows.flow import Flow

P = ParamSpec("P")
R = TypeVar("R")

_CRASHES = Exponential("1s", max="1m", max_attempts=MAX_ATTEMPTS)
"""How a run's job is tried again: only crashes, and that the database was away, count there."""


def run_options(settings: Settings, *, queue: str, priority: int) -> TaskOptions:
    """Return the options of the task whose jobs are the runs of a flow."""
    return TaskOptions(
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
    )


class FlowTask(Task[P, R]):
    """A flow: a function whose calls are recorded, so that it survives crashes and waits."""

    def __init__(self, app: Duetime, definition: TaskDefinition) -> None:
        options = definition.options
        defaults = NewJob(
            task=definition.name,
            queue=options.queue,
            priority=options.priority,
            max_attempts=options.max_attempts,
            flow=True,
        )
        super().__init__(app, definition, defaults)

    def __repr__(self) -> str:
        return f"<flow {self.name}>"

    async def start(self, /, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """Start a run; it is durable when this returns."""
        return await self.using().start(*args, **kwargs)

    def start_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
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

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job of a run without starting it, for `app.enqueue_many`."""
        return self._task.job(*args, **kwargs)

    async def start(self, /, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """Start a run; with `tx=` in the caller's transaction."""
        started = await self._task.enqueue(*args, **kwargs)
        return FlowRun(self._task._app.flows, started.id, created=started.created)

    def start_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
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
        `timeout`: how long a run may take in all, its waits included, from its first start or the
        first after a retry.
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
        from duetime.flows.execution import FlowDefinition, flow_handler
        from duetime.flows.flow import Flow

        if not inspect.iscoroutinefunction(function):
            raise InvalidInput(
                f"A flow must be an async function, got {function!r:.100}. Declare it with "
                "`async def`; its steps may be plain functions."
            )
        settings = self._app.settings
        definition = TaskDefinition(
            function,
            name=f"{module_of(function)}.{function.__qualname__}" if name is None else name,
            options=run_options(settings, queue=queue, priority=priority),
            context_type=Flow,
        )
        if definition.context_name is None:
            raise InvalidInput(
                f"Flow {definition.name!r} needs a parameter annotated as Flow: "
                f"`async def {function.__name__}(flow: Flow, …)`."
            )
        definition.function = flow_handler(
            self._app,
            FlowDefinition(
                function,
                definition.context_name,
                (choose_policy(retry, settings), check_errors(retry_on)),
                None if timeout is None else parse_positive_duration(timeout, name="timeout"),
            ),
        )
        self._app._registrations.add(
            f"task {definition.name!r}",
            function,
            advice="Give each function its own name with name=.",
        )
        self._app.tasks[definition.name] = definition
        return FlowTask(self._app, definition)


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

    async def start(
        self,
        flow: str,
        args: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        key: str | None = None,
        tx: Any = None,
    ) -> FlowRun[Any]:
        """Start a run by the name of its flow, if you do not have the flow itself for
        `order.using(…).start(…)`. Raises `UnknownFlow` if it is not registered in this process."""
        check_name(flow, what="flow")
        definition = self._app.tasks.get(flow)
        if definition is None or not definition.options.flow:
            raise UnknownFlow(flow)
        named: FlowTask[..., Any] = FlowTask(self._app, definition)
        return await named.using(at=at, delay=delay, queue=queue, key=key, tx=tx).start(
            **check_arguments(args)
        )

    async def get(self, run_id: int) -> FlowInfo:
        """Return the run; raise `FlowNotFound`."""
        check_job_id(run_id)
        found: list[FlowInfo] = await self._app._perform(
            lambda dialect: FindRuns(dialect).infos([run_id], full=True), snapshot=True
        )
        if not found:
            raise FlowNotFound(run_id)
        return found[0]

    async def status(self, run_id: int) -> FlowState:
        """Return the state of the run."""
        return (await self.get(run_id)).state

    async def explain(self, run_id: int) -> Explanation:
        """Explain what the run does, or waits for and since when; or its outcome, and in which step
        it finished."""
        run = await self.get(run_id)
        return explain_run(
            run,
            steps=[step for step in await self._records(run_id) if step.kind != END],
            job=await self._app.jobs.explain(run_id),
            now=await self._app.now(),
        )

    async def audit(
        self, run_id: int, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the run, newest first. It outlives the run itself."""
        return await self._app.jobs.audit(run_id, limit=limit, after=after)

    async def steps(self, run_id: int) -> list[StepInfo]:
        """Return the recorded steps in order; first the compensations, which have negative
        numbers. Raises `FlowNotFound`."""
        records = await self._records(run_id)
        if not records:
            # Nothing is recorded yet, or there is no such run.
            await self.get(run_id)
        return [step for step in records if step.seq and step.kind != END]

    async def _records(self, run_id: int) -> list[StepInfo]:
        check_job_id(run_id)
        steps: list[StepInfo] = await self._app._perform(
            lambda dialect: FindRuns(dialect).steps(run_id), snapshot=True
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

        A second signal with the same name and `key` changes nothing, and returns False. Raises
        `FlowNotFound` if there is no such run, or the id is that of an ordinary job, and
        `FlowEnded` if it has finished.
        """
        check_job_id(run_id)
        check_name(name, what="signal's name")
        if key is not None:
            check_name(key, what="key")
        _check_data(data)
        actor = check_actor(by)
        sent: bool = await self._app._perform(
            lambda dialect: FlowStatements(dialect).signal(run_id, name, data, key=key, by=actor),
            tx,
        )
        return sent

    async def signal_all(
        self,
        name: str,
        data: Any = None,
        *,
        correlation: str,
        key: str | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> list[int]:
        """Send a signal to all runs that wait for it under this correlation; return which."""
        check_name(name, what="signal's name")
        check_name(correlation, what="correlation")
        if key is not None:
            check_name(key, what="key")
        _check_data(data)
        actor = check_actor(by)

        def send(dialect: Dialect) -> Statements:
            statements = FlowStatements(dialect)
            sent = []
            for run in (yield from statements.waiting_for(name, correlation)):
                # One may end, or be pruned, in between.
                with suppress(FlowEnded, FlowNotFound):
                    if (yield from statements.signal(run, name, data, key=key, by=actor)):
                        sent.append(run)
            return sent

        runs: list[int] = await self._app._perform(send, tx)
        return runs

    async def cancel(
        self, run_id: int, *, reason: str | None = None, by: str = "unknown"
    ) -> FlowState:
        """Cancel a run, with the step that runs and the jobs that it waits for. Its compensations
        run. Returns the state that it was in."""
        run = await self.get(run_id)
        if not run.state.finished and await self._cancel_graph(run_id, reason, by):
            return run.state
        state = await self._app.jobs.cancel(run_id, reason=reason, by=by)
        if state is not JobState.RUNNING:
            await clean_up(await self._app.store(), [run_id])
        return run.state

    async def retry(self, run_id: int, *, by: str = "unknown") -> None:
        """Continue a run that failed or was cancelled, from the call that failed. What succeeded
        is kept. Raises `InvalidInput` if its compensations have run, or if it is a child of another
        run: retry that one."""
        await self._check_ended(run_id)
        actor = check_actor(by)
        await self._app._perform(lambda dialect: retry_run(dialect, run_id, by=actor))

    async def rerun(self, run_id: int, *, from_step: str | int, by: str = "unknown") -> None:
        """Run the steps of a run that failed or was cancelled again, from one of them on, given by
        its name (the first with that name) or its number. Raises `InvalidInput` while a job of one
        of them has not ended."""
        await self._check_ended(run_id)
        actor = check_actor(by)
        await self._app._perform(lambda dialect: rerun_steps(dialect, run_id, from_step, by=actor))

    async def _cancel_graph(self, run_id: int, reason: str | None, by: str) -> bool:
        if reason is not None:
            check_text(reason, what="The reason")
        actor = check_actor(by)
        is_graph: bool = await self._app._perform(
            lambda dialect: GraphStatements(dialect).cancel(run_id, reason=reason, actor=actor)
        )
        return is_graph

    async def _check_ended(self, run_id: int) -> None:
        state = await self.status(run_id)
        if state is FlowState.COMPLETED or not (state.finished or state is FlowState.COMPENSATING):
            raise IllegalTransition(run_id, state=state, action="retried")

    async def result(self, run_id: int, *, timeout: Duration = "60s") -> Any:
        """Wait for the run and its compensations to finish, and return what its function
        returned."""
        seconds = parse_duration(timeout, name="timeout").total_seconds()
        deadline = time.monotonic() + seconds
        try:
            return await self._app.jobs.result(run_id, timeout=timeout)
        except JobFailed:
            wait = 0.01
            while time.monotonic() < deadline and await self._is_being_undone(run_id):
                await asyncio.sleep(wait)
                wait = min(wait * 2, 0.5)
            raise

    async def _is_being_undone(self, run_id: int) -> bool:
        left = [
            step
            for step in await self.steps(run_id)
            if step.seq < 0 and step.state in (StepState.REGISTERED, StepState.RETRYING)
        ]
        if not left:
            return False
        ended_at = (await self._app.jobs.get(run_id)).finished_at
        undo = await self._app.jobs.list(key=undo_key(run_id), limit=1)
        # One that is older undid the run before it was rerun.
        is_new = bool(undo) and (ended_at is None or undo[0].created_at >= ended_at)
        return not is_new or not undo[0].state.finished

    # After all that names the type `list`.

    async def list(
        self,
        *,
        state: FlowStateLike | Sequence[FlowStateLike] = (),
        flow: str | None = None,
        key: str | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[FlowInfo]:
        """Return runs that match, newest first. `after`: the `next` of the previous page."""
        position = read_cursor(after, order="flows", shape=tuple[Id])
        for name, sought in (("flow", flow), ("key", key)):
            if sought is not None:
                check_sought(sought, what=name)
        which = RunFilter(
            states=_read_states(state),
            flow=flow,
            key=key,
            before=None if position is None else position[0],
            limit=check_limit(limit) + 1,
        )
        found: Sequence[FlowInfo] = await self._app._perform(
            lambda dialect: FindRuns(dialect).find(which), snapshot=True
        )
        return make_page(found, limit=limit, order="flows", position=lambda run: (run.id,))

    iterate = iterated(list)


class FlowRun(Handle[Flows, int], Generic[R]):
    """One run of a flow: what `start` returns, and `app.flows[42]`."""

    created: bool = False
    """Whether `start` made it; else another run holds the key, and this is that."""

    @property
    def id(self) -> int:
        """The run's number; it is also that of its job."""
        return self._ref

    get = bound(Flows.get)
    status = bound(Flows.status)
    explain = bound(Flows.explain)
    audit = bound(Flows.audit)
    steps = bound(Flows.steps)
    signal = bound(Flows.signal)
    cancel = bound(Flows.cancel)
    retry = bound(Flows.retry)
    rerun = bound(Flows.rerun)

    async def result(self, timeout: Duration = "60s") -> R:
        """Wait for the run to finish; return what its function returned, as its annotation says.

        Raises `JobFailed` if it finished without success, `ResultTimeout` if not in time.
        """
        return cast("R", await self._noun.result(self._ref, timeout=timeout))


def _read_states(state: FlowStateLike | Sequence[FlowStateLike]) -> tuple[FlowState, ...]:
    given = list_states(state)
    try:
        return tuple(FlowState(item) for item in given)
    except ValueError:
        known = ", ".join(FlowState)
        raise InvalidInput(f"{given!r} is not a state of a run. Use one of: {known}.") from None


def _check_data(data: Any) -> None:
    """Raise `InvalidInput` unless the data of a signal can be stored, as arguments can."""
    write_json(data, what="data of the signal", most=DEFAULT_MAX_ARGS_BYTES)
