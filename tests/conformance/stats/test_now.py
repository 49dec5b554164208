"""`app.stats.now()` and `app.stats.totals()`: how everything stands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Constant, Count, Duetime, Flow
from duetime.errors import InvalidInput
from duetime.storage.stats import now as stats_now
from tests.conftest import Backend

NOW = datetime(2026, 3, 8, 9, tzinfo=UTC)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


def add_tasks(app: Duetime) -> dict[str, Any]:
    @app.task(name="fine")
    async def fine() -> None: ...

    @app.task(name="mail", queue="mail")
    async def mail() -> None: ...

    @app.task(name="flaky", retry=Constant("30s", max_attempts=3))
    async def flaky() -> None:
        raise ConnectionError("no route")

    @app.task(name="charge", max_attempts=1)
    async def charge(card: str) -> None:
        raise PermissionError(card)

    return {"fine": fine, "mail": mail, "flaky": flaky, "charge": charge}


async def test_of_nothing_there_is_nothing(app: Duetime) -> None:
    now = await app.stats.now()

    assert (now.waiting, now.due, now.late, now.retrying, now.dead) == (Count(0),) * 5
    assert (now.running, now.places, now.workers) == (0, 0, 0)
    assert (now.late_by, now.oldest_due_at, now.next_run_at, now.dead_since) == (None,) * 4
    assert (now.queues, now.tasks) == ((), ())


async def test_what_waits_is_counted_for_each_queue_and_task(app: Duetime) -> None:
    tasks = add_tasks(app)
    async with app.testing(now=NOW) as world:
        await app.queues.pause("mail", by="ann", reason="full disk")
        await tasks["mail"].enqueue()
        await world.advance("5m")
        await tasks["mail"].enqueue()
        await tasks["mail"].using(delay="1h", priority=2).enqueue()
        await tasks["fine"].enqueue()

        now = await app.stats.now()

    assert now.at == NOW + timedelta(minutes=5)
    assert (now.waiting, now.due, now.late) == (Count(4), Count(3), Count(1))
    assert now.late_by == timedelta(minutes=5)
    assert now.oldest_due_at == now.next_run_at == NOW
    default, mail = now.queues
    assert (default.name, default.due, default.oldest_due_at) == ("default", Count(1), now.at)
    assert (mail.name, mail.waiting, mail.due, mail.late) == ("mail", Count(3), Count(2), Count(1))
    assert (mail.paused_by, mail.pause_reason) == ("ann", "full disk")
    assert {task.name: task.due.value for task in now.tasks if task.due} == {"fine": 1, "mail": 2}


async def test_what_failed_is_counted_by_error(app: Duetime) -> None:
    tasks = add_tasks(app)
    async with app.testing(now=NOW) as world:
        await tasks["charge"].enqueue(card="one")
        await world.advance("1m")
        requeued = await tasks["charge"].enqueue(card="two")
        await tasks["charge"].enqueue(card="three")
        await tasks["flaky"].enqueue()
        await world.drain()
        await app.jobs.requeue(requeued.id)

        now = await app.stats.now()

    assert (now.dead, now.dead_errors, now.dead_since) == (Count(2), 1, NOW)
    assert (now.retrying, now.next_retry_at) == (Count(1), NOW + timedelta(seconds=90))
    by_task = {task.name: task for task in now.tasks}
    assert (by_task["charge"].dead, by_task["charge"].due) == (Count(2), Count(1))
    assert by_task["flaky"].retrying == Count(1)
    [queue] = now.queues
    assert (queue.retrying, queue.waiting) == (Count(1), Count(2))


async def test_what_runs_is_counted_with_the_places_of_the_workers(app: Duetime) -> None:
    tasks = add_tasks(app)
    store = await app.store()
    await tasks["fine"].enqueue()
    worker = await store.register_worker(
        name="one", queues=["default"], tasks={}, concurrency=7, lease=timedelta(seconds=30)
    )
    await store.register_worker(
        name="lost", queues=["mail"], tasks={}, concurrency=5, lease=timedelta(0)
    )
    await store.exchange(worker, lanes=[lane("default")], want=1)

    now = await app.stats.now()

    assert (now.running, now.places, now.workers, now.lost_workers) == (1, 7, 1, 1)
    assert [(queue.name, queue.running, queue.workers) for queue in now.queues] == [
        ("default", 1, 1)
    ]
    assert [(task.name, task.running) for task in now.tasks] == [("fine", 1)]


async def test_many_are_counted_up_to_a_limit(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = add_tasks(app)
    monkeypatch.setattr(stats_now, "MAX_COUNTED", 100)
    await app.enqueue_many([tasks["fine"].job() for _ in range(150)])

    now = await app.stats.now()
    totals = await app.stats.totals()

    assert now.due == now.waiting == Count(100, "at_least")
    assert now.late == Count(0)
    assert totals.jobs.value >= 100
    assert totals.jobs.precision != "exact"


async def test_nouns_are_counted(app: Duetime) -> None:
    @app.flow(name="sleeps")
    async def sleeps(flow: Flow) -> None:
        await flow.sleep("3d")

    tasks = add_tasks(app)
    async with app.testing(now=NOW) as world:
        await app.schedules.put("nightly", "fine", "0 3 * * *")
        await app.subjects.put(
            "task:1", due=NOW + timedelta(days=3), remind=["-1d", "-1h"], recipients=["ann"]
        )
        await sleeps.start()
        await tasks["mail"].using(delay="9d").enqueue()
        await world.drain()

        totals = await app.stats.totals()

    assert (totals.schedules, totals.reminders, totals.flows) == (Count(1), Count(2), Count(1))
    # Two ticks, two reminders, the run and the mail.
    assert totals.jobs == Count(6)
    assert (totals.queues, totals.tables) == (2, 0)


async def test_late_after_must_be_a_duration(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match="late_after"):
        await app.stats.now(late_after="soon")


def lane(queue: str) -> Any:
    from duetime.storage.store import Lane

    return Lane(queue, 5, datetime(1970, 1, 1, tzinfo=UTC))
