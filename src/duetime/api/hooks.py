"""`app.on_startup`, `app.on_shutdown`, `app.middleware`, `app.on_error` and `app.redact`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from duetime.api.lazy import lazy
from duetime.domain.text import name_function
from duetime.errors import InvalidInput

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.domain.redaction import RedactHook
    from duetime.engine.hooks import ErrorHook, Hooks, LifeHook, Middleware

LifeT = TypeVar("LifeT", bound="LifeHook")
MiddlewareT = TypeVar("MiddlewareT", bound="Middleware")
ErrorT = TypeVar("ErrorT", bound="ErrorHook")
RedactT = TypeVar("RedactT", bound="RedactHook")


class HookRegistry:
    """Registers an app's hooks."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self.redactions: list[RedactHook] = []

    @lazy
    def hooks(self) -> Hooks:
        """Those that are registered."""
        from duetime.engine.hooks import Hooks

        return Hooks()

    def on_startup(self, function: LifeT) -> LifeT:
        """Call a function when a worker starts, before it claims its first job.

        It may be sync or async, and takes no arguments. Hooks run in the order in which they were
        registered. If one fails, the worker does not start and raises `StartupFailed`.
        """
        self._add(self.hooks.startup, "on_startup", function, "no arguments", 0)
        return function

    def on_shutdown(self, function: LifeT) -> LifeT:
        """Call a function when a worker stops, after its last handler has finished.

        It may be sync or async, and takes no arguments. Hooks run in reverse order, and each runs
        even if another one fails.
        """
        self._add(self.hooks.shutdown, "on_shutdown", function, "no arguments", 0)
        return function

    def middleware(self, function: MiddlewareT) -> MiddlewareT:
        """Run an async function around every job: `async def m(ctx, call_next)`.

        `await call_next()` runs the next middleware, or the handler, and returns its result or
        raises its error. What the middleware returns or raises is the result. The first one
        registered is the outermost.
        """
        given: object = function
        if not inspect.iscoroutinefunction(given):
            raise InvalidInput(
                f"Middleware must be an async function, got {name_function(function)}. Write "
                "`async def m(ctx, call_next): return await call_next()`."
            )
        self._add(self.hooks.middleware, "middleware", function, "the context and call_next", 2)
        return function

    def on_error(self, function: ErrorT) -> ErrorT:
        """Call a function for every failed attempt: `def report(ctx, error, will_retry)`.

        It may be sync or async. Its own errors are logged and have no other effect.
        """
        self._add(
            self.hooks.error, "on_error", function, "the context, the error and will_retry", 3
        )
        return function

    def redact(self, function: RedactT) -> RedactT:
        """Decide what is shown to people of arguments, results and errors:
        `def hide(field, value, task)`.

        `field` is `args`, `result`, `error`, `traceback` or another of a record; what is returned
        is shown. The values of names such as `password` are hidden already: see the setting
        `redact_names`. If the function fails, the field is not shown.
        """
        self._add(self.redactions, "redact", function, "the field, the value and the task", 3)
        return function

    def _add(self, hooks: list[Any], kind: str, function: Any, takes: str, count: int) -> None:
        if not callable(function):
            raise InvalidInput(f"@app.{kind} takes a function, got {function!r:.100}.")
        _check_arguments(function, kind, takes, count)
        name = name_function(function)
        if "<" in name or inspect.ismethod(function):
            # Lambdas, functions inside functions and methods of several objects share their names.
            if function not in hooks:
                hooks.append(function)
            return
        self._app._registrations.add(
            f"@app.{kind} hook {name}", function, advice="Give each function its own name."
        )
        for place, known in enumerate(hooks):
            if name_function(known) == name:
                # Its module ran again.
                hooks[place] = function
                return
        hooks.append(function)


def _check_arguments(function: Callable[..., Any], kind: str, takes: str, count: int) -> None:
    try:
        signature = inspect.signature(function)
        signature.bind(*[None] * count)
    except TypeError:
        raise InvalidInput(
            f"An @app.{kind} function is called with {takes}; {name_function(function)} takes "
            f"{signature}."
        ) from None
    except ValueError:
        # A builtin without a readable signature.
        pass
