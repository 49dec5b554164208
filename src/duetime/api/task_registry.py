"""`@app.task`: a function becomes a task."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    overload,
)

from duetime.api.tasks import AsyncTask, SyncTask, Task, default_job
from duetime.domain.checks import check_priority, check_queue, check_task_not_reserved
from duetime.domain.duration import Duration, parse_positive_duration
from duetime.domain.jobs.job import DEFAULT_PRIORITY, DEFAULT_QUEUE
from duetime.domain.jobs.retry import (
    Exponential,
    RetryPolicy,
    check_errors,
    check_max_attempts,
    check_policy,
)
from duetime.domain.jobs.task import TaskDefinition, TaskOptions
from duetime.errors import InvalidInput
from duetime.settings import Settings

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.engine.context import Context

P = ParamSpec("P")
R = TypeVar("R")


class TaskArguments(TypedDict, total=False):
    """The keyword arguments of `@app.task(…)`, other than its name."""

    queue: str
    priority: int
    retry: RetryPolicy | None
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    max_attempts: int | None
    timeout: Duration | None
    expires: Duration | None
    keep_result: bool


class TaskRegistry:
    """`app.task`: `@app.task`, or `@app.task(queue="mail", …)`."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    # An async function also matches the overloads of a sync one, so its overloads come first.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Awaitable[R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        keep_result: bool = True,
    ) -> Registrar: ...

    def __call__(self, *function: Any, **options: Any) -> Any:
        """Register a function as a task. Its name is `module.function` unless `name=` is given.

        Raises `InvalidInput` if another function has that name; see `duetime.api.registration`.
        `retry`: a policy such as `Exponential("60s")` or `Delays("0s", "30s", "5m")`.
        `retry_on`: the errors that are retried; after any other, the job is dead.
        """
        if (name := options.get("name")) is not None:
            check_task_not_reserved(name)
        if not function:
            return lambda function: self.register(function, **options)
        return self.register(*function, **options)

    def register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        keep_result: bool = True,
        overrides_jobs: bool = False,
        any_arguments: bool = False,
        registered: Any = None,
    ) -> Task[..., Any]:
        """Register the function. `registered`: what two registrations of the same task have equal,
        if that is not the function."""
        from duetime.api.handler_source import refuse_return_in_transaction
        from duetime.engine.context import Context

        if not inspect.isroutine(function):
            raise InvalidInput(
                f"A task must be a function, got {function!r:.100}. Write a function that calls it."
            )
        policy = choose_policy(retry, self._app.settings)
        options = TaskOptions(
            queue=check_queue(queue),
            priority=check_priority(priority),
            retry=policy,
            retry_on=check_errors(retry_on),
            max_attempts=check_max_attempts(
                policy.max_attempts if max_attempts is None else max_attempts
            ),
            timeout=None if timeout is None else parse_positive_duration(timeout, name="timeout"),
            expires=None if expires is None else parse_positive_duration(expires, name="expires"),
            keep_result=keep_result,
            max_args_bytes=self._app.settings.max_args_bytes,
            overrides_jobs=overrides_jobs,
        )
        definition = TaskDefinition(
            function,
            name=f"{module_of(function)}.{function.__qualname__}" if name is None else name,
            options=options,
            context_type=Context,
            any_arguments=any_arguments,
        )
        refuse_return_in_transaction(
            function, definition.context_name, what=f"Task {definition.name!r}"
        )
        self._app._registrations.add(
            f"task {definition.name!r}",
            function if registered is None else registered,
            advice="Give each function its own name with name=.",
        )
        self._app.tasks[definition.name] = definition
        kind = AsyncTask if definition.is_async else SyncTask
        return kind(self._app, definition, default_job(definition))


def choose_policy(retry: RetryPolicy | None, settings: Settings) -> RetryPolicy:
    """Return the policy that was given, checked; else that of the settings."""
    if retry is None:
        return Exponential(settings.retry_base, max_attempts=settings.max_attempts)
    return check_policy(retry)


class Registrar(Protocol):
    """`@app.task(…)`: keeps the function's signature."""

    # An async function also matches the overloads of a sync one, so its overloads come first.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Awaitable[R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


def module_of(function: Callable[..., Any]) -> str:
    """The module's name; of a script the one under which a worker imports it."""
    module = function.__module__
    # A spawned process runs the script under the second name.
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        spec = getattr(main, "__spec__", None)
        if spec is not None:
            return str(spec.name)
        if file := getattr(main, "__file__", None):
            return Path(file).stem
    return module
