"""A handler that blocks the event loop is reported, and does not keep other jobs from running."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from duetime import Constant, Context, Duetime
from tests.conftest import Backend
from tests.log_events import event_of
from tests.waiting import until, until_true

pytestmark = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
SHORT: dict[str, Any] = {
    "lease": "1s",
    "heartbeat": "200ms",
    "rescue_every": "200ms",
    "grace": "0s",
}


@pytest.fixture
def blocked(backend: Backend) -> Iterator[threading.Event]:
    """Set it, and the handlers that block go on."""
    event = threading.Event()
    yield event
    event.set()


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if event_of(record) == name]


async def test_what_waits_behind_a_blocked_loop_is_rescued(
    backend: Backend, blocked: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    app = Duetime(backend.url, migrate=True, **SHORT)
    begun: list[str] = []

    @app.task(retry=Constant("0s", max_attempts=5))
    async def innocent(ctx: Context) -> str:
        begun.append(ctx.worker)
        if ctx.worker == "hostage":
            await asyncio.sleep(60)
        return ctx.worker

    @app.task(max_attempts=1)
    async def block_the_loop() -> None:
        begun.append("block")
        blocked.wait(20)

    handles = await app.enqueue_many([innocent.job() for _ in range(5)])
    thread = await asyncio.to_thread(app.worker_thread, name="hostage", block_limit="500ms")
    try:
        await until_true(lambda: len(begun) == 5)
        await block_the_loop.enqueue()
        await until_true(lambda: "block" in begun)
        async with app.worker(name="free"):
            results = [await handle.result("30s") for handle in handles]
            still_blocked = not blocked.is_set()
    finally:
        blocked.set()
        await asyncio.to_thread(thread.stop)
        await app.close()
    reports = events(caplog, "event_loop_blocked")

    assert still_blocked
    assert results == ["free"] * 5
    assert "block_the_loop" in reports[0].duetime["traceback"]  # type: ignore[attr-defined]
    assert reports[-1].levelno == logging.ERROR
    assert reports[-1].duetime["lease_renewed"] is False  # type: ignore[attr-defined]


async def test_a_worker_whose_loop_was_blocked_begins_anew(
    app: Duetime, blocked: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(max_attempts=1)
    async def block() -> None:
        blocked.wait(20)

    @app.task
    async def note() -> str:
        return "back"

    def lease_is_gone() -> bool:
        [worker] = app.sync(app.workers.list())
        return worker.lease_until < app.sync(app.now())

    def host() -> object:
        with app.worker_thread(**SHORT, block_limit="300ms"):
            block.enqueue_sync()
            deadline = time.monotonic() + 10
            while not lease_is_gone() and time.monotonic() < deadline:
                time.sleep(0.02)
            blocked.set()
            result = app.sync(note.enqueue_sync().result("30s"))
        app.sync(app.close())
        return result

    assert await asyncio.to_thread(host) == "back"
    assert events(caplog, "worker_fenced") != []
    assert events(caplog, "event_loop_unblocked") != []


async def test_a_worker_reports_by_how_much_its_loop_is_behind(
    backend: Backend, blocked: threading.Event
) -> None:
    app = Duetime(backend.url, migrate=True, lease="60s", heartbeat="200ms", grace="0s")
    begun = threading.Event()

    @app.task(max_attempts=1)
    async def block_the_loop() -> None:
        begun.set()
        blocked.wait(60)

    async def lag() -> float:
        [worker] = await app.workers.list()
        return worker.loop_lag.total_seconds()

    async def is_behind() -> bool:
        return await lag() >= 1

    async def is_not_behind() -> bool:
        return await lag() < 1

    thread = await asyncio.to_thread(app.worker_thread, block_limit="50s")
    try:
        await until(is_not_behind)
        await block_the_loop.enqueue()
        await until_true(begun.is_set)
        await until(is_behind)
        blocked.set()
        await until(is_not_behind)
    finally:
        blocked.set()
        await asyncio.to_thread(thread.stop)
        await app.close()
