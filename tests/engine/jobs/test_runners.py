"""Whatever a handler does to its task: the worker goes on, and its job ends."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from duetime import Constant, Context, Custom, Duetime, JobState
from duetime.engine import runners
from tests.conftest import Backend, query
from tests.log_events import event_of
from tests.waiting import PATIENCE, until, until_true

ENDED = {JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED}


async def has_ended(app: Duetime, job_id: int) -> bool:
    return (await app.jobs.get(job_id)).state in ENDED


def cancel_myself() -> None:
    me = asyncio.current_task()
    assert me is not None
    me.cancel()


class NoClass:
    @property
    def __class__(self) -> type:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: type) -> None: ...


class NoClassError(Exception):
    @property
    def __class__(self) -> type:
        raise SystemExit("no class")

    @__class__.setter
    def __class__(self, value: type) -> None: ...


async def raise_generator_exit() -> None:
    raise GeneratorExit


async def cancel_and_wait() -> None:
    cancel_myself()
    await asyncio.sleep(30)


async def cancel_and_return() -> str:
    cancel_myself()
    return "done"


async def return_without_class() -> object:
    return NoClass()


async def raise_without_class() -> None:
    raise NoClassError


async def exit_the_process() -> None:
    raise SystemExit


async def interrupt() -> None:
    raise KeyboardInterrupt


HOSTILE = {
    raise_generator_exit: (JobState.DEAD, "GeneratorExit"),
    cancel_and_wait: (JobState.DEAD, "CancelledError"),
    cancel_and_return: (JobState.COMPLETED, None),
    return_without_class: (JobState.COMPLETED, "result_not_stored"),
    raise_without_class: (JobState.DEAD, "RuntimeError"),
    exit_the_process: (JobState.DEAD, "SystemExit"),
    interrupt: (JobState.DEAD, "KeyboardInterrupt"),
}


@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
async def test_no_handler_can_end_its_runner(app: Duetime) -> None:
    hostile = {
        handler: app.task(name=handler.__name__, max_attempts=1)(handler) for handler in HOSTILE
    }

    @app.task
    async def plain() -> str:
        await asyncio.sleep(0)
        return "still here"

    async with app.worker(concurrency=1):
        for handler, (state, code) in HOSTILE.items():
            handle = await hostile[handler].enqueue()
            await until(lambda job_id=handle.id: has_ended(app, job_id))  # type: ignore[misc]
            job = await handle.get()

            assert (job.state, job.error_code) == (state, code), handler.__name__
            assert await (await plain.enqueue()).result("30s") == "still here"


class Mute(BaseException):
    def __str__(self) -> str:
        raise SystemExit("no words")

    @property
    def code(self) -> str:
        raise SystemExit("no code")


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, Mute])
@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
async def test_no_retry_policy_and_no_error_hook_can_end_its_runner(
    app: Duetime, error: type[BaseException]
) -> None:
    def fail(attempt: int, failure: BaseException | None) -> str:
        raise error

    @app.on_error
    async def report(ctx: Context, failure: BaseException, will_retry: bool) -> None:
        raise error

    @app.task(retry=Custom(fail, max_attempts=3))
    async def broken() -> None:
        raise ValueError("first")

    @app.task
    async def plain() -> str:
        return "still here"

    async with app.worker(concurrency=1):
        handle = await broken.enqueue()
        assert await (await plain.enqueue()).result("30s") == "still here"
        job = await handle.get()

    assert (job.state, job.error_code) == (JobState.DEAD, "ValueError")
    assert f"first; and its retry policy failed: {error.__name__}" in (job.error or "")


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_forgotten_cancel_of_a_handlers_task_does_not_hit_the_next_job(
    app: Duetime,
) -> None:
    cancelled = asyncio.Event()

    @app.task
    async def forgetful() -> None:
        me = asyncio.current_task()
        assert me is not None

        def late() -> None:
            me.cancel()
            cancelled.set()

        asyncio.get_running_loop().call_later(0.05, late)

    @app.task(max_attempts=1)
    async def innocent() -> str:
        await cancelled.wait()
        await asyncio.sleep(0.01)
        return "unharmed"

    async with app.worker(concurrency=1):
        await forgetful.enqueue()
        assert await (await innocent.enqueue()).result("30s") == "unharmed"


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_what_a_handler_sets_in_its_context_is_not_seen_by_the_next(app: Duetime) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")

    @app.task
    async def serve(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        return before

    async with app.worker(concurrency=1):
        seen = [await (await serve.enqueue(name)).result("30s") for name in ("a", "b", "c")]

    assert seen == ["nobody"] * 3


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_handlers_that_leave_no_trace_share_a_task(app: Duetime) -> None:
    """A task of its own for each would cost a fifth of the throughput."""
    names: set[str] = set()

    @app.task
    async def note(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        me = asyncio.current_task()
        assert me is not None
        names.add(me.get_name())

    async with app.worker(concurrency=1):
        for wait in (False, True):
            await (await note.enqueue(wait)).result("30s")
            await (await note.enqueue(wait)).result("30s")

    assert len(names) == 1


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_runners_that_are_cancelled_by_a_stranger_are_replaced(app: Duetime) -> None:
    started: list[int] = []
    over = asyncio.Event()

    @app.task
    async def wait(n: int) -> None:
        started.append(n)
        await over.wait()

    async with app.worker(concurrency=3):
        for task in asyncio.all_tasks():
            if task.get_name().startswith("duetime-runner"):
                task.cancel()
        handles = [await wait.enqueue(n) for n in range(3)]
        await until_true(lambda: len(started) == 3)
        over.set()
        for handle in handles:
            await handle.result("30s")


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_stranger_cannot_cancel_a_handler_in_a_thread(app: Duetime) -> None:
    begun, over = threading.Event(), threading.Event()

    @app.task(max_attempts=1)
    def work() -> str:
        begun.set()
        over.wait(10)
        return "done"

    async with app.worker(concurrency=1):
        handle = await work.enqueue()
        await until_true(begun.is_set)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("duetime-runner"):
                task.cancel()
        await asyncio.sleep(0)
        over.set()

        assert await handle.result("30s") == "done"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "_STUCK_SECONDS", 0.05)
    monkeypatch.setattr(runners, "_CLOSE_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_that_ignores_its_time_out_is_reported_and_its_job_goes_on(
    app: Duetime, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    over = threading.Event()
    attempts: list[int] = []

    async def on_the_loop(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        while ctx.attempt == 1 and not over.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    def in_a_thread(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            over.wait(10)

    function: Callable[[Context], object] = on_the_loop if kind == "async" else in_a_thread
    task = app.task(name="deaf", timeout="50ms", retry=Constant("0s", max_attempts=2))(function)

    async with app.worker(concurrency=2):
        handle = await task.enqueue()
        await until_true(lambda: any(event_of(r) == "job_stuck" for r in caplog.records))
        await handle.result("30s")
        over.set()
    history = (await handle.get()).history
    stuck = next(record for record in caplog.records if event_of(record) == "job_stuck")

    assert attempts == [1, 2]
    assert [attempt.outcome for attempt in history] == ["retried", "completed"]
    assert history[0].error_code == "timed_out"
    assert stuck.levelno == logging.ERROR
    assert stuck.duetime["job_id"] == handle.id  # type: ignore[attr-defined]
    assert function.__name__ in stuck.duetime["traceback"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
async def test_a_cancelled_job_stops_although_threads_of_earlier_attempts_still_run(
    app: Duetime,
) -> None:
    over, last_began = threading.Event(), threading.Event()
    was_requested: list[bool] = []

    @app.task(timeout="400ms", retry=Constant("0s", max_attempts=4))
    def deaf(ctx: Context) -> None:
        if ctx.attempt < 4:
            over.wait(PATIENCE)
            return
        last_began.set()
        while not ctx.cancelled:
            over.wait(0.01)
        was_requested.append(ctx.cancel_requested)
        ctx.check()

    async with app.worker(concurrency=4):
        handle = await deaf.enqueue()
        await until_true(last_began.is_set)
        await handle.cancel()
        await until(lambda: has_ended(app, handle.id))
        over.set()

    assert was_requested == [True]
    assert (await handle.get()).state is JobState.CANCELLED


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_worker_stops_although_a_handler_swallows_its_cancel(app: Duetime) -> None:
    over, begun = asyncio.Event(), asyncio.Event()

    @app.task
    async def deaf() -> None:
        begun.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                pass

    async with asyncio.timeout(10):
        async with app.worker(concurrency=1, grace="0s"):
            handle = await deaf.enqueue()
            await begun.wait()
    state = (await handle.get()).state
    over.set()

    assert state is JobState.PENDING


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_log_filter_that_fails_costs_no_job(app: Duetime) -> None:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("this filter is broken")

    @app.task
    async def note() -> str:
        return "done"

    logger = logging.getLogger("duetime.events")
    broken = Broken()
    level = logger.level
    logger.addFilter(broken)
    logger.setLevel(logging.DEBUG)
    try:
        async with app.worker(concurrency=1):
            assert await (await note.enqueue()).result("30s") == "done"
    finally:
        logger.removeFilter(broken)
        logger.setLevel(level)


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
async def test_thousands_of_awaited_results_do_not_keep_a_worker_from_its_jobs(
    app: Duetime, backend: Backend
) -> None:
    looked: list[int] = []

    @app.task
    async def note() -> None:
        # Each result that is awaited is entered there first.
        looked.append(query(backend, "select count(*) from duetime.waiter")[0][0])

    far = await app.now() + timedelta(days=1)
    waiting = await app.enqueue_many([note.using(at=far).job() for _ in range(1000)])
    async with app.worker(concurrency=1):
        await (await note.enqueue()).result("30s")
        looked.clear()
        results = [asyncio.create_task(handle.result("60s")) for handle in waiting]
        await asyncio.sleep(0)
        await note.enqueue()
        await until_true(lambda: bool(looked))
        for result in results:
            result.cancel()
        await asyncio.gather(*results, return_exceptions=True)

    assert looked[0] < 500
