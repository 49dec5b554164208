"""Enqueue: what is stored, with which defaults, and who holds a key."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from duetime.domain.jobs.job import AttemptOutcome, JobState, NewJob
from duetime.domain.reasons import Reason
from duetime.errors import InvalidInput
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, MakeHand, OpenStore, seconds
from tests.conformance.hand import Hand, answer, ended, enqueue, enqueue_many, get, ids, retried
from tests.operating import cancel

NASTY = {"text": 'tab\t, "quote", \\back\\slash\n, \r, \\N, 日本, \U0001f600'}


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


async def test_new_job_waits(store: Store, clock: Clock) -> None:
    job = await get(store, await enqueue(store, args=raw({"a": 1})))

    assert (job.task, job.queue, job.priority, job.args) == ("noop", "default", 5, {"a": 1})
    assert (job.state, job.attempts, job.max_attempts) == (JobState.PENDING, 0, 3)
    assert job.run_at == job.created_at == clock.now
    assert (job.finished_at, job.worker, job.claimed_at, job.history) == (None, None, None, ())


async def test_every_option_is_stored(store: Store, clock: Clock) -> None:
    job_id = await enqueue(
        store,
        queue="mail",
        priority=2,
        run_at=clock.after("1h"),
        key="k",
        partition="ann",
        max_attempts=7,
        timeout=timedelta(milliseconds=1500),
        expires_at=clock.after("2h"),
    )
    job = await get(store, job_id)

    assert (job.queue, job.priority, job.run_at) == ("mail", 2, clock.after("1h"))
    assert (job.key, job.partition, job.max_attempts) == ("k", "ann", 7)
    assert (job.timeout, job.expires_at) == (seconds(1.5), clock.after("2h"))


@pytest.mark.parametrize(
    ("key", "others"), [(None, []), (None, ["noop"]), (None, ["another"]), ("k", [])]
)
async def test_delay_counts_from_now_and_expiry_from_the_due_time(
    store: Store, clock: Clock, key: str | None, others: list[str]
) -> None:
    """PostgreSQL has a statement for jobs of one kind, one for several kinds, and one for keys."""
    times: dict[str, Any] = {"delay": seconds(60), "expires_after": seconds(30)}
    jobs = [NewJob(task=task, key=key, **times) for task in ["noop", *others]]
    job = await get(store, (await store.enqueue(jobs))[0].job_id)

    assert job.run_at == clock.after("60s")
    assert job.expires_at == clock.after("90s")


async def test_options_of_a_bulk_are_those_of_a_single_job(store: Store, clock: Clock) -> None:
    """PostgreSQL copies from 1,000 jobs on; that is another path with the same result."""
    options: list[dict[str, Any]] = [
        {"delay": seconds(60), "expires_after": seconds(30)},
        {"run_at": clock.after("1h"), "expires_after": seconds(30)},
        {"run_at": clock.after("1h"), "expires_at": clock.after("2h"), "timeout": seconds(1.5)},
        {"queue": "mail", "priority": 2, "partition": "ann", "max_attempts": 7},
        {"args": raw({"text": "it's 5 o'clock"}), "trace": {"traceparent": "00-1"}},
    ]
    bulk = await store.enqueue([NewJob(task="noop", **options[n % 5]) for n in range(1000)])
    for place, one in enumerate(options):
        single = await get(store, await enqueue(store, **one))
        found = await get(store, bulk[place].job_id)

        assert msgspec.structs.replace(found, id=single.id) == single


async def test_nothing_in_nothing_out(store: Store) -> None:
    assert await store.enqueue([]) == []


async def test_ids_grow_in_the_order_given(store: Store) -> None:
    first = await enqueue_many(store, 10)
    second = await enqueue_many(store, 10)

    assert first + second == sorted(set(first + second))


async def test_bulk_of_5000(store: Store, clock: Clock, hand: Hand) -> None:
    given = await enqueue_many(store, 5000)
    claimed = []
    while jobs := await hand.claim(1000):
        claimed += ids(jobs)

    assert len(set(given)) == 5000
    assert claimed == given


@pytest.mark.parametrize("count", [1, 1500])
async def test_arguments_survive(store: Store, clock: Clock, hand: Hand, count: int) -> None:
    [first, *_] = await enqueue_many(
        store, count, args=raw(NASTY), partition="tab\tin\\it", trace={"traceparent": "00-\\t"}
    )
    [claimed] = await hand.claim(1)

    assert (await get(store, first)).args == NASTY
    assert msgspec.json.decode(claimed.args or "") == NASTY
    assert claimed.partition == "tab\tin\\it"
    assert claimed.trace is not None
    assert msgspec.json.decode(claimed.trace) == {"traceparent": "00-\\t"}


@pytest.mark.parametrize("count", [1, 1500])
async def test_a_new_job_says_all_and_a_tasks_defaults_change_nothing(
    store: Store, count: int
) -> None:
    defaults = {
        "queue": "mail",
        "priority": 1,
        "max_attempts": 9,
        "timeout": seconds(5),
        "expires": seconds(60),
    }
    await store.register_worker(
        name="w", queues=["mail"], tasks={"noop": defaults}, concurrency=1, lease=seconds(30)
    )
    [first, *_] = await enqueue_many(store, count)
    job = await get(store, first)

    assert (job.queue, job.priority, job.max_attempts) == ("default", 5, 3)
    assert (job.timeout, job.expires_at) == (None, None)


@pytest.mark.parametrize("beside", [0, 1500])
@pytest.mark.parametrize(
    "bad",
    [
        {"priority": 10},
        {"priority": -1},
        {"max_attempts": 0},
        {"args": msgspec.Raw(b"[1]")},
        {"queue": "x" * 201},
        {"task": ""},
    ],
    ids=lambda bad: next(iter(bad)),
)
async def test_one_bad_job_and_nothing_is_enqueued(
    store: Store, bad: dict[str, Any], beside: int
) -> None:
    good = [NewJob(task="noop")] * beside

    with pytest.raises(InvalidInput):
        await store.enqueue([*good, NewJob(**{"task": "noop", **bad})])
    assert await store.queues() == []


# Keys


async def test_held_key_returns_the_job_that_holds_it(store: Store) -> None:
    first = await answer(store, key="k")
    second = await answer(store, key="k")

    assert (first.action, second.action) == ("created", "existing")
    assert second.job_id == first.job_id


async def test_held_key_rejects(store: Store) -> None:
    first = await answer(store, key="k")
    second = await answer(store, key="k", on_conflict="reject")

    assert (second.job_id, second.action) == (first.job_id, "rejected")


async def test_key_is_of_its_task(store: Store) -> None:
    first = await answer(store, "a", key="k")
    second = await answer(store, "b", key="k")

    assert second.action == "created"
    assert second.job_id != first.job_id


async def test_replace_moves_the_job_that_waits(store: Store, clock: Clock, hand: Hand) -> None:
    first = await answer(store, key="k", run_at=clock.after("1m"), args=raw({"n": 1}))
    second = await answer(
        store,
        key="k",
        on_conflict="replace",
        run_at=clock.after("2m"),
        args=raw({"n": 2}),
        queue="other",
        priority=1,
        partition="p",
        expires_at=clock.after("1h"),
    )
    job = await get(store, first.job_id)
    await clock.advance("90s")
    early = await hand.claim()

    assert (second.job_id, second.action) == (first.job_id, "replaced")
    assert (job.run_at, job.args) == (clock.after("30s"), {"n": 2})
    assert (job.queue, job.priority, job.partition) == ("other", 1, "p")
    assert job.expires_at == clock.after("58m30s")
    assert early == []


async def test_replace_of_a_running_job_makes_another(
    store: Store, clock: Clock, hand: Hand
) -> None:
    first = await answer(store, key="k")
    running = await hand.claim_one()
    second = await answer(store, key="k", on_conflict="replace")
    third = await answer(store, key="k")
    await hand.finish(running)
    fourth = await answer(store, key="k")

    assert second.action == "created"
    assert second.job_id != first.job_id
    assert third.job_id == second.job_id
    # The end of the first does not free the key: the second holds it.
    assert (fourth.job_id, fourth.action) == (second.job_id, "existing")


async def test_replace_twice_in_one_call(store: Store, clock: Clock) -> None:
    jobs = [
        NewJob(task="noop", key="k", on_conflict="replace", args=raw({"n": n}), delay=seconds(n))
        for n in (1, 2, 3)
    ]
    given = await store.enqueue(jobs)
    job = await get(store, given[0].job_id)

    assert [one.action for one in given] == ["created", "replaced", "replaced"]
    assert len({one.job_id for one in given}) == 1
    assert (job.args, job.run_at) == ({"n": 3}, clock.after("3s"))


async def test_keyed_and_plain_jobs_in_one_call_answer_in_order(store: Store) -> None:
    given = await store.enqueue(
        [
            NewJob(task="b", key="k"),
            NewJob(task="plain"),
            NewJob(task="a", key="k"),
            NewJob(task="b", key="k"),
            NewJob(task="plain"),
        ]
    )
    tasks = [(await get(store, one.job_id)).task for one in given]

    assert tasks == ["b", "plain", "a", "b", "plain"]
    assert [one.action for one in given] == ["created"] * 3 + ["existing", "created"]


@pytest.mark.parametrize(
    "outcome", [AttemptOutcome.COMPLETED, AttemptOutcome.DEAD, AttemptOutcome.EXPIRED]
)
async def test_key_is_free_when_its_job_ended(
    store: Store, clock: Clock, hand: Hand, outcome: AttemptOutcome
) -> None:
    first = await answer(store, key="k")
    await hand.end(ended(await hand.claim_one(), outcome))
    second = await answer(store, key="k", on_conflict="reject")

    assert second.action == "created"
    assert second.job_id != first.job_id


async def test_key_is_held_while_running_and_retrying(
    store: Store, clock: Clock, hand: Hand
) -> None:
    await answer(store, key="k")
    job = await hand.claim_one()
    while_running = await answer(store, key="k")
    await hand.end(retried(job, seconds(10)))
    while_retrying = await answer(store, key="k")

    assert while_running.action == while_retrying.action == "existing"


async def test_key_is_free_when_its_job_was_cancelled(store: Store) -> None:
    first = await enqueue(store, key="k")
    await cancel(store, first, reason=Reason.of("cancelled", text="test"))

    assert (await answer(store, key="k")).action == "created"


@pytest.mark.parametrize("others", [0, 1])
async def test_hold_keeps_the_key_after_completion(
    store: Store, clock: Clock, hand: Hand, others: int
) -> None:
    """A job that finishes alone is recorded by a statement of its own."""
    first = await answer(store, key="k", hold=seconds(60))
    for number in range(others):
        await answer(store, key=f"other:{number}")
    await hand.finish(*await hand.claim())
    await clock.advance("59s")
    within = await answer(store, key="k", on_conflict="reject")
    await clock.advance("1s")
    after = await answer(store, key="k", on_conflict="reject")

    assert (within.job_id, within.action) == (first.job_id, "rejected")
    assert after.action == "created"


async def test_hold_ends_with_a_job_that_failed(store: Store, clock: Clock, hand: Hand) -> None:
    await answer(store, key="k", hold=seconds(60))
    await hand.end(ended(await hand.claim_one(), AttemptOutcome.DEAD))

    assert (await answer(store, key="k")).action == "created"


async def test_replace_within_the_hold_makes_another(
    store: Store, clock: Clock, hand: Hand
) -> None:
    first = await answer(store, key="k", hold=seconds(60))
    await hand.finish(await hand.claim_one())
    second = await answer(store, key="k", on_conflict="replace")

    assert second.action == "created"
    assert second.job_id != first.job_id


@pytest.mark.parametrize("on_conflict", ["return", "replace", "reject"])
async def test_of_50_racing_clients_one_creates(
    open_store: OpenStore, make_hand: MakeHand, store: Store, on_conflict: str
) -> None:
    stores = [store, await open_store()]
    given = await asyncio.gather(
        *(answer(stores[n % 2], key="k", on_conflict=on_conflict) for n in range(50))
    )
    hand = await make_hand()

    assert [one.action for one in given].count("created") == 1
    assert len({one.job_id for one in given}) == 1
    assert len(await hand.claim()) == 1


@pytest.mark.parametrize("queue", [" mail", "mail ", "mail,sms", ",", "\tmail", " "])
async def test_a_queue_that_no_worker_could_name_is_refused(store: Store, queue: str) -> None:
    """`--queues` takes names with commas between them, and drops blanks around them."""
    for jobs in ([NewJob(task="t", queue=queue)], [NewJob(task="t", queue=queue)] * 1000):
        with pytest.raises(InvalidInput, match="queue"):
            await store.enqueue(jobs)
