"""Finish, retry, snooze, release, park: fenced, and the attempts counted right."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from duetime.domain.jobs.job import AttemptOutcome, FinishedJob, JobState
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, MakeHand, OpenStore, seconds
from tests.conformance.hand import Hand, ended, enqueue, enqueue_many, get, ids, retried


async def test_completed_job_is_in_the_history(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand(name="left")
    job_id = await enqueue(store)
    job = await hand.claim_one()
    await clock.advance("1s")
    refused = await hand.end(FinishedJob(job, AttemptOutcome.COMPLETED, 1500, 2_000_000))
    info = await get(store, job_id)
    [attempt] = info.history

    assert refused == frozenset()
    assert (info.state, info.attempts, info.run_at) == (JobState.COMPLETED, 1, None)
    assert (attempt.token, attempt.attempt, attempt.worker) == (job.token, 1, "left")
    assert (attempt.outcome, attempt.error, attempt.result) == ("completed", None, None)
    assert attempt.claimed_at == job.claimed_at
    assert attempt.started_at == job.claimed_at + timedelta(microseconds=1500)
    assert attempt.finished_at == info.finished_at == job.claimed_at + seconds(2)


async def test_an_attempt_may_last_for_days(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    await hand.end(FinishedJob(job, AttemptOutcome.COMPLETED, 1, 3 * 86_400_000_000))

    assert (await get(store, job_id)).finished_at == clock.after("3d")


async def test_result_is_stored(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    await hand.end(ended(await hand.claim_one(), result='{"ok": [1, null]}'))

    assert (await get(store, job_id)).history[0].result == {"ok": [1, None]}


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (AttemptOutcome.DEAD, JobState.DEAD),
        (AttemptOutcome.CANCELLED, JobState.CANCELLED),
        (AttemptOutcome.EXPIRED, JobState.EXPIRED),
        (AttemptOutcome.SUPERSEDED, JobState.SUPERSEDED),
    ],
)
async def test_job_that_ended_without_success_tells_why(
    store: Store, clock: Clock, hand: Hand, outcome: AttemptOutcome, state: JobState
) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    await hand.end(ended(job, outcome, error_code="E", error="why", traceback="where"))
    info = await get(store, job_id)

    assert (info.state, info.error_code, info.error) == (state, "E", "why")
    assert info.history[0].traceback == "where"
    assert await hand.claim() == []


async def test_retried_job_waits_and_counts_its_attempts(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand(lease="1h")
    job_id = await enqueue(store, priority=2)
    await hand.end(retried(await hand.claim_one(), seconds(60)))
    waiting = await get(store, job_id)
    await clock.advance("59s")
    early = await hand.claim()
    await clock.advance("1s")
    again = await hand.claim_one()
    await hand.finish(again)
    done = await get(store, job_id)

    assert (waiting.state, waiting.attempts, waiting.error) == (JobState.RETRYING, 1, "it broke")
    assert waiting.run_at == clock.now
    assert early == []
    assert (again.attempt, again.priority) == (2, 2)
    assert [one.attempt for one in done.history] == [1, 2]
    assert [one.outcome for one in done.history] == ["retried", "completed"]
    assert (done.state, done.attempts, done.error) == (JobState.COMPLETED, 2, None)


async def test_snoozed_job_gets_its_attempt_back(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    await hand.end(ended(await hand.claim_one(), AttemptOutcome.SNOOZED, again_after=seconds(5)))
    waiting = await get(store, job_id)
    await clock.advance("5s")
    again = await hand.claim_one()

    assert (waiting.state, waiting.attempts) == (JobState.PENDING, 0)
    assert waiting.run_at == clock.now
    assert again.attempt == 1


async def test_one_exchange_ends_jobs_in_every_way(store: Store, clock: Clock, hand: Hand) -> None:
    given = await enqueue_many(store, 4)
    jobs = await hand.claim()
    refused = await hand.end(
        ended(jobs[0]),
        retried(jobs[1], seconds(1)),
        ended(jobs[2], AttemptOutcome.SNOOZED, again_after=seconds(1)),
        ended(jobs[3], AttemptOutcome.DEAD, error="no"),
    )
    states = [(await get(store, job_id)).state for job_id in given]

    assert refused == frozenset()
    assert states == ["completed", "retrying", "pending", "dead"]


# The fence


async def test_finish_twice_is_refused(store: Store, clock: Clock, hand: Hand) -> None:
    first, _ = await enqueue_many(store, 2)
    job, _ = await hand.claim()
    accepted = await hand.finish(job)
    # The other job of the batch is still held: the token alone must not suffice.
    refused = await hand.end(ended(job, AttemptOutcome.DEAD, error="too late"))

    assert accepted == frozenset()
    assert refused == {first}
    assert (await get(store, first)).state is JobState.COMPLETED


async def test_finish_under_another_token_is_refused(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    left, right = await make_hand(), await make_hand()
    first, second = await enqueue_many(store, 2)
    mine, other = await left.claim_one(), await right.claim_one()
    mine.token = other.token
    refused = await left.end(ended(mine))

    assert refused == {first}
    assert [(await get(store, job)).state for job in (first, second)] == ["running", "running"]


async def test_finish_after_a_rescue_is_refused(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    stalled, other = await make_hand(lease="30s"), await make_hand(lease="1h")
    job_id = await enqueue(store)
    job = await stalled.claim_one()
    await clock.advance("31s")
    await store.rescue()
    refused_before = await stalled.finish(job)
    again = await other.claim_one()
    refused_after = await stalled.end(ended(job, AttemptOutcome.DEAD))
    accepted = await other.finish(again)

    assert refused_before == refused_after == {job_id}
    assert accepted == frozenset()
    assert again.token > job.token
    assert [one.outcome for one in (await get(store, job_id)).history] == ["lost", "completed"]


async def test_finish_under_the_token_of_an_earlier_attempt_is_refused(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id, _ = await enqueue_many(store, 2)
    old, _ = await hand.claim()
    await hand.end(retried(old, seconds(0)))
    new = await hand.claim_one()
    refused = await hand.end(ended(old))

    assert new.id == old.id == job_id
    assert refused == {job_id}
    assert (await get(store, job_id)).state is JobState.RUNNING
    assert await hand.finish(new) == frozenset()


async def test_of_two_tokens_of_one_job_only_the_one_that_holds_it_may_finish(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id, _ = await enqueue_many(store, 2)
    old, beside = await hand.claim()
    await hand.release(old)
    new = await hand.claim_one()
    # Both claims are still there: the old one for the job beside it.
    await hand.end(ended(old), ended(new))
    history = (await get(store, job_id)).history

    assert old.token == beside.token < new.token
    assert new.id == old.id == job_id
    assert [one.token for one in history] == [new.token]


async def test_a_retry_under_an_old_token_does_not_make_the_job_wait_again(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id, _ = await enqueue_many(store, 2)
    old, _ = await hand.claim()
    await hand.release(old)
    new = await hand.claim_one()
    await hand.end(retried(old, seconds(0)), ended(new, result="1"))
    job = await get(store, job_id)

    assert job.state is JobState.COMPLETED
    assert [one.token for one in job.history] == [new.token]


async def test_refusal_of_one_does_not_hinder_others(
    store: Store, clock: Clock, hand: Hand
) -> None:
    given = await enqueue_many(store, 3)
    jobs = await hand.claim()
    await hand.release(jobs[1])
    refused = await hand.finish(*jobs)

    assert refused == {given[1]}
    states = [(await get(store, job_id)).state for job_id in given]
    assert states == ["completed", "pending", "completed"]


async def test_the_last_jobs_of_two_claims_end_together(store: Store, hand: Hand) -> None:
    """The fence is passed before the claims are closed, in whatever order the plan runs."""
    await enqueue_many(store, 60)
    jobs = [*await hand.claim(30), *await hand.claim(30)]

    assert len({job.token for job in jobs}) == 2
    assert await hand.finish(*jobs) == frozenset()


async def test_a_release_leaves_the_claim_for_what_has_ended(store: Store, hand: Hand) -> None:
    await enqueue_many(store, 3)
    jobs = await hand.claim()
    await store.release(jobs[:2])

    assert await hand.finish(jobs[2]) == frozenset()


# A finish whose answer was lost


async def test_finish_again_tells_two_tokens_of_one_job_apart(store: Store, hand: Hand) -> None:
    """The first try's retry was recorded, its answer lost; the second try's end is not yet."""
    job_id = await enqueue(store)
    first = await hand.claim_one()
    retried = ended(first, AttemptOutcome.RETRIED, again_after=timedelta(0))
    await hand.end(retried)
    second = await hand.claim_one()
    answer = await store.finish_again([retried, ended(second)], [first.token, second.token])

    assert answer.refused == frozenset()
    assert (await get(store, job_id)).state is JobState.COMPLETED


async def test_finish_again_answers_those_who_wait_here(store: Store, hand: Hand) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    waiting = asyncio.create_task(store.wait_finished(job_id, 60))
    await asyncio.sleep(0)

    await store.finish_again([ended(job)], [job.token])
    async with asyncio.timeout(20):
        result = await waiting

    assert result is not None
    assert result.state is JobState.COMPLETED


async def test_who_waits_for_a_job_that_its_worker_lost_reads_it(
    open_store: OpenStore, hand: Hand
) -> None:
    """Nobody reports to the worker's own process that another one has finished the job."""
    store = hand.store
    job_id = await enqueue(store)
    await hand.release(await hand.claim_one())
    other = await Hand.register(await open_store(), ["default"], seconds(60), "other")
    await other.finish(await other.claim_one())

    first = await store.wait_finished(job_id, 0.05)
    second = first or await store.wait_finished(job_id, 0.05)

    assert second is not None
    assert second.state is JobState.COMPLETED


