"""A worker on every backend: from enqueue to the recorded end."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import (
    Cancel,
    Constant,
    Context,
    Delays,
    Discard,
    Duetime,
    Exponential,
    JobState,
    Retry,
    Snooze,
)
from duetime.api import jobs as jobs_api
from duetime.errors import (
    IllegalTransition,
    InvalidInput,
    JobFailed,
    JobNotFound,
    KeyConflict,
    ResultTimeout,
)
from tests.conftest import Backend, query
from tests.log_events import events_of
from tests.waiting import until, until_true


async def state_of(app: Duetime, job_id: int) -> JobState:
    return (await app.jobs.get(job_id)).state


async def reaches(app: Duetime, job_id: int, state: JobState, *, seconds: float = 10.0) -> None:
    async def there() -> bool:
        return await state_of(app, job_id) is state

    await until(there, seconds=seconds)


async def test_happy_path(app: Duetime) -> None:
    """Enqueue, claim, complete; the history has the attempt."""

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app.worker():
        handle = await double.enqueue(n=21)
        result = await handle.result("30s")
    job = await handle.get()

    assert result == 42
    assert job.state is JobState.COMPLETED
    assert job.attempts == 1
    assert [attempt.outcome for attempt in job.history] == ["completed"]


async def test_a_job_with_large_arguments_gets_them(app: Duetime) -> None:
    @app.task
    async def measure(text: str) -> int:
        return len(text)

    async with app.worker():
        assert await (await measure.enqueue("é" * 100_000)).result("30s") == 100_000


async def test_plain_functions_run_in_threads_not_on_the_loop(app: Duetime) -> None:
    loop_thread = threading.get_ident()
    all_are_there = threading.Barrier(10, timeout=20)

    @app.task
    def where() -> int:
        all_are_there.wait()
        return threading.get_ident()

    async with app.worker(concurrency=10):
        handles = [await where.enqueue() for _ in range(10)]
        threads = [await handle.result("30s") for handle in handles]

    assert loop_thread not in threads
    assert len(set(threads)) == 10, "ten blocking handlers run side by side"


async def test_jobs_enqueued_before_the_worker_started_are_drained_first(app: Duetime) -> None:
    """The worker listens first, and then runs the jobs that are due."""
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    await app.enqueue_many(note.job(n=n) for n in range(300))
    async with app.worker():
        await until_true(lambda: len(ran) == 300)

    assert sorted(ran) == list(range(300))


async def test_a_job_is_never_early_and_on_time(app: Duetime) -> None:
    late: list[float] = []

    @app.task
    async def at(moment: float) -> None:
        late.append(time.time() - moment)

    async with app.worker():
        now = datetime.now(UTC)
        moments = [now + timedelta(milliseconds=150 + 13 * i) for i in range(40)]
        await app.enqueue_many(at.using(at=m).job(moment=m.timestamp()) for m in moments)
        await until_true(lambda: len(late) == 40)

    assert min(late) >= 0
    assert sorted(late)[len(late) // 2] < 0.1


def test_jobs_are_on_time_in_a_loop_that_counts_in_milliseconds(backend: Backend) -> None:
    """uvloop, under which most web servers run, may call a timer before its time."""
    uvloop = pytest.importorskip("uvloop")
    late: list[float] = []

    async def main() -> None:
        app = Duetime(backend.url, migrate=True, poll="30s")

        @app.task
        async def at(moment: float) -> None:
            late.append(time.time() - moment)

        async with app.worker():
            now = datetime.now(UTC)
            # None falls due soon after another: what is forgotten stays so.
            moments = [now + timedelta(milliseconds=200 + 70.3 * i) for i in range(20)]
            await app.enqueue_many(at.using(at=m).job(moment=m.timestamp()) for m in moments)
            await until_true(lambda: len(late) == 20)
        await app.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

    assert min(late) >= 0
    assert max(late) < 10, "none was forgotten until the next poll"


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims come a second ahead: time to do something between claim and start."""
    monkeypatch.setattr("duetime.engine.pace.Pace.lead", 1.0)


