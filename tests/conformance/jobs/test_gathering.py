"""Enqueues that are made at about the same time share a transaction, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, cast

import msgspec
import psycopg
import pytest

from duetime import Duetime
from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.errors import DatabaseUnreachable, InvalidInput, KeyConflict
from tests.conftest import Backend
from tests.waiting import count_waits, until, until_true


class Gate:
    """Stands before the store's enqueue: records each transaction, and can hold it back."""

    def __init__(self) -> None:
        self.batches: list[list[NewJob]] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.loses_answers = False

    async def watch(self, app: Duetime, monkeypatch: pytest.MonkeyPatch) -> None:
        store = await app.store()
        enqueue = store.enqueue

        async def watched(jobs: Sequence[NewJob], **how: Any) -> list[Enqueued]:
            self.batches.append(list(jobs))
            await self.opened.wait()
            answers = await enqueue(jobs, **how)
            if self.loses_answers:
                raise DatabaseUnreachable("The connection was lost.")
            return answers

        monkeypatch.setattr(store, "enqueue", watched)

    async def hold(self, first: asyncio.Task[Any]) -> None:
        """Wait until the first job is on its way. Those that follow wait for it."""
        await until_true(lambda: len(self.batches) == 1)
        assert not first.done()


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)

    @app.task(name="note")
    async def note(number: int) -> None: ...

    @app.task(name="other", queue="mail", priority=2, timeout="5s", expires="1h")
    async def other(number: int) -> None: ...

    yield app
    await app.close()