async def test_finish_again_records_what_was_not_recorded(
    store: Store, clock: Clock, hand: Hand
) -> None:
    given = await enqueue_many(store, 2)
    jobs = await hand.claim()
    await hand.end(retried(jobs[0], seconds(60)))
    ends = [retried(jobs[0], seconds(60)), ended(jobs[1], result="1")]
    first = await store.finish_again(ends, [jobs[0].token])
    second = await store.finish_again(ends, [jobs[0].token])
    history = [(await get(store, job_id)).history for job_id in given]

    assert first.refused == second.refused == frozenset()
    assert [[one.outcome for one in attempts] for attempts in history] == [
        ["retried"],
        ["completed"],
    ]


async def test_finish_again_refuses_what_was_lost(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    await clock.advance("31s")
    await store.rescue()

    # The rescuer's record stands under the same token: it is not ours.
    assert (await store.finish_again([ended(job)], [job.token])).refused == {job_id}


# Give back


async def test_released_job_waits_as_before(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store, run_at=clock.before("1m"), priority=3)
    await hand.release(await hand.claim_one())
    waiting = await get(store, job_id)
    again = await hand.claim_one()

    assert (waiting.state, waiting.attempts, waiting.priority) == (JobState.PENDING, 0, 3)
    assert (waiting.run_at, waiting.history) == (clock.before("1m"), ())
    assert again.attempt == 1


async def test_released_retry_keeps_its_earlier_attempts(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    await hand.end(retried(await hand.claim_one(), seconds(0)))
    await hand.release(await hand.claim_one())

    assert (await get(store, job_id)).state is JobState.RETRYING
    assert (await hand.claim_one()).attempt == 2


async def test_finish_of_a_released_job_is_refused(store: Store, clock: Clock, hand: Hand) -> None:
    job_id, _ = await enqueue_many(store, 2)
    job, _ = await hand.claim()
    await hand.release(job)

    assert await hand.end(ended(job)) == {job_id}
    assert (await get(store, job_id)).state is JobState.PENDING


async def test_release_of_a_finished_job_changes_nothing(
    store: Store, clock: Clock, hand: Hand
) -> None:
    given = await enqueue_many(store, 2)
    jobs = await hand.claim()
    await hand.finish(jobs[0])
    await hand.release(*jobs)

    assert [(await get(store, job_id)).state for job_id in given] == ["completed", "pending"]
    assert ids(await hand.claim()) == given[1:]


async def test_release_twice_is_as_once(store: Store, clock: Clock, hand: Hand) -> None:
    given = await enqueue_many(store, 2)
    job, _ = await hand.claim()
    await store.release([job])
    await store.release([job])

    assert ids(await hand.claim()) == given[:1]


async def test_release_after_a_rescue_changes_nothing(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    stalled, other = await make_hand(), await make_hand(lease="1h")
    job_id = await enqueue(store)
    job = await stalled.claim_one()
    await clock.advance("31s")
    await store.rescue()
    again = await other.claim_one()
    await stalled.release(job)

    assert (await get(store, job_id)).state is JobState.RUNNING
    assert await other.finish(again) == frozenset()


async def test_claims_whose_answer_was_lost_are_given_back(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand, other = await make_hand(), await make_hand()
    given = await enqueue_many(store, 4)
    known = await hand.claim(1)
    finished, _ = await hand.claim(2)
    await hand.finish(finished)
    theirs = await other.claim(1)
    count = await store.disown(hand.id, [known[0].token])
    states = [(await get(store, job_id)).state for job_id in given]

    assert count == 1
    assert states == ["running", "completed", "pending", "running"]
    assert [(job.id, job.attempt) for job in await hand.claim()] == [(given[2], 1)]
    assert await hand.finish(*known) == frozenset()
    assert await other.finish(*theirs) == frozenset()


async def test_what_was_claimed_ahead_and_is_disowned_is_not_early(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await enqueue(store, run_at=clock.after("50ms"))
    [job] = (await hand.exchange(lead=0.05)).claimed
    await clock.advance("20ms")
    await store.disown(hand.id, [], lead=0.05)
    early = await hand.claim()
    await clock.advance("30ms")

    assert early == []
    assert [(again.id, again.attempt) for again in await hand.claim()] == [(job.id, 1)]


# Park


async def test_parked_job_is_set_aside_until_unparked(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store, "strange")
    await hand.park(await hand.claim_one())
    parked = await get(store, job_id)
    claimable = await hand.claim()
    others = await store.unpark(["another"], ["default"])
    count = await store.unpark(["another", "strange"], ["default"])
    again = await hand.claim_one()

    assert (parked.state, parked.attempts) == (JobState.PARKED, 0)
    assert str(parked.parked_reason) == "worker w1 does not know the task strange"
    assert (claimable, others, count) == ([], 0, 1)
    assert (again.id, again.attempt, again.run_at) == (job_id, 1, clock.now)


async def test_finish_of_a_parked_job_is_refused(store: Store, clock: Clock, hand: Hand) -> None:
    job_id, _ = await enqueue_many(store, 2)
    job, _ = await hand.claim()
    await hand.park(job)

    assert await hand.end(ended(job)) == {job_id}
    assert (await get(store, job_id)).state is JobState.PARKED


# Progress


async def test_progress_of_a_held_job_is_shown(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    accepted = [await store.set_progress(job, text) for text in ("0.5", '{"done": 3}')]

    assert accepted == [True, True]
    assert (await get(store, job_id)).progress == {"done": 3}


async def test_progress_is_fenced(store: Store, clock: Clock, hand: Hand) -> None:
    job_id, _ = await enqueue_many(store, 2)
    job, _ = await hand.claim()
    await hand.finish(job)
    after_finish = await store.set_progress(job, "1")
    job.token += 1000

    assert not after_finish
    assert not await store.set_progress(job, "1")
    assert (await get(store, job_id)).progress is None
