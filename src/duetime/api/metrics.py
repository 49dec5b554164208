"""`app.metrics`: what Prometheus reads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from duetime.errors import DuetimeError, StorageError
from duetime.storage.jobs.gauges import Gauges, read_gauges
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.telemetry.metrics import Metrics

log = logging.getLogger("duetime.metrics")

LOOPBACK = "127.0.0.1"
_EVERY_SECONDS = 1.0
_SHARE = 0.02
"""The reads of the database take at most this share of the time, however slow it is."""
_READ_SECONDS = 5.0
_OUTDATED_SECONDS = 60.0
_LOOP_SECONDS = 2.0
"""How long a scrape waits for a blocked event loop. It then shows what was read last."""


class MetricsReader:
    """Reads the state of the database for metrics: once a second at most, and more rarely if it
    takes long."""

    def __init__(self, app: Duetime) -> None:
        from duetime.telemetry.metrics import Metrics

        self._app = app
        self._gauges: Gauges | None = None
        self._read_at = 0.0
        self._next_at = 0.0
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self.metrics: Metrics = Metrics(app._events.tally, lambda: app._known_tasks, self._current)

    async def text(self) -> str:
        await self.refresh()
        return self.metrics.text()

    async def refresh(self) -> None:
        """Read the database, unless that was done a moment ago."""
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            began = time.monotonic()
            if began < self._next_at:
                return
            self._gauges = await self._read()
            self._read_at = time.monotonic()
            self._next_at = self._read_at + max(_EVERY_SECONDS, (self._read_at - began) / _SHARE)

    async def _read(self) -> Gauges | None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                store = await self._app.store()
                gauges: Gauges = await store.transact(read_gauges(store.dialect), snapshot=True)
                return gauges
        except (StorageError, TimeoutError):
            # It shows as `duetime_database_up 0`. Workers log the outage.
            return None

    def _current(self) -> Gauges | None:
        return self._gauges if time.monotonic() < self._read_at + _OUTDATED_SECONDS else None


def serve_metrics(app: Duetime, host: str, port: int) -> None:
    """Serve the metrics of the app's worker by HTTP, from its start to its end, on a thread: a
    blocked event loop shows in them."""
    reader = app._metrics
    server: list[Any] = []

    @app.on_startup
    async def start_metrics_server() -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Refreshed(reader, asyncio.get_running_loop()))
        ProcessCollector(registry=registry)
        try:
            server[:] = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise DuetimeError(
                f"Metrics cannot be served on {host}:{port}: {error}. Choose another "
                "--metrics-port or --metrics-host."
            ) from error
        log_event(
            log,
            logging.INFO,
            "metrics_served",
            "Metrics are served at http://%(host)s:%(port)s/metrics.",
            host=host,
            port=port,
        )

    @app.on_shutdown
    def stop_metrics_server() -> None:
        if server:
            server[0].shutdown()
            server[0].server_close()
            server.clear()


class _Refreshed:
    """A collector for another thread: has the event loop read the database first."""

    def __init__(self, reader: MetricsReader, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = reader
        self._loop = loop

    def collect(self) -> Iterator[Any]:
        refreshing = asyncio.run_coroutine_threadsafe(self._reader.refresh(), self._loop)
        try:
            refreshing.result(_LOOP_SECONDS)
        except concurrent.futures.TimeoutError:
            refreshing.cancel()
        yield from self._reader.metrics.collect()
