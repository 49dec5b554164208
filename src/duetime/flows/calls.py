"""The functions that steps call: their names, retry policies and result types."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from random import Random
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from duetime.domain.jobs.outcome import Completed, Discard, Outcome, Retry, Snooze
from duetime.domain.jobs.retry import RetryPolicy
from duetime.domain.jobs.task import TaskDefinition, result_type
from duetime.engine.executor import delay_of_retry, is_retryable
from duetime.engine.threads import call_in_thread
from duetime.errors import InvalidInput

Policy = tuple[RetryPolicy, tuple[type[BaseException], ...]]
"""When something is tried again, and after which errors."""
RANDOM = Random()
"""One for all runs: to seed one costs 17 µs."""

_known: WeakKeyDictionary[Any, StepFunction] = WeakKeyDictionary()


class Step:
    """What a function that runs as a step may ask about it: see `current_step`."""

    __slots__ = ("attempt", "key", "run_id", "seq")

    def __init__(self, run_id: int, seq: int, *, key: str, attempt: int) -> None:
        self.run_id = run_id
        self.seq = seq
        """Its number among the calls of the run, from 1. Of a compensation it is negative."""
        self.key = key
        """The idempotency key to hand to whom you call: the same in every attempt."""
        self.attempt = attempt
        """Which attempt this is, from 1."""


_step: ContextVar[Step] = ContextVar("duetime_step")


def current_step() -> Step:
    """The step as which this function runs; raise `LookupError` outside of a flow."""
    return _step.get()


def running_step() -> Step | None:
    """The step as which the current code runs, if it does."""
    return _step.get(None)


class StepFunction:
    """A function that a step calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        definition = getattr(function, "definition", None)
        self.task = definition if isinstance(definition, TaskDefinition) else None
        plain = function if self.task is None else self.task.function
        if not callable(plain):
            raise InvalidInput(f"A step must be a function or a task, got {function!r:.100}.")
        if self.task is not None and self.task.context_name is not None:
            raise InvalidInput(
                f"Task {self.task.name!r} takes a Context and cannot run inside a flow's own job. "
                'Run it as a job: flow.step(task, …, on="queue").'
            )
        name = getattr(plain, "__name__", None) if self.task is None else self.task.name
        if name is None:
            raise InvalidInput(
                f"The step {plain!r:.100} has no name. Wrap it in a function that has one."
            )
        self.name: str = name
        self.function = plain
        self.is_async = inspect.iscoroutinefunction(plain)
        self.decoder = _decoder(_hints(plain))

    @property
    def retry(self) -> Policy | None:
        """The task's own policy, if it is a task."""
        if self.task is None:
            return None
        return self.task.options.retry, self.task.options.retry_on

    async def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], step: Step) -> Any:
        """Call it, as this step."""
        token = _step.set(step)
        try:
            return await self._call(args, kwargs)
        finally:
            _step.reset(token)

    async def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.is_async:
            return await self.function(*args, **kwargs)
        value = await call_in_thread(self.function, *args, **kwargs)
        # A plain function may return an awaitable, such as a lambda that calls an async one.
        return await value if inspect.isawaitable(value) else value


def step_function(function: Callable[..., Any]) -> StepFunction:
    """Return what is known of a function; it is examined once."""
    try:
        found = _known.get(function)
        if found is None:
            found = _known[function] = StepFunction(function)
    except TypeError:
        # Of some callables there can be no weak reference.
        found = StepFunction(function)
    return found


async def result_of(call: Awaitable[Any]) -> Any:
    """Await a flow's function or that of a step, and return its result. Another outcome than
    `Completed` is raised, also if it was returned."""
    try:
        value = await call
    except Completed as completed:
        value = completed
    if isinstance(value, Completed):
        return value.result
    if isinstance(value, Outcome):
        raise value
    return value


def retry_after(given: Policy, attempt: int, error: BaseException) -> timedelta | None:
    """How long to wait before the next attempt, or None if it is not tried again. Raises
    `RetryPolicyFailed`."""
    policy, retry_on = given
    if isinstance(error, Snooze):
        return error.after
    if isinstance(error, Discard) or attempt >= policy.max_attempts:
        return None
    if isinstance(error, Retry):
        if error.after is not None:
            return error.after
    elif isinstance(error, Outcome) or not is_retryable(error, retry_on):
        return None
    return delay_of_retry(policy, attempt, error, RANDOM)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _decoder(hints: Mapping[str, Any]) -> msgspec.json.Decoder[Any] | None:
    """What turns the stored JSON into what the annotation says; None: it stays plain JSON."""
    hint = result_type(hints.get("return", Any))
    try:
        return None if hint is Any else msgspec.json.Decoder(hint)
    except TypeError:
        return None
