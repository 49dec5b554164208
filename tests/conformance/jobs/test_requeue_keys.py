"""A job that is requeued takes its key again, or stays as it is."""

from __future__ import annotations

import asyncio
from typing import Any

from duetime.domain.jobs.job import AttemptOutcome, JobFilter, JobState
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, OpenStore, seconds
from tests.conformance.hand import Hand, answer, ended, enqueue, get
from tests.operating import requeue


async def dead(store: Store, hand: Hand, **options: Any) -> int:
    """A job that ended as dead; return its id."""
    job_id = await enqueue(store, **options)
    await hand.end(ended(await hand.claim_one(), AttemptOutcome.DEAD))
    return job_id


async def test_requeued_job_holds_its_key_again(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await dead(store, hand, key="k")
    requeued = await requeue(store, JobFilter(ids=(job_id,)), run_at=None)
    existing = await answer(store, key="k")
    await hand.finish(await hand.claim_one())

    assert (requeued.jobs, requeued.conflicts) == ([job_id], {})
    assert (existing.job_id, existing.action) == (job_id, "existing")
    assert (await answer(store, key="k")).action == "created"


async def test_requeued_job_holds_its_key_after_completion_as_was_asked_at_the_enqueue(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await dead(store, hand, key="k", hold=seconds(60))
    between = await enqueue(store, key="k", hold=seconds(5))
    await hand.finish(await hand.claim_one())
    await clock.advance("6s")
    requeued = await requeue(store, JobFilter(ids=(job_id,)), run_at=None)
    await hand.finish(await hand.claim_one())
    await clock.advance("59s")
    held = await answer(store, key="k")
    await clock.advance("2s")

    assert between != job_id
    assert requeued.jobs == [job_id]
    assert (held.job_id, held.action) == (job_id, "existing")
    assert (await answer(store, key="k")).action == "created"


async def test_job_whose_key_another_holds_is_not_requeued(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await dead(store, hand, key="k", expires_at=clock.after("1h"))
    plain = await dead(store, hand)
    elsewhere = await enqueue(store, "other", key="k", run_at=clock.after("1h"))
    holder = await enqueue(store, key="k", run_at=clock.after("1h"))
    requeued = await requeue(store, JobFilter(ids=(job_id, plain, elsewhere)), run_at=None)
    job = await get(store, job_id)

    assert (requeued.jobs, requeued.conflicts) == ([plain], {job_id: holder})
    assert (job.state, job.expires_at) == (JobState.DEAD, clock.after("1h"))
    assert (await answer(store, key="k")).job_id == holder


async def test_key_that_is_held_after_completion_is_a_conflict_until_then(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await dead(store, hand, key="k")
    holder = await enqueue(store, key="k", hold=seconds(60))
    await hand.finish(await hand.claim_one())
    which = JobFilter(ids=(job_id,))
    early = await requeue(store, which, run_at=None)
    await clock.advance("61s")
    late = await requeue(store, which, run_at=None)

    assert early.conflicts == {job_id: holder}
    assert late.jobs == [job_id]
    assert (await answer(store, key="k")).job_id == job_id


async def test_of_several_with_one_key_the_newest_is_requeued(
    store: Store, clock: Clock, hand: Hand
) -> None:
    old, new = [await dead(store, hand, key="k") for _ in range(2)]
    requeued = await requeue(store, JobFilter(states=(JobState.DEAD,)), run_at=None)

    assert (requeued.jobs, requeued.conflicts) == ([new], {old: new})


async def test_of_a_requeue_and_an_enqueue_at_once_one_gets_the_key(
    store: Store, clock: Clock, hand: Hand, open_store: OpenStore
) -> None:
    other = await open_store()
    for number in range(10):
        key = f"k{number}"
        job_id = await dead(store, hand, key=key)
        requeued, given = await asyncio.gather(
            requeue(store, JobFilter(ids=(job_id,)), run_at=clock.after("1h")),
            answer(other, key=key, run_at=clock.after("1h")),
        )

        if given.action == "created":
            assert (requeued.jobs, requeued.conflicts) == ([], {job_id: given.job_id})
        else:
            assert (requeued.jobs, given.job_id) == ([job_id], job_id)
