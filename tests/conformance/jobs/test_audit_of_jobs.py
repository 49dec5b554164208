"""Every change of a job or a queue that people make is in the audit, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Duetime, JobState
from duetime.domain.audit import AuditEvent
from duetime.errors import IllegalTransition, InvalidInput, QueueNotFound
from tests.conftest import Backend

SOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LATER = SOON + timedelta(hours=3)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


async def enqueue(app: Duetime, **options: Any) -> int:
    @app.task(name="send")
    async def send() -> None: ...

    return (await send.using(**({"at": SOON} | options)).enqueue()).id


def told(event: AuditEvent) -> tuple[str, str, Any, Any, str | None]:
    return event.actor, event.action, event.before, event.after, event.reason


async def test_a_cancel_says_who_and_why(app: Duetime) -> None:
    job_id = await enqueue(app)
    await app.jobs.cancel(job_id, reason="withdrawn", by="ann")
    await app.jobs.cancel(job_id, reason="again", by="bob")
    [event] = await app.jobs.audit(job_id)

    assert event.entity == f"job:{job_id}"
    assert told(event) == (
        "ann", "job.cancel", {"state": "pending"}, {"state": "cancelled"}, "withdrawn",
    )  # fmt: skip


async def test_a_cancel_of_a_running_job_is_a_request(app: Duetime) -> None:
    started = asyncio.Event()

    @app.task(name="long")
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    async with app.worker():
        handle = await long.enqueue()
        await asyncio.wait_for(started.wait(), 10)
        await handle.cancel(by="ann")
        [event] = await handle.audit()

    assert event.before == {"state": "running"}
    assert event.after == {"state": "running", "cancel_requested": True}


async def test_moving_a_job_tells_from_where_to_where(app: Duetime) -> None:
    job_id = await enqueue(app, priority=5)
    await app.jobs[job_id].reschedule(LATER, by="ann")
    await app.jobs[job_id].reprioritise(1, by="bob")
    second, first = await app.jobs[job_id].audit()

    assert told(first) == (
        "ann", "job.reschedule", {"run_at": "2030-01-01T12:00:00Z"},
        {"run_at": "2030-01-01T15:00:00Z"}, None,
    )  # fmt: skip
    assert told(second) == ("bob", "job.reprioritise", {"priority": 5}, {"priority": 1}, None)


async def test_each_requeued_job_has_an_event(app: Duetime) -> None:
    ids = [await enqueue(app) for _ in range(3)]
    for job_id in ids:
        await app.jobs.cancel(job_id, by="ann")
    await app.jobs.requeue(ids[0], at=LATER, by="bob")
    await app.jobs.requeue_many(state="cancelled", by="cem")
    events = await app.audit.list(kind="job", by="cem")
    [first, _] = await app.jobs.audit(ids[0])

    assert sorted(event.entity for event in events) == [f"job:{job_id}" for job_id in ids[1:]]
    assert {event.action for event in events} == {"job.requeue"}
    assert told(first) == (
        "bob", "job.requeue", {"state": "cancelled"},
        {"state": "pending", "run_at": "2030-01-01T15:00:00Z"}, None,
    )  # fmt: skip


async def test_what_changes_nothing_is_not_in_the_audit(app: Duetime) -> None:
    job_id = await enqueue(app)
    await app.jobs.cancel(job_id, by="ann")
    for change in (
        app.jobs.reschedule(job_id, LATER, by="bob"),
        app.jobs.reprioritise(job_id, 1, by="bob"),
    ):
        with pytest.raises(IllegalTransition):
            await change
    await app.queues.resume("mail", by="bob")
    await app.queues.limit("mail", by="bob")

    assert await app.audit.list(by="bob") == []


async def test_enqueue_and_run_write_no_audit(app: Duetime) -> None:
    job_id = await enqueue(app, at=datetime(2020, 1, 1, tzinfo=UTC))
    async with app.worker():
        await app.jobs.result(job_id, timeout="10s")

    assert (await app.jobs[job_id].get()).state is JobState.COMPLETED
    assert await app.audit.list() == []


async def test_a_pause_a_limit_and_a_resume_of_a_queue(app: Duetime) -> None:
    mail = app.queues["mail"]
    await mail.limit(running=3, rate=10, period="1m", by="ann")
    await mail.pause(reason="the provider is down", by="bob")
    await mail.pause(reason="the provider is down", by="bob")
    paused_at = (await mail.get()).paused_at
    await mail.resume(by="cem")
    await mail.limit(by="dee")
    lifted, resumed, paused, limited = await mail.audit()

    limits = {"running": 3, "rate": 10, "period": "1m"}
    assert told(limited) == ("ann", "queue.limit", None, limits, None)
    assert paused_at is not None
    assert paused.after.pop("paused_at") == paused_at.isoformat().replace("+00:00", "Z")
    assert told(paused) == (
        "bob", "queue.pause", limits,
        {"paused_by": "bob", "pause_reason": "the provider is down"} | limits,
        "the provider is down",
    )  # fmt: skip
    assert (resumed.actor, resumed.action, resumed.after) == ("cem", "queue.resume", limits)
    assert told(lifted) == ("dee", "queue.limit", limits, None, None)
    with pytest.raises(QueueNotFound):
        await mail.get()


async def test_the_audit_comes_in_pages(app: Duetime) -> None:
    ids = [await enqueue(app) for _ in range(5)]
    for job_id in ids:
        await app.jobs.cancel(job_id, by="ann")
    first = await app.audit.list(limit=2)
    second = await app.audit.list(limit=2, after=first.next)
    last = await app.audit.list(limit=2, after=second.next)
    entities = [event.entity for event in (*first, *second, *last)]

    assert entities == [f"job:{job_id}" for job_id in reversed(ids)]
    assert last.next is None
    assert [event.entity async for event in app.audit.iterate(kind="job", limit=2)] == entities


async def test_jobs_and_queues_come_in_pages(app: Duetime) -> None:
    ids = [await enqueue(app, queue=f"q{n}") for n in range(5)]
    page = await app.jobs.list(limit=3)
    rest = await app.jobs.list(limit=3, after=page.next)
    queues = await app.queues.list(limit=4)
    others = await app.queues.list(limit=4, after=queues.next)

    assert [job.id for job in (*page, *rest)] == ids[::-1]
    assert [len(page), len(rest), rest.next] == [3, 2, None]
    assert [job.id async for job in app.jobs.iterate(queue="q1", limit=1)] == [ids[1]]
    assert [queue.name for queue in (*queues, *others)] == ["q0", "q1", "q2", "q3", "q4"]
    assert others.next is None
    with pytest.raises(InvalidInput, match="earlier page of the same list"):
        await app.jobs.list(after=queues.next)


@pytest.mark.parametrize("entity", ["game:42", "job", "job:", "", 7])
async def test_the_audit_knows_what_it_has(app: Duetime, entity: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be audited"):
        await app.audit.list(entity=entity)
    with pytest.raises(InvalidInput, match="Use one of: job, queue"):
        await app.audit.list(kind="game")  # type: ignore[arg-type]
