"""A worker on a background thread, for hosts without an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from duetime.api.starting import start_worker

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.engine.worker import Worker
    from duetime.settings import WorkerArguments


class WorkerThread:
    """A worker on a background thread. `stop()` waits until it has stopped.

    The constructor waits until the database can be reached and the worker has started.
    """

    def __init__(self, app: Duetime, options: WorkerArguments) -> None:
        self._app = app
        self._options = options
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._thread = threading.Thread(target=self._run, name="duetime-worker", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self, *, now: bool = False) -> None:
        if self._loop is not None and self._worker is not None and self._thread.is_alive():
            worker = self._worker
            self._loop.call_soon_threadsafe(lambda: worker.stop(now=now))
        self._thread.join()

    def __enter__(self) -> WorkerThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._worker, running = await start_worker(self._app, **self._options)
            self._ready.set()
            await running
        finally:
            await self._app.close()
