"""What people do: look, cancel, move, requeue, prune."""

from __future__ import annotations

import asyncio

import pytest

from duetime import Duetime
from duetime.domain.jobs.job import AttemptOutcome, JobFilter, JobState
from duetime.domain.jobs.queue import Limits
from duetime.domain.reasons import Reason
from duetime.errors import InvalidInput
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, MakeHand, seconds
from tests.conformance.hand import Hand, ended, enqueue, enqueue_many, get, ids, retried
from tests.conftest import Backend
from tests.operating import (
    cancel,
    limit_queue,
    pause_queue,
    reprioritise,
    requeue,
    reschedule,
    resume_queue,
)

# Cancel


async def test_cancel_of_a_waiting_job_ends_it(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    was = await cancel(store, job_id, reason=Reason.of("cancelled", text="not wanted"))
    job = await get(store, job_id)
    [record] = job.history

    assert was is JobState.PENDING
    assert (job.state, job.error, job.finished_at) == (JobState.CANCELLED, "not wanted", clock.now)
    assert (record.outcome, record.worker, record.attempt) == ("cancelled", None, 0)
    assert await hand.claim() == []


async def test_cancel_of_a_retrying_job_ends_it(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    await hand.end(retried(await hand.claim_one(), seconds(60)))

    assert await cancel(store, job_id, reason=Reason("cancelled")) is JobState.RETRYING
    job = await get(store, job_id)
    assert (job.state, job.attempts) == (JobState.CANCELLED, 1)


async def test_cancel_of_a_parked_job_ends_it(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    await hand.park(await hand.claim_one())

    assert await cancel(store, job_id, reason=Reason("cancelled")) is JobState.PARKED
    assert (await get(store, job_id)).state is JobState.CANCELLED
    assert await store.unpark(["noop"], ["default"]) == 0


async def test_cancel_of_a_running_job_asks_its_worker(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id, _ = await enqueue_many(store, 2)
    job, _ = await hand.claim()
    was = await cancel(store, job_id, reason=Reason("cancelled"))
    heart = store.heart()
    beat = await asyncio.to_thread(heart.beat, hand.id, seconds(30))
    await asyncio.to_thread(heart.close)

    assert was is JobState.RUNNING
    assert beat.cancelled == (job_id,)
    assert (await get(store, job_id)).state is JobState.RUNNING
    assert await hand.end(ended(job, AttemptOutcome.CANCELLED)) == frozenset()
    assert (await get(store, job_id)).state is JobState.CANCELLED


async def test_cancel_of_an_ended_job_changes_nothing(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    await hand.finish(await hand.claim_one())

    assert await cancel(store, job_id, reason=Reason("cancelled")) is JobState.COMPLETED
    assert len((await get(store, job_id)).history) == 1


async def test_unknown_job(store: Store, clock: Clock) -> None:
    assert await store.get(404) is None
    assert await cancel(store, 404, reason=Reason("cancelled")) is None
    assert await reschedule(store, 404, clock.now) is None
    assert await reprioritise(store, 404, 1) is None


# Move


async def test_rescheduled_job_runs_at_its_new_time(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand(lease="1h")
    job_id = await enqueue(store)
    state = await reschedule(store, job_id, clock.after("1m"))
    early = await hand.claim()
    await clock.advance("1m")

    assert (state, early) == (JobState.PENDING, [])
    assert ids(await hand.claim()) == [job_id]


async def test_a_job_is_not_moved_behind_its_expiry(store: Store, clock: Clock, hand: Hand) -> None:
    waiting = await enqueue(store, expires_at=clock.after("10m"))
    parked = await enqueue(store, expires_at=clock.after("10m"))
    first, second = await hand.claim()
    await hand.release(first)
    await hand.park(second)
    for job_id in (waiting, parked):
        with pytest.raises(InvalidInput, match="it expires at 2030-01-01T12:10:00Z"):
            await reschedule(store, job_id, clock.after("10m"))

    assert (await get(store, waiting)).run_at == clock.now
    assert await reschedule(store, waiting, clock.after("9m")) is JobState.PENDING
    assert await reschedule(store, parked, clock.after("9m")) is JobState.PARKED


async def test_reprioritised_job_overtakes(store: Store, clock: Clock, hand: Hand) -> None:
    first, second = await enqueue_many(store, 2)
    state = await reprioritise(store, second, 1)
    [job] = await hand.claim(1)
    await hand.end(retried(job, seconds(0)))
    again = await hand.claim_one()

    assert state is JobState.PENDING
    assert (job.id, job.priority) == (second, 1)
    # It keeps its new priority.
    assert (again.id, again.priority) == (second, 1)
    assert (await get(store, second)).priority == 1
    assert ids(await hand.claim()) == [first]


async def test_running_and_ended_jobs_are_not_moved(store: Store, clock: Clock, hand: Hand) -> None:
    running, done = await enqueue_many(store, 2)
    jobs = await hand.claim()
    await hand.finish(jobs[1])

    assert await reschedule(store, running, clock.after("1m")) is JobState.RUNNING
    assert await reprioritise(store, running, 1) is JobState.RUNNING
    assert await reschedule(store, done, clock.after("1m")) is JobState.COMPLETED
    assert await reprioritise(store, done, 1) is JobState.COMPLETED


async def test_requeued_job_has_a_fresh_set_of_attempts(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store, max_attempts=1, expires_at=clock.after("1m"))
    await hand.end(ended(await hand.claim_one(), AttemptOutcome.DEAD, error="no"))
    requeued = await requeue(store, JobFilter(ids=(job_id,)), run_at=None)
    waiting = await get(store, job_id)
    again = await hand.claim_one()

    assert requeued.jobs == [job_id]
    assert (waiting.state, waiting.attempts, waiting.run_at) == (JobState.PENDING, 0, clock.now)
    assert (again.id, again.attempt, again.expires_at) == (job_id, 1, None)
    assert await hand.finish(again) == frozenset()


async def test_requeue_takes_only_what_ended_without_success(
    store: Store, clock: Clock, hand: Hand
) -> None:
    given = await enqueue_many(store, 6)
    jobs = await hand.claim(5)
    await hand.end(
        ended(jobs[0]),
        ended(jobs[1], AttemptOutcome.DEAD),
        ended(jobs[2], AttemptOutcome.EXPIRED),
        ended(jobs[3], AttemptOutcome.CANCELLED),
    )
    requeued = await requeue(store, JobFilter(ids=tuple(given)), run_at=clock.after("1h"))

    assert requeued.jobs == given[1:4]
    assert (await get(store, given[1])).run_at == clock.after("1h")


async def test_requeue_by_filter(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    hand = await make_hand("a", "b")
    mine = await enqueue(store, queue="a")
    await enqueue(store, queue="b")
    await hand.end(*(ended(job, AttemptOutcome.DEAD) for job in await hand.claim()))
    which = JobFilter(states=(JobState.DEAD,), queue="a")

    assert (await requeue(store, which, run_at=None)).jobs == [mine]
    assert (await requeue(store, which, run_at=None)).jobs == []


# Look


async def test_find_newest_first_page_by_page(store: Store) -> None:
    given = await enqueue_many(store, 5)
    first = await store.find(JobFilter(limit=2))
    second = await store.find(JobFilter(limit=2, before_id=first[-1].id))

    assert ids(first) == [given[4], given[3]]
    assert ids(second) == [given[2], given[1]]


async def test_find_by_state(store: Store, clock: Clock, hand: Hand) -> None:
    completed, dead, retrying, parked, running, pending = await enqueue_many(store, 6)
    jobs = await hand.claim(5)
    await hand.end(
        ended(jobs[0]), ended(jobs[1], AttemptOutcome.DEAD), retried(jobs[2], seconds(60))
    )
    await hand.park(jobs[3])
    cancelled = await enqueue(store)
    await cancel(store, cancelled, reason=Reason("cancelled"))

    async def found(*states: JobState) -> list[int]:
        return ids(await store.find(JobFilter(states=states)))

    assert await found(JobState.COMPLETED) == [completed]
    assert await found(JobState.DEAD) == [dead]
    assert await found(JobState.RETRYING) == [retrying]
    assert await found(JobState.PARKED) == [parked]
    assert await found(JobState.RUNNING) == [running]
    assert await found(JobState.PENDING) == [pending]
    assert await found(JobState.CANCELLED) == [cancelled]
    assert await found(JobState.EXPIRED) == []
    assert await found(JobState.DEAD, JobState.RUNNING, JobState.CANCELLED) == [
        cancelled,
        running,
        dead,
    ]


async def test_requeued_job_is_no_longer_found_as_dead(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    await hand.end(ended(await hand.claim_one(), AttemptOutcome.DEAD))
    await requeue(store, JobFilter(ids=(job_id,)), run_at=None)

    assert await store.find(JobFilter(states=(JobState.DEAD,))) == []


async def test_find_by_everything_else(store: Store) -> None:
    a = await enqueue(store, "a", queue="q", key="k")
    b = await enqueue(store, "b", queue="q")
    c = await enqueue(store, "a")

    async def found(which: JobFilter) -> list[int]:
        return ids(await store.find(which))

    assert await found(JobFilter(task="a")) == [c, a]
    assert await found(JobFilter(queue="q")) == [b, a]
    assert await found(JobFilter(key="k")) == [a]
    assert await found(JobFilter(queue="q", task="b")) == [b]
    assert await found(JobFilter(ids=(a, c, 404))) == [c, a]
    assert await found(JobFilter(ids=())) == []
    assert await found(JobFilter(ids=(a, b), task="b", states=(JobState.PENDING,))) == [b]


async def test_queues_are_counted(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    hand = await make_hand("a", "idle")
    await enqueue_many(store, 4, queue="a", run_at=clock.before("1m"))
    await enqueue(store, queue="a", run_at=clock.after("1m"))
    jobs = await hand.claim(3)
    await hand.finish(jobs[0])
    await hand.park(jobs[1])
    await pause_queue(store, "b", by="ann", reason="holiday")
    await limit_queue(store, "b", Limits(rate=2, period=seconds(60)))
    a, b, idle = await store.queues()

    assert (a.name, a.pending, a.due, a.running, a.parked) == ("a", 2, 1, 1, 1)
    assert (a.next_run_at, a.paused_at, a.limits) == (clock.before("1m"), None, Limits())
    assert (b.name, b.pending, b.paused_at, b.paused_by) == ("b", 0, clock.now, "ann")
    assert (b.pause_reason, b.limits) == ("holiday", Limits(rate=2, period=seconds(60)))
    assert (idle.name, idle.pending, idle.next_run_at) == ("idle", 0, None)


async def test_second_pause_keeps_the_time_of_the_first(store: Store, clock: Clock) -> None:
    await pause_queue(store, "a", by="ann", reason="one")
    since = clock.now
    await clock.advance("1m")
    await pause_queue(store, "a", by="bob", reason="two")
    [queue] = await store.queues()

    assert (queue.paused_at, queue.paused_by, queue.pause_reason) == (since, "bob", "two")


async def test_resumed_queue_without_limits_is_forgotten(store: Store, clock: Clock) -> None:
    await pause_queue(store, "a", by="ann", reason="one")
    await resume_queue(store, "a")

    assert await store.queues() == []


# Prune


async def test_old_jobs_are_pruned_by_how_they_ended(
    store: Store, clock: Clock, hand: Hand
) -> None:
    done, dead = await enqueue_many(store, 2)
    jobs = await hand.claim()
    await store.set_progress(jobs[0], "1")
    await hand.end(ended(jobs[0]), ended(jobs[1], AttemptOutcome.DEAD))
    await clock.advance("2d")
    retention = {
        AttemptOutcome.COMPLETED: seconds(86_400),
        AttemptOutcome.DEAD: seconds(7 * 86_400),
    }
    pruned, _ = await store.prune(retention, after=0, batch=100)

    assert pruned == 1
    assert await store.get(done) is None
    assert (await get(store, dead)).state is JobState.DEAD
    assert await store.prune(retention, after=0, batch=100) == (0, 0)


async def test_what_is_not_old_or_not_ended_is_kept(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand(lease="30d")
    given = await enqueue_many(store, 4)
    # Each in a claim of its own: what is in a claim is kept for that alone.
    jobs = [await hand.claim_one() for _ in range(3)]
    await hand.end(ended(jobs[0], AttemptOutcome.DEAD), retried(jobs[1], seconds(10 * 86_400)))
    await requeue(store, JobFilter(ids=(given[0],)), run_at=clock.after("10d"))
    await clock.advance("5d")
    retention = dict.fromkeys(AttemptOutcome, seconds(86_400))

    assert await store.prune(retention, after=0, batch=100) == (0, 0)
    states = [(await get(store, job_id)).state for job_id in given]
    assert states == ["pending", "retrying", "running", "pending"]


async def test_jobs_that_were_parked_for_too_long_end_as_dead(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand(lease="30d")
    old = await enqueue(store, "strange", key="k")
    await hand.park(await hand.claim_one())
    await clock.advance("2d")
    young = await enqueue(store, "strange")
    await hand.park(await hand.claim_one())
    ended = await store.end_parked(seconds(86_400), batch=100)
    again = await store.end_parked(seconds(86_400), batch=100)
    freed = await enqueue(store, "strange", key="k")
    job = await get(store, old)

    assert (ended, again) == ([old], [])
    assert (job.state, job.error_code) == (JobState.DEAD, "parked")
    assert job.error == ("it was parked for too long: worker w1 does not know the task strange")
    assert (await get(store, young)).state is JobState.PARKED
    assert freed != old, "its key is free"


async def test_prune_goes_in_batches(store: Store, clock: Clock, hand: Hand) -> None:
    await enqueue_many(store, 5)
    await hand.finish(*await hand.claim())
    await clock.advance("2d")
    retention = {AttemptOutcome.COMPLETED: seconds(86_400)}

    pruned, after = [], 0
    for _ in range(4):
        count, after = await store.prune(retention, after=after, batch=2)
        pruned.append(count)

    assert pruned == [2, 2, 1, 0]


async def test_prune_goes_past_old_jobs_that_are_kept(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await enqueue_many(store, 25)
    *kept, last = await hand.claim(25)
    await hand.end(*(ended(job, AttemptOutcome.DEAD) for job in kept), ended(last))
    await clock.advance("2d")
    await enqueue(store)
    retention = {
        AttemptOutcome.COMPLETED: seconds(86_400),
        AttemptOutcome.DEAD: seconds(7 * 86_400),
    }
    pruned, after = await store.prune(retention, after=0, batch=1)
    looks = 1
    while after:
        count, after = await store.prune(retention, after=after, batch=1)
        pruned += count
        looks += 1

    assert pruned == 1
    assert looks <= 7
    assert await store.get(last.id) is None
    assert (await get(store, kept[-1].id)).state is JobState.DEAD


async def test_prune_goes_past_a_job_that_was_made_while_the_clock_was_wrong(
    store: Store, clock: Clock, hand: Hand
) -> None:
    """It seems young for a year. What came after it must not wait for that."""
    await enqueue_many(store, 4)
    await clock.advance("365d")
    await enqueue(store, run_at=clock.after("365d"))
    await clock.set(clock.before("365d"))
    done = await enqueue(store)
    *kept, last = await hand.claim()
    await hand.end(*(ended(job, AttemptOutcome.DEAD) for job in kept), ended(last))
    await clock.advance("2d")
    retention = {
        AttemptOutcome.COMPLETED: seconds(86_400),
        AttemptOutcome.DEAD: seconds(7 * 86_400),
    }
    pruned, after = await store.prune(retention, after=0, batch=1)
    while after:
        count, after = await store.prune(retention, after=after, batch=1)
        pruned += count

    assert last.id == done
    assert pruned == 1


async def test_ids_of_pruned_jobs_are_not_given_again(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    await hand.finish(await hand.claim_one())
    await clock.advance("2d")
    await store.prune({AttemptOutcome.COMPLETED: seconds(86_400)}, after=0, batch=10)

    assert await enqueue(store) > job_id


async def test_hold_outlives_the_job_that_was_pruned(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store, key="k", hold=seconds(5 * 86_400))
    await hand.finish(await hand.claim_one())
    await clock.advance("2d")
    await store.prune({AttemptOutcome.COMPLETED: seconds(86_400)}, after=0, batch=10)
    held = await enqueue(store, key="k")
    await clock.advance("4d")

    assert held == job_id
    assert await enqueue(store, key="k") > job_id


@pytest.mark.parametrize("with_history", [False, True])
async def test_names_of_old_workers_are_pruned(
    store: Store, clock: Clock, make_hand: MakeHand, with_history: bool
) -> None:
    hand = await make_hand(name="old")
    job_id = await enqueue(store)
    await hand.finish(await hand.claim_one())
    await store.remove_worker(hand.id)
    await clock.advance("2d" if with_history else "20d")
    retention = {AttemptOutcome.COMPLETED: seconds(10 * 86_400)}
    await store.prune(retention, after=0, batch=10)
    job = await store.get(job_id)

    assert (job.history[0].worker if job else None) == ("old" if with_history else None)


async def test_requeueing_many_needs_a_state(backend: Backend) -> None:
    """An empty list must not mean all of them."""
    app = Duetime(backend.url)
    try:
        with pytest.raises(InvalidInput, match="must name at least one state"):
            await app.jobs.requeue_many(state=[])
    finally:
        await app.close()
