"""Limits over all workers: exact, however many race."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from duetime import Constant, Duetime
from tests.waiting import PATIENCE, until_true


async def with_workers(stack: AsyncExitStack, app: Duetime, count: int, **options: Any) -> None:
    for _ in range(count):
        await stack.enter_async_context(app.worker(concurrency=4, **options))


class Gauge:
    """How many run at once, in all and for each name."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done = 0
        self.starts: list[float] = []

    async def pass_through(self, name: str, seconds: float = 0.01) -> None:
        self.starts.append(time.monotonic())
        for key in ("all", name):
            self.running[key] += 1
            self.most[key] = max(self.most[key], self.running[key])
        await asyncio.sleep(seconds)
        for key in ("all", name):
            self.running[key] -= 1
        self.done += 1


async def test_running_limit_is_exact_under_8_workers(app: Duetime) -> None:
    gauge = Gauge()

    @app.task(queue="narrow")
    async def step(name: str) -> None:
        await gauge.pass_through(name)

    await app.queues.limit("narrow", running=3)
    async with AsyncExitStack() as stack:
        await with_workers(stack, app, 8, queues=["narrow"])
        await app.enqueue_many(step.job(name="x") for _ in range(60))
        await until_true(lambda: gauge.done == 60)

    assert gauge.most["all"] == 3


async def test_partitions_run_one_at_a_time_side_by_side(app: Duetime) -> None:
    gauge = Gauge()

    @app.task(queue="customers")
    async def step(name: str) -> None:
        await gauge.pass_through(name)

    await app.queues.limit("customers", per_partition=1)
    async with AsyncExitStack() as stack:
        await with_workers(stack, app, 8, queues=["customers"])
        names = [f"customer-{number % 5}" for number in range(50)]
        await app.enqueue_many(step.using(partition=name).job(name=name) for name in names)
        await until_true(lambda: gauge.done == 50)

    assert all(gauge.most[name] == 1 for name in names)
    assert gauge.most["all"] > 1


async def test_rate_limit_holds_in_every_window(app: Duetime) -> None:
    gauge = Gauge()

    @app.task(queue="provider")
    async def step() -> None:
        await gauge.pass_through("x", 0.0)

    await app.queues.limit("provider", rate=5, period="400ms")
    async with AsyncExitStack() as stack:
        await with_workers(stack, app, 8, queues=["provider"])
        await app.enqueue_many(step.job() for _ in range(20))
        await until_true(lambda: gauge.done == 20)

    starts = sorted(gauge.starts)
    # Five may start late in their window and the next five early in theirs: by the time from
    # claim to start, which is milliseconds.
    assert all(starts[i + 5] - starts[i] > 0.4 - 0.1 for i in range(len(starts) - 5))
    assert starts[-1] - starts[0] < 10


async def test_a_limited_queue_does_not_hold_up_another(app: Duetime) -> None:
    gauge = Gauge()

    @app.task
    async def step(name: str) -> None:
        await gauge.pass_through(name, 0.2 if name == "narrow" else 0.0)

    await app.queues.limit("narrow", running=1)
    async with app.worker(queues=["narrow", "default"], concurrency=10):
        await app.enqueue_many(step.using(queue="narrow").job(name="narrow") for _ in range(5))
        await app.enqueue_many(step.job(name="wide") for _ in range(50))
        await until_true(lambda: gauge.done == 55)

    assert gauge.most["narrow"] == 1


async def test_a_busy_queue_does_not_starve_a_limited_one(app: Duetime) -> None:
    gauge = Gauge()

    @app.task
    async def step(name: str) -> None:
        await gauge.pass_through(name, 0.002)

    await app.queues.limit("narrow", running=1)
    await app.enqueue_many(step.job(name="wide") for _ in range(2000))
    await app.enqueue_many(step.using(queue="narrow").job(name="narrow") for _ in range(3))
    async with app.worker(queues=["default", "narrow"], concurrency=4):
        await until_true(lambda: gauge.most["narrow"] == 1)
        assert gauge.done < 1500


