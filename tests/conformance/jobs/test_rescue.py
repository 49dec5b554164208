"""Workers: their leases, and what becomes of the jobs of dead ones."""

from __future__ import annotations

import asyncio

from duetime.domain.jobs.job import JobState
from duetime.domain.reasons import Reason
from duetime.storage.store import Rescued, Store
from tests.conformance.conftest import Clock, MakeHand, OpenStore, seconds
from tests.conformance.hand import Hand, answer, ended, enqueue, enqueue_many, get, ids, retried
from tests.operating import cancel, pause_queue


async def lose(
    store: Store, clock: Clock, make_hand: MakeHand, *, of: str = "claim"
) -> list[Rescued]:
    """Let a new worker claim, and die."""
    hand = await make_hand(name="dead", lease="30s")
    await (hand.claim() if of == "claim" else hand.claim_quarantined())
    await clock.advance("31s")
    return await store.rescue()


async def test_registered_worker_is_shown(store: Store, clock: Clock) -> None:
    defaults = {"queue": "a", "priority": 5, "max_attempts": 3, "timeout": None, "expires": None}
    worker_id = await store.register_worker(
        name="left", queues=["a", "b"], tasks={"t": defaults}, concurrency=7, lease=seconds(30)
    )
    [worker] = await store.workers()

    assert (worker.id, worker.name, worker.queues) == (worker_id, "left", ("a", "b"))
    assert (worker.tasks, worker.concurrency, worker.running) == (("t",), 7, 0)
    assert worker.started_at == worker.seen_at == clock.now
    assert worker.lease_until == clock.after("30s")


async def test_running_jobs_of_a_worker_are_counted(store: Store, clock: Clock, hand: Hand) -> None:
    await enqueue_many(store, 3)
    jobs = await hand.claim()
    await hand.finish(jobs[0])

    assert [worker.running for worker in await store.workers()] == [2]


async def test_beat_renews_the_lease(store: Store, clock: Clock, hand: Hand) -> None:
    heart = store.heart()
    await clock.advance("20s")
    beat = await asyncio.to_thread(heart.beat, hand.id, seconds(30))
    [worker] = await store.workers()
    await asyncio.to_thread(heart.close)

    assert (beat.alive, beat.cancelled) == (True, ())
    assert (worker.seen_at, worker.lease_until) == (clock.now, clock.after("30s"))


async def test_beat_after_the_lease_ran_out_says_so(store: Store, clock: Clock, hand: Hand) -> None:
    heart = store.heart()
    await clock.advance("30s")
    late = await asyncio.to_thread(heart.beat, hand.id, seconds(30))
    await store.rescue()
    buried = await asyncio.to_thread(heart.beat, hand.id, seconds(30))
    await asyncio.to_thread(heart.close)

    assert (late.alive, buried.alive) == (False, False)
    assert await store.workers() == []


