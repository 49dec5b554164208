"""How many jobs match, by state, queue and task, and how they failed, on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from duetime import Duetime
from duetime.domain.jobs.job import NewJob
from duetime.errors import InvalidInput, QueueNotFound
from tests.conftest import Backend
from tests.waiting import until

LATER = datetime(2090, 1, 1, tzinfo=UTC)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)

    @app.task(name="fail", max_attempts=1)
    async def fail(message: str) -> None:
        raise LookupError(message)

    @app.task(name="send")
    async def send() -> None: ...

    yield app
    await app.close()


def job(task: str = "send", queue: str = "default", **options: Any) -> NewJob:
    args = {"message": options.pop("message")} if "message" in options else {}
    raw = msgspec.Raw(msgspec.json.encode(args))
    return NewJob(task=task, queue=queue, args=raw, **({"max_attempts": 1} | options))


async def run(app: Duetime, *jobs: NewJob) -> list[int]:
    handles = await app.enqueue_many(jobs)
    queues = sorted({each.queue for each in jobs})
    async with app.worker(queues=queues):

        async def finished() -> bool:
            infos = [await handle.get() for handle in handles]
            return all(info.state.finished for info in infos)

        await until(finished)
    return [handle.id for handle in handles]


def shown(counts: Any) -> dict[str, str]:
    return {str(name): str(count) for name, count in counts.items() if count}


async def test_jobs_are_counted_by_state_queue_and_task(app: Duetime) -> None:
    await run(app, job(), job(queue="mail"), job("fail", message="gone"))
    await app.enqueue_many([job(run_at=LATER), job(run_at=LATER, queue="mail"), job(run_at=LATER)])
    all_jobs = await app.jobs.facets()
    pending = await app.jobs.facets(state="pending")
    mail = await app.jobs.facets(queue="mail")

    assert shown(all_jobs.states) == {"pending": "3", "completed": "2", "dead": "1"}
    assert shown(all_jobs.queues) == {"default": "4", "mail": "2"}
    assert shown(all_jobs.tasks) == {"send": "5", "fail": "1"}
    assert pending.states == all_jobs.states
    assert shown(pending.queues) == {"default": "2", "mail": "1"}
    assert shown(mail.states) == {"pending": "1", "completed": "1"}
    assert shown(mail.tasks) == {"send": "2"}


async def test_a_requeued_job_is_counted_once(app: Duetime) -> None:
    [first, second] = await run(app, job("fail", message="a"), job("fail", message="a"))
    await app.jobs.requeue(first, at=LATER)

    assert shown((await app.jobs.facets()).states) == {"pending": "1", "dead": "1"}
    assert [group.example for group in await app.jobs.errors()] == [second]


async def test_a_key_and_a_due_time_hold_for_every_state(app: Duetime) -> None:
    await run(app, job(key="a"), job(key="b"))
    await app.enqueue_many([job(key="a", run_at=LATER), job(run_at=LATER)])

    assert shown((await app.jobs.facets(key="a")).states) == {"pending": "1", "completed": "1"}
    assert shown((await app.jobs.facets(due_since=LATER)).states) == {"pending": "2"}


async def test_many_are_not_counted_to_the_end(app: Duetime) -> None:
    await app.enqueue_many([job(run_at=LATER)] * 150)
    facets = await app.jobs.facets(count_to=100)

    assert shown(facets.states) == {"pending": "100+"}
    assert shown(facets.tasks) == {"send": "100+"}
    for count_to in (0, 10_001, True):
        with pytest.raises(InvalidInput, match=r"count_to must be 1 to 10,000"):
            await app.jobs.facets(count_to=count_to)


async def test_the_jobs_of_a_queue_need_not_be_counted_to_the_end(app: Duetime) -> None:
    await app.enqueue_many([job(run_at=LATER)] * 150)
    await app.enqueue_many([job(queue="mail", run_at=LATER)] * 3)

    some, every = await app.queues.get("default", count_to=100), await app.queues.get("default")
    mail = await app.queues.get("mail", count_to=100)

    assert (some.pending, some.due, some.counted_all) == (100, 0, False)
    assert (every.pending, every.next_run_at, every.counted_all) == (150, LATER, True)
    assert some.next_run_at == LATER
    assert (mail.name, mail.pending, mail.counted_all) == ("mail", 3, True)
    with pytest.raises(QueueNotFound):
        await app.queues.get("nowhere", count_to=100)


async def test_errors_of_one_kind_are_one_group(app: Duetime) -> None:
    messages = [
        "order 7 of 'ann' not found", "order 81 of 'bob' not found",
        "no route to 0x7fa3b2", "no route to 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    ]  # fmt: skip
    ids = await run(app, *(job("fail", message=message) for message in messages))
    [orders, routes] = sorted(await app.jobs.errors(), key=lambda group: group.example)

    assert (orders.task, orders.error_code) == ("fail", "LookupError")
    assert orders.message == "order <number> of <text> not found"
    assert (str(orders.count), orders.example, orders.error) == ("2", ids[1], messages[1])
    assert routes.message == "no route to <id>"
    assert (str(routes.count), routes.example) == ("2", ids[3])
    assert orders.first_at <= orders.last_at
    assert orders.fingerprint != routes.fingerprint


async def test_errors_can_be_filtered(app: Duetime) -> None:
    await run(app, job("fail", message="a"), job("fail", "mail", message="b"))
    [waits] = await app.enqueue_many([job(run_at=LATER)])
    await waits.cancel(reason="not needed")
    [group] = await app.jobs.errors(queue="mail")
    [cancelled] = await app.jobs.errors(state="cancelled")

    assert group.message == "b"
    assert cancelled.error_code == "cancelled"
    assert "not needed" in (cancelled.error or "")
    assert await app.jobs.errors(task="send") == []
    with pytest.raises(InvalidInput, match="pending have no error"):
        await app.jobs.errors(state="pending")
