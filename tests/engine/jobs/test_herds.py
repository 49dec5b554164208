"""Many workers that wait for the same jobs: who has nothing to gain does next to nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Duetime, JobState
from duetime.engine.followers import Upkeep
from duetime.engine.worker import Worker
from duetime.storage.store import Exchange, Store
from tests.waiting import until_true


class Calls:
    """What workers ask of a store from now on."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claims = 0
        self.others = 0
        exchange, poll, next_run_at = store.exchange, store.poll, store.next_run_at

        async def count_exchange(worker_id: int, *, want: int = 0, **more: Any) -> Exchange:
            self.claims += want > 0
            return await exchange(worker_id, want=want, **more)

        async def count_poll(*args: Any, **more: Any) -> Any:
            self.others += 1
            return await poll(*args, **more)

        async def count_next(queues: Sequence[str]) -> Any:
            self.others += 1
            return await next_run_at(queues)

        monkeypatch.setattr(store, "exchange", count_exchange)
        monkeypatch.setattr(store, "poll", count_poll)
        monkeypatch.setattr(store, "next_run_at", count_next)


async def asleep(worker: Worker) -> None:
    pace = worker.loop.pace
    await until_true(lambda: pace.sleeper.asleep and not pace.should_claim)


async def test_whoever_finds_the_jobs_taken_does_not_claim(
    pg_app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifty workers that wake for the same moment, most come too late."""
    monkeypatch.setattr("duetime.engine.pace.Pace.lead", 1.0)
    store = await pg_app.store()
    taken = asyncio.Event()

    @pg_app.task
    async def note() -> None: ...

    async with pg_app.worker(poll="60s") as worker:
        await asleep(worker)
        handle = await note.using(at=datetime.now(UTC) + timedelta(seconds=4)).enqueue()
        await until_true(lambda: worker.loop.pace._wake_at < time.monotonic() + 30)
        await asleep(worker)
        calls = Calls(store, monkeypatch)
        next_run_at = store.next_run_at

        async def others_are_faster(queues: Sequence[str]) -> Any:
            moment, _ = await next_run_at(queues)
            taken.set()
            return moment, None

        monkeypatch.setattr(store, "next_run_at", others_are_faster)
        await asyncio.wait_for(taken.wait(), 30)
        await until_true(lambda: worker.loop.pace._wake_at > time.monotonic() + 30)

        assert calls.claims == 0
        assert (await handle.get()).state is JobState.PENDING


async def test_a_job_for_later_costs_a_sleeping_worker_no_call(
    pg_app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time comes with the notification. To arm a tick or a reminder must not wake everybody."""
    store = await pg_app.store()

    @pg_app.task
    async def note() -> str:
        return "ran"

    async with pg_app.worker(poll="10m") as worker:
        await asleep(worker)
        calls = Calls(store, monkeypatch)
        sleeper = worker.loop.pace.sleeper
        planned = worker.loop.pace._wake_at
        await note.using(delay="2m").enqueue()
        await until_true(lambda: worker.loop.pace._wake_at < planned)

        assert sleeper.asleep
        assert (calls.claims, calls.others) == (0, 0)

        handle = await note.using(delay="500ms").enqueue()
        assert await handle.result("30s") == "ran"


async def test_a_job_for_later_than_the_next_look_moves_nothing(pg_app: Duetime) -> None:
    @pg_app.task
    async def note() -> None: ...

    async with pg_app.worker(poll="10m") as worker:
        await asleep(worker)
        pace = worker.loop.pace
        poll = pace._wake_at
        await note.using(delay="1m").enqueue()
        await until_true(lambda: pace._wake_at < poll)
        planned = pace._wake_at
        notified = worker._events.tally.notifications["wake"]
        await note.using(delay="5m").enqueue()
        await until_true(lambda: worker._events.tally.notifications["wake"] > notified)
        await until_true(lambda: not pace.sleeper._woken.is_set())  # type: ignore[attr-defined]

        assert pace._wake_at == planned


@pytest.mark.parametrize(
    ("mean", "soon"), [(0.00001, 400), (0.0001, 142), (0.001, 40), (0.01, 20), (0.05, 10), (5, 10)]
)
async def test_fast_handlers_let_a_worker_take_more_of_what_falls_due_together(
    app: Duetime, mean: float, soon: int
) -> None:
    """Then few claims take all of it; slow ones leave it to others, who can start it at once."""
    async with app.worker(concurrency=10) as worker:
        worker.loop.runners._mean_seconds = mean

        assert worker.loop.runners.soon == soon


async def test_what_is_put_off_is_written_once_and_before_the_end() -> None:
    written: list[int] = []

    async def write() -> None:
        written.append(1)

    upkeep = Upkeep("test", write)
    upkeep.within(60)
    upkeep.within(60)
    await asyncio.wait_for(upkeep.done(), 10)
    upkeep.within(0.001)
    await until_true(lambda: len(written) == 2)
