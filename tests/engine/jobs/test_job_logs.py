"""What the logs say of a job: inside its handler, and of its failure."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from duetime import Constant, Duetime
from duetime.telemetry.job_labels import LABELS
from tests.acceptance.command import environment
from tests.log_events import event_of, events_of
from tests.waiting import until_true

log = logging.getLogger("shop")


def labels(record: logging.LogRecord) -> tuple[object, ...]:
    return tuple(record.__dict__.get(name) for name in LABELS)


def record_of(caplog: pytest.LogCaptureFixture, message: str) -> logging.LogRecord:
    [record] = [record for record in caplog.records if record.getMessage() == message]
    return record


async def test_records_made_inside_a_handler_carry_its_job(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @app.task(name="shop.pay", queue="money")
    async def pay() -> None:
        log.info("handler", extra={"task": "of the application", "job_id": "its own"})
        await asyncio.create_task(log_later())

    async def log_later() -> None:
        log.info("task of the handler")

    @app.task(name="shop.pay_in_thread", queue="money")
    def pay_in_thread() -> None:
        log.info("thread")

    async with app.worker(queues=["money"]):
        job = await pay.using(key="order:7").enqueue()
        in_thread = await pay_in_thread.enqueue()
        await job.result()
        await in_thread.result()
        log.info("outside")

    of_job = (job.id, "shop.pay", "order:7", 1, "money")
    assert labels(record_of(caplog, "handler")) == of_job
    assert record_of(caplog, "handler").__dict__["task"] == "of the application"
    assert labels(record_of(caplog, "task of the handler")) == of_job
    assert labels(record_of(caplog, "thread")) == (
        in_thread.id,
        "shop.pay_in_thread",
        None,
        1,
        "money",
    )
    assert not LABELS.keys() & record_of(caplog, "outside").__dict__.keys()


async def test_jobs_beside_and_after_each_other_keep_their_labels_apart(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    left_behind: list[asyncio.Task[None]] = []
    go = asyncio.Event()

    @app.task
    async def leave_a_task_behind(number: int) -> None:
        left_behind.append(asyncio.create_task(log_at_last(number)))
        await asyncio.sleep(0)
        log.info("job %d", number)

    async def log_at_last(number: int) -> None:
        await go.wait()
        log.info("behind %d", number)

    async with app.worker(concurrency=2):
        jobs = [await leave_a_task_behind.enqueue(number) for number in range(6)]
        for job in jobs:
            await job.result()
        go.set()
        await asyncio.gather(*left_behind)

    for number, job in enumerate(jobs):
        for message in (f"job {number}", f"behind {number}"):
            assert record_of(caplog, message).__dict__["duetime_job_id"] == job.id


async def test_the_application_keeps_its_own_record_factory(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = logging.getLogRecordFactory()

    def make(*args: object, **kwargs: object) -> logging.LogRecord:
        record: logging.LogRecord = before(*args, **kwargs)
        record.tenant = "acme"
        return record

    @app.task
    async def pay() -> None:
        log.info("both")

    logging.setLogRecordFactory(make)
    try:
        async with app.worker():
            job = await pay.enqueue()
            await job.result()
    finally:
        logging.setLogRecordFactory(before)

    # If a worker of an earlier test has set ours, theirs is around it, else ours around theirs.
    both = record_of(caplog, "both").__dict__
    assert both["tenant"] == "acme"


async def test_failure_is_logged_with_its_exception_and_a_readable_sentence(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    def charge() -> None:
        raise ConnectionError("the bank does not answer")

    @app.task(name="shop.pay", retry=Constant("0s"), max_attempts=2)
    async def pay() -> None:
        try:
            charge()
        except ConnectionError as error:
            raise RuntimeError("not paid") from error

    async with app.worker():
        job = await pay.enqueue()
        await until_true(lambda: events_of(caplog).count("job_failed") == 2)

    first, last = (record for record in caplog.records if event_of(record) == "job_failed")
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert first.getMessage() == (
        f"Job {job.id} of task shop.pay failed on attempt 1 of 2 and will be retried in 0 s: "
        "RuntimeError: not paid; caused by ConnectionError: the bank does not answer"
    )
    assert last.getMessage() == (
        f"Job {job.id} of task shop.pay failed on attempt 2 of 2 and will not be retried: "
        "RuntimeError: not paid; caused by ConnectionError: the bank does not answer"
    )
    assert last.exc_info is not None
    kind, error, traceback = last.exc_info
    assert kind is RuntimeError
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, ConnectionError)
    assert traceback is not None
    assert traceback.tb_frame.f_code.co_name == "pay", "without the engine's own frames"


PROGRAM = """
import asyncio, logging
from duetime import Duetime
logging.basicConfig()
app = Duetime("sqlite:///plain.db")
@app.task(name="shop.pay", max_attempts=1)
async def pay() -> None:
    raise ConnectionError("the bank does not answer")
async def main() -> None:
    async with app.worker():
        job = await pay.enqueue()
        while (await job.get()).state != "dead":
            await asyncio.sleep(0.01)
    await app.close()
asyncio.run(main())
"""


def test_plain_logging_shows_readable_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(None),
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    first, *below = done.stderr.splitlines()
    assert first == (
        "ERROR:duetime.events:Job 1 of task shop.pay failed on attempt 1 of 1 and will not be "
        "retried: ConnectionError: the bank does not answer"
    )
    assert below[0] == "Traceback (most recent call last):"
    assert below[-1] == "ConnectionError: the bank does not answer"
    assert "duetime/engine" not in done.stderr


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_an_exception_is_freed_once_its_attempt_is_recorded(
    app: Duetime, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its frames lead back to the record of the attempt, which the collector does not search."""
    # Pytest keeps what is logged.
    monkeypatch.setattr(logging.getLogger("duetime.events"), "disabled", True)

    class Failure(Exception):
        pass

    made: list[weakref.ref[Failure]] = []
    began = asyncio.Event()

    @app.task(max_attempts=2 if how == "is cancelled" else 1, timeout="10s")
    async def fail() -> None:
        failure = Failure("no")
        made.append(weakref.ref(failure))
        began.set()
        try:
            await asyncio.sleep(60 if how == "is cancelled" else 0)
        except asyncio.CancelledError:
            pass
        raise failure

    def is_freed() -> bool:
        gc.collect()
        return made[0]() is None

    async with app.worker():
        job = await fail.enqueue()
        await began.wait()
        if how == "is cancelled":
            await job.cancel()
        await until_true(is_freed)

    assert (await job.get()).state == ("dead" if how == "fails" else "cancelled")
