"""A cancelled job never runs again, whatever becomes of the attempt that was under way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob, JobState
from duetime.domain.reasons import Reason
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, seconds
from tests.conformance.hand import Hand, answer, ended, enqueue, enqueue_many, get, ids, retried
from tests.operating import cancel, cancel_many


def snoozed(job: ClaimedJob) -> FinishedJob:
    return ended(job, AttemptOutcome.SNOOZED, again_after=seconds(0))


def retried_now(job: ClaimedJob) -> FinishedJob:
    return retried(job, seconds(0))


async def is_over(store: Store, hand: Hand, job_id: int) -> None:
    """The job is cancelled, its key is free, and nobody can claim it."""
    job = await get(store, job_id)
    assert (job.state, job.run_at) == (JobState.CANCELLED, None)
    assert await hand.claim() == []
    assert (await answer(store, key="k")).action == "created"


@pytest.mark.parametrize("end", [retried_now, snoozed])
async def test_an_attempt_that_would_run_again_ends_a_cancelled_job(
    store: Store, clock: Clock, hand: Hand, end: object
) -> None:
    job_id = await enqueue(store, key="k")
    job = await hand.claim_one()
    was = await cancel(store, job_id, reason=Reason.of("cancelled", text="no"))
    answer = await hand.exchange(end(job), want=0)  # type: ignore[operator]

    assert was is JobState.RUNNING
    assert (answer.refused, answer.cancelled) == (frozenset(), frozenset({job_id}))
    [record] = (await get(store, job_id)).history
    assert (record.outcome, record.attempt) == ("cancelled", 1)
    await is_over(store, hand, job_id)


async def test_others_of_the_same_claim_run_again(store: Store, clock: Clock, hand: Hand) -> None:
    cancelled, other = await enqueue_many(store, 2)
    jobs = await hand.claim()
    await cancel(store, cancelled, reason=Reason.of("cancelled", text="no"))
    answer = await hand.exchange(*(retried_now(job) for job in jobs), want=0)

    assert answer.cancelled == {cancelled}
    assert ids(await hand.claim()) == [other]


async def test_finish_again_ends_a_cancelled_job_that_would_run_again(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store, key="k")
    job = await hand.claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text="no"))
    answer = await store.finish_again([retried_now(job)], [job.token])

    assert (answer.refused, answer.cancelled) == (frozenset(), frozenset({job_id}))
    await is_over(store, hand, job_id)


@pytest.mark.parametrize("outcome", [AttemptOutcome.COMPLETED, AttemptOutcome.DEAD])
async def test_an_attempt_that_ends_its_job_counts_as_it_is(
    store: Store, clock: Clock, hand: Hand, outcome: AttemptOutcome
) -> None:
    job_id = await enqueue(store, key="k")
    job = await hand.claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text="no"))
    answer = await hand.exchange(ended(job, outcome), want=0)

    assert answer.cancelled == frozenset()
    assert (await get(store, job_id)).state.value == outcome.value


async def test_a_cancelled_job_that_is_given_back_ends(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store, key="k")
    other = await enqueue(store)
    jobs = await hand.claim()
    await cancel(store, job_id, reason=Reason.of("cancelled", text="no"))
    await hand.release(*jobs)

    [again] = await hand.claim()
    assert (again.id, again.attempt) == (other, 1)
    [record] = (await get(store, job_id)).history
    assert (record.outcome, record.attempt, record.worker) == ("cancelled", 1, "hand")
    assert record.started_at is None
    await is_over(store, hand, job_id)


async def test_a_cancelled_job_that_is_parked_ends(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store, key="k")
    job = await hand.claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text="no"))
    await hand.park(job)

    assert await store.unpark(["noop"], ["default"]) == 0
    await is_over(store, hand, job_id)


async def test_a_cancelled_job_whose_claim_nobody_knows_ends(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store, key="k")
    other = await enqueue(store)
    await hand.claim()
    await cancel(store, job_id, reason=Reason.of("cancelled", text="no"))
    given_back = await store.disown(hand.id, [])

    assert given_back == 1
    assert ids(await hand.claim()) == [other]
    await is_over(store, hand, job_id)


# Why


REASON = "the customer's order was withdrawn"


async def reason_of(store: Store, job_id: int) -> tuple[str | None, str | None]:
    job = await get(store, job_id)
    assert job.state is JobState.CANCELLED
    return job.error_code, job.error


@pytest.mark.parametrize(
    "end",
    [
        lambda job: ended(job, AttemptOutcome.CANCELLED, error_code="cancelled"),
        lambda job: ended(job, AttemptOutcome.CANCELLED, error_code="cancelled_before_start"),
        retried_now,
        snoozed,
    ],
)
async def test_the_reason_is_kept_by_the_attempt_that_is_stopped(
    store: Store, clock: Clock, hand: Hand, end: Callable[[ClaimedJob], FinishedJob]
) -> None:
    _, job_id, _ = await enqueue_many(store, 3)
    jobs = await hand.claim()
    await cancel(store, jobs[2].id, reason=Reason.of("cancelled", text="another reason"))
    await cancel(store, job_id, reason=Reason.of("cancelled", text=REASON))
    await hand.exchange(end(jobs[1]), want=0)

    assert (await reason_of(store, job_id))[1] == REASON


async def test_the_reason_is_kept_when_the_job_is_given_back(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text=REASON))
    await store.release([job])

    assert await reason_of(store, job_id) == ("cancelled_given_back", REASON)


async def test_the_reason_is_kept_when_the_claim_is_disowned(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    await hand.claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text=REASON))
    await store.disown(hand.id, [])

    assert await reason_of(store, job_id) == ("cancelled_given_back", REASON)


async def test_the_reason_is_kept_when_the_worker_is_lost(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    await hand.claim_one()
    await cancel(store, job_id, reason=Reason.of("cancelled", text=REASON))
    await clock.advance("60s")
    await store.rescue()

    assert await reason_of(store, job_id) == ("cancelled_worker_lost", REASON)


async def test_without_a_reason_the_attempt_says_what_it_was(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    await cancel(store, job_id, reason=Reason("cancelled"))
    await hand.exchange(
        ended(job, AttemptOutcome.CANCELLED, error_code="cancelled_before_start"), want=0
    )

    assert await reason_of(store, job_id) == (
        "cancelled_before_start", "cancelled before it began",
    )  # fmt: skip


async def test_a_cancel_of_ours_keeps_its_code(store: Store, clock: Clock, hand: Hand) -> None:
    waiting, running = await enqueue_many(store, 2)
    jobs = await hand.claim(1)
    await cancel_many(store, [waiting, running], reason=Reason("next_run_due"))
    await hand.exchange(ended(jobs[0], AttemptOutcome.CANCELLED, error_code="cancelled"), want=0)

    for job_id in (waiting, running):
        assert await reason_of(store, job_id) == (
            "next_run_due", "cancelled: the next run of its schedule is due",
        )  # fmt: skip