@pytest.mark.usefixtures("lead")
async def test_what_is_claimed_ahead_starts_on_time_and_says_so(app: Duetime) -> None:
    late: list[float] = []

    @app.task
    async def at(moment: float) -> None:
        late.append(time.time() - moment)

    async with app.worker():
        moment = datetime.now(UTC) + timedelta(seconds=1.3)
        handle = await at.using(at=moment).enqueue(moment=moment.timestamp())
        await reaches(app, handle.id, JobState.RUNNING)
        before = time.time() - moment.timestamp()
        await reaches(app, handle.id, JobState.COMPLETED)
    [attempt] = (await handle.get()).history

    assert before < 0, "it was claimed before it was due"
    assert 0 <= late[0] < 5
    assert attempt.claimed_at is not None
    assert attempt.started_at is not None
    assert attempt.claimed_at < moment <= attempt.started_at


@pytest.mark.usefixtures("lead")
async def test_what_is_claimed_ahead_can_still_be_cancelled(app: Duetime) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with app.worker():
        moment = datetime.now(UTC) + timedelta(seconds=1.3)
        handle = await note.using(at=moment).enqueue(1)
        await reaches(app, handle.id, JobState.RUNNING)
        await handle.cancel()
        await reaches(app, handle.id, JobState.CANCELLED)

    assert ran == []


@pytest.mark.usefixtures("lead")
async def test_what_is_claimed_ahead_is_given_back_by_a_worker_that_stops(app: Duetime) -> None:
    ran: list[str] = []

    @app.task
    async def note(ctx: Context) -> None:
        ran.append(ctx.worker)

    moment = datetime.now(UTC) + timedelta(seconds=1.3)
    handle = await note.using(at=moment).enqueue()
    async with app.worker(name="first"):
        await reaches(app, handle.id, JobState.RUNNING)
    async with app.worker(name="second"):
        await reaches(app, handle.id, JobState.COMPLETED)
    job = await handle.get()

    assert len(ran) == 1
    assert job.attempts == 1, "what was given back is no attempt"
    assert job.history[-1].started_at is not None
    assert job.history[-1].started_at >= moment


async def test_priorities_are_kept_and_queues_are_apart(app: Duetime) -> None:
    ran: list[str] = []

    @app.task
    async def note(name: str) -> None:
        ran.append(name)

    await note.using(priority=9).enqueue("last")
    await note.using(priority=0).enqueue("first")
    await note.enqueue("middle")
    await note.using(queue="other").enqueue("elsewhere")
    async with app.worker(concurrency=1, queues=["default"]):
        await until_true(lambda: len(ran) == 3)

    assert ran == ["first", "middle", "last"]


async def test_a_failing_job_is_retried_and_then_dead_with_its_errors(app: Duetime) -> None:
    @app.task(retry=Delays("0s", "10ms", "20ms"))
    async def fail() -> None:
        raise ValueError("broken pipe dream")

    async with app.worker():
        handle = await fail.enqueue()
        await reaches(app, handle.id, JobState.DEAD)
    job = await handle.get()

    assert [attempt.outcome for attempt in job.history] == ["retried", "retried", "dead"]
    assert {attempt.error_code for attempt in job.history} == {"ValueError"}
    assert "broken pipe dream" in (job.history[0].traceback or "")
    with pytest.raises(JobFailed, match="broken pipe dream"):
        await handle.result("1s")


async def test_arguments_that_do_not_fit_end_the_job_at_its_first_attempt(
    app: Duetime, backend: Backend
) -> None:
    @app.task(retry=Constant("0s", max_attempts=3))
    async def double(n: int) -> int:
        return 2 * n

    handle = await double.enqueue(n=1)
    table = "duetime.job" if backend.is_postgres else "duetime_job"
    query(backend, f'update {table} set args = \'{{"n": "many"}}\'')
    async with app.worker():
        await reaches(app, handle.id, JobState.DEAD)
    job = await app.jobs.get(handle.id)

    assert [one.error_code for one in job.history] == ["invalid_arguments"]


async def test_no_more_jobs_run_at_once_than_concurrency_says(app: Duetime) -> None:
    running = 0
    most = 0
    release = asyncio.Event()

    @app.task
    async def hold() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    handles = await app.enqueue_many([hold.job() for _ in range(6)])
    async with app.worker(concurrency=3):
        await until_true(lambda: running >= 3)
        release.set()
        for handle in handles:
            await reaches(app, handle.id, JobState.COMPLETED)

    assert most == 3


