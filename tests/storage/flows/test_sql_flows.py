"""Runs that SQL starts and signals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from duetime import Duetime, Flow


@pytest.fixture
async def app(pg_url: str) -> AsyncIterator[Duetime]:
    app = Duetime(pg_url, migrate=True)
    yield app
    await app.close()


async def test_sql_starts_and_signals_runs(app: Duetime, pg_url: str) -> None:
    @app.flow(name="order", queue="orders")
    async def order(flow: Flow, order_id: int, note: str | None = "none") -> Any:
        return [order_id, note, await flow.wait_for("approved")]

    await app.store()
    with psycopg.connect(pg_url, autocommit=True) as sql:

        def ask(text: str) -> Any:
            row = sql.execute(text).fetchone()
            return None if row is None else row[0]

        async with app.worker(queues=["orders", "default"]):
            args = '{"order_id": 7, "note": null}'
            start = f"select duetime.start_flow('order', '{args}', key => 'order:7')"
            run = ask(start)
            assert ask(start) == run
            signal = f"select duetime.signal_flow({run}, 'approved', 'true', 'once')"
            assert [ask(signal), ask(signal)] == [True, False]
            assert await app.flows[run].result() == [7, None, True]
            info = await app.flows.get(run)
            assert (info.flow, info.queue, info.key) == ("order", "orders", "order:7")
        with pytest.raises(psycopg.Error, match=f"run {run} has ended"):
            ask(f"select duetime.signal_flow({run}, 'approved')")
        with pytest.raises(psycopg.errors.NoDataFound, match="there is no run 99"):
            ask("select duetime.signal_flow(99, 'approved')")
        job = ask("select duetime.enqueue('plain')")
        with pytest.raises(psycopg.errors.NoDataFound, match=f"there is no run {job}"):
            ask(f"select duetime.signal_flow({job}, 'approved')")


async def test_sql_starts_and_signals_a_graph_in_one_transaction(app: Duetime, pg_url: str) -> None:
    graph = app.graph("onboard")

    @graph.step
    async def create(email: str) -> str:
        return email

    graph.signal("approved", after=[create])
    await app.store()
    with psycopg.connect(pg_url) as sql:
        [run] = (
            sql.execute(
                "select duetime.start_flow('onboard', '{\"email\": \"a@b\"}', key => 'a@b')"
            ).fetchone()
            or ()
        )
        sql.execute("select duetime.signal_flow(%s, 'approved', 'true', key => 'once')", [run])

    async with app.worker():
        result = await app.flows[run].result()

    assert result == {"approved": True}
