"""Startup and shutdown hooks, middleware, and what is called for failed attempts."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from duetime import CallNext, Constant, Context, Duetime, JobState, Retry, Snooze
from duetime.errors import InvalidInput, StartupFailed
from tests.conftest import Backend
from tests.log_events import event_of, events_of
from tests.waiting import until, until_true


async def reaches(app: Duetime, job_id: int, state: JobState) -> None:
    async def ask() -> bool:
        return (await app.jobs.get(job_id)).state is state

    await until(ask)


# Startup and shutdown


async def test_startup_runs_before_the_first_job_and_shutdown_after_the_last(
    app: Duetime,
) -> None:
    told: list[str] = []
    began = asyncio.Event()

    @app.on_startup
    async def open_first() -> None:
        await asyncio.sleep(0)
        told.append("open first")

    @app.on_startup
    def open_second() -> None:
        assert threading.current_thread() is not threading.main_thread()
        told.append("open second")

    @app.on_shutdown
    def close_first() -> None:
        told.append("close first")

    @app.on_shutdown
    async def close_second() -> None:
        told.append("close second")

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.sleep(0.05)
        told.append("job")

    job = await work.enqueue()
    async with app.worker():
        await began.wait()

    assert told == ["open first", "open second", "job", "close second", "close first"]
    assert (await job.get()).state is JobState.COMPLETED


async def test_failing_startup_stops_the_worker_before_it_claims(app: Duetime) -> None:
    told: list[str] = []

    @app.on_startup
    async def open_client() -> None:
        raise ConnectionError("no route")

    @app.on_startup
    async def never() -> None:
        told.append("started")

    @app.on_shutdown
    async def close_client() -> None:
        told.append("closed")

    @app.task
    async def work() -> None:
        told.append("job")

    job = await work.enqueue()
    with pytest.raises(StartupFailed, match=r"open_client failed.*ConnectionError: no route") as it:
        async with app.worker():
            raise AssertionError("it must not start")

    assert isinstance(it.value.__cause__, ConnectionError)
    assert told == ["closed"]
    assert (await job.get()).state is JobState.PENDING
    assert await app.workers.list() == []


async def test_every_shutdown_hook_runs_even_if_others_fail(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    @app.on_shutdown
    async def last() -> None:
        told.append("last")

    @app.on_shutdown
    async def fail() -> None:
        raise ValueError("stuck")

    @app.on_shutdown
    async def cancel_something() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    @app.on_shutdown
    def leave() -> None:
        raise SystemExit(3)

    async with app.worker():
        pass

    assert told == ["last"]
    assert events_of(caplog) == ["hook_failed"] * 3
    assert caplog.records[-1].getMessage().endswith("fail failed: stuck")
    assert caplog.records[-1].exc_info is not None


async def test_workers_of_one_event_loop_share_startup_and_shutdown(app: Duetime) -> None:
    told: list[str] = []
    app.on_startup(lambda: told.append("open"))
    app.on_shutdown(lambda: told.append("close"))

    async with app.worker():
        async with app.worker():
            pass
        assert told == ["open"]
    async with app.worker():
        pass

    assert told == ["open", "close"] * 2


def test_worker_thread_and_lifespan_and_test_world_run_the_hooks(backend: Backend) -> None:
    app = Duetime(backend.url, migrate=True)
    told: list[str] = []
    app.on_startup(lambda: told.append("open"))
    app.on_shutdown(lambda: told.append("close"))

    with app.worker_thread():
        assert told == ["open"]
    assert told == ["open", "close"]

    async def host() -> None:
        async with app.lifespan()(None):
            assert told[2:] == ["open"]
        async with app.lifespan(worker=False)(None):
            pass

    asyncio.run(host())
    assert told == ["open", "close"] * 2

    with app.testing():
        assert told[4:] == ["open"]
    assert told == ["open", "close"] * 3


async def test_failing_startup_fails_a_test_world_and_leaves_the_app_usable(
    backend: Backend,
) -> None:
    app = Duetime(backend.url, migrate=True)
    broken = [True]

    @app.on_startup
    async def open_client() -> None:
        if broken:
            raise ConnectionError("no route")

    with pytest.raises(StartupFailed):
        async with app.testing():
            pass
    broken.clear()
    async with app.testing() as world:
        assert await world.drain() == 0
    await app.close()


# Middleware


async def test_middleware_runs_around_every_job_the_first_outermost(app: Duetime) -> None:
    told: list[Any] = []
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    @app.middleware
    async def outer(ctx: Context, call_next: CallNext) -> Any:
        told.append(("outer", ctx.job.task, dict(ctx.args), ctx.attempt))
        tenant.set(f"tenant of {ctx.args['x']}")
        result = await call_next()
        told.append("outer after")
        return result

    @app.middleware
    async def inner(_: Context, call_next: CallNext) -> Any:
        told.append("inner")
        return await call_next() + 100

    @app.task(name="in_loop")
    async def in_loop(x: int) -> int:
        told.append(tenant.get())
        return x

    @app.task(name="in_thread")
    def in_thread(ctx: Context, x: int) -> int:
        assert ctx.args == {"x": x}
        told.append(tenant.get())
        return x

    async with app.worker(concurrency=1):
        results = [
            await (await in_loop.enqueue(1)).result(),
            await (await in_thread.enqueue(x=2)).result(),
        ]

    assert results == [101, 102]
    assert told == [
        ("outer", "in_loop", {"x": 1}, 1),
        "inner",
        "tenant of 1",
        "outer after",
        ("outer", "in_thread", {"x": 2}, 1),
        "inner",
        "tenant of 2",
        "outer after",
    ]


async def test_middleware_sees_errors_and_outcomes_and_decides(app: Duetime) -> None:
    seen: list[str] = []

    @app.middleware
    async def forgive(ctx: Context, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except LookupError as error:
            seen.append(repr(error))
            return "forgiven"
        except Retry:
            seen.append("retry")
            raise

    @app.task(retry=Constant("0s"), max_attempts=2)
    async def work(ctx: Context, how: str) -> str:
        if how == "lookup":
            raise KeyError("k")
        if how == "retry" and ctx.attempt == 1:
            raise Retry("once more", after="0s")
        return how

    async with app.worker():
        results = [
            await (await work.enqueue(how=how)).result() for how in ("lookup", "retry", "plain")
        ]

    assert results == ["forgiven", "retry", "plain"]
    assert seen == ["KeyError('k')", "retry"]


async def test_middleware_without_a_call_skips_the_handler(app: Duetime) -> None:
    @app.middleware
    async def dry_run(ctx: Context, call_next: CallNext) -> Any:
        return "skipped" if ctx.args["dry"] else await call_next()

    @app.task
    async def work(dry: bool) -> str:
        return "done"

    async with app.testing(inline=True):
        assert await (await work.enqueue(dry=True)).result() == "skipped"
        assert await (await work.enqueue(dry=False)).result() == "done"


async def test_middleware_runs_within_the_time_out_and_is_cancelled(app: Duetime) -> None:
    told: list[str] = []

    @app.middleware
    async def watch(ctx: Context, call_next: CallNext) -> Any:
        try:
            result = await call_next()
            if ctx.job.task == "in_thread":
                await asyncio.sleep(60)
            return result
        except asyncio.CancelledError:
            told.append(ctx.job.task)
            raise

    @app.task(name="in_loop", timeout="50ms", max_attempts=1)
    async def in_loop() -> None:
        await asyncio.sleep(60)

    @app.task(name="in_thread", timeout="300ms", max_attempts=1)
    def in_thread() -> None:
        pass

    async with app.worker():
        jobs = [await in_loop.enqueue(), await in_thread.enqueue()]
        for job in jobs:
            await reaches(app, job.id, JobState.DEAD)
            assert (await job.get()).error_code == "timed_out"
        # Before the worker stops, which would cancel it, too.
        await until_true(lambda: told == ["in_loop", "in_thread"])


# Failed attempts


async def test_on_error_is_told_of_every_failed_attempt(app: Duetime) -> None:
    told: list[tuple[object, ...]] = []

    @app.on_error
    def report(ctx: Context, error: BaseException, will_retry: bool) -> None:
        told.append((ctx.id, ctx.attempt, dict(ctx.args), str(error), will_retry))

    @app.task(retry=Constant("0s"), max_attempts=2)
    async def fail(x: int) -> None:
        raise ValueError(f"no {x}")

    snoozed: list[int] = []

    @app.task
    async def snooze(ctx: Context) -> None:
        if not snoozed:
            snoozed.append(ctx.id)
            raise Snooze("0s")

    async with app.worker():
        job = await fail.enqueue(7)
        await (await snooze.enqueue()).result()
        await reaches(app, job.id, JobState.DEAD)

    assert snoozed
    assert told == [(job.id, 1, {"x": 7}, "no 7", True), (job.id, 2, {"x": 7}, "no 7", False)]


async def test_on_error_is_told_of_time_outs_of_threads_and_of_arguments_that_do_not_fit(
    app: Duetime,
) -> None:
    told: list[str] = []
    release = threading.Event()

    @app.on_error
    async def report(ctx: Context, error: BaseException, will_retry: bool) -> None:
        told.append(f"{ctx.job.task} {type(error).__name__} {will_retry}")

    @app.task(name="hang", timeout="50ms", max_attempts=1)
    def hang() -> None:
        release.wait(30)

    @app.task(name="number")
    async def number(x: int) -> None: ...

    hanging = await hang.enqueue()
    wrong = await number.enqueue(1)

    app.tasks.pop("number")
    app._registrations._known.pop("task 'number'")

    @app.task(name="number")
    async def renamed(y: int) -> None: ...

    async with app.worker():
        await reaches(app, hanging.id, JobState.DEAD)
        await reaches(app, wrong.id, JobState.DEAD)
        await until_true(lambda: len(told) == 2)
        release.set()

    assert sorted(told) == ["hang TimedOut False", "number InvalidArguments False"]


@pytest.mark.parametrize("kind", ["raises", "hangs", "exits"])
async def test_failing_error_hook_is_logged_and_changes_nothing(
    app: Duetime, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "hangs":
        monkeypatch.setattr("duetime.engine.hooks._ERROR_HOOK_SECONDS", 1.0)
    told: list[int] = []

    @app.on_error
    async def broken(ctx: Context, error: BaseException, will_retry: bool) -> None:
        if kind == "hangs":
            await asyncio.sleep(60)
        raise {"raises": ValueError("sorry"), "exits": SystemExit(1)}[kind]

    @app.on_error
    def whole(ctx: Context, error: BaseException, will_retry: bool) -> None:
        told.append(ctx.attempt)

    @app.task(retry=Constant("0s"), max_attempts=2)
    async def fail(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise RuntimeError("once")
        return "done"

    async with app.worker():
        result = await (await fail.enqueue()).result()

    assert result == "done"
    assert told == [1]
    [failed] = [record for record in caplog.records if event_of(record) == "hook_failed"]
    assert failed.__dict__["duetime_attempt"] == 1


# Registration


def test_hooks_of_a_wrong_shape_are_refused() -> None:
    app = Duetime("sqlite:///hooks.db")

    def needs_one(x: int) -> None: ...
    def sync_middleware(ctx: Context, call_next: CallNext) -> None: ...
    async def lonely(ctx: Context) -> None: ...

    with pytest.raises(InvalidInput, match=r"on_startup function is called with no arguments"):
        app.on_startup(needs_one)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="must be an async function"):
        app.middleware(sync_middleware)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match=r"the context and call_next; .* takes"):
        app.middleware(lonely)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="the context, the error and will_retry"):
        app.on_error(lonely)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="takes a function, got 5"):
        app.on_shutdown(5)  # type: ignore[type-var]


def test_hook_that_is_registered_twice_runs_once() -> None:
    app = Duetime("sqlite:///hooks.db")

    one, other = Client(), Client()
    for hook in (module_hook, module_hook, one.open, other.open, one.open):
        app.on_startup(hook)

    assert app._hook_registry.hooks.startup == [module_hook, one.open, other.open]


def module_hook() -> None: ...


class Client:
    def open(self) -> None: ...