async def test_permanent_errors_are_not_retried(app: Duetime) -> None:
    @app.task(retry_on=OSError, retry=Constant("0s"))
    async def fail(kind: str) -> None:
        raise OSError("passing") if kind == "passing" else KeyError("permanent")

    async with app.worker():
        permanent = await fail.enqueue("permanent")
        passing = await fail.enqueue("passing")
        await reaches(app, permanent.id, JobState.DEAD)
        await reaches(app, passing.id, JobState.DEAD)

    assert (await permanent.get()).attempts == 1
    assert (await passing.get()).attempts == 3


@pytest.mark.parametrize("raised", [True, False])
async def test_outcomes_are_values_or_exceptions(app: Duetime, raised: bool) -> None:
    seen: list[int] = []

    @app.task(max_attempts=5)
    async def decide(ctx: Context, how: str) -> object:
        seen.append(ctx.attempt)
        outcome: object = {
            "cancel": Cancel("not wanted"),
            "discard": Discard("hopeless"),
            "retry": Retry("later", after="5ms") if ctx.attempt == 1 else None,
            "snooze": Snooze("5ms") if len(seen) < 3 else None,
        }[how]
        if raised and isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with app.worker():
        handles = {}
        for how in ("cancel", "discard", "retry"):
            handles[how] = await decide.enqueue(how)
        await reaches(app, handles["cancel"].id, JobState.CANCELLED)
        await reaches(app, handles["discard"].id, JobState.DEAD)
        await reaches(app, handles["retry"].id, JobState.COMPLETED)
        seen.clear()
        snoozed = await decide.enqueue("snooze")
        await reaches(app, snoozed.id, JobState.COMPLETED)

    assert (await handles["retry"].get()).attempts == 2
    assert seen == [1, 1, 1], "a snooze gives the attempt back"
    assert (await snoozed.get()).attempts == 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_what_cannot_be_described_costs_no_runner(app: Duetime) -> None:
    @app.task(max_attempts=1)
    async def strange(how: str) -> object:
        if how == "error":
            raise Unspeakable
        knot: list[object] = []
        knot.append(knot)
        return knot

    @app.task
    async def plain() -> str:
        return "still here"

    async with app.worker(concurrency=1):
        error = await strange.enqueue("error")
        knot = await strange.enqueue("result")
        result = await (await plain.enqueue()).result("30s")

    assert result == "still here"
    assert "cannot be shown" in ((await error.get()).error or "")
    assert (await knot.get()).error_code == "result_not_stored"


