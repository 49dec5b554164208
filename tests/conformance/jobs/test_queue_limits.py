"""A queue's limits: exact, however many workers race."""

from __future__ import annotations

import asyncio
from collections import Counter

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, JobState, NewJob
from duetime.domain.jobs.queue import Limits
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, MakeHand, OpenStore, seconds
from tests.conformance.hand import Hand, ended, enqueue, enqueue_many, get, ids, retried
from tests.operating import limit_queue, pause_queue, resume_queue

LIMITED = ["default"]


async def test_running_limit_bounds_what_runs(store: Store, clock: Clock, hand: Hand) -> None:
    given = await enqueue_many(store, 5)
    await limit_queue(store, "default", Limits(running=2))
    first = await hand.claim(limited=LIMITED)
    full = await hand.claim(limited=LIMITED)
    await hand.finish(first[0])
    one_more = await hand.claim(limited=LIMITED)

    assert ids(first) == given[:2]
    assert all(job.limited for job in first)
    assert full == []
    assert ids(one_more) == given[2:3]


async def test_limits_hold_for_a_worker_that_does_not_know_them(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await enqueue_many(store, 5)
    await limit_queue(store, "default", Limits(running=2))

    assert await hand.claim() == []


async def test_limited_jobs_come_by_priority_then_time(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await limit_queue(store, "default", Limits(running=10))
    await store.enqueue(
        [
            NewJob(task="later", run_at=clock.before("1s")),
            NewJob(task="sooner", run_at=clock.before("2s")),
            NewJob(task="first", priority=0),
            NewJob(task="future", run_at=clock.after("1s")),
        ]
    )

    assert [job.task for job in await hand.claim(limited=LIMITED)] == ["first", "sooner", "later"]


async def test_every_way_out_frees_the_room(store: Store, clock: Clock, hand: Hand) -> None:
    await enqueue_many(store, 8)
    await limit_queue(store, "default", Limits(running=1))
    counts = []
    for leave in ("finish", "dead", "retry", "release", "park"):
        [job] = await hand.claim(limited=LIMITED)
        counts.append(len(await hand.claim(limited=LIMITED)))
        match leave:
            case "finish":
                await hand.finish(job)
            case "dead":
                await hand.end(ended(job, AttemptOutcome.DEAD))
            case "retry":
                await hand.end(retried(job, seconds(60)))
            case "release":
                await hand.release(job)
            case _:
                await hand.park(job)

    assert counts == [0] * 5
    assert len(await hand.claim(limited=LIMITED)) == 1


async def test_rescue_frees_the_room(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    dead, live = await make_hand(lease="30s"), await make_hand(lease="1h")
    await enqueue_many(store, 3)
    await limit_queue(store, "default", Limits(running=1))
    await dead.claim(limited=LIMITED)
    await clock.advance("31s")
    await store.rescue()

    assert len(await live.claim(limited=LIMITED)) == 1


async def test_one_at_a_time_for_each_partition(store: Store, clock: Clock, hand: Hand) -> None:
    await limit_queue(store, "default", Limits(per_partition=1))
    ann, _, bob, *free = [
        await enqueue(store, partition=partition) for partition in ("ann", "ann", "bob", None, None)
    ]
    first = await hand.claim(limited=LIMITED)
    full = await hand.claim(limited=LIMITED)
    await hand.finish(first[0])
    second = await hand.claim(limited=LIMITED)

    assert ids(first) == [ann, bob, *free]
    assert full == []
    assert [job.partition for job in second] == ["ann"]


async def test_many_of_a_full_partition_do_not_hide_the_others(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await limit_queue(store, "default", Limits(per_partition=1))
    await enqueue_many(store, 1200, partition="ann")
    bob = await enqueue(store, partition="bob")
    claimed = await hand.claim(5, limited=LIMITED)
    claimed += await hand.claim(5, limited=LIMITED)

    assert bob in ids(claimed)
    assert Counter(job.partition for job in claimed) == {"ann": 1, "bob": 1}


async def test_rate_limit_lets_so_many_start_in_any_span(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand(lease="1h")
    await enqueue_many(store, 10)
    await limit_queue(store, "default", Limits(rate=3, period=seconds(60)))
    first = await hand.claim(2, limited=LIMITED)
    await clock.advance("30s")
    second = await hand.claim(limited=LIMITED)
    await hand.finish(*first, *second)
    used_up = await hand.exchange(limited=LIMITED, look_ahead=True)
    await clock.advance("29s")
    still = await hand.claim(limited=LIMITED)
    await clock.advance("1s")
    third = await hand.claim(limited=LIMITED)

    assert [len(first), len(second), len(third)] == [2, 1, 2]
    assert (used_up.claimed, still) == ([], [])
    assert used_up.next_run_at == clock.now


async def test_a_rate_limit_opens_again_after_the_clock_was_set_back(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    true = clock.now
    await clock.advance("365d")
    hand = await make_hand(lease="1h")
    await enqueue_many(store, 2, run_at=true)
    await limit_queue(store, "default", Limits(rate=1, period=seconds(60)))
    ahead = await hand.claim(limited=LIMITED)
    await clock.set(true)
    used_up = await hand.exchange(limited=LIMITED, look_ahead=True)
    await clock.advance("60s")
    open_again = await hand.claim(limited=LIMITED)

    assert [len(ahead), len(used_up.claimed), len(open_again)] == [1, 0, 1]
    assert used_up.next_run_at == clock.now


async def test_next_due_time_of_a_limited_queue_is_in_the_future(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await limit_queue(store, "default", Limits(running=1))
    await enqueue_many(store, 2)
    await enqueue(store, run_at=clock.after("3m"))
    await hand.claim(limited=LIMITED)
    answer = await hand.exchange(limited=LIMITED, look_ahead=True)

    assert answer.next_run_at == clock.after("3m")


async def test_lifted_limit_lets_all_run(store: Store, clock: Clock, hand: Hand) -> None:
    await enqueue_many(store, 3)
    await limit_queue(store, "default", Limits(running=1))
    await hand.claim(limited=LIMITED)
    before = await store.limited_queues()
    await limit_queue(store, "default", Limits())

    assert before == {"default": Limits(running=1)}
    assert await store.limited_queues() == {}
    assert len(await hand.claim()) == 2


async def test_paused_queue_with_limits_gives_nothing(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await enqueue(store)
    await limit_queue(store, "default", Limits(running=1))
    await pause_queue(store, "default", by="ann", reason="holiday")
    paused = await hand.claim(limited=LIMITED)
    await resume_queue(store, "default")

    assert paused == []
    assert len(await hand.claim(limited=LIMITED)) == 1
    assert await store.limited_queues() == {"default": Limits(running=1)}


async def test_limited_and_other_queues_share_what_is_wanted(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand("default", "a", "b")
    for queue in hand.queues:
        await enqueue_many(store, 10, queue=queue)
    for queue in ("a", "b"):
        await limit_queue(store, queue, Limits(running=10))
    claimed = await hand.claim(15, limited=["a", "b"])

    assert len(claimed) == 15


async def test_quarantined_job_of_a_limited_queue_runs_within_the_limit(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    await limit_queue(store, "default", Limits(running=1))
    job_id = await enqueue(store, max_attempts=10)
    for _ in range(2):
        await (await make_hand()).claim(limited=LIMITED)
        await clock.advance("31s")
        await store.rescue()
    await clock.advance("1m")
    hand = await make_hand()
    await enqueue(store)
    [other] = await hand.claim(limited=LIMITED)
    full = await hand.claim_quarantined()
    await hand.finish(other)
    alone = await hand.claim_quarantined()

    assert full == []
    assert ids(alone) == [job_id]
    assert (await get(store, job_id)).state is JobState.RUNNING


async def test_racing_claimers_never_exceed_the_limits(
    store: Store, open_store: OpenStore, make_hand: MakeHand
) -> None:
    await store.enqueue([NewJob(task="noop", partition=f"p{n % 4}") for n in range(60)])
    await limit_queue(store, "default", Limits(running=5, per_partition=2))
    stores = [store, await open_store()]
    running: Counter[str | None] = Counter()
    most: Counter[str | None] = Counter()
    done: list[int] = []

    def count(jobs: list[ClaimedJob], by: int) -> None:
        for job in jobs:
            running[job.partition] += by
        most["total"] = max(most["total"], running.total())
        most["partition"] = max(most["partition"], *running.values(), 0)

    async def drain(hand: Hand) -> None:
        while len(done) < 60:
            jobs = await hand.claim(3, limited=LIMITED)
            count(jobs, 1)
            await asyncio.sleep(0.001)
            count(jobs, -1)
            assert not await hand.finish(*jobs)
            done.extend(ids(jobs))

    await asyncio.gather(*[drain(await make_hand(of=stores[n % 2])) for n in range(8)])

    assert len(set(done)) == len(done) == 60
    assert most["total"] <= 5
    assert most["partition"] <= 2


async def test_racing_claimers_never_exceed_the_rate(
    store: Store, open_store: OpenStore, make_hand: MakeHand
) -> None:
    await enqueue_many(store, 60)
    await limit_queue(store, "default", Limits(rate=10, period=seconds(3600)))
    stores = [store, await open_store()]
    hands = [await make_hand(of=stores[n % 2]) for n in range(8)]
    claims = await asyncio.gather(*(hand.claim(3, limited=LIMITED) for hand in hands * 3))

    assert sum(map(len, claims)) == 10
