"""The testing kit on every backend: the real path of a job, under a driven clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duetime import Cancel, Context, Delays, Discard, Duetime, Exponential, JobState, Snooze
from duetime.domain.jobs.job import AttemptOutcome
from duetime.errors import DuetimeError, EndlessWork, InvalidInput, KeyConflict
from duetime.settings import Settings
from duetime.testing import World
from tests.conftest import Backend

START = datetime(2026, 3, 8, tzinfo=UTC)


@pytest.fixture
def app(backend: Backend) -> Duetime:
    return Duetime(backend.url)


def after(world: World) -> list[tuple[str, float]]:
    """What ran, and how many seconds after the start."""
    return [(ran.task, (ran.at - START).total_seconds()) for ran in world.ran]


async def test_advance_runs_timers_in_order_at_their_due_times(app: Duetime) -> None:
    clocks: list[datetime] = []

    @app.task(name="remind")
    async def remind(n: int) -> None:
        clocks.append(await app.now())

    async with app.testing(now="2026-03-08T00:00Z") as world:
        for n, hours in enumerate((49, 1, 72, 25, 73)):
            await remind.using(at=START + timedelta(hours=hours)).enqueue(n=n)
        await remind.using(delay="90m").enqueue(n=5)
        ran = await world.advance("3d")
        await world.assert_enqueued(remind, args={"n": 4}, delay="1h", count=1)

    assert ran == 5
    assert [run.args["n"] for run in world.completed] == [1, 5, 3, 0, 2]
    assert clocks == [START + timedelta(hours=hours) for hours in (1, 1.5, 25, 49, 72)]
    assert [run.at for run in world.ran] == clocks
    assert world.now == START + timedelta(days=3)


async def test_retries_happen_at_the_moments_of_the_policy_and_end_dead(app: Duetime) -> None:
    @app.task(name="call", retry=Exponential("60s", max_attempts=4))
    async def call() -> None:
        raise ConnectionError("no line")

    async with app.testing(now=START) as world:
        job = await call.enqueue()
        await world.advance("1d")
        info = await job.get()

    assert after(world) == [("call", 0), ("call", 60), ("call", 180), ("call", 420)]
    assert [run.outcome for run in world.failed] == ["retried"] * 3 + ["dead"]
    assert isinstance(world.failed[-1].exception, ConnectionError)
    assert info.state is JobState.DEAD
    assert [line.finished_at for line in info.history] == [run.at for run in world.ran]


async def test_a_table_of_delays_is_followed(app: Duetime) -> None:
    @app.task(name="call", retry=Delays("0s", "30s", "5m"))
    def call() -> None:
        raise ConnectionError

    async with app.testing(now=START) as world:
        await call.enqueue()
        await world.advance("1h")

    assert after(world) == [("call", 0), ("call", 30), ("call", 330)]
    assert world.ran[-1].outcome is AttemptOutcome.DEAD


async def test_a_snooze_gives_the_attempt_back(app: Duetime) -> None:
    @app.task(name="wait", retry=Delays("0s"))
    async def wait(until: datetime) -> None:
        if await app.now() < until:
            raise Snooze("10m")

    async with app.testing(now=START) as world:
        await wait.enqueue(until=START + timedelta(minutes=25))
        await world.advance("1h")

    assert after(world) == [("wait", 0), ("wait", 600), ("wait", 1200), ("wait", 1800)]
    assert [run.attempt for run in world.ran] == [1, 1, 1, 1]
    assert not world.failed
    assert len(world.completed) == 1


async def test_a_job_too_late_to_start_expires(app: Duetime) -> None:
    @app.task(name="offer")
    async def offer() -> None: ...

    async with app.testing(now=START) as world:
        await app.queues.pause("default")
        late = await offer.using(delay="1h", expires="10m").enqueue()
        in_time = await offer.using(delay="1h", expires="2h").enqueue()
        assert await world.advance("2h") == 0
        await app.queues.resume("default")
        await world.drain()
        states = [(await job.get()).state for job in (late, in_time)]

    assert states == [JobState.EXPIRED, JobState.COMPLETED]


async def test_drain_runs_what_jobs_enqueue_and_leaves_the_clock(app: Duetime) -> None:
    @app.task(name="chain")
    async def chain(left: int) -> None:
        if left:
            await chain.enqueue(left=left - 1)
        else:
            await chain.using(delay="1s").enqueue(left=9)

    async with app.testing(now=START) as world:
        await chain.enqueue(left=3)
        ran = await world.drain()

        assert await world.drain() == 0
        await world.assert_enqueued(chain, args={"left": 9}, count=1)
    assert ran == 4
    assert world.now == START


async def test_run_next_goes_one_job_at_a_time(app: Duetime) -> None:
    @app.task(name="step")
    async def step(n: int) -> None: ...

    async with app.testing(now=START) as world:
        await step.using(delay="1d").enqueue(n=2)
        await step.enqueue(n=1)
        first, second = await world.run_next(), await world.run_next()
        last = await world.run_next()

    assert first is not None
    assert first.args == {"n": 1}
    assert second is not None
    assert second.at == world.now == START + timedelta(days=1)
    assert last is None


async def test_priorities_and_queues_are_those_of_a_worker(app: Duetime) -> None:
    @app.task(name="work")
    async def work(name: str) -> None: ...

    async with app.testing(now=START) as world:
        await work.using(priority=9).enqueue(name="last")
        await work.using(queue="never heard of").enqueue(name="other queue")
        await work.using(priority=0).enqueue(name="first")
        await world.drain()

    names = [run.args["name"] for run in world.ran]
    assert names[0] == "first"
    assert names[-1] == "last"
    assert len(names) == 3


async def test_a_rate_limit_holds_in_virtual_time(app: Duetime) -> None:
    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    async with app.testing(now=START) as world:
        await app.queues.limit("mail", rate=2, period="1m")
        for _ in range(5):
            await send.enqueue()
        await world.advance("1h")

    assert [seconds for _, seconds in after(world)] == [0, 0, 60, 60, 120]


async def test_a_key_is_held_until_its_period_ends(app: Duetime) -> None:
    @app.task(name="once")
    async def once() -> None: ...

    async with app.testing(now=START) as world:
        bound = once.using(key="k", hold="1h", on_conflict="reject")
        first = await bound.enqueue()
        await world.drain()
        await world.advance("59m")
        with pytest.raises(KeyConflict):
            await bound.enqueue()
        await world.advance("1m")
        again = await bound.enqueue()

    assert again.created
    assert again.id != first.id


async def test_a_debounced_job_moves_and_runs_once(app: Duetime) -> None:
    @app.task(name="save")
    async def save(text: str) -> None: ...

    async with app.testing(now=START) as world:
        for text in ("a", "ab", "abc"):
            await save.using(key="doc", delay="10s", on_conflict="replace").enqueue(text=text)
            await world.advance("5s")
        await world.advance("1m")

    assert after(world) == [("save", 20)]
    assert world.ran[0].args == {"text": "abc"}


async def test_sync_handlers_run_in_threads_and_enqueue_into_the_world(app: Duetime) -> None:
    threads: list[int] = []

    @app.task(name="outer")
    def outer() -> None:
        threads.append(threading.get_ident())
        inner.using(delay="5m").enqueue_sync(n=1)

    @app.task(name="inner")
    def inner(n: int) -> None: ...

    async with app.testing(now=START) as world:
        await outer.enqueue()
        await world.advance("1h")

    assert after(world) == [("outer", 0), ("inner", 300)]
    assert threads != [threading.get_ident()]


async def test_outcomes_results_and_the_context_are_real(app: Duetime) -> None:
    @app.task(name="double")
    async def double(ctx: Context, n: int) -> int:
        await ctx.progress({"n": n})
        return 2 * n

    @app.task(name="stop")
    async def stop(how: str) -> None:
        raise Cancel("not wanted") if how == "cancel" else Discard("broken")

    @app.task(name="slow", timeout="10ms", retry=Delays("0s"))
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.task(name="commit")
    async def commit(ctx: Context) -> None:
        async with ctx.transaction():
            pass

    async with app.testing(now=START) as world:
        doubled = await double.enqueue(n=21)
        for how in ("cancel", "discard"):
            await stop.enqueue(how=how)
        await slow.enqueue()
        committed = await commit.enqueue()
        await world.drain()

        assert await doubled.result() == 42
        assert (await committed.get()).state is JobState.COMPLETED
    assert {run.task: run.outcome for run in world.ran if run.task != "stop"} == {
        "double": "completed",
        "slow": "dead",
        "commit": "completed",
    }
    assert [run.outcome for run in world.ran if run.task == "stop"] == ["cancelled", "dead"]
    assert {run.error for run in world.failed} == {
        "broken",
        "the handler was cancelled after 0.01 s",
    }


async def test_a_thread_that_overruns_is_recorded(app: Duetime) -> None:
    @app.task(name="slow", timeout="20ms", retry=Delays("0s"))
    def slow(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.005)

    async with app.testing(now=START) as world:
        job = await slow.enqueue()
        await world.drain()

        assert (await job.get()).state is JobState.DEAD
    assert world.failed[0].exception is not None


async def test_an_unknown_task_is_parked_until_it_is_known(app: Duetime) -> None:
    @app.task(name="later")
    async def later() -> None: ...

    async with app.testing(now=START) as world:
        definition = app.tasks.pop("later")
        job = await later.enqueue()
        assert await world.drain() == 0
        assert (await job.get()).state is JobState.PARKED
        app.tasks["later"] = definition

        assert await world.drain() == 1


async def test_work_without_end_is_told(app: Duetime) -> None:
    @app.task(name="again")
    async def again() -> Snooze:
        return Snooze("0s")

    async with app.testing(now=START, max_extra_jobs=20) as world:
        await again.enqueue()
        with pytest.raises(EndlessWork, match="'again' 21 times"):
            await world.drain()


async def test_many_due_jobs_are_not_taken_for_endless_work(app: Duetime) -> None:
    @app.task(name="plain")
    async def plain() -> None: ...

    async with app.testing(now=START, max_extra_jobs=5) as world:
        await app.enqueue_many(plain.job() for _ in range(30))

        assert await world.drain() == 30


async def test_inline_runs_at_once_in_the_call_that_enqueues(app: Duetime) -> None:
    ran: list[object] = []

    @app.task(name="outer")
    async def outer(at: datetime) -> str:
        ran.append(at)
        await inner.enqueue(n=2)
        return "done"

    @app.task(name="inner")
    def inner(n: int) -> None:
        ran.append(n)
        if n:
            inner.enqueue_sync(n=n - 1)

    async with app.testing(now=START, inline=True) as world:
        handle = await outer.enqueue(at=START)
        assert ran == [START, 2, 1, 0]
        later = await inner.using(delay="1h").enqueue(n=0)
        assert await handle.result() == "done"
        assert (await later.get()).state is JobState.PENDING
        await world.assert_enqueued(inner, delay="1h", count=1)
        await world.advance("1h")

    assert ran == [START, 2, 1, 0, 0]


async def test_inline_errors_reach_the_enqueuer(app: Duetime) -> None:
    @app.task(name="fail", retry=Exponential("1m", max_attempts=2))
    async def fail(how: str) -> object:
        if how == "raise":
            raise KeyError("lost")
        if how == "snooze":
            return Snooze("1m")
        return Discard("refused")

    async with app.testing(now=START, inline=True) as world:
        with pytest.raises(KeyError, match="lost"):
            await fail.enqueue(how="raise")
        with pytest.raises(Discard, match="refused"):
            await fail.enqueue(how="discard")
        await fail.enqueue(how="snooze")
        with pytest.raises(InvalidInput, match="'how'"):
            await fail.enqueue(how=7)  # type: ignore[arg-type]
        waiting = [(job.args["how"], job.state) for job in await world.enqueued(fail)]

    assert waiting == [("raise", JobState.RETRYING), ("snooze", JobState.PENDING)]


async def test_inline_enqueues_at_the_same_time_all_run(app: Duetime) -> None:
    done: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        await asyncio.sleep(0)
        done.append(n)

    async with app.testing(inline=True):
        await asyncio.gather(*(work.enqueue(n=n) for n in range(20)))
        await app.enqueue_many(work.job(n=n) for n in range(20, 30))

    assert sorted(done) == list(range(30))


async def test_inline_work_without_end_is_told(app: Duetime) -> None:
    @app.task(name="deeper", retry=Delays("0s"))
    async def deeper() -> None:
        await deeper.enqueue()

    async with app.testing(inline=True):
        with pytest.raises(EndlessWork, match="'deeper'"):
            await deeper.enqueue()


async def test_inline_waits_while_the_queue_is_paused(app: Duetime) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    async with app.testing(inline=True) as world:
        await app.queues.pause("default")
        await work.enqueue()
        await world.assert_enqueued(work, count=1)
        await app.queues.resume("default")

        assert await world.drain() == 1


async def test_the_app_is_restored_also_when_the_test_fails(app: Duetime) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    before = app.settings
    inside: list[Settings] = []

    async def fail() -> None:
        async with app.testing(now=START, inline=True):
            await work.using(delay="1h").enqueue()
            inside.append(app.settings)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with app.testing(now=START) as world:
        await world.assert_not_enqueued(work)

    assert app.settings is before
    assert app._inline is None
    assert (inside[0].database, inside[0].schema) != (before.database, before.schema)


async def test_one_world_at_a_time(app: Duetime) -> None:
    async with app.testing() as world:
        with pytest.raises(DuetimeError, match="already in use by another test world"):
            await app.testing().__aenter__()

        assert await world.drain() == 0


async def test_a_world_on_the_apps_own_tables_sees_its_jobs(app: Duetime) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    async with app.testing(isolated=False):
        await work.using(key="k").enqueue()
    async with app.testing(isolated=False) as world:
        await world.assert_enqueued(work, key="k")
        assert await world.drain() == 1
    now = await app.now()
    await app.close()

    assert abs((now - datetime.now(UTC)).total_seconds()) < 60


async def test_nothing_is_left_in_the_database(app: Duetime, backend: Backend) -> None:
    import psycopg

    if not backend.is_postgres:
        pytest.skip("a temporary folder")
    with psycopg.connect(backend.url, autocommit=True) as connection:
        schemas = "select nspname from pg_namespace order by 1"
        before = connection.execute(schemas).fetchall()
        async with app.testing():
            meanwhile = connection.execute(schemas).fetchall()
        left = connection.execute(schemas).fetchall()

    assert len(meanwhile) == len(before) + 1
    assert left == before


async def test_an_open_transaction_does_not_hold_up_the_tests(
    app: Duetime, backend: Backend
) -> None:
    import psycopg

    if not backend.is_postgres:
        pytest.skip("a temporary folder")

    @app.task(name="work")
    async def work() -> None: ...

    with psycopg.connect(backend.url) as connection:
        with pytest.warns(ResourceWarning, match="could not be dropped"):
            async with app.testing():
                await work.using(tx=connection).enqueue()


class TestInSyncCode:
    """`with app.testing()`, on the loop of `app.sync`."""

    @pytest.fixture
    def world(self, app: Duetime) -> Iterator[World]:
        with app.testing(now=START) as world:
            yield world

    def test_the_clock_is_moved_through_app_sync(self, app: Duetime, world: World) -> None:
        @app.task(name="work")
        def work() -> None: ...

        work.using(delay="1h").enqueue_sync()
        app.sync(world.assert_enqueued(work, delay="1h"))

        assert app.sync(world.advance("1h")) == 1

    def test_inline(self, app: Duetime) -> None:
        @app.task(name="work")
        def work(n: int) -> float:
            return 1 / n

        with app.testing(inline=True):
            with pytest.raises(ZeroDivisionError):
                work.enqueue_sync(n=0)


class TestAssertEnqueued:
    async def test_matches_by_every_detail(self, app: Duetime) -> None:
        @app.task(name="send")
        async def send(to: str, on: datetime, copies: int = 1) -> None: ...

        async with app.testing(now=START) as world:
            await send.using(queue="mail", key="k", delay="5m", priority=2).enqueue(
                to="ann", on=START
            )
            [job] = await world.assert_enqueued(
                send,
                queue="mail",
                key="k",
                priority=2,
                at="2026-03-08T00:05Z",
                args={"to": "ann", "on": START, "copies": 1},
            )
            await world.assert_enqueued("send", args={"on": "2026-03-08T00:00:00Z"}, count=1)
            for details in (
                {"queue": "default"},
                {"key": "other"},
                {"delay": "4m"},
                {"priority": 3},
                {"args": {"to": "bob"}},
                {"args": {"copies": 2}},
            ):
                await world.assert_not_enqueued(send, **details)

        assert job.task == "send"

    async def test_says_what_is_enqueued(self, app: Duetime) -> None:
        @app.task(name="send")
        async def send(to: str) -> None: ...

        async with app.testing(now=START) as world:
            await send.enqueue(to="eve")
            await world.drain()
            with pytest.raises(AssertionError) as nothing:
                await world.assert_enqueued(send)
            job = await send.using(delay="5m", key="k").enqueue(to="ann")
            with pytest.raises(AssertionError) as other:
                await world.assert_enqueued(send, queue="mail", args={"to": "ann"})
            with pytest.raises(AssertionError) as some:
                await world.assert_not_enqueued(send)

        assert str(nothing.value) == (
            "Expected a job of task 'send' to be enqueued, found 0.\n"
            "Nothing is enqueued.\n"
            "The task has already run once in this world; see world.ran."
        )
        assert str(other.value) == (
            "Expected a job of task 'send' with queue='mail', args={'to': 'ann'} to be enqueued, "
            "found 0.\n"
            "Enqueued at 2026-03-08T00:00:00+00:00:\n"
            f"  job {job.id}: send args={{'to': 'ann'}} queue='default' key='k' "
            "at=2026-03-08T00:05:00+00:00 (in 5m)\n"
            "The task has already run once in this world; see world.ran."
        )
        assert str(some.value).startswith("Expected no job of task 'send' to be enqueued, found 1.")

    async def test_a_misspelt_name_is_an_error_not_an_absence(self, app: Duetime) -> None:
        @app.task(name="send")
        async def send(to: str) -> None: ...

        async with app.testing() as world:
            with pytest.raises(LookupError, match="snd"):
                await world.assert_not_enqueued("snd")
            with pytest.raises(InvalidInput, match=r"no argument 'too'.*to"):
                await world.assert_not_enqueued(send, args={"too": "ann"})
            with pytest.raises(InvalidInput, match="args must be a mapping"):
                await world.assert_not_enqueued(send, args=["ann"])  # type: ignore[arg-type]


class TestBadInput:
    @pytest.mark.parametrize("now", ["yesterday", "2026-03-08T00:00", datetime(2026, 3, 8)])
    def test_a_start_that_is_no_moment(self, now: str | datetime) -> None:
        with pytest.raises(InvalidInput, match="now"):
            Duetime("sqlite:///never.db").testing(now=now)
        assert not Path("never.db").exists()

    async def test_a_clock_that_goes_back(self, app: Duetime) -> None:
        async with app.testing(now=START) as world:
            with pytest.raises(InvalidInput, match="cannot go back"):
                await world.advance_to("2026-03-07T00:00Z")
            with pytest.raises(InvalidInput, match="negative"):
                await world.advance(timedelta(days=-1))
            with pytest.raises(InvalidInput, match="no unit"):
                await world.advance("3")


async def test_a_handler_whose_task_group_fails_has_failed(app: Duetime) -> None:
    """Python 3.11 leaves the task of a failed group marked as cancelled."""

    @app.task(name="call", retry=Delays("0s", "1m"))
    async def call() -> None:
        async def fail() -> None:
            raise ConnectionError("no line")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(60))

    async with app.testing(now=START) as world:
        await call.enqueue()
        await world.advance("1h")
        outcomes = [ran.outcome for ran in world.ran]

    assert outcomes == [AttemptOutcome.RETRIED, AttemptOutcome.DEAD]


async def test_cancelling_the_test_cancels_the_handler(app: Duetime) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @app.task(name="call")
    async def call() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with app.testing(now=START) as world:
        await call.enqueue()
        draining = asyncio.create_task(world.drain())
        await started.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining

        assert cancelled.is_set()
        assert world.ran == []
