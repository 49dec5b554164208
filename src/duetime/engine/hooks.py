"""The hooks of an application: startup, shutdown, middleware and errors."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from duetime.domain.text import name_function
from duetime.engine.executor import message_of
from duetime.engine.threads import call_in_thread
from duetime.errors import StartupFailed
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.engine.context import Context

log = logging.getLogger("duetime.worker")

LifeHook: TypeAlias = Callable[[], Any]
"""Called without arguments when a worker starts or stops; sync or async."""
CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the next middleware, or the handler, and returns its result."""
Middleware: TypeAlias = "Callable[[Context, CallNext], Awaitable[Any]]"
ErrorHook: TypeAlias = "Callable[[Context, BaseException, bool], Any]"
"""Called with the context, the exception, and whether the job will be retried; sync or async."""

_ERROR_HOOK_SECONDS = 10.0
"""An `on_error` hook that takes longer is cancelled: it must not hold up the job's outcome."""


class Hooks:
    """An application's hooks, in the order in which they were registered."""

    def __init__(self) -> None:
        self.startup: list[LifeHook] = []
        self.shutdown: list[LifeHook] = []
        self.middleware: list[Middleware] = []
        self.error: list[ErrorHook] = []
        self._lives: WeakKeyDictionary[asyncio.AbstractEventLoop, _Life] = WeakKeyDictionary()

    async def start(self) -> None:
        """Run the startup hooks, unless another worker on this event loop already did.

        Raises `StartupFailed`, after running the shutdown hooks: a startup hook that succeeded
        before the one that failed may have opened something.
        """
        life = self._lives.setdefault(asyncio.get_running_loop(), _Life())
        async with life.lock:
            if not life.workers:
                await self._start()
            life.workers += 1

    async def stop(self) -> None:
        """Run the shutdown hooks, unless another worker on this event loop still needs them."""
        life = self._lives[asyncio.get_running_loop()]
        async with life.lock:
            life.workers -= 1
            if not life.workers:
                await self._stop()

    async def _start(self) -> None:
        for hook in self.startup:
            try:
                await _call(hook)
            except BaseException as error:
                await self._stop()
                if _is_cancellation_of_worker(error):
                    raise
                raise StartupFailed(name_function(hook), error) from error

    async def _stop(self) -> None:
        cancelled: BaseException | None = None
        for hook in reversed(self.shutdown):
            try:
                await _call(hook)
            except BaseException as error:  # noqa: BLE001 - the other hooks run whatever it is
                if _is_cancellation_of_worker(error):
                    cancelled = error
                _log_failure("on_shutdown", hook, error)
        if cancelled is not None:
            raise cancelled

    async def failed(self, context: Context, error: BaseException, *, will_retry: bool) -> None:
        """Call the `on_error` hooks. Nothing that they do changes the outcome of the attempt."""
        for hook in self.error:
            try:
                async with asyncio.timeout(_ERROR_HOOK_SECONDS):
                    await _call(hook, context, error, will_retry)
            except GeneratorExit:
                # The event loop was closed, and nothing may be awaited.
                raise
            except BaseException as failure:  # noqa: BLE001 - a hook may raise anything
                _log_failure("on_error", hook, failure)


class _Life:
    """The workers of one event loop, which share what the startup hooks opened."""

    def __init__(self) -> None:
        self.workers = 0
        self.lock = asyncio.Lock()


async def call_through(
    middleware: Sequence[Middleware], context: Context, handler: CallNext
) -> Any:
    """Call the handler through the middleware. The first one is the outermost."""

    async def call(index: int) -> Any:
        if index == len(middleware):
            return await handler()
        return await middleware[index](context, lambda: call(index + 1))

    return await call(0)


async def _call(hook: Callable[..., Any], *args: Any) -> None:
    """Call a hook: an async one on the event loop, a sync one in a thread."""
    if not inspect.iscoroutinefunction(hook):
        answer = await call_in_thread(hook, *args)
        if not inspect.isawaitable(answer):
            return
    else:
        answer = hook(*args)
    await answer


def _is_cancellation_of_worker(error: BaseException) -> bool:
    """Whether the worker's own task was cancelled, and the hook did not fail."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit | KeyboardInterrupt)


def _log_failure(kind: str, hook: Callable[..., Any], error: BaseException) -> None:
    log_event(
        log,
        logging.ERROR,
        "hook_failed",
        "The %(hook)s hook %(function)s failed: %(error)s",
        hook=kind,
        function=name_function(hook),
        error=message_of(error),
        exc_info=error,
    )
