"""Enqueue and finish inside the user's own transaction: all of it commits, or none."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from duetime.domain.jobs.job import AttemptOutcome, Enqueued, JobState, NewJob
from duetime.storage.store import Store
from tests.conformance.conftest import Clock, seconds
from tests.conformance.hand import Hand, answer, drive, ended, enqueue, get, ids


class Broken(Exception):
    pass


async def enqueue_through(connection: Any, store: Store, *jobs: NewJob) -> list[Enqueued]:
    given: list[Enqueued] = await drive(connection, store.enqueue_in(jobs))
    return given


async def execute(connection: Any, sql: str) -> list[Any]:
    cursor = connection.execute(sql)
    if hasattr(cursor, "__await__"):
        cursor = await cursor
    rows = cursor.fetchall() if cursor.description else []
    return await rows if hasattr(rows, "__await__") else rows


@pytest.fixture
async def notes(store: Store) -> None:
    """A table of the user's own."""
    async with store.transaction() as connection:
        await execute(connection, "create table note (text varchar)")


async def read_notes(store: Store) -> list[str]:
    async with store.transaction() as connection:
        return [row[0] for row in await execute(connection, "select text from note")]


@pytest.mark.usefixtures("notes")
async def test_transaction_commits(store: Store) -> None:
    async with store.transaction() as connection:
        await execute(connection, "insert into note values ('a')")

    assert await read_notes(store) == ["a"]


@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize("error", [Broken, TimeoutError, OSError, ValueError])
async def test_transaction_rolls_back_and_the_error_passes_unchanged(
    store: Store, error: type[Exception]
) -> None:
    raised = error("mine")

    async def write_and_fail() -> None:
        async with store.transaction() as connection:
            await execute(connection, "insert into note values ('a')")
            raise raised

    with pytest.raises(error) as caught:
        await write_and_fail()
    assert caught.value is raised
    assert await read_notes(store) == []


@pytest.mark.usefixtures("notes")
async def test_many_transactions_at_once_beside_enqueues(store: Store, clock: Clock) -> None:
    async def write(n: int) -> None:
        async with store.transaction() as connection:
            await asyncio.sleep(0.001)
            await execute(connection, f"insert into note values ('{n}')")

    def write_in_a_thread(n: int) -> None:
        with store.transaction_sync() as connection:
            connection.execute(f"insert into note values ('{n}')")

    async with asyncio.timeout(20):
        await asyncio.gather(
            *(write(n) for n in range(40)),
            *(asyncio.to_thread(write_in_a_thread, n) for n in range(40, 60)),
            *(enqueue(store) for _ in range(40)),
        )

    assert sorted(map(int, await read_notes(store))) == list(range(60))
    [queue] = await store.queues()
    assert queue.due == 40


@pytest.mark.usefixtures("notes")
async def test_transaction_of_a_thread(store: Store) -> None:
    with store.transaction_sync() as connection:
        connection.execute("insert into note values ('a')")
    with suppress(Broken), store.transaction_sync() as connection:
        connection.execute("insert into note values ('b')")
        raise Broken

    assert await read_notes(store) == ["a"]


@pytest.mark.usefixtures("notes")
async def test_enqueue_commits_with_the_users_rows(store: Store, clock: Clock, hand: Hand) -> None:
    async with store.transaction() as connection:
        await execute(connection, "insert into note values ('a')")
        given = await enqueue_through(connection, store, NewJob(task="a"), NewJob(task="b"))

    assert [one.action for one in given] == ["created", "created"]
    assert ids(await hand.claim()) == [one.job_id for one in given]
    assert await read_notes(store) == ["a"]


@pytest.mark.usefixtures("notes")
async def test_enqueue_is_rolled_back_with_the_users_rows(
    store: Store, clock: Clock, hand: Hand
) -> None:
    with suppress(Broken):
        async with store.transaction() as connection:
            await execute(connection, "insert into note values ('a')")
            [given] = await enqueue_through(connection, store, NewJob(task="a", key="k"))
            raise Broken

    assert await store.get(given.job_id) is None
    assert await hand.claim() == []
    assert await read_notes(store) == []
    assert (await answer(store, "a", key="k")).action == "created"


async def test_enqueue_of_many_in_a_transaction(store: Store, clock: Clock) -> None:
    async with store.transaction() as connection:
        given = await enqueue_through(connection, store, *[NewJob(task="a")] * 2345)

    assert len({one.job_id for one in given}) == 2345
    [queue] = await store.queues()
    assert queue.due == 2345


