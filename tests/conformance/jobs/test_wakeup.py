"""Sleep and wake-up: no enqueue is slept over; cancellation and ends are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from duetime.domain.jobs.job import AttemptOutcome, JobFilter, JobState, NewJob
from duetime.domain.jobs.queue import Limits
from duetime.domain.reasons import Reason
from duetime.storage.store import Sleeper, Store
from tests.conformance.conftest import MakeHand, OpenStore, seconds
from tests.conformance.hand import Hand, drive, ended, enqueue, ids, retried
from tests.operating import cancel, limit_queue, pause_queue, requeue, resume_queue

SOON = 10.0
LONG = 60.0


@pytest.fixture
async def sleeper(store: Store, hand: Hand) -> AsyncIterator[Sleeper]:
    sleeper = await store.sleeper(hand.id)
    yield sleeper
    await sleeper.close()


async def fall_asleep(sleeper: Sleeper, *queues: str) -> asyncio.Task[str]:
    assert await sleeper.fall_asleep(queues or ("default",))
    return asyncio.create_task(sleeper.sleep(LONG))


async def reason_of(sleep: asyncio.Task[str]) -> str:
    async with asyncio.timeout(SOON):
        return await sleep


async def stays_asleep(sleep: asyncio.Task[str], sleeper: Sleeper) -> bool:
    done, _ = await asyncio.wait([sleep], timeout=0.2)
    sleeper.interrupt()
    await sleep
    return not done


async def test_enqueue_wakes(store: Store, sleeper: Sleeper) -> None:
    sleep = await fall_asleep(sleeper)
    await enqueue(store)

    assert await reason_of(sleep) == "notified"


async def test_enqueue_through_another_store_wakes(open_store: OpenStore, sleeper: Sleeper) -> None:
    other = await open_store()
    sleep = await fall_asleep(sleeper)
    await enqueue(other)

    assert await reason_of(sleep) == "notified"


async def test_enqueue_by_statements_wakes(store: Store, sleeper: Sleeper) -> None:
    sleep = await fall_asleep(sleeper)
    await store.transact(store.enqueue_in([NewJob(task="noop")]))

    assert await reason_of(sleep) == "notified"


async def test_statements_that_enqueue_nothing_for_a_sleeper_do_not_wake_it(
    store: Store, sleeper: Sleeper
) -> None:
    """A flow records its steps in this way: each would cost its worker two claims."""
    sleep = await fall_asleep(sleeper)
    await store.transact(store.enqueue_in([NewJob(task="noop", queue="another")]))

    assert await stays_asleep(sleep, sleeper)


async def test_enqueue_in_a_transaction_wakes_when_it_commits(
    store: Store, sleeper: Sleeper, hand: Hand
) -> None:
    sleep = await fall_asleep(sleeper)
    async with store.transaction() as connection:
        await drive(connection, store.enqueue_in([NewJob(task="noop")]))
        done, _ = await asyncio.wait([sleep], timeout=0.1)

    assert not done
    assert await reason_of(sleep) == "notified"
    assert len(await hand.claim()) == 1


async def test_enqueue_in_flight_is_not_slept_over(
    store: Store, sleeper: Sleeper, hand: Hand
) -> None:
    async with store.transaction() as connection:
        await drive(connection, store.enqueue_in([NewJob(task="noop")]))
        work = asyncio.create_task(_claim_or_sleep(sleeper, hand))
        await asyncio.wait([work], timeout=0.1)

    assert len(await asyncio.wait_for(work, 2 * SOON)) == 1


async def _claim_or_sleep(sleeper: Sleeper, hand: Hand) -> list[int]:
    while True:
        asleep = await sleeper.fall_asleep(["default"])
        if jobs := ids(await hand.claim()):
            return jobs
        await (sleeper.sleep(LONG) if asleep else asyncio.sleep(0.002))


async def test_enqueue_before_the_sleep_is_not_missed(store: Store, sleeper: Sleeper) -> None:
    assert await sleeper.fall_asleep(["default"])
    await enqueue(store)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await sleeper.sleep(LONG)

    assert time.monotonic() - began < SOON


async def test_enqueue_into_another_queue_does_not_wake(store: Store, sleeper: Sleeper) -> None:
    sleep = await fall_asleep(sleeper, "a", "b")
    await enqueue(store, queue="c")

    assert await stays_asleep(sleep, sleeper)


async def test_enqueue_for_tomorrow_does_not_wake(store: Store, sleeper: Sleeper) -> None:
    sleep = await fall_asleep(sleeper)
    await enqueue(store, delay=seconds(86_400))

    assert await stays_asleep(sleep, sleeper)


async def test_enqueue_for_later_wakes(store: Store, sleeper: Sleeper) -> None:
    """A worker sleeps for up to ten minutes: it has to know what falls due meanwhile."""
    for delay in (2, 60, 590):
        sleep = await fall_asleep(sleeper)
        await enqueue(store, delay=seconds(delay))

        assert await reason_of(sleep) in ("notified", "announced"), delay
        await sleeper.wake_up()


async def test_enqueue_for_later_brings_its_time(store: Store, sleeper: Sleeper) -> None:
    """So that whoever looks before then anyway need not wake. On SQLite the producer sees that."""
    sleep = await fall_asleep(sleeper)
    before = await store.now()
    await store.enqueue([NewJob(task="noop", delay=seconds(delay)) for delay in (90, 60)])
    reason = await reason_of(sleep)
    announced = sleeper.announced()

    if reason == "announced":
        assert announced is not None
        assert seconds(60) <= announced - before < seconds(80)
    assert sleeper.announced() is None


async def test_enqueue_of_very_many_wakes(store: Store, sleeper: Sleeper) -> None:
    """On PostgreSQL these are copied, now and for later."""
    for delay in (0, 60):
        sleep = await fall_asleep(sleeper)
        await store.enqueue([NewJob(task="noop", delay=seconds(delay)) for _ in range(1000)])

        assert await reason_of(sleep) in ("notified", "announced"), delay
        await sleeper.wake_up()


async def test_sleep_ends_in_time(sleeper: Sleeper) -> None:
    await sleeper.fall_asleep(["default"])

    assert await sleeper.sleep(0.01) == "timed out"
    await sleeper.wake_up()


async def test_interrupt_ends_the_sleep(sleeper: Sleeper) -> None:
    sleep = await fall_asleep(sleeper)
    sleeper.interrupt()

    assert await reason_of(sleep) == "interrupted"


async def test_reason_is_told_once(store: Store, sleeper: Sleeper) -> None:
    sleep = await fall_asleep(sleeper)
    await enqueue(store)
    await reason_of(sleep)

    assert await sleeper.sleep(0.01) == "timed out"


async def test_interrupt_does_not_hide_a_wake_up(store: Store, sleeper: Sleeper) -> None:
    await sleeper.fall_asleep(["default"])
    await enqueue(store)
    await asyncio.sleep(0.1)
    sleeper.interrupt()

    assert await sleeper.sleep(LONG) == "notified"


async def test_worker_that_is_awake_is_not_woken(store: Store, sleeper: Sleeper) -> None:
    await sleeper.fall_asleep(["default"])
    await sleeper.wake_up()
    await enqueue(store)

    assert await sleeper.sleep(0.2) == "timed out"


async def test_release_retry_and_resume_wake(
    store: Store, hand: Hand, make_hand: MakeHand, sleeper: Sleeper
) -> None:
    other = await make_hand()
    await enqueue(store)

    job = await other.claim_one()
    sleep = await fall_asleep(sleeper)
    await other.release(job)
    await reason_of(sleep)
    await sleeper.wake_up()

    job = await other.claim_one()
    sleep = await fall_asleep(sleeper)
    await other.end(retried(job, seconds(0)))
    await reason_of(sleep)
    await sleeper.wake_up()

    await pause_queue(store, "default", by="ann", reason="test")
    sleep = await fall_asleep(sleeper)
    await resume_queue(store, "default")
    assert await reason_of(sleep) == "notified"


async def test_room_in_a_limited_queue_wakes(
    store: Store, make_hand: MakeHand, sleeper: Sleeper
) -> None:
    other = await make_hand()
    await limit_queue(store, "default", Limits(running=1))
    await enqueue(store)
    await enqueue(store)
    [job] = await other.claim(limited=["default"])
    sleep = await fall_asleep(sleeper)
    await other.finish(job)

    assert await reason_of(sleep) == "notified"


async def test_cancel_of_a_running_job_is_told_its_worker(
    store: Store, open_store: OpenStore, hand: Hand, sleeper: Sleeper
) -> None:
    job_id = await enqueue(store)
    await hand.claim_one()
    other = await open_store()
    sleep = await fall_asleep(sleeper)
    await cancel(other, job_id, reason=Reason.of("cancelled", text="test"))
    reason = await reason_of(sleep)

    assert reason == "cancelled"
    assert await sleeper.cancelled_jobs() == [job_id]
    assert await sleeper.cancelled_jobs() == []


async def test_many_single_enqueues_against_a_sleeping_worker(
    store: Store, open_store: OpenStore, hand: Hand, sleeper: Sleeper
) -> None:
    other = await open_store()
    seen: list[int] = []

    async def work() -> None:
        while len(seen) < 200:
            jobs = await hand.claim()
            seen.extend(ids(jobs))
            if jobs:
                await hand.finish(*jobs)
                continue
            if await sleeper.fall_asleep(["default"]):
                jobs = await hand.claim()
                seen.extend(ids(jobs))
                if not jobs and len(seen) < 200:
                    await sleeper.sleep(LONG)
                await sleeper.wake_up()

    async def produce(store: Store) -> None:
        for n in range(100):
            await enqueue(store)
            await asyncio.sleep(0.001 * (n % 4))

    async with asyncio.timeout(LONG - 1):
        await asyncio.gather(work(), produce(store), produce(other))

    assert len(seen) == 200


# Who waits for a job's end


@pytest.mark.parametrize("how", ["finish", "dead", "cancel"])
async def test_wait_ends_with_the_job(
    store: Store, open_store: OpenStore, hand: Hand, how: str
) -> None:
    waiter = await open_store()
    job_id = await enqueue(store)
    job = await hand.claim_one() if how != "cancel" else None
    wait = asyncio.create_task(waiter.wait_finished(job_id, LONG))
    await asyncio.sleep(0.1)
    waited = not wait.done()
    if job is None:
        await cancel(store, job_id, reason=Reason.of("cancelled", text="test"))
    else:
        outcome = AttemptOutcome.COMPLETED if how == "finish" else AttemptOutcome.DEAD
        await hand.end(ended(job, outcome))

    assert waited
    await asyncio.wait_for(wait, SOON)


async def test_wait_for_a_job_that_has_ended_returns(store: Store, hand: Hand) -> None:
    job_id = await enqueue(store)
    await hand.finish(await hand.claim_one())

    finished = await asyncio.wait_for(store.wait_finished(job_id, LONG), SOON)

    assert finished is not None
    assert (finished.task, finished.state) == ("noop", JobState.COMPLETED)


async def test_a_result_is_that_of_the_last_attempt(store: Store, hand: Hand) -> None:
    """A job that was requeued has not finished, whether it waits or runs."""
    job_id = await enqueue(store)
    await hand.end(ended(await hand.claim_one(), AttemptOutcome.DEAD))
    dead = await store.wait_finished(job_id, 0)
    await requeue(store, JobFilter(ids=(job_id,)), run_at=None)
    waits = await store.wait_finished(job_id, 0)
    job = await hand.claim_one()
    runs = await store.wait_finished(job_id, 0)
    end = ended(job, AttemptOutcome.COMPLETED)
    end.result = '{"a": [1, null]}'
    await hand.end(end)
    completed = await store.wait_finished(job_id, 0)

    assert dead is not None
    assert dead.state is JobState.DEAD
    assert (waits, runs) == (None, None)
    assert completed is not None
    assert (completed.state, completed.result) == (JobState.COMPLETED, {"a": [1, None]})


async def test_wait_gives_up_in_time(store: Store) -> None:
    job_id = await enqueue(store)
    began = time.monotonic()
    await store.wait_finished(job_id, 0.05)

    assert time.monotonic() - began < SOON
