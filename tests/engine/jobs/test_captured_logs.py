"""What a handler logs is kept with its attempt, on every backend."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duetime import AttemptInfo, Context, Duetime, Retry
from duetime.domain.jobs.job import ClaimedJob
from duetime.domain.jobs.log_lines import MAX_BYTES
from duetime.errors import JobFailed
from duetime.telemetry.job_labels import capture
from tests.conftest import Backend, query

log = logging.getLogger("shop.orders")


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = log.level
    log.setLevel(logging.INFO)
    yield
    log.setLevel(before)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


async def run(app: Duetime, task: Any, **worker: Any) -> tuple[AttemptInfo, ...]:
    job = await task.enqueue()
    async with app.worker(**worker):
        with suppress(JobFailed):
            await job.result()
    return (await job.get()).history


def messages(attempt: AttemptInfo) -> list[str]:
    return [] if attempt.log is None else [line.message for line in attempt.log.lines]


async def test_lines_of_an_async_handler_and_of_its_tasks_are_kept(app: Duetime) -> None:
    async def child() -> None:
        log.warning("from a task")

    @app.task
    async def send() -> str:
        log.info("order %s", 7)
        log.debug("not enabled")
        await asyncio.create_task(child())
        return "done"

    [attempt] = await run(app, send)
    assert attempt.log is not None
    [first, second] = attempt.log.lines

    assert (first.level, first.logger, first.message) == ("INFO", "shop.orders", "order 7")
    assert (second.level, second.message) == ("WARNING", "from a task")
    assert first.at <= second.at
    assert attempt.log.dropped == 0
    assert attempt.result == "done"


async def test_lines_of_a_handler_in_a_thread_are_kept(app: Duetime) -> None:
    @app.task
    def send() -> None:
        log.info("in %s", threading.current_thread().name)

    [attempt] = await run(app, send)

    assert messages(attempt)[0].startswith("in duetime-task")


async def test_each_attempt_has_its_own_lines_and_a_failed_one_too(app: Duetime) -> None:
    @app.task(max_attempts=2)
    async def fail(ctx: Context) -> None:
        log.info("attempt %s", ctx.attempt)
        try:
            raise LookupError("gone")
        except LookupError as error:
            log.exception("it failed")
            raise Retry(after=0) from error

    first, second = await run(app, fail)

    assert messages(first) == ["attempt 1", "it failed\nLookupError: gone"]
    assert messages(second)[0] == "attempt 2"
    assert (first.outcome, second.outcome) == ("retried", "dead")


async def test_jobs_side_by_side_do_not_mix(app: Duetime) -> None:
    together = asyncio.Barrier(2)

    @app.task
    async def send(number: int) -> None:
        await together.wait()
        log.info("number %s", number)
        await together.wait()
        log.info("number %s again", number)

    jobs = await app.enqueue_many([send.job(1), send.job(2)])
    async with app.worker():
        for job in jobs:
            await job.result()

    for number, job in enumerate(jobs, 1):
        [attempt] = (await job.get()).history
        assert messages(attempt) == [f"number {number}", f"number {number} again"]


async def test_a_job_that_logs_nothing_has_none(app: Duetime) -> None:
    @app.task
    async def send() -> None:
        logging.getLogger("duetime.worker").warning("one of our own")

    [attempt] = await run(app, send)

    assert attempt.log is None


async def test_the_last_lines_are_kept(app: Duetime) -> None:
    @app.task
    async def send() -> None:
        for number in range(10):
            log.info("line %s", number)

    [attempt] = await run(app, send, log_lines=3)
    assert attempt.log is not None

    assert messages(attempt) == ["line 7", "line 8", "line 9"]
    assert attempt.log.dropped == 7


async def test_lines_can_be_switched_off(app: Duetime) -> None:
    @app.task
    async def send() -> None:
        log.info("line")

    [attempt] = await run(app, send, log_lines=0)

    assert attempt.log is None


async def test_large_and_hostile_lines_are_bounded_and_stored(
    app: Duetime, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest keeps what is logged, and cannot send such text between its processes.
    monkeypatch.setattr(log, "propagate", False)

    @app.task
    async def send() -> None:
        for _ in range(100):
            log.info("x" * 100_000)
        log.info("a\x00b \udcff <script>")

    [attempt] = await run(app, send)
    [(size,)] = query(backend, "select length(cast(log as text)) from duetime.attempt")

    assert messages(attempt)[-1] == "a\\0b \\udcff <script>"
    assert size < MAX_BYTES + 200
    assert attempt.log is not None
    assert len(attempt.log.lines) + attempt.log.dropped == 101


async def test_lines_before_a_transaction_that_completes_the_job_are_kept(app: Duetime) -> None:
    @app.task
    async def send(ctx: Context) -> None:
        log.info("before")
        async with ctx.transaction():
            log.info("inside")
        log.info("after")

    [attempt] = await run(app, send)

    assert messages(attempt) == ["before", "inside"]


async def test_a_handler_that_timed_out_has_its_lines(app: Duetime) -> None:
    @app.task(timeout="50ms", max_attempts=1)
    async def slow() -> None:
        log.info("begun")
        await asyncio.sleep(60)

    [attempt] = await run(app, slow)

    assert attempt.outcome == "dead"
    assert messages(attempt) == ["begun"]


def test_a_line_that_cannot_be_formatted_is_kept_as_it_is() -> None:
    job = cast("ClaimedJob", SimpleNamespace(lines=None))
    record = logging.LogRecord("shop", logging.INFO, "", 1, "wrong %s %s", (1,), None)
    capture(record, job)

    assert job.lines is not None
    assert "wrong %s %s" in (job.lines.write() or "")
