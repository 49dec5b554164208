"""Claim: in order, never early, by one worker only."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from duetime.domain.jobs.job import JobState, NewJob
from duetime.domain.jobs.queue import Limits
from duetime.storage.store import MAX_CLAIMED_ARGS, Store
from tests.conformance.conftest import Clock, MakeHand, OpenStore, seconds
from tests.conformance.hand import Hand, ended, enqueue, enqueue_many, get, ids
from tests.operating import limit_queue, pause_queue, resume_queue


async def test_order_is_priority_then_time_then_id(store: Store, clock: Clock, hand: Hand) -> None:
    given = await store.enqueue(
        [
            NewJob(task="low", priority=9, run_at=clock.before("1h")),
            NewJob(task="late", priority=5, run_at=clock.before("1s")),
            NewJob(task="early", priority=5, run_at=clock.before("2s")),
            NewJob(task="early too", priority=5, run_at=clock.before("2s")),
            NewJob(task="high", priority=0, run_at=clock.before("0s")),
        ]
    )
    jobs = await hand.claim()

    assert [job.task for job in jobs] == ["high", "early", "early too", "late", "low"]
    assert jobs[1].id == given[2].job_id


async def test_fewer_than_wanted_takes_the_first(store: Store, clock: Clock, hand: Hand) -> None:
    await store.enqueue([NewJob(task=str(n), priority=n % 3) for n in range(9)])
    first, second = await hand.claim(4), await hand.claim(4)

    assert [job.task for job in first] == ["0", "3", "6", "1"]
    assert [job.task for job in second] == ["4", "7", "2", "5"]


async def test_a_job_never_starts_early(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    hand = await make_hand(lease="1h")
    due = clock.after("1m")
    await enqueue(store, run_at=due)
    await clock.set(due - timedelta(microseconds=1))
    early = await hand.claim()
    await clock.set(due)
    on_time = await hand.claim()

    assert early == []
    assert [(job.run_at, job.claimed_at) for job in on_time] == [(due, due)]


async def test_a_due_job_does_not_take_later_ones_with_it(
    store: Store, clock: Clock, hand: Hand
) -> None:
    """One lane, where the claim stops in the middle."""
    due = await enqueue(store)
    await enqueue(store, run_at=clock.after("1m"))

    assert ids(await hand.claim()) == [due]


async def test_claimed_job_carries_all_that_its_handler_needs(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(
        store,
        args=msgspec.Raw(b'{"n": 1}'),
        priority=3,
        key="k",
        partition="p",
        max_attempts=4,
        timeout=seconds(2),
        expires_at=clock.after("1h"),
        trace={"traceparent": "00-1"},
    )
    job = await hand.claim_one()

    assert (job.id, job.task, job.queue, job.priority) == (job_id, "noop", "default", 3)
    assert (job.args, job.attempt, job.max_attempts) == ('{"n": 1}', 1, 4)
    assert (job.run_at, job.claimed_at) == (clock.now, clock.now)
    assert (job.key, job.partition, job.timeout) == ("k", "p", seconds(2))
    assert job.expires_at == clock.after("1h")
    assert msgspec.json.decode(job.trace or "") == {"traceparent": "00-1"}
    assert not job.limited


async def test_claimed_job_is_running(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    hand = await make_hand(name="left", lease="45s")
    job_id = await enqueue(store)
    await hand.claim_one()
    job = await get(store, job_id)

    assert (job.state, job.attempts, job.worker) == (JobState.RUNNING, 1, "left")
    assert (job.claimed_at, job.lease_until, job.run_at) == (clock.now, clock.after("45s"), None)


async def test_only_the_worker_s_queues_are_claimed(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand("mail", "sms")
    await enqueue(store, queue="other", priority=0)
    mine = [await enqueue(store, queue=queue) for queue in ("sms", "mail")]

    assert sorted(ids(await hand.claim())) == sorted(mine)
    assert await hand.claim() == []


async def test_lanes_are_served_in_the_order_given(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand("first", "second")
    await enqueue(store, queue="second", priority=0)
    await enqueue(store, queue="first", priority=9)
    [job] = await hand.claim(1)

    assert job.queue == "first"


async def test_each_job_is_claimed_by_one_of_many(
    store: Store, open_store: OpenStore, make_hand: MakeHand
) -> None:
    given = await enqueue_many(store, 600)
    stores = [store, await open_store()]
    hands = [await make_hand(of=stores[n % 2]) for n in range(4)]

    async def drain(hand: Hand) -> list[int]:
        taken = []
        while jobs := await hand.claim(7):
            taken += ids(jobs)
            assert not await hand.finish(*jobs)
        return taken

    taken = await asyncio.gather(*map(drain, hands))

    assert sorted(job_id for some in taken for job_id in some) == given


async def test_tokens_only_grow(store: Store, clock: Clock, make_hand: MakeHand) -> None:
    left, right = await make_hand(), await make_hand()
    await enqueue_many(store, 4)
    tokens = [(await hand.claim_one()).token for hand in (left, right, left, right)]

    assert tokens == sorted(set(tokens))


async def test_finish_and_claim_in_one_exchange(store: Store, clock: Clock, hand: Hand) -> None:
    first, second = await enqueue_many(store, 2)
    job = await hand.claim_one()
    answer = await hand.exchange(ended(job), want=10)

    assert ids(answer.claimed) == [second]
    assert answer.refused == frozenset()
    assert answer.now == clock.now
    assert (await get(store, first)).state is JobState.COMPLETED


async def test_next_due_time_is_told(store: Store, clock: Clock, hand: Hand) -> None:
    await enqueue(store, run_at=clock.after("5m"), priority=1)
    await enqueue(store, run_at=clock.after("3m"), priority=8)
    await enqueue(store, run_at=clock.after("1m"), queue="other")
    answer = await hand.exchange(look_ahead=True)

    assert (answer.claimed, answer.now) == ([], clock.now)
    assert answer.next_run_at == clock.after("3m")


async def test_next_due_time_counts_every_priority(store: Store, clock: Clock, hand: Hand) -> None:
    for priority in reversed(range(10)):
        first = clock.after(f"{priority + 1}m")
        await enqueue(store, priority=priority, run_at=first)

        assert (await hand.exchange(look_ahead=True)).next_run_at == first


async def test_no_next_due_time_when_nothing_waits(store: Store, clock: Clock, hand: Hand) -> None:
    assert (await hand.exchange(look_ahead=True)).next_run_at is None


async def test_next_due_time_after_the_last_claim(store: Store, clock: Clock, hand: Hand) -> None:
    await enqueue(store)
    await enqueue(store, run_at=clock.after("3m"))
    answer = await hand.exchange(look_ahead=True)

    assert len(answer.claimed) == 1
    assert answer.next_run_at == clock.after("3m")


async def test_overdue_counts_as_next_due(store: Store, clock: Clock, hand: Hand) -> None:
    await enqueue(store, run_at=clock.before("1m"))
    answer = await hand.exchange(want=0, look_ahead=True)

    assert answer.next_run_at == clock.before("1m")


async def test_paused_queue_gives_nothing_until_resumed(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await enqueue(store)
    await pause_queue(store, "default", by="ann", reason="holiday")
    paused = await hand.exchange(look_ahead=True)
    await resume_queue(store, "default")
    resumed = await hand.claim()

    assert (paused.claimed, paused.next_run_at) == ([], None)
    assert len(resumed) == 1


async def test_pausing_one_queue_leaves_the_others(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    hand = await make_hand("a", "b")
    for queue in ("a", "b"):
        await enqueue(store, queue=queue)
    await pause_queue(store, "a", by="ann", reason="holiday")

    assert [job.queue for job in await hand.claim()] == ["b"]


async def test_clock_goes_again_when_no_longer_driven(store: Store, clock: Clock) -> None:
    await store.drive_clock(None)

    assert (await store.now()).year < 2030


async def test_large_arguments_do_not_come_with_the_claim(
    store: Store, clock: Clock, make_hand: MakeHand
) -> None:
    """A thousand jobs of a megabyte each would take gigabytes of a worker's memory."""
    hand = await make_hand()
    small, large = ('{"text": "' + "é" * size + '"}' for size in (10, MAX_CLAIMED_ARGS))
    await limit_queue(store, "limited", Limits(running=10))
    for queue in ("default", "limited"):
        for args in (small, large):
            await enqueue(store, queue=queue, args=msgspec.Raw(args.encode()))
    jobs = await hand.claim() + await hand.claim(limited=["limited"])

    assert [job.args for job in jobs] == [small, None] * 2
    assert [await store.args_of(job.id) for job in jobs] == [small, large] * 2
