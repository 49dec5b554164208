"""A worker as a process: signals, exit codes, and a way out when something hangs.

Exit codes: 0 if it was stopped and every job it held has finished or was given back; 1 if it could
not start; 70 if it crashed; 74 if the SQLite file is damaged; 128 + the signal (130, 143) if it was
forced to exit, so that its jobs wait until the lease runs out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, NoReturn, Protocol

from duetime.engine.services import OUTAGE_SECONDS
from duetime.engine.worker import Worker
from duetime.errors import DatabaseCorrupted, DuetimeError, StartupFailed, TransientError
from duetime.settings import Settings
from duetime.storage.store import Store
from duetime.telemetry.events import Outage, log_event

log = logging.getLogger("duetime.runtime")

STOPPED = 0
COULD_NOT_START = 1
CRASHED = 70
DAMAGED = 74

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PARENT_SECONDS = 0.5
"""How often a child checks whether its parent is alive."""
_BEYOND_GRACE_SECONDS = 10.0
"""How long a stop may take beyond the grace time."""
_THREAD_SECONDS = 0.5
_THREADS = ("duetime-task", "duetime-loop")
_EXIT_MESSAGES = {
    "stop_timed_out": "The worker did not stop in time; the process exits with code %(exit_code)s.",
    "forced_exit": "A third %(signal)s makes the process exit with code %(exit_code)s.",
}


class Host(Protocol):
    """What a worker process needs from an application."""

    settings: Settings

    async def store(self) -> Store: ...

    async def close(self) -> None: ...

    def _make_worker(self, store: Store, *, name: str | None) -> Worker: ...


def run_worker(
    host: Host,
    *,
    name: str | None = None,
    parent: int | None = None,
    greet: Callable[[], None] = lambda: None,
) -> int:
    """Run a worker until a signal stops it; return the exit code. For the main thread only.

    The first SIGTERM or SIGINT stops it gracefully, the second at once, the third makes the process
    exit. With `parent`, the death of that process counts as the first signal. `greet` is called
    once signals are handled, so that a reader of its output may send one at once.
    """
    process = WorkerProcess(host, name)
    with process.signals:
        greet()
        if parent is not None:
            threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
        return asyncio.run(process.main())


class WorkerProcess:
    """One worker in this process."""

    def __init__(self, host: Host, name: str | None) -> None:
        self._host = host
        self._name = name
        self._worker: Worker | None = None
        self.signals = Signals(host.settings.grace.total_seconds(), self._signalled)

    async def main(self) -> int:
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(thread_name_prefix="duetime-loop")
        loop.set_default_executor(threads)
        self._stopping = asyncio.Event()
        self.signals.attach(loop)
        try:
            code = await self._work()
            await self._close()
        finally:
            self.signals.detach()
        threads.shutdown(wait=False, cancel_futures=True)
        if left := await _threads_left():
            # A thread cannot be stopped from outside. Its job was given back.
            log_event(
                log,
                logging.WARNING,
                "threads_abandoned",
                "The process exits without waiting for %(threads)s threads that still run.",
                threads=len(left),
            )
            exit_now(code)
        return code

    async def _work(self) -> int:
        try:
            return await self._start()
        except Exception as error:  # noqa: BLE001
            log_event(
                log,
                logging.ERROR,
                "worker_crashed",
                "The worker failed with an unexpected error.",
                exc_info=error,
            )
            return CRASHED

    async def _start(self) -> int:
        """Try until the database can be reached, unless the error is permanent."""
        outage = Outage(self._name)
        while not self._stopping.is_set():
            try:
                return await self._run_once(outage)
            except DatabaseCorrupted as error:
                if self._worker is None or not self._worker.started.is_set():
                    log_event(
                        log,
                        logging.ERROR,
                        "database_corrupted",
                        "The worker cannot start, as its database is damaged: %(error)s",
                        error=str(error),
                    )
                return DAMAGED
            except DuetimeError as error:
                if self._worker is not None and self._worker.started.is_set():
                    raise
                if not isinstance(error, TransientError):
                    log_event(
                        log,
                        logging.ERROR,
                        "worker_cannot_start",
                        "The worker cannot start: %(error)s",
                        error=str(error),
                        exc_info=error.__cause__ if isinstance(error, StartupFailed) else None,
                    )
                    return COULD_NOT_START
                outage.failed("start", error, OUTAGE_SECONDS)
                await self._unless_stopped(asyncio.sleep(OUTAGE_SECONDS))
        return STOPPED

    async def _run_once(self, outage: Outage) -> int:
        self._worker = None
        store = await self._unless_stopped(self._host.store())
        if store is None:
            return STOPPED
        self._worker = self._host._make_worker(store, name=self._name)
        if self._stopping.is_set():
            return STOPPED
        self._worker.outage = outage
        await self._worker.run()
        # Jobs that could not be given back wait until the lease runs out: report it.
        return CRASHED if self._worker.left_behind else STOPPED

    async def _unless_stopped(self, work: Any) -> Any:
        """Await `work`, or return None as soon as a signal arrives."""
        doing = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([doing, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if doing.done():
            return doing.result()
        doing.cancel()
        return None

    async def _close(self) -> None:
        try:
            await asyncio.wait_for(self._host.close(), 5.0)
        except (DuetimeError, TimeoutError):
            # It was never open, or the database cannot be reached: the process exits anyway.
            pass

    def _signalled(self, count: int) -> None:
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop(now=count > 1)


class Signals:
    """Counts SIGTERM and SIGINT on a separate thread, which acts even if the loop is blocked.

    `on_signal(count)` is called on the loop for the first two. The third makes the process exit,
    and so does a stop that takes much longer than the grace time.
    """

    def __init__(self, grace: float, on_signal: Callable[[int], None]) -> None:
        self._grace = grace
        self._on_signal = on_signal
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._former: dict[int, Any] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._reader, self._writer = os.pipe()
        self._watcher = threading.Thread(target=self._watch, name="duetime-signals", daemon=True)

    def __enter__(self) -> Signals:
        self._watcher.start()
        for number in STOP_SIGNALS:
            self._former[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        os.write(self._writer, b"\0")
        self._watcher.join()
        os.close(self._reader)
        os.close(self._writer)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        # The interpreter runs `_received` only when the main thread is awake. A signal that arrives
        # just before the loop goes to sleep, or on another thread, wakes it by this byte.
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        loop.add_reader(self._wake_reader, self._wake_reader.recv, 64)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        self._loop = loop
        if self._count:
            loop.call_soon(self._on_signal, self._count)

    def detach(self) -> None:
        loop, self._loop = self._loop, None
        signal.set_wakeup_fd(-1)
        if loop is not None:
            loop.remove_reader(self._wake_reader)
        self._wake_reader.close()
        self._wake_writer.close()

    def _received(self, number: int, _frame: FrameType | None) -> None:
        # This may interrupt anything, so it must not acquire a lock.
        os.write(self._writer, bytes([number]))

    def _watch(self) -> None:
        number, deadline = 0, float("inf")
        while True:
            left = min(max(deadline - time.monotonic(), 0.0), 3600.0)
            if not select.select([self._reader], [], [], left)[0]:
                if time.monotonic() >= deadline:
                    exit_now(128 + number, "stop_timed_out")
                continue
            number = os.read(self._reader, 1)[0]
            if not number:
                return
            self._count += 1
            if self._count > 2:
                exit_now(128 + number, "forced_exit", signal=signal.Signals(number).name)
            grace = self._grace if self._count == 1 else 0.0
            deadline = time.monotonic() + grace + _BEYOND_GRACE_SECONDS
            self._notify()

    def _notify(self) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._on_signal, self._count)
        except RuntimeError:
            # The loop was closed in the meantime.
            pass


def exit_now(code: int, event: str | None = None, **fields: Any) -> NoReturn:
    """Exit at once, whatever the threads do. Log lines are written first."""
    try:
        if event is not None:
            log_event(log, logging.ERROR, event, _EXIT_MESSAGES[event], exit_code=code, **fields)
        logging.shutdown()
        sys.stdout.flush()
    finally:
        os._exit(code)


async def _threads_left() -> list[str]:
    """Return our threads that still run after a moment."""
    deadline = time.monotonic() + _THREAD_SECONDS
    while True:
        left = [t.name for t in threading.enumerate() if t.name.startswith(_THREADS)]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.01)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    log_event(
        log,
        logging.WARNING,
        "parent_died",
        "The parent process %(parent)s has died, so the worker stops.",
        parent=parent,
    )
    os.kill(os.getpid(), signal.SIGTERM)
