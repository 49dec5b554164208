"""An event loop on a background thread, for sync callers."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakSet

from duetime.errors import DuetimeError

T = TypeVar("T")

_CLOSE_SECONDS = 5.0


class Portal:
    """Runs coroutines from sync code, on a daemon thread that starts with the first call.

    When the interpreter exits, `closing` is run to close what was opened on the loop. A forked
    process does not have the thread: `forked` is called, and the next call starts another.
    """

    def __init__(
        self, closing: Callable[[], Coroutine[Any, Any, None]], forked: Callable[[], None]
    ) -> None:
        self._closing = closing
        self._forked = forked
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        _portals.add(self)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the portal's loop and return its result."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            coroutine.close()
            raise DuetimeError(
                "A synchronous call would block the running event loop. Await the asynchronous "
                "version instead."
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop()).result()

    def close(self) -> None:
        """Close what was opened and stop the thread. The next call starts another."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        atexit.unregister(self.close)
        try:
            asyncio.run_coroutine_threadsafe(self._closing(), loop).result(_CLOSE_SECONDS)
        except (DuetimeError, TimeoutError, RuntimeError):
            # The database is slow or cannot be reached, or the interpreter starts no more threads.
            # The connections close with the process.
            pass
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_CLOSE_SECONDS)

    def reset_after_fork(self) -> None:
        """In a forked process: use nothing that belongs to the parent."""
        self._lock = threading.Lock()
        if self._loop is not None:
            atexit.unregister(self.close)
            _inherited.append(self._loop)
            self._loop = None
        self._forked()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="duetime-portal", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
            return self._loop


_portals: WeakSet[Portal] = WeakSet()
_inherited: list[object] = []
"""Never garbage-collected: closing the parent's connections here would close them there too."""


def keep_inherited(thing: object) -> None:
    """Keep a reference to what belongs to the parent process, so that it is never closed."""
    _inherited.append(thing)


def _after_fork() -> None:
    for portal in list(_portals):
        portal.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
