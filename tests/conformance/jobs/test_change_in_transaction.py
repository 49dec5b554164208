"""Jobs and queues are changed in the caller's own transaction, on every backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Duetime, JobState
from duetime.errors import IllegalTransition, InvalidInput, JobNotFound, KeyConflict
from tests.conftest import Backend
from tests.waiting import until

SOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LATER = SOON + timedelta(hours=3)


class Undo(Exception):
    pass


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


async def enqueue(app: Duetime, **options: Any) -> int:
    @app.task(name="send")
    async def send() -> None: ...

    return (await send.using(**({"at": SOON} | options)).enqueue()).id


async def change_all(app: Duetime, tx: Any, *, moved: int, cancelled: int, again: int) -> None:
    await app.jobs.reschedule(moved, LATER, by="ann", tx=tx)
    await app.jobs[moved].reprioritise(1, by="ann", tx=tx)
    assert await app.jobs.cancel(cancelled, by="ann", tx=tx) is JobState.PENDING
    await app.jobs.requeue(again, at=LATER, by="ann", tx=tx)
    await app.queues.pause("mail", reason="tea", by="ann", tx=tx)
    await app.queues.resume("post", by="ann", tx=tx)
    await app.queues["print"].limit(running=2, by="ann", tx=tx)


async def test_all_changes_commit_together_or_not_at_all(app: Duetime) -> None:
    jobs = {name: await enqueue(app) for name in ("moved", "cancelled", "again")}
    await app.jobs.cancel(jobs["again"])
    await app.queues.pause("post")
    before = [await app.jobs.get(job_id) for job_id in jobs.values()], await app.queues.list()
    store = await app.store()
    with contextlib.suppress(Undo):
        async with store.transaction() as tx:
            await change_all(app, tx, **jobs)
            raise Undo
    undone = [await app.jobs.get(job_id) for job_id in jobs.values()], await app.queues.list()
    async with store.transaction() as tx:
        await change_all(app, tx, **jobs)
    moved, cancelled, again = [await app.jobs.get(job_id) for job_id in jobs.values()]
    queues = {queue.name: queue for queue in await app.queues.list()}

    assert undone == before
    assert (moved.run_at, moved.priority) == (LATER, 1)
    assert (cancelled.state, again.state, again.run_at) == ("cancelled", "pending", LATER)
    assert (queues["mail"].pause_reason, queues["print"].limits.running) == ("tea", 2)
    assert "post" not in queues
    assert len(await app.audit.list(by="ann")) == 7


async def test_a_job_of_the_same_transaction_can_be_changed(app: Duetime) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    async with (await app.store()).transaction() as tx:
        job = await send.using(at=SOON, tx=tx).enqueue()
        await app.jobs.cancel(job.id, tx=tx)
        await app.jobs.requeue(job.id, tx=tx)
        await app.jobs.reschedule(job.id, LATER, tx=tx)

    assert (await job.get()).run_at == LATER


async def test_what_cannot_be_changed_is_an_error_and_the_transaction_goes_on(
    app: Duetime,
) -> None:
    held = await enqueue(app, key="k")
    await app.jobs.cancel(held)
    await enqueue(app, key="k")
    waiting = await enqueue(app)
    async with (await app.store()).transaction() as tx:
        with pytest.raises(KeyConflict):
            await app.jobs.requeue(held, tx=tx)
        with pytest.raises(IllegalTransition):
            await app.jobs.requeue(waiting, tx=tx)
        with pytest.raises(IllegalTransition):
            await app.jobs.reschedule(held, LATER, tx=tx)
        for change in (
            app.jobs.cancel(404, tx=tx),
            app.jobs.requeue(404, tx=tx),
            app.jobs.reschedule(404, LATER, tx=tx),
            app.jobs.reprioritise(404, 1, tx=tx),
        ):
            with pytest.raises(JobNotFound):
                await change
        await app.jobs.reprioritise(waiting, 1, tx=tx)

    assert (await app.jobs.get(waiting)).priority == 1


async def test_the_job_of_a_reminder_is_sent_again_and_not_requeued(app: Duetime) -> None:
    await app.subjects.put("game", due=LATER, remind=["-1h"])
    [reminder] = await app.reminders.list()
    assert reminder.job_id is not None
    await app.subjects.complete("game")

    with pytest.raises(InvalidInput, match=f"reminders resend {reminder.id}`"):
        await app.jobs.requeue(reminder.job_id)


async def test_a_running_job_is_stopped_when_the_transaction_commits(app: Duetime) -> None:
    started = asyncio.Event()

    @app.task(name="long")
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    async with app.worker(heartbeat="10s"):
        job = await long.enqueue()
        await asyncio.wait_for(started.wait(), 10)
        async with (await app.store()).transaction() as tx:
            assert await job.cancel(reason="enough", tx=tx) is JobState.RUNNING

        async def stopped() -> bool:
            return (await job.get()).state is JobState.CANCELLED

        # Well before the heartbeat would find it.
        await until(stopped, seconds=5)


async def test_a_run_of_a_schedule_is_moved_in_the_transaction(app: Duetime) -> None:
    @app.task(name="note")
    async def note() -> None: ...

    await app.schedules.put("daily", note, "0 9 * * *")
    [row, *_] = reversed(await app.schedules.history("daily"))
    assert row.job_id is not None
    async with (await app.store()).transaction() as tx:
        await app.jobs.reschedule(row.job_id, row.run_at + timedelta(hours=1), tx=tx)

    assert (await app.schedules.get("daily")).next_run_at == row.run_at + timedelta(hours=1)