async def test_keys_hold_in_a_transaction(store: Store, clock: Clock) -> None:
    first = await answer(store, "a", key="k", run_at=clock.after("1m"))
    async with store.transaction() as connection:
        given = await enqueue_through(
            connection,
            store,
            NewJob(task="a", key="k"),
            NewJob(task="a", key="k", on_conflict="reject"),
            NewJob(task="a", key="k", on_conflict="replace", run_at=clock.after("2m")),
            NewJob(task="b", key="k"),
        )
    outcomes = [one.action for one in given]

    assert outcomes == ["existing", "rejected", "replaced", "created"]
    assert [one.job_id for one in given[:3]] == [first.job_id] * 3
    assert (await get(store, first.job_id)).run_at == clock.after("2m")


async def test_bad_job_in_a_transaction_is_told(store: Store) -> None:
    # By us, or by the database through the caller's own driver.
    with pytest.raises(Exception, match="priority must be"):
        async with store.transaction() as connection:
            await enqueue_through(connection, store, NewJob(task="a", priority=10))

    assert await store.queues() == []


@pytest.mark.usefixtures("notes")
async def test_finish_commits_with_the_users_rows(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store, key="k", hold=seconds(60))
    job = await hand.claim_one()
    async with store.transaction() as connection:
        await execute(connection, "insert into note values ('paid')")
        accepted = await drive(connection, store.finish_in(ended(job, result='{"n": 1}')))
    info = await get(store, job_id)
    [attempt] = info.history

    assert accepted is True
    assert (info.state, attempt.result, attempt.token) == (JobState.COMPLETED, {"n": 1}, job.token)
    assert attempt.started_at == job.claimed_at + seconds(0.001)
    assert attempt.finished_at == job.claimed_at + seconds(0.002)
    assert await read_notes(store) == ["paid"]
    assert (await answer(store, key="k")).action == "existing"
    await clock.advance("60s")
    assert (await answer(store, key="k")).action == "created"


@pytest.mark.usefixtures("notes")
async def test_finish_is_rolled_back_with_the_users_rows(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    with suppress(Broken):
        async with store.transaction() as connection:
            await execute(connection, "insert into note values ('paid')")
            await drive(connection, store.finish_in(ended(job)))
            raise Broken

    assert (await get(store, job_id)).state is JobState.RUNNING
    assert await read_notes(store) == []
    assert await hand.finish(job) == frozenset()


async def test_finish_in_a_transaction_is_fenced(store: Store, clock: Clock, hand: Hand) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    await clock.advance("31s")
    await store.rescue()
    async with store.transaction() as connection:
        accepted = await drive(connection, store.finish_in(ended(job)))

    assert accepted is False
    assert (await get(store, job_id)).state is JobState.RETRYING


async def test_of_several_finished_in_a_transaction_each_is_fenced(
    store: Store, hand: Hand
) -> None:
    ids = [await enqueue(store) for _ in range(3)]
    lost = await hand.claim_one()
    await hand.release(lost)
    jobs = {job.id: job for job in await hand.claim(3)}
    jobs[lost.id] = lost
    async with store.transaction() as connection:
        several = [ended(jobs[job_id]) for job_id in reversed(ids)]
        accepted = await drive(connection, store.finish_many_in(several))
    states = [(await get(store, job_id)).state for job_id in ids]

    assert accepted == [job_id != lost.id for job_id in reversed(ids)]
    assert states == [
        JobState.COMPLETED if job_id != lost.id else JobState.RUNNING for job_id in ids
    ]


async def test_several_finished_in_a_transaction_release_their_keys(
    store: Store, clock: Clock, hand: Hand
) -> None:
    plain = await enqueue(store, key="plain")
    held = await enqueue(store, key="held", hold=seconds(60))
    several = [ended(job) for job in await hand.claim(2)]
    async with store.transaction() as connection:
        await drive(connection, store.finish_many_in(several))
    after = [await enqueue(store, key="plain"), await enqueue(store, key="held")]
    await clock.advance("61s")
    later = await enqueue(store, key="held")

    assert after[0] != plain
    assert after[1] == held
    assert later != held


async def test_finish_after_the_finish_in_a_transaction_is_refused(
    store: Store, clock: Clock, hand: Hand
) -> None:
    job_id = await enqueue(store)
    job = await hand.claim_one()
    async with store.transaction() as connection:
        first = await drive(connection, store.finish_in(ended(job)))
        second = await drive(connection, store.finish_in(ended(job)))

    assert (first, second) == (True, False)
    assert await hand.end(ended(job, AttemptOutcome.DEAD)) == {job_id}
    assert (await get(store, job_id)).state is JobState.COMPLETED