class Codeless(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("no code")


@pytest.mark.parametrize("kind", ["async", "thread", "timed"])
async def test_a_cancelled_error_that_nobody_asked_for_is_a_failure(
    app: Duetime, kind: str
) -> None:
    """A handler that awaits something cancelled lets a `CancelledError` out."""
    tries: list[int] = []

    async def on_the_loop(ctx: Context) -> str:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            inner = asyncio.create_task(asyncio.sleep(30))
            inner.cancel()
            await inner
        return "done"

    def in_a_thread(ctx: Context) -> str:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise asyncio.CancelledError
        return "done"

    options: dict[str, Any] = {"name": "task", "retry": Constant("0s", max_attempts=2)}
    task: Any
    if kind == "thread":
        task = app.task(**options)(in_a_thread)
    else:
        timeout = "10s" if kind == "timed" else None
        task = app.task(timeout=timeout, **options)(on_the_loop)

    async with app.worker(concurrency=1):
        handle = await task.enqueue()
        result = await handle.result("30s")
        history = (await handle.get()).history

    assert (result, tries) == ("done", [1, 2])
    assert (history[0].outcome, history[0].error_code) == ("retried", "CancelledError")


async def test_a_cancelled_error_is_permanent_if_the_task_names_what_may_pass(
    app: Duetime,
) -> None:
    @app.task(retry_on=OSError)
    async def task() -> None:
        raise asyncio.CancelledError

    async with app.worker(concurrency=1):
        handle = await task.enqueue()
        await reaches(app, handle.id, JobState.DEAD)


async def test_an_error_whose_code_cannot_be_read_costs_no_runner(app: Duetime) -> None:
    @app.task(max_attempts=1)
    async def task() -> None:
        raise Codeless

    async with app.worker(concurrency=1):
        handle = await task.enqueue()
        await reaches(app, handle.id, JobState.DEAD)

    assert (await handle.get()).error_code == "Codeless"


async def test_a_handler_that_fails_after_its_cancel_is_not_retried(app: Duetime) -> None:
    running = asyncio.Event()

    @app.task
    async def stubborn() -> None:
        running.set()
        try:
            await asyncio.sleep(30)
        finally:
            raise OSError("while cleaning up")

    async with app.worker():
        handle = await stubborn.enqueue()
        await running.wait()
        await handle.cancel()
        await reaches(app, handle.id, JobState.CANCELLED)


async def test_a_cancel_that_meets_the_end_of_an_attempt_holds(app: Duetime) -> None:
    ran: list[int] = []

    @app.task(retry=Constant("0s", max_attempts=5))
    async def restless(ctx: Context, how: str) -> Snooze | None:
        ran.append(ctx.id)
        assert await app.jobs.cancel(ctx.id) is JobState.RUNNING
        if how == "snooze":
            return Snooze("0s")
        raise OSError("again")

    handles = [await restless.enqueue(how) for how in ("snooze", "retry") * 20]
    async with app.worker():
        for handle in handles:
            await reaches(app, handle.id, JobState.CANCELLED)
        last = await restless.enqueue("retry")
        await reaches(app, last.id, JobState.CANCELLED)

    assert ran == [handle.id for handle in (*handles, last)]


async def test_a_time_out_cancels_an_async_handler(app: Duetime) -> None:
    cancelled: list[bool] = []

    @app.task(timeout="50ms", max_attempts=1)
    async def hang() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with app.worker():
        handle = await hang.enqueue()
        await reaches(app, handle.id, JobState.DEAD)

    assert cancelled == [True]
    assert (await handle.get()).error_code == "timed_out"


async def test_a_time_out_flags_a_thread_and_reports_it(app: Duetime) -> None:
    flagged: list[bool] = []

    @app.task(timeout="50ms", max_attempts=1)
    def hang(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.005)
        flagged.append(True)

    async with app.worker():
        handle = await hang.enqueue()
        await reaches(app, handle.id, JobState.DEAD)
        await until_true(lambda: bool(flagged))

    assert (await handle.get()).error_code == "timed_out"


async def test_a_job_too_late_to_start_expires(app: Duetime) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    past = datetime.now(UTC) - timedelta(minutes=1)
    late = await note.using(at=past, expires="30s").enqueue(1)
    good = await note.using(at=past, expires="10m").enqueue(2)
    async with app.worker():
        await reaches(app, late.id, JobState.EXPIRED)
        await reaches(app, good.id, JobState.COMPLETED)

    assert ran == [2]


async def test_cancel_of_a_waiting_job(app: Duetime) -> None:
    @app.task
    async def never() -> None:
        raise AssertionError

    handle = await never.using(delay="1h").enqueue()
    was = await handle.cancel(reason="no longer wanted")
    again = await handle.cancel()

    assert was is JobState.PENDING
    assert again is JobState.CANCELLED
    assert (await handle.get()).error == "no longer wanted"


async def test_cancel_reaches_a_running_handler_before_the_next_heartbeat(app: Duetime) -> None:
    stopped: list[float] = []
    running = asyncio.Event()

    @app.task
    async def long() -> None:
        running.set()
        try:
            await asyncio.sleep(30)
        finally:
            stopped.append(time.monotonic())

    async with app.worker(lease="5m", heartbeat="1m", poll="1m"):
        handle = await long.enqueue()
        await running.wait()
        asked = time.monotonic()
        assert await handle.cancel() is JobState.RUNNING
        await until_true(lambda: bool(stopped))
        await reaches(app, handle.id, JobState.CANCELLED)

    assert stopped[0] - asked < 10


async def test_cancel_tells_a_thread(app: Duetime) -> None:
    running = threading.Event()

    @app.task
    def long(ctx: Context) -> None:
        running.set()
        while True:
            ctx.check()
            time.sleep(0.005)

    async with app.worker():
        handle = await long.enqueue()
        await until_true(running.is_set)
        await handle.cancel()
        await reaches(app, handle.id, JobState.CANCELLED)


async def test_operating_on_ended_or_missing_jobs_is_a_clear_error(app: Duetime) -> None:
    @app.task
    async def quick() -> None: ...

    async with app.worker():
        handle = await quick.enqueue()
        await handle.result("30s")

    with pytest.raises(IllegalTransition, match=r"is completed and cannot be cancelled"):
        await handle.cancel()
    with pytest.raises(IllegalTransition, match="rescheduled"):
        await app.jobs.reschedule(handle.id, datetime.now(UTC))
    with pytest.raises(IllegalTransition, match="requeued"):
        await app.jobs.requeue(handle.id)
    with pytest.raises(JobNotFound, match="no job 999999"):
        await app.jobs.cancel(999999)


async def test_reschedule_and_reprioritise_take_effect(app: Duetime) -> None:
    ran: list[str] = []

    @app.task
    async def note(name: str) -> None:
        ran.append(name)

    async with app.worker(concurrency=1):
        far = await note.using(delay="1h").enqueue("far")
        await app.jobs.reprioritise(far.id, 2)
        await app.jobs.reschedule(far.id, datetime.now(UTC))
        await until_true(lambda: ran == ["far"])

    assert (await far.get()).priority == 2


async def test_dead_letters_are_listed_and_requeued(app: Duetime) -> None:
    """Dead jobs are visible, and can be given fresh attempts."""
    broken = True

    @app.task(max_attempts=1)
    async def flaky(n: int) -> None:
        if broken:
            raise RuntimeError("down")

    async with app.worker():
        handles = [await flaky.enqueue(n) for n in range(5)]
        for handle in handles:
            await reaches(app, handle.id, JobState.DEAD)
        dead = await app.jobs.list(state="dead")
        broken = False
        await app.jobs.requeue(handles[0].id)
        requeued = await app.jobs.requeue_many(state="dead", task=flaky.name)
        for handle in handles:
            await reaches(app, handle.id, JobState.COMPLETED)

    assert {job.id for job in dead} == {handle.id for handle in handles}
    assert set(requeued.jobs) == {handle.id for handle in handles[1:]}


async def test_jobs_whose_key_another_holds_are_not_requeued(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "_REQUEUE_PAGE", 2)

    @app.task
    async def keyed() -> None: ...

    async def enqueue(key: str) -> int:
        return (await keyed.using(key=key, delay="1h").enqueue()).id

    old = [await enqueue(f"k{number}") for number in range(7)]
    for job_id in old:
        await app.jobs.cancel(job_id)
    holders = {job_id: await enqueue(f"k{number + 2}") for number, job_id in enumerate(old[2:])}
    with pytest.raises(KeyConflict, match=f"job {old[3]} was not requeued") as conflict:
        await app.jobs.requeue(old[3])
    many = await app.jobs.requeue_many(state="cancelled")

    assert (conflict.value.key, conflict.value.job_id) == ("k3", holders[old[3]])
    assert sorted(many.jobs) == old[:2]
    assert many.conflicts == holders
    assert await state_of(app, old[3]) is JobState.CANCELLED


async def test_a_lone_job_is_recorded_before_the_worker_looks_ahead(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for its result does not wait for what falls due next."""

    @app.task
    async def answer() -> int:
        return 42

    store = await app.store()
    exchange = store.exchange
    sent: list[tuple[int, bool]] = []

    async def observed(*args: Any, **options: Any) -> Any:
        sent.append((len(options["finished"]), options["look_ahead"]))
        return await exchange(*args, **options)

    async with app.worker() as worker:
        await until_true(lambda: not worker.loop.pace.should_claim)
        monkeypatch.setattr(store, "exchange", observed)
        handle = await answer.enqueue()
        assert await handle.result("30s") == 42
        await until_true(lambda: any(look_ahead for _, look_ahead in sent))
    recorded = [call for call in sent if call[0]]

    assert recorded == [(1, False)]


async def test_results_time_out_while_the_job_goes_on(app: Duetime) -> None:
    @app.task
    async def nothing() -> None: ...

    handle = await nothing.using(delay="1h").enqueue()

    with pytest.raises(ResultTimeout, match="did not finish within"):
        await handle.result("50ms")


async def test_an_unknown_task_is_parked_and_runs_when_a_worker_knows_it(app: Duetime) -> None:
    other = Duetime(app.settings.database)

    @other.task(name="new.task")
    async def new_task() -> str:
        return "done"

    async with app.worker(name="old-deploy"):
        handle = await new_task.enqueue()
        await reaches(app, handle.id, JobState.PARKED)
        parked = await app.jobs.get(handle.id)
        explanation = await app.jobs.explain(handle.id)
        async with other.worker(name="new-deploy"):
            result = await handle.result("30s")
    await other.close()
    job = await app.jobs.get(handle.id)

    assert "old-deploy does not know the task new.task" in str(parked.parked_reason)
    assert explanation.code == "parked"
    assert result == "done"
    assert job.attempts == 1, "being parked costs no attempt"


async def test_keys(app: Duetime) -> None:
    @app.task
    async def note(n: int) -> None: ...

    first = await note.using(key="a", delay="1h").enqueue(1)
    same = await note.using(key="a").enqueue(2)
    moved = await note.using(key="a", delay="2h", on_conflict="replace").enqueue(3)

    assert first.created
    assert (same.id, same.action) == (first.id, "existing")
    assert (moved.id, moved.action) == (first.id, "replaced")
    assert (await moved.get()).args == {"n": 3}
    with pytest.raises(KeyConflict, match=f"Job {first.id} of task") as caught:
        await note.using(key="a", on_conflict="reject").enqueue(4)
    assert caught.value.job_id == first.id


async def test_a_key_is_free_again_after_the_end_or_its_hold(app: Duetime) -> None:
    @app.task
    async def note() -> None: ...

    async with app.worker():
        free = await note.using(key="free").enqueue()
        held = await note.using(key="held", hold="1h").enqueue()
        await free.result("30s")
        await held.result("30s")
        free_again = await note.using(key="free").enqueue()
        held_again = await note.using(key="held").enqueue()

    assert free_again.created
    assert (held_again.id, held_again.action) == (held.id, "existing")


async def test_a_paused_queue_starts_nothing_until_resumed(app: Duetime) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    await app.queues.pause("default", by="ann", reason="maintenance")
    async with app.worker():
        handle = await note.enqueue(1)
        # A job of another queue that runs shows that the worker is awake.
        explanation = await app.jobs.explain(handle.id)
        assert ran == []
        await app.queues.resume("default")
        await until_true(lambda: ran == [1])

    assert explanation.code == "queue_paused"
    assert "ann: maintenance" in explanation.sentence


async def test_progress_is_seen_while_the_job_runs(app: Duetime) -> None:
    go_on = asyncio.Event()

    @app.task
    async def long(ctx: Context) -> None:
        await ctx.progress({"done": 0.5})
        await go_on.wait()

    async with app.worker():
        handle = await long.enqueue()

        async def half() -> bool:
            return (await handle.get()).progress == {"done": 0.5}

        await until(half)
        go_on.set()
        await handle.result("30s")


async def test_a_sync_call_of_an_async_handler_is_refused(app: Duetime) -> None:
    @app.task(max_attempts=1)
    async def report(ctx: Context, how: str) -> None:
        if how == "progress":
            ctx.progress_sync(1)
        else:
            with ctx.transaction_sync():
                pass

    async with app.worker():
        for how in ("progress", "transaction"):
            handle = await report.enqueue(how)
            with pytest.raises(JobFailed, match="would block the event loop"):
                await handle.result("30s")


@pytest.mark.parametrize("value", ["x" * 65_535, "a\x00b", object()])
async def test_progress_and_results_that_cannot_be_stored_are_refused(
    app: Duetime, value: Any
) -> None:
    refused: list[str] = []

    @app.task
    async def task(ctx: Context) -> str:
        for attempt in (ctx.progress(value), ctx.complete(value, tx=None)):
            try:
                await attempt
            except InvalidInput as error:
                refused.append(str(error))
        return "done"

    async with app.worker():
        result = await (await task.enqueue()).result("30s")

    assert result == "done"
    assert [message.split()[1] for message in refused] == ["progress", "result"]


async def test_a_transaction_of_the_handler_commits_with_the_job(
    app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    """Guarantee 4: the effect and the completion are one commit."""
    caplog.set_level(logging.INFO, "duetime")

    @app.task(max_attempts=2, retry=Constant("0s"))
    async def write(ctx: Context, fail: bool) -> None:
        async with ctx.transaction() as connection:
            result = connection.execute("create table if not exists note (n integer)")
            if hasattr(result, "__await__"):
                await result
            result = connection.execute("insert into note values (1)")
            if hasattr(result, "__await__"):
                await result
            if fail and ctx.attempt == 1:
                raise RuntimeError("after the write, before the commit")

    async with app.worker():
        handle = await write.enqueue(fail=True)
        await handle.result("30s")
        store = await app.store()
        async with store.transaction() as connection:
            cursor = connection.execute("select count(*) from note")
            cursor = await cursor if hasattr(cursor, "__await__") else cursor
            row = cursor.fetchone()
            count = (await row if hasattr(row, "__await__") else row)[0]

    assert count == 1
    assert [attempt.outcome for attempt in (await handle.get()).history] == [
        "retried",
        "completed",
    ]
    assert [event for event in events_of(caplog) if event.startswith("job_")] == [
        "job_started",
        "job_failed",
        "job_started",
        "job_completed",
    ]


async def test_a_second_transaction_of_a_handler_is_refused_in_words(app: Duetime) -> None:
    told: list[str] = []

    @app.task
    async def write(ctx: Context) -> None:
        async with ctx.transaction():
            pass
        try:
            async with ctx.transaction():
                told.append("inside")
        except InvalidInput as error:
            told.append(str(error))

    async with app.worker():
        handle = await write.enqueue()
        await handle.result("30s")
        await until_true(lambda: bool(told))

    assert "can be used once per job" in told[0]
    assert (await handle.get()).state is JobState.COMPLETED


async def test_graceful_stop_gives_back_what_did_not_end(app: Duetime) -> None:
    started = asyncio.Event()

    @app.task
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    async with app.worker(concurrency=1, grace="100ms"):
        first = await long.enqueue()
        second = await long.enqueue()
        await started.wait()

    for handle in (first, second):
        job = await handle.get()
        assert (job.state, job.attempts) == (JobState.PENDING, 0)
    assert await app.workers.list() == []


async def test_a_worker_in_a_thread_serves_sync_code(app: Duetime) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    def host() -> int:
        with app.worker_thread():
            handle = add.enqueue_sync(2, 3)
            result = app.sync(handle.result("30s"))
        app.sync(app.close())
        assert isinstance(result, int)
        return result

    assert await asyncio.to_thread(host) == 5


async def test_sync_call_on_the_loop_is_refused(app: Duetime) -> None:
    @app.task
    async def note() -> None: ...

    with pytest.raises(Exception, match="would block the running event loop"):
        note.enqueue_sync()


async def test_bad_options_change_nothing(app: Duetime) -> None:
    async def plain() -> None: ...

    @app.task
    async def note(n: int) -> None: ...

    with pytest.raises(InvalidInput, match="no time zone"):
        note.using(at=datetime(2026, 1, 1))
    with pytest.raises(InvalidInput, match="must not be negative"):
        note.using(delay=timedelta(seconds=-1))
    with pytest.raises(InvalidInput, match="not a duration"):
        note.using(delay="-5s")
    with pytest.raises(InvalidInput, match="priority"):
        note.using(priority=10)
    with pytest.raises(InvalidInput, match="NUL"):
        note.using(key="a\x00b")
    with pytest.raises(InvalidInput, match="at= and delay= cannot be combined"):
        note.using(at=datetime.now(UTC), delay="1s")
    with pytest.raises(InvalidInput, match="argument 'n'"):
        await note.enqueue(n="seven")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="expires must be greater than zero"):
        note.using(expires="0s")
    with pytest.raises(InvalidInput, match="expires must be greater than zero"):
        app.task(expires=timedelta(0))(plain)
    strange: Any
    for strange in (functools.partial(int, "7"), 5, note, object()):
        with pytest.raises(InvalidInput, match="A task must be a function"):
            app.task(strange)
    for strange in (3, "60s", Exponential):
        with pytest.raises(
            InvalidInput, match=r"retry= must be a retry policy, such as Exponential"
        ):
            app.task(retry=strange)(plain)
    for strange in ("OSError", [OSError], (OSError, "TimeoutError"), OSError()):
        with pytest.raises(InvalidInput, match=r"retry_on= must be an exception class or a tuple"):
            app.task(retry_on=strange)(plain)
    with pytest.raises(InvalidInput, match="period"):
        await app.queues.limit("default", rate=5)
    with pytest.raises(InvalidInput, match=r"running of queue .* must be an integer from 1 to"):
        await app.queues.limit("default", running=2**31)

    assert await app.jobs.list() == []
    assert await app.queues.list() == []


async def test_job_by_what_is_not_an_id_is_refused(app: Duetime) -> None:
    bad: Any
    for bad in ("seven", "7", 7.0, True, 0, -1, 2**63):
        for call in (
            app.jobs.get(bad),
            app.jobs.cancel(bad),
            app.jobs.reschedule(bad, datetime.now(UTC)),
            app.jobs.reprioritise(bad, 1),
            app.jobs.requeue(bad),
            app.jobs.result(bad),
            app.jobs.explain(bad),
            app.jobs.audit(bad),
        ):
            with pytest.raises(InvalidInput, match="A job id must be a positive integer"):
                await call


async def test_process_twice_changes_nothing(app: Duetime) -> None:
    """A job whose finish is sent twice has one attempt in its history."""
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with app.worker():
        handle = await note.enqueue(1)
        await handle.result("30s")
    store = await app.store()
    job = await handle.get()
    from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob

    claimed = ClaimedJob(
        handle.id, job.history[0].token, job.task, job.queue, job.priority, "{}", 1, 3,
        datetime.now(UTC), datetime.now(UTC),
    )  # fmt: skip
    answer = await store.finish_again(
        [FinishedJob(claimed, AttemptOutcome.DEAD, 0, 1)], [claimed.token]
    )

    assert answer.refused == frozenset(), "already recorded under this token"
    assert (await handle.get()).state is JobState.COMPLETED
    assert ran == [1]


@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
async def test_a_cancel_stops_the_attempt_that_counts(app: Duetime) -> None:
    """Of earlier ones that ran out of time, the threads still run here."""
    attempts: list[Context] = []
    over = threading.Event()

    @app.task(timeout="1s", retry=Constant("0s", max_attempts=4))
    def stuck(ctx: Context) -> None:
        attempts.append(ctx)
        if ctx.attempt < 4:
            over.wait()
        while not over.is_set():
            ctx.check()
            time.sleep(0.01)

    async with app.worker(concurrency=8, heartbeat="100ms"):
        handle = await stuck.enqueue()
        await until_true(lambda: len(attempts) == 4)
        await handle.cancel()
        try:
            await reaches(app, handle.id, JobState.CANCELLED)
        finally:
            over.set()


@pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=["NUL", "half a character"])
@pytest.mark.parametrize("outcome", [Cancel, lambda reason: Snooze("1h", reason)])
async def test_a_reason_that_no_database_can_store_does_not_stop_the_worker(
    app: Duetime, text: str, outcome: Callable[[str], object]
) -> None:
    @app.task
    async def answer() -> object:
        return outcome(text)

    @app.task
    async def note() -> None: ...

    async with app.worker():
        handle = await answer.enqueue()

        async def ended() -> bool:
            return bool((await handle.get()).history)

        await until(ended)
        await reaches(app, (await note.enqueue()).id, JobState.COMPLETED)
    [attempt] = (await handle.get()).history

    assert attempt.error in ("a\\0b", "a\\ud800b")


async def test_each_unknown_task_is_named_by_its_own_jobs(app: Duetime) -> None:
    other = Duetime(app.settings.database)
    tasks = [other.task(name=name)(_nothing) for name in ("one", "two", "three")]
    handles = [await task.enqueue() for task in tasks]
    await other.close()

    async with app.worker(name="old-deploy"):
        for handle in handles:
            await reaches(app, handle.id, JobState.PARKED)
    reasons = [str((await app.jobs.get(handle.id)).parked_reason) for handle in handles]

    assert reasons == [
        f"worker old-deploy does not know the task {name}" for name in ("one", "two", "three")
    ]


async def _nothing() -> None: ...