async def test_beat_tells_how_many_workers_are_older(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hands = [await make_hand() for _ in range(3)]
    heart = store.heart()
    ranks = [(await asyncio.to_thread(heart.beat, hand.id, seconds(30))).rank for hand in hands]
    await asyncio.to_thread(heart.close)

    assert ranks == [0, 1, 2]


async def test_worker_that_holds_nothing_is_removed(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    idle, busy = await make_hand(name="idle"), await make_hand(name="busy")
    await enqueue(store)
    await busy.claim_one()
    for hand in (idle, busy):
        await store.remove_worker(hand.id)

    assert [worker.name for worker in await store.workers()] == ["busy"]


async def test_nothing_to_rescue(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    live = await make_hand(lease="1h")
    job_id = await enqueue(store)
    job = await live.claim_one()
    await clock.advance("31s")

    assert await store.rescue() == []
    assert (await get(store, job_id)).state is JobState.RUNNING
    assert await live.finish(job) == frozenset()


async def test_lost_job_waits_again(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    job_id = await enqueue(store, priority=2)
    rescued = await lose(store, clock, make_hand)
    waiting = await get(store, job_id)
    again = await (await make_hand()).claim_one()
    [lost] = waiting.history

    assert rescued == [Rescued(job_id, "noop", 1, JobState.RETRYING, "dead")]
    assert (waiting.state, waiting.attempts, waiting.priority) == (JobState.RETRYING, 1, 2)
    assert (waiting.run_at, waiting.error_code) == (clock.now, "worker_lost")
    assert (lost.outcome, lost.worker, lost.finished_at) == ("lost", "dead", clock.now)
    assert lost.started_at is None
    assert (again.id, again.attempt) == (job_id, 2)


async def test_lost_job_without_attempts_left_is_dead(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    job_id = await enqueue(store, max_attempts=1, key="k")
    rescued = await lose(store, clock, make_hand)
    job = await get(store, job_id)

    assert rescued == [Rescued(job_id, "noop", 1, JobState.DEAD, "dead")]
    assert (job.state, job.error_code, job.run_at) == (JobState.DEAD, "worker_lost", None)
    assert (await answer(store, key="k")).action == "created"


async def test_lost_job_keeps_its_key(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    await enqueue(store, key="k")
    await lose(store, clock, make_hand)

    assert (await answer(store, key="k")).action == "existing"


async def test_lost_job_that_was_to_be_cancelled_is_cancelled(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    job_id = await enqueue(store)
    await (await make_hand()).claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text="test"))
    await clock.advance("31s")
    rescued = await store.rescue()
    job = await get(store, job_id)

    assert [one.state for one in rescued] == [JobState.CANCELLED]
    assert (job.state, job.error_code) == (JobState.CANCELLED, "cancelled_worker_lost")


async def test_only_what_had_not_ended_is_lost(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand()
    given = await enqueue_many(store, 4)
    jobs = await hand.claim()
    await hand.end(ended(jobs[0]), retried(jobs[1], seconds(600)))
    await hand.release(jobs[2])
    await clock.advance("31s")
    rescued = await store.rescue()

    assert [one.job_id for one in rescued] == [given[3]]
    states = [(await get(store, job_id)).state for job_id in given]
    assert states == ["completed", "retrying", "pending", "retrying"]


async def test_a_job_that_was_claimed_ahead_of_its_time_is_not_early_after_a_rescue(
    store: Store, clock: Clock, hand: Hand, make_hand: MakeHand
) -> None:
    """It was claimed by the skin of the lease, which ran out before the job was due."""
    await clock.advance("29s990ms")
    job = await enqueue(store, run_at=clock.after("40ms"))
    ahead = await hand.exchange(lead=0.05)
    await clock.advance("20ms")
    rescued = await store.rescue()
    other = await make_hand()
    early = await other.claim()
    await clock.advance("20ms")
    early += await other.claim()
    await clock.advance("10ms")
    on_time = await other.claim()

    assert ids(ahead.claimed) == [one.job_id for one in rescued] == [job]
    assert early == []
    assert ids(on_time) == [job]


async def test_job_lost_twice_is_quarantined(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    poison = await enqueue(store, max_attempts=5)
    await lose(store, clock, make_hand)
    [second] = await lose(store, clock, make_hand)
    hand = await make_hand(lease="1h")
    harmless = await enqueue(store)
    at_once = await hand.claim_quarantined()
    await clock.advance("1s")
    regular = await hand.claim()
    alone = await hand.claim_quarantined()
    no_more = await hand.claim_quarantined()

    assert (second.job_id, second.state) == (poison, JobState.RETRYING)
    assert at_once == []
    assert ids(regular) == [harmless]
    assert [(job.id, job.attempt, job.priority) for job in alone] == [(poison, 3, 5)]
    assert no_more == []


async def test_quarantined_job_waits_longer_after_each_loss_and_dies(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    job_id = await enqueue(store, max_attempts=4)
    waits = []
    for _ in range(2):
        await lose(store, clock, make_hand)
    for _ in range(2):
        run_at = (await get(store, job_id)).run_at
        assert run_at is not None
        waits.append(run_at - clock.now)
        await clock.advance("10s")
        await lose(store, clock, make_hand, of="quarantine")

    assert waits == [seconds(1), seconds(2)]
    assert (await get(store, job_id)).state is JobState.DEAD


async def test_quarantined_job_that_completes_is_done(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    job_id = await enqueue(store, max_attempts=5)
    for _ in range(2):
        await lose(store, clock, make_hand)
    await clock.advance("1s")
    hand = await make_hand()
    [job] = await hand.claim_quarantined()

    assert await hand.finish(job) == frozenset()
    assert (await get(store, job_id)).state is JobState.COMPLETED


async def test_paused_queue_keeps_its_quarantined_jobs(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    await enqueue(store, max_attempts=5)
    for _ in range(2):
        await lose(store, clock, make_hand)
    await clock.advance("1s")
    await pause_queue(store, "default", by="ann", reason="test")

    assert await (await make_hand()).claim_quarantined() == []


async def test_dead_workers_are_buried_and_their_names_kept(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    job_id = await enqueue(store)
    await lose(store, clock, make_hand)

    assert await store.workers() == []
    assert (await get(store, job_id)).history[0].worker == "dead"


async def test_of_racing_rescuers_one_rescues(
    store: Store, clock: Clock, open_store: OpenStore, hand: Hand
) -> None:
    given = await enqueue_many(store, 50)
    for _ in range(10):
        await hand.claim(5)
    await clock.advance("31s")
    stores = [store, await open_store()]
    rescued = await asyncio.gather(*(stores[n % 2].rescue() for n in range(6)))

    assert sorted(one.job_id for some in rescued for one in some) == given
    assert all([len((await get(store, job_id)).history) == 1 for job_id in given])


async def test_a_lost_reminder_has_the_attempts_that_its_worker_declares(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    """It may have been armed before any worker started."""
    declared = {"queue": "default", "priority": 5, "max_attempts": 5, "timeout": None}
    tasks = {"duetime.remind": declared | {"expires": None}}
    await enqueue(store, task="duetime.remind", max_attempts=1)
    await store.register_worker(
        name="declares", queues=["other"], tasks=tasks, concurrency=1, lease=seconds(3600)
    )

    [lost] = await lose(store, clock, make_hand)

    assert lost.state is JobState.RETRYING
