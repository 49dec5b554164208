"""The record of a run that is alone is written without the batcher: it is still not given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import psycopg
import pytest

from duetime import Duetime, Flow
from duetime.errors import JobFailed
from tests.waiting import until_true


@pytest.fixture
async def app(pg_url: str) -> AsyncIterator[Duetime]:
    app = Duetime(pg_url)
    yield app
    await app.close()


async def test_a_step_whose_run_is_cancelled_while_it_is_recorded_is_recorded(
    app: Duetime, pg_url: str
) -> None:
    locked: list[int] = []
    with (
        psycopg.connect(pg_url, autocommit=True) as other,
        psycopg.connect(pg_url, autocommit=True) as watch,
    ):

        async def look_up() -> int:
            return 1

        async def charge() -> int:
            # The record has to wait for this lock.
            other.execute("begin")
            other.execute("select from duetime.claim for update")
            locked.append(1)
            return 7

        @app.flow
        async def order(flow: Flow) -> int:
            await flow.step(look_up)
            return await flow.step(charge)

        async with app.worker():
            run = await order.start()
            store = cast("Any", await app.store())
            await until_true(lambda: locked != [] and store._direct._answer is not None)
            running = cast("Any", app._running_workers[0][0]).loop.runners.running
            [recording] = running
            recording.stop("cancelled")
            for _ in range(20):
                await asyncio.sleep(0)
            was_released = recording not in running
            recorded = watch.execute("select from duetime.flow_step where seq = 2").fetchall()
            other.execute("commit")
            with pytest.raises(JobFailed):
                await run.result()
        rows = watch.execute("select seq, state, output from duetime.flow_step where seq = 2")

        assert (recorded, was_released) == ([], False)
        assert rows.fetchall() == [(2, "completed", 7)]


async def test_a_record_of_a_claim_that_is_gone_is_refused(app: Duetime, pg_url: str) -> None:
    began: list[int] = []
    with psycopg.connect(pg_url, autocommit=True) as other:

        async def charge() -> int:
            began.append(1)
            if len(began) == 1:
                # As a worker does that rescues the run.
                other.execute("delete from duetime.claim")
            return 7

        @app.flow
        async def order(flow: Flow) -> int:
            return await flow.step(charge)

        async with app.worker():
            await order.start()
            await until_true(lambda: began != [])
            worker = cast("Any", app._running_workers[0][0])
            await until_true(lambda: not worker.loop.runners.running)
        rows = other.execute("select from duetime.flow_step").fetchall()

    assert rows == []
