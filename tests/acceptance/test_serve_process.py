"""`duetime serve` as a process: it stops as a worker does."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from duetime import Duetime, JobState
from tests.acceptance.command import DUETIME, ROOT, SHOP, enqueue, environment, new_job
from tests.conftest import Backend
from tests.waiting import until

STARTS = 30.0

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgres15"], indirect=True)


@contextmanager
def serving(url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(DUETIME), "serve", "--app", SHOP, "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(url),
        cwd=ROOT,
    )
    try:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("Duetime is at"):
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_without_an_error(
    backend: Backend, app: Duetime, number: signal.Signals
) -> None:
    with serving(backend.url) as process:
        process.send_signal(number)
        _, told = process.communicate(timeout=STARTS)

        assert process.returncode == 0
    assert "Error" not in told


@pytest.mark.parametrize("options", [(), ("--no-worker",)])
def test_two_signals_stop_the_service_without_an_error(
    backend: Backend, app: Duetime, options: tuple[str, ...]
) -> None:
    with serving(backend.url, *options) as process:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=STARTS)

        assert process.returncode == 0
    assert "Error" not in told


async def test_a_second_signal_gives_running_jobs_back_at_once(
    backend: Backend, app: Duetime
) -> None:
    [job_id] = await enqueue(app, new_job("shop.slow", seconds=60.0))
    with serving(backend.url) as process:
        await until(lambda: _is_running(app, job_id), seconds=STARTS)
        # Two of the same kind may arrive as one.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)

        assert process.wait(20) == 0
    assert (await app.jobs.get(job_id)).state in (JobState.PENDING, JobState.RETRYING)


async def _is_running(app: Duetime, job_id: int) -> bool:
    return (await app.jobs.get(job_id)).state is JobState.RUNNING