async def test_lifting_a_limit_takes_effect(app: Duetime) -> None:
    gauge = Gauge()

    @app.task(queue="narrow")
    async def step() -> None:
        await gauge.pass_through("x", 0.05)

    await app.queues.limit("narrow", running=1)
    async with app.worker(queues=["narrow"], concurrency=10):
        await app.enqueue_many(step.job() for _ in range(20))
        await until_true(lambda: gauge.done >= 2)
        assert gauge.most["all"] == 1
        await app.queues.limit("narrow")
        await until_true(lambda: gauge.done == 20)

    assert gauge.most["all"] > 1
    assert [queue.limits.any for queue in await app.queues.list() if queue.name == "narrow"] in (
        [],
        [False],
    )


async def test_limited_jobs_start_in_order_while_others_hold_runners(app: Duetime) -> None:
    started: list[int] = []
    release = asyncio.Event()

    @app.task
    async def hold() -> None:
        await release.wait()

    @app.task(queue="narrow")
    async def step(number: int) -> None:
        started.append(number)
        await asyncio.sleep(0.01)

    await app.queues.limit("narrow", running=10)
    await app.enqueue_many(hold.job() for _ in range(3))
    await app.enqueue_many(step.using(priority=number).job(number) for number in range(8))
    async with app.worker(queues=["default", "narrow"], concurrency=4):
        await until_true(lambda: len(started) == 8)
        release.set()

    assert started == list(range(8))


class Holder:
    """A task whose jobs hold runners until they are released."""

    def __init__(self, app: Duetime) -> None:
        self.begun: list[float] = []
        self.release = asyncio.Event()

        @app.task
        async def hold() -> None:
            self.begun.append(time.monotonic())
            await self.release.wait()

        self._task = hold

    async def occupy(self, runners: int) -> None:
        """Wait until the jobs have run for so long that their runners count as occupied."""
        for _ in range(runners):
            await self._task.enqueue()
        await until_true(lambda: len(self.begun) == runners)
        await until_true(lambda: time.monotonic() - self.begun[-1] > 0.2)


async def test_a_busy_worker_leaves_the_rate_to_idle_ones(app: Duetime) -> None:
    started: list[int] = []
    holder = Holder(app)

    @app.task(queue="provider")
    async def call(number: int) -> None:
        started.append(number)
        await holder.release.wait()

    await app.queues.limit("provider", rate=4, period="1h")
    async with app.worker(queues=["default", "provider"], concurrency=4):
        await holder.occupy(3)
        await app.enqueue_many(call.job(number) for number in range(4))
        await until_true(lambda: started)
        async with app.worker(queues=["provider"], concurrency=4):
            await until_true(lambda: len(started) == 4)
            holder.release.set()

    assert sorted(started) == [0, 1, 2, 3]


async def test_limited_jobs_start_as_other_jobs_free_their_runners(app: Duetime) -> None:
    started: list[int] = []
    holder, release = Holder(app), asyncio.Event()

    @app.task(queue="narrow")
    async def step(number: int) -> None:
        started.append(number)
        await release.wait()

    await app.queues.limit("narrow", running=10)
    queues = ["default", "narrow"]
    async with app.worker(queues=queues, concurrency=3, poll="10m") as worker:
        pace = worker.loop.pace
        await holder.occupy(2)
        await app.enqueue_many(step.job(number) for number in range(3))
        await until_true(lambda: started and pace.sleeper.asleep and not pace.should_claim)
        holder.release.set()
        await until_true(lambda: len(started) == 3)
        release.set()

    assert started == [0, 1, 2]


async def test_limited_jobs_start_when_the_thread_of_a_timed_out_job_returns(app: Duetime) -> None:
    started: list[int] = []
    release = threading.Event()

    @app.task(queue="narrow", timeout="200ms", retry=Constant("0s", max_attempts=1))
    def overrun() -> None:
        release.wait(PATIENCE)

    @app.task(queue="narrow")
    async def step(number: int) -> None:
        started.append(number)

    await app.queues.limit("narrow", running=10)
    await app.enqueue_many([overrun.using(priority=0).job(), step.job(1)])
    async with app.worker(queues=["narrow"], concurrency=1, poll="10m") as worker:
        runners, pace = worker.loop.runners, worker.loop.pace
        await until_true(lambda: runners.occupied and pace.sleeper.asleep and not pace.should_claim)
        assert not started
        release.set()
        await until_true(lambda: started, seconds=5.0)

    assert started == [1]
