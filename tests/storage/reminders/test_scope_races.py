"""Scopes of tracked tables that are deleted while another transaction uses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from duetime import Duetime
from duetime.reminders.rearm import rearm_stale
from duetime.storage.reminders.pruning import PruneStatements
from duetime.storage.store import Statement
from tests.observing import observed
from tests.waiting import PATIENCE, count_waits, until, until_true, waits

GAME = "insert into games values (2, now() + interval '1 day', 1)"
GUILD = "insert into guilds values (1, '{30}')"


@pytest.fixture
async def app(pg_url: str) -> AsyncIterator[Duetime]:
    """Guild 1, and a game in guild 7, whose own row is gone."""
    app = Duetime(pg_url, migrate=True)
    await app.store()
    run(
        pg_url,
        "create table guilds (id integer primary key, minutes integer[])",
        "create table games (id integer primary key, starts timestamptz, guild integer)",
    )
    await put_guilds(app)
    await app.tables.put("games", id="id", due="starts", scope="guild:{guild}")
    run(
        pg_url,
        "insert into guilds values (1, '{60}'), (7, '{60}')",
        "insert into games values (1, now() + interval '1 day', 7)",
        "delete from guilds where id = 7",
    )
    yield app
    await app.close()


@pytest.fixture
async def channel(app: Duetime, pg_url: str) -> None:
    """Channel 9 of guild 1, with two games in it."""
    run(
        pg_url,
        "create table channels (id integer primary key, guild integer, minutes integer[])",
        "create table matches (id integer primary key, starts timestamptz, channel integer)",
    )
    await app.tables.put(
        "channels", kind="scopes", name="channel", id="id", remind="minutes", parent="guild:{guild}"
    )
    await app.tables.put("matches", id="id", due="starts", scope="channel:{channel}")
    run(
        pg_url,
        "insert into channels values (9, 1, null)",
        "insert into matches select n, now() + interval '1 day', 9 from generate_series(1, 2) as n",
    )


async def put_guilds(app: Duetime) -> None:
    await app.tables.put("guilds", kind="scopes", name="guild", id="id", remind="minutes")


def run(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize(
    ("deletes", "writes"),
    [
        ("delete from guilds", GAME),
        ("delete from guilds", "insert into guilds values (2, null), (1, '{30}')"),
        ("delete from games", "insert into games values (2, now() + interval '1 day', 7)"),
    ],
)
async def test_a_row_is_written_while_its_scope_is_deleted(
    app: Duetime, pg_url: str, deletes: str, writes: str
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(pg_url) as one,
        await psycopg.AsyncConnection.connect(pg_url) as other,
    ):
        await one.execute(deletes.encode())
        writing = asyncio.create_task(other.execute(writes.encode()))
        # Its turn is over after half a second; then it waits for the scope itself.
        await until(lambda: count_waits(pg_url, longer_than=1.2))
        await one.commit()
        await writing
        await other.commit()

    games, guilds = run(pg_url, "select id, guild from games"), run(pg_url, "select id from guilds")
    assert {row[0] for row in run(pg_url, "select ref from duetime.scope")} >= {
        *(f"guild:{guild}" for _, guild in games),
        *(f"guild:{guild}" for (guild,) in guilds),
    }
    assert sorted(run(pg_url, "select ref, scope from duetime.subject")) == [
        (f"games:{game}", f"guild:{guild}") for game, guild in sorted(games)
    ]


async def test_the_pruner_keeps_a_scope_whose_row_is_back(app: Duetime, pg_url: str) -> None:
    store = await app.store()
    statements = PruneStatements(store.dialect)
    run(pg_url, "update games set guild = null")
    gone = await store.transact(statements.gone_scopes(), reads=True)
    run(pg_url, "insert into guilds values (7, null)")
    await store.transact(statements.drop_scopes(gone))

    assert gone == ["guild:7"]
    assert run(pg_url, "select problem from duetime.tracked_scope where ref = 'guild:7'") == [
        (None,)
    ]


async def test_tracking_again_and_a_row_that_comes_back_do_not_deadlock(
    app: Duetime, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row was deleted while triggers were off. It is inserted while its scope is dropped."""
    run(pg_url, "set session_replication_role = replica", "delete from guilds")
    store = await app.store()
    transact = store.transact
    written: list[Any] = []

    def begin_writing(statement: Statement) -> None:
        """On a thread: statements run on the event loop, which must not wait for it."""
        if "_refs(array" not in statement[0] or written:
            return
        written.append(ThreadPoolExecutor(1).submit(run, pg_url, GUILD))
        waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
        deadline = time.monotonic() + PATIENCE
        while not run(pg_url, f"{waiting} and datname = current_database()"):
            assert time.monotonic() < deadline, "nobody waits for the scope"

    monkeypatch.setattr(
        store, "transact", lambda one, **how: transact(observed(one, begin_writing), **how)
    )
    await put_guilds(app)
    [writing] = written
    await asyncio.to_thread(writing.result)

    assert run(pg_url, "select rules is not null from duetime.scope where ref = 'guild:1'") == [
        (True,)
    ]


