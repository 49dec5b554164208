"""A claim is valid only while its worker's lease holds."""

from __future__ import annotations

import asyncio

from duetime.domain.jobs.job import JobState
from duetime.domain.jobs.queue import Limits
from duetime.domain.reasons import Reason
from duetime.storage.store import Rescued, Store
from tests.conformance.conftest import Clock, MakeHand, seconds
from tests.conformance.hand import Hand, answer, enqueue, enqueue_many, get, ids
from tests.conftest import Backend, query
from tests.operating import cancel, limit_queue


async def test_a_claim_after_the_lease_takes_nothing_and_says_so(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    late, other = await make_hand(), await make_hand(lease="1h")
    await clock.advance("30s")
    job_id = await enqueue(store, max_attempts=1)
    refused = await late.exchange()
    taken = await other.exchange()

    assert (refused.claimed, refused.lease_lost) == ([], True)
    assert (ids(taken.claimed), taken.lease_lost) == ([job_id], False)


async def test_a_buried_worker_claims_nothing(store: Store, clock: Clock, hand: Hand) -> None:
    await clock.advance("30s")
    await store.rescue()
    await enqueue(store)
    refused = await hand.exchange()

    assert await store.workers() == []
    assert (refused.claimed, refused.lease_lost) == ([], True)


async def test_a_renewed_lease_claims_on(store: Store, clock: Clock, hand: Hand) -> None:
    heart = store.heart()
    await clock.advance("29s")
    await asyncio.to_thread(heart.beat, hand.id, seconds(30))
    await asyncio.to_thread(heart.close)
    await clock.advance("29s")
    job_id = await enqueue(store)

    assert ids(await hand.claim()) == [job_id]


async def test_what_ended_is_recorded_though_the_lease_is_gone(
    store: Store, clock: Clock, hand: Hand
) -> None:
    """Until a rescuer has taken the claim; in one exchange with a claim that is refused."""
    first = await enqueue(store)
    job = await hand.claim_one()
    await clock.advance("30s")
    await enqueue(store)
    await hand.finish(job)

    assert (await get(store, first)).state is JobState.COMPLETED
    assert (await hand.exchange()).lease_lost


async def test_a_claim_of_a_limited_queue_after_the_lease_takes_nothing(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    await limit_queue(store, "few", Limits(running=5, rate=5, period=seconds(60)))
    late, other = await make_hand("few"), await make_hand("few", lease="1h")
    await clock.advance("30s")
    given = await enqueue_many(store, 5, queue="few")

    assert await late.claim(limited=["few"]) == []
    assert ids(await other.claim(limited=["few"])) == given, "and its rate was not used up"


async def test_a_claim_of_the_quarantine_after_the_lease_takes_nothing(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    await limit_queue(store, "few", Limits(running=5))
    given = [await enqueue(store, max_attempts=9, queue=queue) for queue in ("many", "few")]
    for _ in range(2):
        dead = await make_hand("many", "few")
        await dead.claim(limited=["few"])
        await clock.advance("31s")
        await store.rescue()
    late = await make_hand("many", "few")
    await clock.advance("31s")
    refused = await late.claim_quarantined()
    other = await make_hand("many", "few")
    taken = [*await other.claim_quarantined(), *await other.claim_quarantined()]

    assert refused == []
    assert ids(taken) == given


async def end_lease_before_claims(store: Store, backend: Backend, hand: Hand) -> None:
    """As if the claim had been made by the skin of the lease, and committed long after it."""
    second = "interval '1 second'" if backend.is_postgres else "1000000"
    query(
        backend,
        f"update duetime.worker set lease_until ="
        f" (select min(claimed_at) from duetime.claim) - {second} where id = {hand.id}",
    )


async def test_what_was_claimed_after_the_lease_is_given_back_and_does_not_count(
    store: Store, clock: Clock, backend: Backend, make_hand: MakeHand
) -> None:
    """It cannot have begun: its worker knew that the lease was gone."""
    job_id = await enqueue(store, max_attempts=1, priority=2, key="k")
    hand = await make_hand(name="late")
    await hand.claim_one()
    await end_lease_before_claims(store, backend, hand)
    await clock.advance("1s")
    rescued = await store.rescue()
    waiting = await get(store, job_id)
    again = await (await make_hand()).claim_one()

    assert rescued == [Rescued(job_id, "noop", 0, JobState.PENDING, "late")]
    assert (waiting.state, waiting.attempts, waiting.priority) == (JobState.PENDING, 0, 2)
    assert waiting.history == ()
    assert (again.id, again.attempt) == (job_id, 1)
    assert (await answer(store, key="k")).action == "existing"


async def test_what_a_worker_that_is_gone_has_claimed_is_given_back_and_does_not_count(
    store: Store, clock: Clock, backend: Backend, make_hand: MakeHand
) -> None:
    job_id = await enqueue(store, max_attempts=1)
    hand = await make_hand()
    await hand.claim_one()
    query(backend, f"delete from duetime.worker where id = {hand.id}")
    await clock.advance("1s")
    [rescued] = await store.rescue()

    assert (rescued.state, rescued.attempt) == (JobState.PENDING, 0)
    assert (await get(store, job_id)).history == ()


async def test_what_was_claimed_after_the_lease_and_cancelled_is_cancelled(
    store: Store, clock: Clock, backend: Backend, make_hand: MakeHand
) -> None:
    job_id = await enqueue(store)
    hand = await make_hand()
    await hand.claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text="test"))
    await end_lease_before_claims(store, backend, hand)
    await clock.advance("1s")

    assert [one.state for one in await store.rescue()] == [JobState.CANCELLED]
    assert (await get(store, job_id)).state is JobState.CANCELLED


async def test_a_quarantined_job_that_is_given_back_stays_in_quarantine(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    """Also if its worker stops, or its claim came after the lease: it may still be poison."""
    job_id = await enqueue(store, max_attempts=9)
    for _ in range(2):
        await (await make_hand()).claim()
        await clock.advance("31s")
        await store.rescue()
    await clock.advance("1s")
    hand = await make_hand()
    [job] = await hand.claim_quarantined()
    await hand.release(job)

    assert await hand.claim() == []
    assert [(job.id, job.attempt) for job in await hand.claim_quarantined()] == [(job_id, 3)]
