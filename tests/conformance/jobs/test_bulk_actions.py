"""Acting on all jobs that match, as a job with progress, on every backend."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime import Duetime, JobState
from duetime.api import bulk as bulk_module
from duetime.api.bulk import carry_out
from duetime.domain.jobs.bulk import BULK_TASK, BulkRequest
from duetime.domain.jobs.job import ClaimedJob, NewJob
from duetime.errors import ClaimLost, InvalidInput, JobFailed, JobNotFound
from tests.conformance.hand import Hand
from tests.conftest import Backend
from tests.waiting import until

LATER = datetime(2090, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)


@pytest.fixture
async def app(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Duetime]:
    monkeypatch.setattr(bulk_module, "_BATCH", 3)
    monkeypatch.setattr(bulk_module, "_COUNTED", 4)
    app = Duetime(backend.url)

    @app.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise LookupError("gone")

    yield app
    await (await app.store()).drive_clock(None)
    await app.close()


async def enqueue(app: Duetime, count: int, **options: Any) -> list[int]:
    given: dict[str, Any] = {"task": "send", "run_at": LATER, "max_attempts": 1}
    job = NewJob(**(given | options))
    return [handle.id for handle in await app.enqueue_many([job] * count)]


async def states(app: Duetime, ids: list[int]) -> list[str]:
    return [(await app.jobs.get(job_id)).state.value for job_id in ids]


async def die(app: Duetime, count: int) -> list[int]:
    ids = await enqueue(app, count, task="fail", run_at=None)
    async with app.worker():
        for job_id in ids:
            with pytest.raises(JobFailed):
                await app.jobs.result(job_id)
    return ids


async def test_all_that_matched_are_cancelled_and_none_that_came_later(app: Duetime) -> None:
    mail = await enqueue(app, 10, queue="mail")
    other = await enqueue(app, 1)
    action = await app.jobs.cancel_all(queue="mail", reason="moved", by="ann")
    later = await enqueue(app, 1, queue="mail")
    before = await app.jobs.bulk_action(action.id)
    async with app.worker():
        progress = await action.result()
    after = await app.jobs.bulk_action(action.id)

    assert await states(app, mail) == ["cancelled"] * 10
    assert await states(app, other + later) == ["pending"] * 2
    assert (progress.matched, progress.done, progress.skipped) == (10, 10, 0)
    assert (before.state, before.matched, before.done) == (JobState.PENDING, None, 0)
    assert (after.state, after.matched, after.done) == (JobState.COMPLETED, 10, 10)
    assert (after.action, after.by, after.reason) == ("cancel", "ann", "moved")
    assert after.filters["queue"] == "mail"


async def test_a_job_that_is_not_a_bulk_action_is_named_as_what_it_is(app: Duetime) -> None:
    [job_id] = await enqueue(app, 1)

    with pytest.raises(JobNotFound, match=f"Job {job_id} is not a bulk action: its task is 'send'"):
        await app.jobs.bulk_action(job_id)
    with pytest.raises(JobNotFound, match="There is no job 999"):
        await app.jobs.bulk_action(999)


async def test_a_bulk_action_and_what_it_did_are_in_the_audit(app: Duetime) -> None:
    [job_id] = await enqueue(app, 1, queue="mail")
    action = await app.jobs.cancel_all(queue="mail", reason="moved", by="ann")
    async with app.worker():
        await action.result()
    [requested] = await app.jobs.audit(action.id)
    [cancelled] = await app.jobs.audit(job_id)
    job = await app.jobs.get(job_id)

    assert (requested.actor, requested.action) == ("ann", "job.cancel_all")
    assert requested.after["queue"] == "mail"
    assert (cancelled.actor, cancelled.action) == ("ann", "job.cancel")
    assert cancelled.reason == f"bulk action {action.id}: moved"
    assert f"bulk action {action.id}: moved" in (job.error or "")


async def test_a_running_job_is_asked_to_stop(app: Duetime) -> None:
    started = asyncio.Event()

    @app.task(name="long")
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    async with app.worker():
        job = await long.enqueue()
        await started.wait()
        action = await app.jobs.cancel_all(task="long")
        progress = await action.result()
        with pytest.raises(JobFailed):
            await job.result()

    assert progress.done == 1
    assert (await job.get()).state is JobState.CANCELLED


async def test_dead_jobs_are_requeued_unless_they_died_after_the_request(app: Duetime) -> None:
    dead = await die(app, 4)
    action = await app.jobs.requeue_all(task="fail", at=LATER, by="ann")
    moved = dead.pop()
    await app.jobs.requeue(moved)
    async with app.worker():
        with pytest.raises(JobFailed):
            await app.jobs.result(moved)
        progress = await action.result()

    [requeued] = await app.jobs.audit(dead[0])
    assert (requeued.actor, requeued.reason) == ("ann", f"bulk action {action.id}")
    assert await states(app, dead) == ["pending"] * 3
    assert await states(app, [moved]) == ["dead"]
    assert progress.done == 3


async def test_a_job_whose_key_is_held_is_skipped(app: Duetime) -> None:
    [dead] = await enqueue(app, 1, queue="mail", key="k")
    await app.jobs.cancel(dead)
    await enqueue(app, 1, queue="mail", key="k")
    action = await app.jobs.requeue_all(state="cancelled", at=LATER)
    async with app.worker():
        progress = await action.result()

    assert (progress.matched, progress.done, progress.skipped) == (1, 0, 1)
    assert await states(app, [dead]) == ["cancelled"]


async def test_waiting_jobs_are_moved(app: Duetime) -> None:
    ids = await enqueue(app, 5, queue="mail")
    soon = datetime(2080, 1, 1, tzinfo=UTC)
    action = await app.jobs.reschedule_all(soon, queue="mail", by="ann")
    async with app.worker():
        progress = await action.result()

    [moved] = await app.jobs.audit(ids[0])
    assert (moved.actor, moved.reason) == ("ann", f"bulk action {action.id}")
    assert {(await app.jobs.get(job_id)).run_at for job_id in ids} == {soon}
    assert progress.done == 5


async def test_two_actions_on_the_same_jobs_change_each_once(app: Duetime) -> None:
    ids = await enqueue(app, 20, queue="mail")
    actions = [await app.jobs.cancel_all(queue="mail", by=name) for name in ("ann", "bob")]
    async with app.worker():
        done = [(await action.result()).done for action in actions]

    assert sum(done) == 20
    assert await states(app, ids) == ["cancelled"] * 20
    assert [len(await app.jobs.audit(job_id)) for job_id in ids] == [1] * 20


class Killed(BaseException):
    """The process is gone: nothing more is recorded."""


async def claim_by_hand(app: Duetime) -> tuple[Hand, ClaimedJob, BulkRequest]:
    hand = await Hand.register(await app.store(), ["default"], LEASE, "killed")
    [job] = await hand.claim()
    assert job.args is not None
    return hand, job, msgspec.convert(msgspec.json.decode(job.args)["request"], BulkRequest)


async def test_after_a_crash_another_worker_continues_where_it_stopped(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await app.store()
    ids = await enqueue(app, 10, queue="mail")
    action = await app.jobs.cancel_all(queue="mail")
    _, job, request = await claim_by_hand(app)
    batches = 0
    act_on = bulk_module._act_on

    def act_twice(*args: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise Killed
        return act_on(*args)

    with monkeypatch.context() as patched:
        patched.setattr(bulk_module, "_act_on", act_twice)
        with suppress(Killed):
            await carry_out(app, job, request)
    half = await app.jobs.bulk_action(action.id)
    await store.drive_clock(await store.now() + 2 * LEASE)
    await store.rescue()
    await store.drive_clock(None)
    await app.jobs.reschedule(action.id, await app.now())
    async with app.worker():
        progress = await action.result()

    assert (half.state, half.matched, half.done) == (JobState.RUNNING, 10, 6)
    assert (progress.matched, progress.done, progress.skipped) == (10, 10, 0)
    assert await states(app, ids) == ["cancelled"] * 10
    assert [len(await app.jobs.audit(job_id)) for job_id in ids] == [1] * 10


async def test_a_worker_that_lost_the_job_changes_nothing(app: Duetime) -> None:
    store = await app.store()
    ids = await enqueue(app, 4, queue="mail")
    await app.jobs.cancel_all(queue="mail")
    _, job, request = await claim_by_hand(app)
    await store.drive_clock(await store.now() + 2 * LEASE)
    await store.rescue()

    with pytest.raises(ClaimLost):
        await carry_out(app, job, request)

    assert await states(app, ids) == ["pending"] * 4


async def test_a_bulk_action_can_be_cancelled(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await enqueue(app, 6, queue="mail")
    action = await app.jobs.cancel_all(queue="mail")
    matching = bulk_module._matching
    reached = asyncio.Event()

    async def one_batch_of(store: Any, which: Any, limit: int) -> AsyncIterator[list[int]]:
        async for batch in matching(store, which, limit):
            yield batch
            if limit == 3:
                reached.set()
                await asyncio.sleep(60)

    monkeypatch.setattr(bulk_module, "_matching", one_batch_of)
    async with app.worker():
        await reached.wait()
        await action.cancel(by="ann")

        async def stopped() -> bool:
            return (await app.jobs.bulk_action(action.id)).state is JobState.CANCELLED

        await until(stopped)
    info = await app.jobs.bulk_action(action.id)

    assert (info.matched, info.done) == (6, 3)
    assert sorted(await states(app, ids)) == ["cancelled"] * 3 + ["pending"] * 3


async def test_jobs_of_duetime_itself_are_left_out(app: Duetime) -> None:
    await app.subjects.put("game:1", due=LATER, remind="-1h", recipients=["ann"])
    first = await app.jobs.cancel_all(state="pending")
    second = await app.jobs.cancel_all(state=["pending", "running"])
    async with app.worker():
        done = [(await action.result()).done for action in (first, second)]

    assert done == [0, 0]
    assert len(await app.jobs.list(task="duetime.remind", state="pending")) == 1


async def test_what_cannot_be_done_is_refused(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match="at least one filter"):
        await app.jobs.cancel_all()
    with pytest.raises(InvalidInput, match="at least one filter"):
        await app.jobs.reschedule_all(LATER)
    with pytest.raises(InvalidInput, match="state= has dead"):
        await app.jobs.cancel_all(state="dead")
    with pytest.raises(InvalidInput, match="state= has completed"):
        await app.jobs.requeue_all(state="completed")
    with pytest.raises(InvalidInput, match="state= has running"):
        await app.jobs.reschedule_all(LATER, state="running")
    with pytest.raises(InvalidInput, match=BULK_TASK):
        await app.jobs.cancel_all(task=BULK_TASK)
    with pytest.raises(InvalidInput, match=re.escape("duetime.remind")):
        await app.jobs.requeue_all(task="duetime.remind")
    [job_id] = await enqueue(app, 1)
    with pytest.raises(JobNotFound):
        await app.jobs.bulk_action(job_id)
    assert await app.jobs.list(task=BULK_TASK) == []


async def test_nothing_matches(app: Duetime) -> None:
    action = await app.jobs.requeue_all()
    async with app.worker():
        progress = await action.result()

    assert (progress.matched, progress.done) == (0, 0)
