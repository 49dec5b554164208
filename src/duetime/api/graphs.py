"""`app.graph`: a flow as a graph of steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from duetime.api.flows import FlowTask, run_options
from duetime.api.task_registry import choose_policy
from duetime.api.tasks import BoundTask, Task
from duetime.domain.checks import check_name, check_priority, check_queue, check_task_not_reserved
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.flows.declaration import Declaration, Parameter, read_function
from duetime.domain.flows.graph import GraphKind, JobOptions
from duetime.domain.jobs.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, NewJob
from duetime.domain.jobs.retry import (
    RetryPolicy,
    check_errors,
    check_policy,
)
from duetime.domain.jobs.task import TaskDefinition, TaskOptions
from duetime.errors import InvalidInput

if TYPE_CHECKING:
    from duetime.app import Duetime

P = ParamSpec("P")
T = TypeVar("T")

_CONTEXT = "duetime_context"


class GraphStep:
    """A step of a graph, to be named by `after=`."""

    def __init__(self, graph: Graph, name: str) -> None:
        self._graph = graph
        self.name = name

    def __repr__(self) -> str:
        return f"<step {self._graph.name}.{self.name}>"


class FunctionStep(GraphStep, Generic[P, T]):
    """A step that calls a function. Calling it calls the function directly."""

    def __init__(self, graph: Graph, name: str, function: Callable[P, T]) -> None:
        super().__init__(graph, name)
        self.__wrapped__ = function
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.__wrapped__(*args, **kwargs)


class StepRegistrar(Protocol):
    """`@graph.step(…)`: keeps the function's signature."""

    def __call__(self, function: Callable[P, T], /) -> FunctionStep[P, T]: ...


