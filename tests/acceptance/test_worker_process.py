"""`duetime worker` as a process: signals, exit codes, children, and a database that is away."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta

import msgspec
import pytest

from duetime import Duetime, JobState
from duetime.storage.migrations import upgrade
from duetime.wiring import make_migrator
from tests.acceptance.command import SHOP, WorkerProcess, alive, duetime, enqueue, new_job, worker
from tests.conftest import Backend
from tests.servers import PostgresServer
from tests.waiting import until, until_true

STARTS = 30.0
"""How long a process may take to begin on a busy machine."""


async def running(app: Duetime, job_id: int, *, on: str | None = None) -> str:
    """Wait until the job runs; return on which worker."""

    async def its_worker() -> str | None:
        info = await app.jobs.get(job_id)
        return info.worker if info.state is JobState.RUNNING and on in (None, info.worker) else None

    return await until(its_worker, seconds=STARTS) or ""


async def test_sigterm_lets_the_running_job_finish(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.slow", seconds=1.0))
    with worker(backend.url) as process:
        await running(app, job_id)
        [waiting] = await enqueue(
            app, msgspec.structs.replace(new_job("shop.send", item_id=1), queue="other")
        )
        process.signal()

        assert process.exit_code() == 0

    info = await app.jobs.get(job_id)
    assert info.state is JobState.COMPLETED
    assert info.attempts == 1
    assert (await app.jobs.get(waiting)).state is JobState.PENDING
    assert await app.workers.list() == []


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_signal_that_answers_the_first_line_stops_it(
    backend: Backend, app: Duetime, options: tuple[str, ...]
) -> None:
    answer = duetime(backend.url, "worker", "--app", "tests.acceptance.hasty:app", *options)

    assert "starting" in answer.err
    assert answer.code == 0


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_failing_startup_hook_ends_it_with_a_message_and_exit_code_1(
    backend: Backend, app: Duetime, options: tuple[str, ...]
) -> None:
    answer = duetime(backend.url, "worker", "--app", "tests.acceptance.hooked:failing", *options)

    assert answer.code == 1
    assert "worker_cannot_start" in answer.err
    assert "on_startup hook tests.acceptance.hooked.open_client failed" in answer.err
    assert "ConnectionError: no route to the bank" in answer.err
    assert "worker_started" not in answer.err


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_shutdown_hooks_run_when_a_signal_stops_it(backend: Backend, app: Duetime) -> None:
    answer = duetime(backend.url, "worker", "--app", "tests.acceptance.hooked:brief")

    assert answer.code == 0
    assert answer.err.index("worker_stopped") < answer.err.index("client closed")


async def test_job_longer_than_the_grace_goes_to_another_worker(
    backend: Backend, app: Duetime
) -> None:
    [job_id] = await enqueue(app, new_job("shop.slow", seconds=600))
    with worker(backend.url, "--grace", "200ms", "--name", "first") as first:
        await running(app, job_id, on="first")
        with worker(backend.url, "--grace", "0s", "--name", "second") as second:
            await until_true(lambda: second.logged("worker_started"), seconds=STARTS)
            stopped = time.monotonic()
            first.signal(signal.SIGINT)

            assert first.exit_code() == 0
            await running(app, job_id, on="second")
            # At once: the lease, of 30 s, plays no part.
            assert time.monotonic() - stopped < 8

            second.signal()
            assert second.exit_code() == 0
    info = await app.jobs.get(job_id)
    assert (info.state, info.attempts) == (JobState.PENDING, 0)


async def test_second_signal_gives_back_now(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.slow", seconds=600))
    with worker(backend.url, "--grace", "10m") as process:
        await running(app, job_id)
        process.signal()
        await until_true(lambda: process.logged("worker_stopping"))
        assert process.process.poll() is None
        process.signal()

        assert process.exit_code() == 0

    assert (await app.jobs.get(job_id)).state is JobState.PENDING


async def test_thread_that_does_not_end_is_left_behind(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.stuck", seconds=600))
    with worker(backend.url, "--grace", "200ms") as process:
        await running(app, job_id)
        process.signal()

        assert process.exit_code(8) == 0
        assert process.logged("threads_abandoned")

    assert (await app.jobs.get(job_id)).state is JobState.PENDING


async def test_third_signal_ends_even_a_blocked_loop(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.block", seconds=600))

    async def blocking() -> bool:
        return (await app.jobs.get(job_id)).progress == "blocking"

    with worker(backend.url) as process:
        await until(blocking, seconds=STARTS)
        deadline = time.monotonic() + 10
        while process.process.poll() is None and time.monotonic() < deadline:
            # Two that come close together may count as one.
            process.signal(signal.SIGINT)
            await asyncio.sleep(0.1)

        assert process.exit_code() == 128 + signal.SIGINT
        assert process.logged("forced_exit")

    assert (await app.jobs.get(job_id)).state is JobState.RUNNING


async def test_two_processes_work_and_a_killed_one_is_replaced(
    backend: Backend, app: Duetime
) -> None:
    await enqueue(app, *[new_job("shop.slow", seconds=600)] * 2)
    options = ("--processes", "2", "--concurrency", "1", "--grace", "0s", "--name", "w")
    with worker(backend.url, *options) as parent:

        async def both_work() -> bool:
            jobs = await app.jobs.list(state="running")
            return {job.worker for job in jobs} == {"w-1", "w-2"}

        await until(both_work, seconds=STARTS)
        first, second = parent.children()

        os.kill(first, signal.SIGKILL)

        await until_true(lambda: parent.count("worker_started") == 3, seconds=STARTS)
        assert parent.count("process_died") == 1, parent.log.read_text()
        assert parent.count("process_started") == 3
        children = parent.children()
        assert second in children
        assert first not in children
        parent.signal(signal.SIGINT)

        assert parent.exit_code(15) == 0
        assert not any(alive(pid) for pid in children)


async def test_a_bulk_action_of_a_killed_worker_is_continued(
    backend: Backend, app: Duetime
) -> None:
    later = msgspec.structs.replace(new_job("shop.greet"), delay=timedelta(days=1), queue="mail")
    count = 10_000
    await enqueue(app, *[later] * count)
    action = await app.jobs.cancel_all(queue="mail", by="ann")

    async def begun() -> bool:
        return (await app.jobs.bulk_action(action.id)).done > 0

    with worker(backend.url, "--lease", "1s") as process:
        await until(begun, seconds=STARTS)
        process.signal(signal.SIGKILL)
        process.process.wait(10)
    half = await app.jobs.bulk_action(action.id)
    async with app.worker():
        progress = await action.result()

    assert half.state is not JobState.COMPLETED, "it was killed in the middle"
    assert half.done < count
    assert (progress.matched, progress.done, progress.skipped) == (count, count, 0)
    assert str((await app.jobs.facets(queue="mail")).states[JobState.CANCELLED]) == "10,000+"
    assert await app.jobs.list(queue="mail", state="pending") == []


async def test_children_end_with_their_parent(backend: Backend, app: Duetime) -> None:
    [job_id] = await enqueue(app, new_job("shop.slow", seconds=600))
    with worker(backend.url, "--processes", "2", "--grace", "0s") as parent:
        await running(app, job_id)
        children = parent.children()
        assert len(children) == 2
        parent.signal(signal.SIGKILL)

        await until_true(lambda: not any(alive(pid) for pid in children))

    assert (await app.jobs.get(job_id)).state is JobState.PENDING


def test_parent_gives_up_if_its_children_cannot_start(pg_url: str) -> None:
    answer = duetime(pg_url, "worker", "--app", SHOP, "--processes", "2")

    assert answer.code == 1
    assert "duetime db init" in answer.err
    assert "Traceback" not in answer.err
    assert "process_died" not in answer.err


async def test_worker_waits_for_a_database_that_is_away(own_postgres: PostgresServer) -> None:
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True)
    [job_id] = await enqueue(app, new_job("shop.send", item_id=7))
    await app.close()
    own_postgres.stop()
    with worker(url) as process:
        await until_true(lambda: process.logged("database_unreachable"), seconds=STARTS)
        own_postgres.start()

        async def completed() -> bool:
            return (await app.jobs.get(job_id)).state is JobState.COMPLETED

        await until(completed, seconds=STARTS)
        await app.close()
        process.signal()
        assert process.exit_code() == 0
        waits = [line for line in process.lines if line["event"] == "database_unreachable"]

    assert waits[0]["retry_in_s"] == 1.0
    assert "cannot be reached" in waits[0]["error"]


async def test_signal_while_it_waits_for_the_database(own_postgres: PostgresServer) -> None:
    own_postgres.stop()
    with worker(own_postgres.dsn("nothing")) as process:
        await until_true(lambda: process.logged("database_unreachable"), seconds=STARTS)
        process.signal()

        assert process.exit_code(5) == 0


async def test_log_lines_are_json_with_the_events_fields(backend: Backend, app: Duetime) -> None:
    jobs = [new_job("shop.send", item_id=7), new_job("shop.fail")]
    [sent, failed] = await enqueue(app, *jobs)
    with worker(backend.url, "--log-level", "debug") as process:

        async def both() -> bool:
            states = {(await app.jobs.get(job_id)).state for job_id in (sent, failed)}
            return states <= {JobState.COMPLETED, JobState.RETRYING}

        await until(both, seconds=STARTS)
        process.signal()
        assert process.exit_code() == 0
        lines = process.lines
        text = process.log.read_text()

    assert len(lines) == len(text.splitlines())
    told = {(line["event"], line.get("job_id")): line for line in lines}
    assert {"time", "level", "event"} <= set.intersection(*(set(line) for line in lines))
    assert told["job_claimed", sent]["level"] == "debug"
    assert told["job_completed", sent]["attempt"] == 1
    assert told["job_completed", sent]["duration_ms"] >= 0
    failure = told["job_failed", failed]
    assert (failure["level"], failure["will_retry"]) == ("warning", True)
    assert failure["error_code"] == "ValueError"
    assert "Traceback" in failure["traceback"]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_worker_stopped_before_it_began_exits_cleanly(pg_url: str, processes: str) -> None:
    upgrade(make_migrator(Duetime(pg_url).settings))
    process = WorkerProcess(pg_url, "--processes", processes)
    try:
        deadline = time.monotonic() + STARTS
        while not process.logged("starting") and time.monotonic() < deadline:
            time.sleep(0.01)
        process.signal()

        assert process.exit_code(15) == 0
    finally:
        process.close()


@pytest.mark.parametrize("holds", [False, True], ids=["idle", "busy"])
async def test_signal_in_an_outage(own_postgres: PostgresServer, holds: bool) -> None:
    """It ends in time: with 0 if nothing is left behind, else with 70, not by force."""
    url = own_postgres.dsn(own_postgres.create_database())
    app = Duetime(url, migrate=True)
    job_ids = await enqueue(app, new_job("shop.slow", seconds=60)) if holds else []
    await app.now()
    with worker(url, "--grace", "1s") as process:
        await until_true(lambda: process.logged("worker_started"), seconds=STARTS)
        for job_id in job_ids:
            await running(app, job_id)
        await app.close()
        own_postgres.stop("immediate")
        await until_true(lambda: process.logged("database_unreachable"))
        process.signal()

        assert process.exit_code(10) == (70 if holds else 0)
        assert not process.logged("stop_timed_out")
