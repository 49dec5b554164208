"""A worker that ends a step of a graph goes on with what follows, claimed in the same statement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from duetime import Duetime, Graph
from duetime.errors import DatabaseUnreachable
from tests.waiting import until


@pytest.fixture
async def app(pg_url: str) -> AsyncIterator[Duetime]:
    app = Duetime(pg_url)
    yield app
    await app.close()


def declare(app: Duetime, ran: list[str], *, queue: str = "default") -> Graph:
    """`left` and `right` follow `first` and lead to `last`."""
    graph = app.graph("diamond")

    @graph.step
    async def first() -> None:
        ran.append("first")

    @graph.step(after=["first"], queue=queue)
    async def left() -> None:
        ran.append("left")

    @graph.step(after=["first"], queue=queue)
    async def right() -> None:
        ran.append("right")

    @graph.step(after=["left", "right"])
    async def last() -> None:
        ran.append("last")

    return graph


async def test_steps_that_share_a_claim_each_end_once(app: Duetime, pg_url: str) -> None:
    ran: list[str] = []
    graph = declare(app, ran)
    async with app.worker():
        await (await graph.start()).result(timeout="60s")

    assert sorted(ran) == ["first", "last", "left", "right"]
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        cursor = await connection.execute(
            "select count(distinct a.token) from duetime.attempt as a"
            " join duetime.job as j on j.id = a.job_id"
            " where j.task in ('diamond.left', 'diamond.right')"
        )
        assert await cursor.fetchone() == (1,)
        cursor = await connection.execute("select count(*) from duetime.claim")
        assert await cursor.fetchone() == (0,)


async def test_steps_of_a_paused_queue_wait(app: Duetime) -> None:
    ran: list[str] = []
    graph = declare(app, ran, queue="slow")
    await app.queues.pause("slow")
    async with app.worker(queues=["default", "slow"]):
        run = await graph.start()

        async def has_released() -> bool:
            steps = await app.flows.steps(run.id)
            return [step.state for step in steps if step.name in ("left", "right")] == [
                "running",
                "running",
            ]

        await until(has_released)
        before = list(ran)
        await app.queues.resume("slow")
        await run.result(timeout="60s")

    assert before == ["first"]
    assert sorted(ran) == ["first", "last", "left", "right"]


async def test_steps_of_a_limited_queue_run_within_its_limits(app: Duetime, pg_url: str) -> None:
    ran: list[str] = []
    graph = declare(app, ran, queue="slow")
    await app.queues.limit("slow", running=1)
    async with app.worker(queues=["default", "slow"]):
        await (await graph.start()).result(timeout="60s")

    assert sorted(ran) == ["first", "last", "left", "right"]
    async with await psycopg.AsyncConnection.connect(pg_url) as connection:
        cursor = await connection.execute(
            "select count(distinct a.token) from duetime.attempt as a"
            " join duetime.job as j on j.id = a.job_id where j.queue = 'slow'"
        )
        # Each was claimed by itself, when the queue had room.
        assert await cursor.fetchone() == (2,)


async def test_steps_of_another_worker_s_queue_are_left_to_it(app: Duetime) -> None:
    ran: list[str] = []
    graph = declare(app, ran, queue="slow")
    async with app.worker(queues=["default"]):
        run = await graph.start()
        async with app.worker(queues=["slow"]):
            await run.result(timeout="60s")

    assert sorted(ran) == ["first", "last", "left", "right"]


async def test_steps_that_were_claimed_by_a_call_whose_answer_was_lost_run_once(
    app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    graph = declare(app, ran)
    store: Any = await app.store()
    transact, end_steps_in = store.transact, store.end_steps_in
    ends: list[object] = []
    lost: list[object] = []

    def remember(*given: Any) -> Any:
        ends.append(statements := end_steps_in(*given))
        return statements

    async def lose_one(statements: Any, **how: Any) -> Any:
        answer = await transact(statements, **how)
        if statements in ends and not lost:
            lost.append(answer)
            raise DatabaseUnreachable("the answer was lost")
        return answer

    monkeypatch.setattr(store, "transact", lose_one)
    monkeypatch.setattr(store, "end_steps_in", remember)
    async with app.worker():
        await (await graph.start()).result(timeout="60s")

    assert lost
    assert sorted(ran) == ["first", "last", "left", "right"]