class GraphRegistry:
    """`app.graph`: `app.graph("onboard", timeout="30d")`."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __call__(
        self,
        name: str,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        timeout: Duration | None = None,
    ) -> Graph:
        """Return a new graph, to which steps are added: a flow whose steps are jobs of their own.

        `queue`, `priority`, `retry`, `retry_on`: of its steps, unless they say otherwise.
        `timeout`: how long a run may take in all, its waits included.
        """
        check_task_not_reserved(name)
        graph = Graph(
            self._app,
            name,
            queue=queue,
            priority=priority,
            retry=retry,
            retry_on=retry_on,
            timeout=timeout,
        )
        self._app._registrations.add(
            f"task {name!r}", graph, advice="Give each graph a name of its own."
        )
        self._app.tasks[name] = graph.definition
        return graph


class Graph(FlowTask[..., dict[str, Any]]):
    """A flow as a graph of steps. Steps that do not wait for each other run concurrently.

    A parameter of a step that has the name of another step takes that step's output, and so waits
    for it. Other parameters are arguments of the run, for `start`. The result of a run is a dict
    with the outputs of the steps that no other step waits for.
    """

    def __init__(
        self,
        app: Duetime,
        name: str,
        *,
        queue: str,
        priority: int,
        retry: RetryPolicy | None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...],
        timeout: Duration | None,
    ) -> None:
        from duetime.flows.graph_code import GraphCode

        settings = app.settings
        limit = None if timeout is None else parse_positive_duration(timeout, name="timeout")
        self._declaration = Declaration(
            name, timeout=None if limit is None else limit.total_seconds()
        )
        self._code = GraphCode(self._declaration)
        policy = choose_policy(retry, settings)
        self._run_options = run_options(settings, queue=queue, priority=priority)
        self._steps = msgspec.structs.replace(
            self._run_options,
            retry=policy,
            retry_on=check_errors(retry_on),
            max_attempts=policy.max_attempts,
            flow=False,
            overrides_jobs=False,
        )
        """The options of steps that say nothing else."""
        self._declared = app
        super().__init__(app, self._define())

    def __repr__(self) -> str:
        return f"<graph {self.name}>"

    # Declaring

    @overload
    def step(self, function: Callable[P, T], /) -> FunctionStep[P, T]: ...
    @overload
    def step(
        self,
        *,
        name: str | None = None,
        after: Iterable[GraphStep | str] = (),
        when: Callable[..., Any] | None = None,
        optional: bool = False,
        queue: str | None = None,
        priority: int | None = None,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
        timeout: Duration | None = None,
    ) -> StepRegistrar: ...

    def step(self, *function: Any, **options: Any) -> Any:
        """Add a function as a step: `@graph.step`, or `@graph.step(after=[…], when=…)`.

        `after`: steps that it waits for, besides those that its parameters name. `when`: a function
        of outputs and arguments, by name; if it returns a false value, the step is skipped, and
        with it the steps that need its output. `optional`: the run continues if the step fails.
        """
        if not function:
            return lambda function: self._add_function(GraphKind.STEP, function, **options)
        return self._add_function(GraphKind.STEP, *function, **options)

    def map(
        self,
        *,
        over: GraphStep | str,
        name: str | None = None,
        after: Iterable[GraphStep | str] = (),
        when: Callable[..., Any] | None = None,
        optional: bool = False,
        queue: str | None = None,
        priority: int | None = None,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
        timeout: Duration | None = None,
    ) -> StepRegistrar:
        """Add a function that is called for each item of a list, each in a job of its own.

        `over`: the step or the argument of the run that is the list. The function's first parameter
        takes the item. A step that names the map gets the list of its results, in order. With
        `optional`, the result of an item that failed is None.
        """

        def add(function: Callable[P, T], /) -> FunctionStep[P, T]:
            return self._add_function(
                GraphKind.MAP,
                function,
                over=self._name_of(over),
                name=name,
                after=after,
                when=when,
                optional=optional,
                queue=queue,
                priority=priority,
                retry=retry,
                retry_on=retry_on,
                timeout=timeout,
            )

        return add

    def sleep(
        self,
        name: str,
        duration: Duration,
        *,
        after: Iterable[GraphStep | str] = (),
        when: Callable[..., Any] | None = None,
    ) -> GraphStep:
        """Add a pause. It occupies no worker. A duration of 0 does not pause."""
        seconds = parse_duration(duration, name="duration").total_seconds()
        return self._add(name, GraphKind.SLEEP, after=after, when=when, seconds=seconds)

    def signal(
        self,
        name: str,
        *,
        after: Iterable[GraphStep | str] = (),
        when: Callable[..., Any] | None = None,
        timeout: Duration | None = None,
        default: Any = ...,
        optional: bool = False,
    ) -> GraphStep:
        """Add a wait for a signal of this name, as `run.signal(name, data)` sends it. Its output is
        the data.

        If it does not arrive within `timeout`, the output is `default`; without a default the step
        fails.
        """
        more: dict[str, Any] = {}
        if timeout is not None:
            more["seconds"] = parse_positive_duration(timeout, name="timeout").total_seconds()
        if default is not ...:
            if timeout is None:
                raise InvalidInput(
                    f"Signal {name!r} has a default=, but no timeout=: it would be waited for "
                    "for ever. Give it a timeout."
                )
            more["default"] = default
        return self._add(name, GraphKind.SIGNAL, after=after, when=when, optional=optional, **more)

    def child(
        self,
        name: str,
        flow: FlowTask[..., Any],
        *,
        after: Iterable[GraphStep | str] = (),
        when: Callable[..., Any] | None = None,
        optional: bool = False,
    ) -> GraphStep:
        """Add a run of another flow. Its parameters take outputs and arguments by their names."""
        if not isinstance(flow, FlowTask):
            raise InvalidInput(
                f"graph.child() takes a flow or a graph, got {flow!r:.100}. For a task, add a step "
                "that calls it."
            )
        return self._add(
            name,
            GraphKind.CHILD,
            after=after,
            when=when,
            optional=optional,
            parameters=_parameters_of(flow),
            flow=flow.name,
            job=_job_options(flow._defaults),
        )

    def on_failure(
        self,
        step: GraphStep | str,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
    ) -> StepRegistrar:
        """Add a function that undoes a completed step if the run fails or is cancelled.

        Compensations run one after another, in reverse order of completion.
        """

        def add(function: Callable[P, T], /) -> FunctionStep[P, T]:
            from duetime.engine.context import Context

            undo = _name(function) if name is None else name
            definition = self._define_step(
                undo, function, self._step_options(queue=queue, retry=retry, timeout=timeout)
            )
            parameters, _ = read_function(function, context_type=Context)
            self._declaration.compensate(
                self._name_of(step),
                undo,
                parameters=parameters,
                job=_options_of(definition.options),
            )
            self._register(undo, function, definition, parameters)
            return FunctionStep(self, undo, function)

        return add

    # How steps are added

    def _add_function(
        self,
        kind: GraphKind,
        function: Callable[P, T],
        *,
        name: str | None = None,
        over: str | None = None,
        after: Iterable[GraphStep | str] = (),
        when: Callable[..., Any] | None = None,
        optional: bool = False,
        **options: Any,
    ) -> FunctionStep[P, T]:
        from duetime.engine.context import Context

        step = _name(function) if name is None else name
        definition = self._define_step(step, function, self._step_options(**options))
        parameters, returns = read_function(function, context_type=Context)
        item: str | None = None
        if kind is GraphKind.MAP:
            if not parameters:
                raise InvalidInput(
                    f"The map {step!r} of graph {self.name!r} takes no item: its function needs a "
                    "parameter for it."
                )
            item = parameters[0].name
        self._declaration.add(
            step,
            kind,
            after=[self._name_of(one) for one in after],
            parameters=[one for one in parameters if one.name != item],
            returns=returns,
            when=when,
            optional=optional,
            over=over,
            job=_options_of(definition.options),
        )
        self._register(step, function, definition, parameters, item=item, when=when)
        return FunctionStep(self, step, function)

    def _add(
        self,
        name: str,
        kind: GraphKind,
        *,
        after: Iterable[GraphStep | str],
        when: Callable[..., Any] | None,
        parameters: Sequence[Parameter] = (),
        **options: Any,
    ) -> GraphStep:
        from duetime.flows.graph_code import StepCode

        names = [self._name_of(one) for one in after]
        self._declaration.add(name, kind, after=names, when=when, parameters=parameters, **options)
        self._code.steps[name] = StepCode(
            parameters=parameters, when=when, condition=_condition(when)
        )
        self._redefine()
        return GraphStep(self, name)

    def _name_of(self, step: GraphStep | str) -> str:
        if isinstance(step, GraphStep):
            if step._graph is not self:
                raise InvalidInput(
                    f"{step!r} is a step of another graph than {self.name!r}. To wait for another "
                    "graph, add it with graph.child()."
                )
            return step.name
        if not isinstance(step, str):
            raise InvalidInput(
                f"Graph {self.name!r}: a step is named by itself or by its name, got {step!r:.60}."
            )
        return step

    def _step_options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        retry: RetryPolicy | None = None,
        retry_on: Any = None,
        timeout: Duration | None = None,
    ) -> TaskOptions:
        steps = self._steps
        policy = steps.retry if retry is None else check_policy(retry)
        return msgspec.structs.replace(
            steps,
            queue=steps.queue if queue is None else check_queue(queue),
            priority=steps.priority if priority is None else check_priority(priority),
            retry=policy,
            retry_on=steps.retry_on if retry_on is None else check_errors(retry_on),
            max_attempts=policy.max_attempts,
            timeout=None if timeout is None else parse_positive_duration(timeout, name="timeout"),
        )

    def _define_step(
        self, name: str, function: Callable[..., Any], options: TaskOptions
    ) -> TaskDefinition:
        from duetime.api.handler_source import refuse_return_in_transaction
        from duetime.engine.context import Context

        if not inspect.isroutine(function):
            raise InvalidInput(f"A step must be a function, got {function!r:.100}.")
        definition = TaskDefinition(
            function, name=f"{self.name}.{name}", options=options, context_type=Context
        )
        refuse_return_in_transaction(
            function, definition.context_name, what=f"Step {definition.name!r}"
        )
        return definition

    def _register(
        self,
        name: str,
        function: Callable[..., Any],
        definition: TaskDefinition,
        parameters: Sequence[Parameter],
        *,
        item: str | None = None,
        when: Callable[..., Any] | None = None,
    ) -> None:
        """Have workers run the function as the task of the step's jobs."""
        from duetime.engine.context import Context
        from duetime.flows.graph_code import StepCode

        self._code.steps[name] = StepCode(definition, parameters, item, when, _condition(when))
        app, code = self._declared, self._code

        async def run_step(ctx: Context, item: Any = None) -> Any:
            return await app._graph_steps.run(code, name, ctx, item)

        run_step.__annotations__ = {"ctx": Context, "item": Any}
        app._registrations.add(
            f"task {definition.name!r}", function, advice="Give each step a name of its own."
        )
        app.tasks[definition.name] = TaskDefinition(
            run_step, name=definition.name, options=definition.options, context_type=Context
        )
        self._redefine()

    # The run's own task

    def _define(self) -> TaskDefinition:
        """The task of runs: its arguments are those that the steps take."""
        from duetime.engine.context import Context
        from duetime.flows.graph_run import run_graph

        app, code = self._declared, self._code

        async def run(**kwargs: Any) -> Any:
            return await run_graph(app, code, kwargs[_CONTEXT])

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(_CONTEXT, keyword, annotation=Context)]
        hints: dict[str, Any] = {_CONTEXT: Context}
        for name, argument in self._declaration.arguments.items():
            default = inspect.Parameter.empty if argument.parameter.required else None
            hint = argument.parameter.hint
            hints[name] = hint if argument.parameter.required else hint | None
            parameters.append(
                inspect.Parameter(name, keyword, annotation=hints[name], default=default)
            )
        run.__annotations__ = hints
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return TaskDefinition(
            run, name=self._declaration.graph, options=self._run_options, context_type=Context
        )

    def _redefine(self) -> None:
        self.definition = self._define()
        self._plain = BoundTask(self._app, self.definition, self._defaults, None)
        self._app.tasks[self.name] = self.definition


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    return check_name(name if isinstance(name, str) else "", what="step's name")


def _condition(when: Callable[..., Any] | None) -> list[Parameter]:
    if when is None:
        return []
    return [
        Parameter(one.name, Any, one.default is one.empty)
        for one in inspect.signature(when).parameters.values()
    ]


def _parameters_of(flow: Task[..., Any]) -> list[Parameter]:
    definition = flow.definition
    return [
        Parameter(one.name, hint, one.default is one.empty) for one, hint in definition.parameters
    ]


def _options_of(options: TaskOptions) -> JobOptions:
    return JobOptions(
        queue=options.queue,
        priority=options.priority,
        max_attempts=options.max_attempts,
        timeout=None if options.timeout is None else options.timeout.total_seconds(),
    )


def _job_options(job: NewJob) -> JobOptions:
    return JobOptions(
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        timeout=None if job.timeout is None else job.timeout.total_seconds(),
    )
