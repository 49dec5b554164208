"""What a worker costs while nothing happens: hundreds of them must fit on one server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from duetime import Duetime
from tests.waiting import until, until_true

_SECONDS = 8.0
_WAKE_UPS = 20.0
"""A second."""
_CONNECTIONS = """
select count(*) from pg_stat_activity
where datname = %s and application_name = 'duetime' and backend_type = 'client backend'
"""
_TRANSACTIONS = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"


@pytest.fixture
def unpruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pruner does not begin while we count."""
    monkeypatch.setattr("duetime.engine.services._FIRST_SECONDS", 1e9)


@pytest.mark.usefixtures("unpruned")
async def test_an_idle_worker_has_three_connections_and_makes_a_transaction_a_second(
    pg_url: str,
) -> None:
    """All that services check regularly is one read. Whoever adds a poll of its own fails here."""
    app = Duetime(pg_url, migrate=True, prune_every="1000d")
    app.schedule("0 0 1 1 *", name="yearly")(app.task(name="noop")(_noop))
    database = psycopg.conninfo.conninfo_to_dict(pg_url)["dbname"]
    elsewhere = psycopg.conninfo.make_conninfo(pg_url, dbname="postgres")
    with psycopg.connect(elsewhere, autocommit=True) as watcher:

        def count(text: bytes) -> int:
            row = watcher.execute(text, (database,)).fetchone()
            return 0 if row is None else int(row[0])

        async with app.worker() as worker:
            await until_true(lambda: worker.loop.pace.sleeper.asleep)
            # What the start needed is closed again, after seconds of rest.
            await until_true(lambda: count(_CONNECTIONS.encode()) <= 3, seconds=60)
            # A session reports what the start had it do when it ends, or after ten seconds of rest.
            made = await until(lambda: _count_if_idle(lambda: count(_TRANSACTIONS.encode())))
            connections = count(_CONNECTIONS.encode())
    await app.close()

    assert connections <= 3, "the heartbeat's, the listener's, and one for everything else"
    assert made > 0


@pytest.mark.usefixtures("unpruned")
async def test_an_idle_worker_seldom_wakes_its_event_loop(pg_url: str) -> None:
    """Counted, not timed: each wake-up is CPU that hundreds of idle workers take from others. Four
    are the watch over the lease, and most of the others one look at the database."""
    app = Duetime(pg_url, migrate=True, prune_every="1000d")
    app.task(name="noop")(_noop)
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    select, wakes = selector.select, 0

    def count_select(timeout: float | None = None) -> Any:
        nonlocal wakes
        wakes += 1
        return select(timeout)

    async with app.worker() as worker:
        await until_true(lambda: worker.loop.pace.sleeper.asleep)
        selector.select = count_select
        made = await until(lambda: _count_if_idle(lambda: wakes, most=_WAKE_UPS))
        selector.select = select
    await app.close()

    assert made > 0


async def _count_if_idle(count: Callable[[], int], most: float = 1.5) -> int:
    """How many were made in some seconds; 0 if they were too many."""
    before, began = count(), time.monotonic()
    await asyncio.sleep(_SECONDS)
    made, seconds = count() - before, time.monotonic() - began
    return made if made <= most * seconds else 0


async def _noop() -> None: ...
