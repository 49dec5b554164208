"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from duetime.errors import DuetimeError

T = TypeVar("T")


class Portal:
    """Runs coroutines from sync code. The thread starts with the first and is a daemon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the portal's loop and return its result."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            coroutine.close()
            raise DuetimeError(
                "A sync call inside a running event loop would block it: await the async one."
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop()).result()

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="duetime-portal", daemon=True
                ).start()
            return self._loop
