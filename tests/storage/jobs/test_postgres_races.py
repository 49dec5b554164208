"""Interleavings on PostgreSQL, each step by step: what waits, what is seen, what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime, JobState
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob, JobFilter, NewJob
from duetime.domain.jobs.queue import Limits
from duetime.domain.reasons import Reason
from duetime.storage import transaction
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.connection import array
from duetime.storage.postgres.hot_path import _finishes
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.store import Lane
from tests.operating import cancel, limit_queue, requeue
from tests.waiting import until, until_true

FLOOR = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(pg_url: str) -> AsyncIterator[PostgresStore]:
    upgrade(PostgresMigrator(pg_url))
    store = PostgresStore(pg_url)
    await store.open()
    yield store
    await store.close()


async def worker(store: PostgresStore) -> int:
    return await store.register_worker(
        name="w", queues=["default"], tasks={}, concurrency=9, lease=timedelta(seconds=60)
    )


async def claim(store: PostgresStore, worker_id: int, **options: object) -> list[ClaimedJob]:
    lanes = [Lane("default", 5, FLOOR)] if not options else []
    answer = await store.exchange(worker_id, lanes=lanes, want=10, **options)  # type: ignore[arg-type]
    return answer.claimed


async def blocked(url: str, at_least: int = 1) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
        )
        row = await cursor.fetchone()
        return row is not None and row[0] >= at_least


async def test_a_release_waits_for_a_completion_in_the_handlers_transaction(
    store: PostgresStore, pg_url: str
) -> None:
    [given] = await store.enqueue([NewJob(task="noop")])
    [job] = await claim(store, await worker(store))
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        finish = store.finish_in(FinishedJob(job, AttemptOutcome.COMPLETED, 0, 1))
        assert await transaction.run_async(connection, finish, placeholder="%s")
        releasing = asyncio.create_task(store.release([job]))
        await until(lambda: blocked(pg_url))
        await connection.commit()
    await releasing
    found = await store.get(given.job_id)

    assert found is not None
    assert found.state is JobState.COMPLETED


async def test_a_claim_passes_over_a_job_that_another_transaction_holds(
    store: PostgresStore, pg_url: str
) -> None:
    held, free = await store.enqueue([NewJob(task="noop"), NewJob(task="noop")])
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute(
            "select from duetime.due where job_id = %s for update", [held.job_id]
        )
        async with asyncio.timeout(20):
            [job] = await claim(store, await worker(store))

    assert job.id == free.job_id


async def test_a_worker_opens_no_more_connections_than_it_may(pg_url: str) -> None:
    """Others have opened them all before it registers."""
    upgrade(PostgresMigrator(pg_url))
    store = PostgresStore(pg_url, pool_size=2)
    await store.open()
    async with store._connection(), store._connection():
        pass
    await worker(store)
    size = store._open_pool().get_stats()["pool_size"]
    await store.close()

    assert size == 2


async def test_a_requeue_that_waited_looks_again(store: PostgresStore, pg_url: str) -> None:
    ids = [given.job_id for given in await store.enqueue([NewJob(task="noop")] * 2)]
    worker_id = await worker(store)
    jobs = await claim(store, worker_id)
    ends = [FinishedJob(job, AttemptOutcome.DEAD, 0, 1) for job in jobs]
    await store.exchange(worker_id, finished=ends, closed=[jobs[0].token])
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute("select from duetime.job where id = %s for update", (ids[0],))
        both = asyncio.create_task(requeue(store, JobFilter(ids=tuple(ids)), run_at=None))
        await until(lambda: blocked(pg_url))
        await requeue(store, JobFilter(ids=(ids[1],)), run_at=None)
        [running] = await claim(store, worker_id)
        await connection.commit()
    requeued = await both
    found = await store.get(running.id)

    assert requeued.jobs == [ids[0]]
    assert found is not None
    assert found.state is JobState.RUNNING
    again = FinishedJob(running, AttemptOutcome.RETRIED, 0, 1, again_after=timedelta(0))
    assert (await store.exchange(worker_id, finished=[again])).refused == frozenset()


async def test_a_prune_leaves_what_ended_again_since_it_looked(store: PostgresStore) -> None:
    [given] = await store.enqueue([NewJob(task="noop")])
    worker_id = await worker(store)
    [job] = await claim(store, worker_id)
    done = FinishedJob(job, AttemptOutcome.COMPLETED, 0, 1)
    await store.exchange(worker_id, finished=[done], closed=[job.token])

    async def prune(age: timedelta) -> int:
        jobs = [given.job_id]
        [(gone,)] = await store._rows("prune", outcomes=["completed"], ages=[age], jobs=jobs)
        return int(gone)

    assert await prune(timedelta(minutes=1)) == 0
    assert await prune(timedelta(0)) == 1


async def test_a_prune_leaves_what_is_being_requeued(store: PostgresStore, pg_url: str) -> None:
    [given] = await store.enqueue([NewJob(task="noop")])
    worker_id = await worker(store)
    [job] = await claim(store, worker_id)
    await store.exchange(
        worker_id, finished=[FinishedJob(job, AttemptOutcome.DEAD, 0, 1)], closed=[job.token]
    )
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute("select from duetime.job where id = %s for update", (job.id,))
        pruned, _ = await store.prune({AttemptOutcome.DEAD: timedelta(0)}, after=0, batch=10)
    await requeue(store, JobFilter(ids=(given.job_id,)), run_at=None)

    assert pruned == 0
    assert await store.prune({AttemptOutcome.DEAD: timedelta(0)}, after=0, batch=10) == (0, 0)
    assert [claimed.id for claimed in await claim(store, worker_id)] == [given.job_id]


async def test_a_limited_claim_neither_waits_nor_takes_what_was_moved(
    store: PostgresStore, pg_url: str
) -> None:
    [given] = await store.enqueue([NewJob(task="noop")])
    worker_id = await worker(store)
    await limit_queue(store, "default", Limits(running=5))
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute(
            "update duetime.due set run_at = '2040-01-01Z' where job_id = %s", (given.job_id,)
        )
        async with asyncio.timeout(20):
            during = await claim(store, worker_id, limited=["default"])
        await connection.commit()
    after = await claim(store, worker_id, limited=["default"])

    assert during == after == []


async def test_a_limited_claim_counts_what_another_is_claiming(
    store: PostgresStore, pg_url: str
) -> None:
    await store.enqueue([NewJob(task="noop"), NewJob(task="noop")])
    one, other = await worker(store), await worker(store)
    await limit_queue(store, "default", Limits(running=1))
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        cursor = await connection.execute(
            "select job_id from duetime.claim_limited(%s, 'default', 10)", [one]
        )
        first = await cursor.fetchall()
        claiming = asyncio.create_task(claim(store, other, limited=["default"]))
        await until(lambda: blocked(pg_url))
        await connection.commit()

    assert len(first) == 1
    assert await claiming == []


async def test_an_open_enqueue_with_a_held_key_does_not_hold_up_the_end_of_its_job(
    store: PostgresStore, pg_url: str
) -> None:
    await store.enqueue([NewJob(task="noop", key="k")])
    worker_id = await worker(store)
    [job] = await claim(store, worker_id)
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        statements = store.enqueue_in([NewJob(task="noop", key="k")])
        [existing] = await transaction.run_async(connection, statements, placeholder="%s")
        async with asyncio.timeout(20):
            ended = FinishedJob(job, AttemptOutcome.COMPLETED, 0, 1)
            answer = await store.exchange(worker_id, finished=[ended], closed=[job.token])

    assert existing.action == "existing"
    assert answer.refused == frozenset()


async def test_a_worker_is_woken_again_after_its_listener_was_cut_off(pg_url: str) -> None:
    app = Duetime(pg_url, migrate=True, poll="60s")
    ran: list[float] = []

    @app.task
    async def note() -> None:
        ran.append(time.monotonic())

    async with app.worker():
        await (await note.enqueue()).result("30s")
        async with await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as connection:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where query ilike '%%fall_asleep%%' and pid <> pg_backend_pid()"
            )

            async def listens_again() -> bool:
                cursor = await connection.execute(
                    "select 1 from pg_locks where locktype = 'advisory' and mode = 'ShareLock'"
                )
                return bool(await cursor.fetchall())

            await until(listens_again)
        before = time.monotonic()
        await note.enqueue()
        await until_true(lambda: len(ran) == 2)
    await app.close()

    assert ran[1] - before < 20, "long before the next poll"


# A cancel, and an attempt that ends at the same moment


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with others"])
@pytest.mark.parametrize("how", ["retried", "released", "parked"])
async def test_a_cancel_that_meets_the_end_of_an_attempt_wins(
    store: PostgresStore, pg_url: str, how: str, alone: bool
) -> None:
    await store.enqueue([NewJob(task="noop", key="k")] + [NewJob(task="noop")] * (not alone))
    worker_id = await worker(store)
    jobs = await claim(store, worker_id)
    [job] = [one for one in jobs if one.key is not None]
    again = FinishedJob(job, AttemptOutcome.RETRIED, 0, 1, again_after=timedelta(0))
    async with await psycopg.AsyncConnection.connect(pg_url) as barrier:
        # Whoever puts a job back waits for this, all written and nothing committed.
        await barrier.execute(
            "create or replace function duetime.wake(queue text, run_at timestamptz default null)"
            " returns void language sql volatile as 'select pg_advisory_xact_lock_shared(7)'"
        )
        await barrier.execute("select pg_advisory_lock(7)")
        await barrier.commit()
        ends: dict[str, Callable[[], Awaitable[Any]]] = {
            "retried": lambda: store.exchange(
                worker_id, finished=[again], closed=[job.token] if alone else []
            ),
            "released": lambda: store.release([job]),
            "parked": lambda: store.park([job], Reason("task_unknown")),
        }
        ending = asyncio.ensure_future(ends[how]())
        await until(lambda: blocked(pg_url))
        cancelling = asyncio.create_task(cancel(store, job.id, reason=Reason("cancelled")))
        await until(lambda: blocked(pg_url, at_least=2))
    await ending
    was = await cancelling
    found = await store.get(job.id)

    assert was in (JobState.PENDING, JobState.RETRYING, JobState.PARKED)
    assert found is not None
    assert found.state is JobState.CANCELLED
    assert await claim(store, worker_id) == []
    [given] = await store.enqueue([NewJob(task="noop", key="k")])
    assert given.action == "created"


@pytest.mark.parametrize("how", ["retried", "released", "parked", "disowned"])
async def test_the_end_of_an_attempt_waits_for_a_cancel_in_flight(
    store: PostgresStore, pg_url: str, how: str
) -> None:
    await store.enqueue([NewJob(task="noop")])
    worker_id = await worker(store)
    [job] = await claim(store, worker_id)
    again = FinishedJob(job, AttemptOutcome.SNOOZED, 0, 1, again_after=timedelta(0))
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        cursor = await connection.execute(
            store._sql["cancel_running"],
            (json.dumps({"job": job.id, "reason": '{"code": "cancelled"}'}),),
        )
        assert cursor.rowcount == 1
        ends: dict[str, Callable[[], Awaitable[Any]]] = {
            "retried": lambda: store.exchange(worker_id, finished=[again], closed=[job.token]),
            "released": lambda: store.release([job]),
            "parked": lambda: store.park([job], Reason("task_unknown")),
            "disowned": lambda: store.disown(worker_id, []),
        }
        ending = asyncio.ensure_future(ends[how]())
        await until(lambda: blocked(pg_url))
        await connection.commit()
    await ending
    found = await store.get(job.id)

    assert found is not None
    assert found.state is JobState.CANCELLED
    assert await claim(store, worker_id) == []


@pytest.mark.parametrize("how", ["released", "disowned"])
async def test_a_finish_in_flight_is_not_given_back(
    store: PostgresStore, pg_url: str, how: str
) -> None:
    await store.enqueue([NewJob(task="noop")])
    worker_id = await worker(store)
    [job] = await claim(store, worker_id)
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        finished = FinishedJob(job, AttemptOutcome.COMPLETED, 0, 1)
        await connection.execute(*next(store.finish_in(finished)))
        giving_back = asyncio.ensure_future(
            store.release([job]) if how == "released" else store.disown(worker_id, [])
        )
        await until(lambda: blocked(pg_url))
        await connection.commit()
    await giving_back
    found = await store.get(job.id)

    assert found is not None
    assert found.state is JobState.COMPLETED


async def test_a_cancel_that_meets_a_claim_asks_its_worker(
    store: PostgresStore, pg_url: str
) -> None:
    [given] = await store.enqueue([NewJob(task="noop")])
    worker_id = await worker(store)
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute("delete from duetime.due where job_id = %s", (given.job_id,))
        await connection.execute(
            "insert into duetime.claim (worker_id, job_ids, attempts, claimed_at)"
            " values (%s, %s, '{1}', now())",
            (worker_id, [given.job_id]),
        )
        cancelling = asyncio.create_task(cancel(store, given.job_id, reason=Reason("cancelled")))
        await until(lambda: blocked(pg_url))
        await connection.commit()

    assert await cancelling is JobState.RUNNING
    assert await store.disown(worker_id, []) == 0
    found = await store.get(given.job_id)
    assert found is not None
    assert found.state is JobState.CANCELLED


async def end_leases(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        # Between the claim and now: what was claimed later than that cannot have begun.
        await connection.execute("update duetime.worker set lease_until = clock_timestamp()")


@pytest.mark.parametrize("result", [None, "7"], ids=["plainly", "with a result"])
async def test_a_worker_of_a_lone_job_needs_no_connection_of_the_pool(
    store: PostgresStore, result: str | None
) -> None:
    """Once the session for single statements is open."""
    worker_id = await worker(store)
    [given] = await store.enqueue([NewJob(task="noop")])
    await store.transact(store.dialect.now(), reads=True, single=True)
    async with AsyncExitStack() as taken, asyncio.timeout(20):
        for _ in range(store._pool_size):
            await taken.enter_async_context(store._connection())
        [job] = await claim(store, worker_id)
        end = FinishedJob(job, AttemptOutcome.COMPLETED, 0, 1, result=result)
        answer = await store.exchange(worker_id, finished=[end], closed=[job.token])
        again = await store.exchange(worker_id, finished=[end], closed=[job.token])
        finished = await store.wait_finished(given.job_id, 0)

    assert not answer.refused
    assert again.refused == {job.id}
    assert finished is not None
    assert finished.state is JobState.COMPLETED
    assert finished.result == (None if result is None else 7)


def finished_by(statement: str, job: ClaimedJob) -> FinishedJob:
    """The record of a job that this statement records, if it finishes alone."""
    if statement == "finish_fully":
        return FinishedJob(job, AttemptOutcome.DEAD, 0, 1, error_code="ValueError")
    result = None if statement == "finish" else '"kept"'
    return FinishedJob(job, AttemptOutcome.COMPLETED, 0, 1, result=result)


@pytest.mark.parametrize("statement", ["finish", "finish_one", "finish_fully"])
async def test_a_rescuer_leaves_alone_what_a_finish_in_flight_holds(
    store: PostgresStore, pg_url: str, statement: str
) -> None:
    """It neither waits for the finish nor takes its job; the rest is rescued afterwards."""
    finished, left = await store.enqueue([NewJob(task="noop"), NewJob(task="noop")])
    jobs = {job.id: job for job in await claim(store, await worker(store))}
    end = finished_by(statement, jobs[finished.job_id])
    [(name, parameters)] = _finishes([end], [], careful=False)
    await end_leases(pg_url)
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        await connection.execute(store._sql[name], parameters)
        async with asyncio.timeout(20):
            meanwhile = await store.rescue()
        await connection.commit()
    rescued = await store.rescue()
    found = await store.get(finished.job_id)

    assert name == statement
    assert meanwhile == []
    assert [one.job_id for one in rescued] == [left.job_id]
    assert found is not None
    assert [attempt.outcome for attempt in found.history] == [end.outcome]


@pytest.mark.parametrize("statement", ["finish", "finish_one", "finish_fully"])
async def test_a_finish_waits_for_a_rescuer_and_is_refused(
    store: PostgresStore, pg_url: str, statement: str
) -> None:
    [given] = await store.enqueue([NewJob(task="noop")])
    [job] = await claim(store, await worker(store))
    await end_leases(pg_url)
    async with await psycopg.AsyncConnection.connect(pg_url) as rescuer:
        dead = await rescuer.execute(store._sql["lock_dead_claims"], {"sparing": 0})
        tokens = array(row[0] for row in await dead.fetchall())
        end = finished_by(statement, job)
        finishing = asyncio.create_task(store.exchange(0, finished=[end], closed=[job.token]))
        await until(lambda: blocked(pg_url))
        await rescuer.execute(store._sql["rescue"], {"tokens": tokens, "lead": timedelta()})
        await rescuer.commit()
    answer = await finishing
    found = await store.get(given.job_id)

    assert answer.refused == {job.id}
    assert found is not None
    assert [attempt.outcome for attempt in found.history] == ["lost"]