@pytest.fixture
async def gate(app: Duetime, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    await gate.watch(app, monkeypatch)
    return gate


def start(app: Duetime, number: int, task: str = "note", **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(app.jobs.enqueue(task, {"number": number}, **options))


async def numbers(app: Duetime, **filters: Any) -> list[int]:
    """What is stored, in the order of the ids."""
    found = [job async for job in app.jobs.iterate(**filters)]
    return [cast("dict[str, int]", job.args)["number"] for job in reversed(found)]


async def test_calls_that_arrive_while_one_commits_share_the_next_transaction(
    app: Duetime, gate: Gate
) -> None:
    gate.opened.clear()
    first = start(app, 0)
    await gate.hold(first)
    rest = [start(app, number) for number in range(1, 40)]
    await asyncio.sleep(0)
    gate.opened.set()
    handles = await asyncio.gather(first, *rest)

    assert [len(batch) for batch in gate.batches] == [1, 39]
    assert [handle.action for handle in handles] == ["created"] * 40
    assert [handle.id for handle in handles] == sorted({handle.id for handle in handles})
    assert await numbers(app) == list(range(40))


async def test_a_call_alone_waits_for_nobody(app: Duetime, gate: Gate) -> None:
    for number in range(3):
        await start(app, number)

    assert [len(batch) for batch in gate.batches] == [1, 1, 1]
    assert await numbers(app) == [0, 1, 2]


async def test_jobs_of_several_kinds_keep_what_they_are(app: Duetime, gate: Gate) -> None:
    gate.opened.clear()
    first = start(app, 0)
    await gate.hold(first)
    rest = [
        start(app, 1, "other"),
        start(app, 2, delay="1h", partition="ann"),
        start(app, 3, "other", max_attempts=7),
        start(app, 4),
    ]
    await asyncio.sleep(0)
    gate.opened.set()
    jobs = [await app.jobs.get(handle.id) for handle in await asyncio.gather(first, *rest)]

    assert [len(batch) for batch in gate.batches] == [1, 4]
    assert [job.args for job in jobs] == [{"number": number} for number in range(5)]
    assert [job.task for job in jobs] == ["note", "other", "note", "other", "note"]
    assert [job.queue for job in jobs] == ["default", "mail", "default", "mail", "default"]
    assert [job.max_attempts for job in jobs] == [3, 3, 3, 7, 3]
    assert [job.partition for job in jobs] == [None, None, "ann", None, None]
    assert [job.priority for job in jobs] == [5, 2, 5, 2, 5]
    assert [job.expires_at is not None for job in jobs] == [False, True, False, True, False]
    assert [job.timeout is not None for job in jobs] == [False, True, False, True, False]
    waits = [(job.run_at - job.created_at).total_seconds() for job in jobs if job.run_at]
    assert waits == [0, 0, 3600, 0, 0]


async def test_a_refused_job_does_not_fail_its_neighbours(app: Duetime, gate: Gate) -> None:
    gate.opened.clear()
    first = start(app, 0)
    await gate.hold(first)
    bad = asyncio.create_task(app.enqueue_many([NewJob(task="note", args=msgspec.Raw(b"[]"))]))
    rest = [start(app, number) for number in range(1, 4)]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(first, *rest)

    with pytest.raises(InvalidInput):
        await bad
    assert [len(batch) for batch in gate.batches] == [1, 4, 1, 1, 1, 1]
    assert sorted(await numbers(app)) == [0, 1, 2, 3]


async def test_a_caller_that_leaves_before_its_turn_leaves_nothing(
    app: Duetime, gate: Gate
) -> None:
    gate.opened.clear()
    first = start(app, 0)
    await gate.hold(first)
    gone, stays = start(app, 1), start(app, 2)
    await asyncio.sleep(0)
    gone.cancel()
    gate.opened.set()
    await asyncio.gather(first, stays)

    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await numbers(app) == [0, 2]


async def test_a_caller_that_leaves_too_late_disturbs_nobody(app: Duetime, gate: Gate) -> None:
    first = start(app, 0)
    gone, stays = start(app, 1), start(app, 2)
    gate.opened.clear()
    await until_true(lambda: gone in asyncio.all_tasks() and len(gate.batches) == 1)
    gate.opened.set()
    await first
    gate.opened.clear()
    await until_true(lambda: len(gate.batches) == 2)
    gone.cancel()
    gate.opened.set()
    await stays

    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await numbers(app) == [0, 1, 2], "what was on its way is stored once"


async def test_the_first_caller_may_leave_too(app: Duetime, gate: Gate) -> None:
    gate.opened.clear()
    first = start(app, 0)
    await gate.hold(first)
    rest = [start(app, number) for number in (1, 2)]
    await asyncio.sleep(0)
    first.cancel()
    gate.opened.set()
    await asyncio.gather(*rest)

    with pytest.raises(asyncio.CancelledError):
        await first
    assert await numbers(app) == [1, 2]


async def test_a_lost_answer_is_unknown_to_all_that_shared_it(app: Duetime, gate: Gate) -> None:
    gate.opened.clear()
    first = start(app, 0)
    await gate.hold(first)
    rest = [start(app, number) for number in (1, 2)]
    await asyncio.sleep(0)
    gate.loses_answers = True
    gate.opened.set()
    answers = await asyncio.gather(first, *rest, return_exceptions=True)

    assert [type(answer) for answer in answers] == [DatabaseUnreachable] * 3
    assert await numbers(app) == [0, 1, 2], "nothing is repeated: it may have been stored"


async def test_of_one_key_one_job_is_made(app: Duetime, gate: Gate) -> None:
    gate.opened.clear()
    first = start(app, 0, key="elsewhere")
    await gate.hold(first)
    rest = [
        start(app, 1, key="one"),
        start(app, 2, key="one"),
        start(app, 3, key="one", on_conflict="reject"),
        start(app, 4, key="one", on_conflict="replace"),
        start(app, 5, key="two"),
    ]
    await asyncio.sleep(0)
    gate.opened.set()
    answers: list[Any] = await asyncio.gather(*rest, return_exceptions=True)
    made, existing, refused, replaced, two = answers

    assert [len(batch) for batch in gate.batches] == [1, 5]
    assert isinstance(refused, KeyConflict)
    assert (made.action, existing.action, replaced.action) == ("created", "existing", "replaced")
    assert made.id == existing.id == replaced.id == refused.job_id != two.id
    assert sorted(await numbers(app)) == [0, 4, 5]


async def test_jobs_with_and_without_keys_do_not_wait_for_each_other(
    app: Duetime, gate: Gate
) -> None:
    gate.opened.clear()
    keyed, plain = start(app, 0, key="one"), start(app, 1)
    await until_true(lambda: len(gate.batches) == 2)
    gate.opened.set()
    await asyncio.gather(keyed, plain)

    assert [len(batch) for batch in gate.batches] == [1, 1]


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
async def test_many_that_wait_for_a_held_key_leave_connections_to_others(
    app: Duetime, backend: Backend
) -> None:
    many = app.settings.pool_size * 3
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await app.jobs.enqueue("note", {"number": 0}, key="held", tx=connection)
        waiting = [start(app, number, key="held") for number in range(1, many)]
        others = [start(app, many, key="other"), start(app, many + 1)]
        await asyncio.wait_for(asyncio.gather(*others), 20)
        await until(lambda: count_waits(backend.url, longer_than=0.3))
        await asyncio.wait_for(asyncio.gather(start(app, many + 2), start(app, many + 3)), 20)
        sessions = await count_waits(backend.url)
        early = [task for task in waiting if task.done()]
        waiting.pop().cancel()
        await connection.rollback()
    handles = await asyncio.wait_for(asyncio.gather(*waiting), 20)

    assert early == []
    assert sessions == 1
    assert sorted(handle.action for handle in handles) == ["created"] + ["existing"] * (many - 3)
    assert len({handle.id for handle in handles}) == 1
    assert len(await numbers(app)) == 5


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
@pytest.mark.parametrize("together", [False, True], ids=["singly", "together"])
async def test_many_that_wait_for_several_held_keys_leave_connections_to_others(
    app: Duetime, backend: Backend, together: bool
) -> None:
    keys = [f"held {number}" for number in range(app.settings.pool_size * 3)]

    def enqueue(key: str) -> asyncio.Task[Any]:
        jobs = [app.jobs.define("note", {"number": number}, key=key) for number in (1, 2)]
        return asyncio.create_task(app.enqueue_many(jobs)) if together else start(app, 1, key=key)

    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        for key in keys:
            await app.jobs.enqueue("note", {"number": 0}, key=key, tx=connection)
        waiting = [enqueue(key) for key in keys]
        await until(lambda: count_waits(backend.url, longer_than=0.3))
        others = [start(app, 3), enqueue("free"), start(app, 4, key="free too")]
        await asyncio.wait_for(asyncio.gather(*others), 20)
        early = [task for task in waiting if task.done()]
        waiting.pop().cancel()
        waiting.pop(0).cancel()
        await connection.rollback()
    await asyncio.wait_for(asyncio.gather(*waiting), 20)

    assert early == []
    stored = [job.key for job in await app.jobs.list() if job.key and job.key.startswith("held")]
    assert sorted(stored)[-len(waiting) :] == sorted(keys[1:-1])


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
async def test_callers_that_leave_a_held_key_leave_no_job(app: Duetime, backend: Backend) -> None:
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await app.jobs.enqueue("note", {"number": 0}, key="held", tx=connection)
        first = start(app, 1, key="held")
        await until(lambda: count_waits(backend.url, longer_than=0.2))
        rest = [start(app, number, key="held") for number in (2, 3)]
        await asyncio.sleep(0.3)
        first.cancel()
        await asyncio.wait([first], timeout=20)
        await until(lambda: count_waits(backend.url))
        for caller in rest:
            caller.cancel()
        await asyncio.wait(rest, timeout=20)
        await until(partial(_none_waits, backend.url), seconds=10)
        await connection.rollback()
    await start(app, 4)

    assert await numbers(app) == [4]


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
async def test_enqueues_that_time_out_on_a_held_key_leave_no_job_and_no_session(
    backend: Backend,
) -> None:
    app = Duetime(backend.url, pool_size=2)
    note = app.task(name="note")(_note)
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await app.jobs.enqueue("note", {"number": 0}, key="held", tx=connection)
        for number in range(1, 5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await note.using(key="held").enqueue(number)
        sessions = await count_waits(backend.url)
        await connection.rollback()
    await note.enqueue(5)
    stored = await numbers(app)
    await app.close()

    assert sessions == 0
    assert stored == [5]


async def test_each_event_loop_has_batches_of_its_own(backend: Backend) -> None:
    app = Duetime(backend.url)

    @app.task(name="note")
    async def note(number: int) -> None: ...

    async def enqueue(share: int) -> list[int]:
        handles = await asyncio.gather(*(note.enqueue(share + number) for number in range(30)))
        await app.close()
        return [handle.id for handle in handles]

    found = await asyncio.gather(
        *(asyncio.to_thread(asyncio.run, enqueue(share)) for share in (0, 100, 200))
    )

    assert len({one for ids in found for one in ids}) == 90
    assert sorted(await numbers(app)) == [
        share + number for share in (0, 100, 200) for number in range(30)
    ]
    await app.close()


async def test_sync_callers_share_transactions(app: Duetime) -> None:
    note = app.jobs.define("note", {"number": 0})
    await asyncio.gather(
        *(asyncio.to_thread(app.sync, app.enqueue_many([note])) for _ in range(20))
    )

    assert len(await numbers(app)) == 20


async def _note(number: int) -> None: ...


async def _none_waits(url: str) -> bool:
    return await count_waits(url) == 0