def armed(url: str) -> list[str]:
    """The rules by which the games of the channel are armed."""
    rows = run(
        url,
        "select distinct (s.due_at - r.time)::text from duetime.reminder as r"
        " join duetime.subject as s on s.id = r.subject_id"
        " where r.status = 'armed' and s.scope = 'channel:9'",
    )
    return [row[0] for row in rows]


@pytest.mark.usefixtures("channel")
async def test_a_write_to_a_guild_does_not_wait_for_the_turn_of_a_channel(
    app: Duetime, pg_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(pg_url) as other:
        await other.execute(
            "select pg_advisory_xact_lock(hashtext('duetime.scope'), hashtext('channel:9'))"
        )
        # It waited for half a second, each time.
        run(
            pg_url,
            "set statement_timeout = '1900ms'",
            "do $$ begin for n in 27..30 loop"
            " update guilds set minutes = array[n] where id = 1; end loop; end $$",
        )
        await other.rollback()
    await rearm_stale(app)

    assert armed(pg_url) == ["00:30:00"]


@pytest.mark.usefixtures("channel")
async def test_a_guild_that_goes_and_a_channel_that_changes_do_not_deadlock(
    app: Duetime, pg_url: str
) -> None:
    """Each is one statement. The channel waits for its guild while it has its own turn."""
    async with (
        await psycopg.AsyncConnection.connect(pg_url) as holder,
        await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as one,
        await psycopg.AsyncConnection.connect(pg_url, autocommit=True) as other,
    ):
        await other.execute("set deadlock_timeout = '300ms'")
        await holder.execute("select from duetime.tracked_scope where ref = 'guild:1' for update")
        deleting = asyncio.create_task(one.execute("delete from guilds where id = 1"))
        await until(lambda: waits(pg_url))
        writing = asyncio.create_task(other.execute("update channels set minutes = '{15}'"))

        async def both_wait() -> bool:
            return await count_waits(pg_url) == 2

        await until(both_wait)
        await holder.commit()
        await deleting
        await writing
    await rearm_stale(app)

    assert armed(pg_url) == ["00:15:00"]


@pytest.mark.usefixtures("channel")
async def test_two_that_leave_a_scope_whose_row_is_gone_do_not_wait_for_each_other(
    app: Duetime, pg_url: str
) -> None:
    store = await app.store()
    statements = PruneStatements(store.dialect)
    run(pg_url, "delete from channels", "delete from guilds where id = 1")
    async with (
        await psycopg.AsyncConnection.connect(pg_url) as one,
        await psycopg.AsyncConnection.connect(pg_url) as other,
    ):
        await one.execute("delete from matches where id = 1")
        await other.execute("set lock_timeout = '2s'")
        await other.execute("delete from matches where id = 2")
        await other.commit()
        await one.commit()
    gone = await store.transact(statements.gone_scopes(), reads=True)
    await store.transact(statements.drop_scopes(gone))

    assert gone == ["channel:9"]
    assert run(pg_url, "select ref from duetime.scope where ref = 'channel:9'") == []


@pytest.mark.parametrize("takes", ["_share_turn", "_own_turn"])
async def test_a_turn_is_given_up_if_its_holder_waits_for_us(
    app: Duetime, pg_url: str, takes: str
) -> None:
    lock = "select from duetime.scope where ref = 'guild:1' for update"
    async with (
        await psycopg.AsyncConnection.connect(pg_url) as one,
        await psycopg.AsyncConnection.connect(pg_url) as other,
    ):
        await one.execute(lock)
        await one.execute("set deadlock_timeout = '100ms'")
        await other.execute("select duetime._own_turn(array['guild:7'])")
        waiting = asyncio.create_task(other.execute(lock))
        await until(lambda: waits(pg_url))
        await one.execute(f"select duetime.{takes}(array['guild:7'])".encode())
        await one.commit()
        await waiting


@pytest.mark.usefixtures("channel")
async def test_a_scope_that_moves_meanwhile_is_locked_with_those_around_it_now(pg_url: str) -> None:
    """Before the subjects: everyone locks scopes first."""
    run(pg_url, "insert into guilds values (2, '{30}')")
    async with (
        await psycopg.AsyncConnection.connect(pg_url) as holder,
        await psycopg.AsyncConnection.connect(pg_url) as other,
        await psycopg.AsyncConnection.connect(pg_url) as one,
    ):
        await holder.execute("select from duetime.subject where ref = 'matches:1' for update")
        await other.execute("update channels set guild = 2")
        writing = asyncio.create_task(
            one.execute("update matches set starts = starts + interval '1 hour' where id = 1")
        )
        await until(lambda: waits(pg_url))
        await other.commit()
        pids = f"{holder.info.backend_pid} = any (pg_blocking_pids({one.info.backend_pid}))"
        await until_true(lambda: run(pg_url, f"select 1 where {pids}"))
        free = run(
            pg_url, "select ref from duetime.scope where ref = 'guild:2' for update skip locked"
        )
        await holder.rollback()
        await writing
        await one.commit()

    assert free == []
    assert armed(pg_url) == ["00:30:00"]
