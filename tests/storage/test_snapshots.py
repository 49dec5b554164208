"""What is read in several statements is read from one state of the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from duetime import Duetime
from duetime.storage.store import Statements


@pytest.fixture
async def app(pg_url: str) -> AsyncIterator[Duetime]:
    app = Duetime(pg_url, migrate=True)
    yield app
    await app.close()


async def test_statements_of_a_snapshot_see_the_same_state(app: Duetime, pg_url: str) -> None:
    store = await app.store()

    def count_twice() -> Statements:
        before = yield "select count(*) from duetime.queue", ()
        with psycopg.connect(pg_url, autocommit=True) as other:
            other.execute("insert into duetime.queue (name) values ('made meanwhile')")
        after = yield "select count(*) from duetime.queue", ()
        return [before, after]

    before, after = await store.transact(count_twice(), snapshot=True)
    later, _ = await store.transact(count_once(), snapshot=True)

    assert after == before
    assert later[0] == before[0][0] + 1


def count_once() -> Statements:
    rows = yield "select count(*) from duetime.queue", ()
    return [rows[0], None]


async def test_several_statements_must_be_read_as_a_snapshot(app: Duetime) -> None:
    """Each of them would see another state: a run that sleeps, and its job that runs again."""
    store = await app.store()

    def read_twice() -> Statements:
        yield "select 1", ()
        yield "select 2", ()

    with pytest.raises(RuntimeError, match="snapshot=True"):
        await store.transact(read_twice(), reads=True)


async def test_reading_the_rules_of_a_subject_locks_no_scope(app: Duetime, pg_url: str) -> None:
    """People may read while somebody changes the scope; roles that only read may, too."""
    await app.scopes.put("guild:1", remind=["-1h"])
    due = await app.now() + timedelta(days=1)
    await app.subjects.put("game:1", scope="guild:1", due=due)
    with psycopg.connect(pg_url) as other:
        other.execute("select from duetime.scope for update")
        async with asyncio.timeout(5):
            rules = await app.subjects.rules("game:1")
            explained = await app.scopes.explain("guild:1")

    assert rules == (["-1h"], "guild:1")
    assert "-1h" in str(explained)
