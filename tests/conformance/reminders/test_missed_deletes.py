"""Rows that were deleted while no trigger saw it, on every backend."""

from __future__ import annotations

from asyncio import TaskGroup
from collections.abc import AsyncIterator
from typing import Any, cast

import psycopg
import pytest

from duetime import Duetime
from duetime.storage.store import Statements
from tests.conformance.reminders.test_tracking import (
    DUE,
    Table,
    at,
    on_postgres,
    reminders,
    settle,
)
from tests.conftest import Backend
from tests.waiting import until, waits


@pytest.fixture
def table(backend: Backend) -> Table:
    return Table(backend)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url, migrate=True)
    yield app
    await app.close()


@pytest.fixture
async def games(app: Duetime, table: Table) -> Table:
    await app.store()
    table.run(
        f"create table games (id integer primary key, starts_at {table.due}, team integer,"
        " open integer not null default 1)"
    )
    await put(app)
    return table


async def put(app: Duetime) -> None:
    await app.tables.put(
        "games", id="id", due="starts_at", scope="team:{team}", when="open = 1", remind=["-1h"]
    )


def game(number: int, team: int = 1) -> str:
    return f"insert into games (id, starts_at, team) values ({number}, {at(DUE)}, {team})"


def unseen(table: Table, *statements: str) -> None:
    """Write while no trigger sees it."""
    if table.is_postgres:
        table.run("set session_replication_role = replica", *statements)
        return
    found = "select name, sql from sqlite_schema where type = 'trigger' and name like '%_track_%'"
    triggers = [row for row in table.run(found) if "tracked_row" not in row[0]]
    drop = [f'drop trigger "{name}"' for name, _ in triggers]
    table.run(*drop, *statements, *(sql for _, sql in triggers))


async def subjects(app: Duetime) -> list[str]:
    await settle(app)
    return [one.ref for one in await app.subjects.list()]


async def test_put_deletes_the_subjects_of_rows_that_are_gone(app: Duetime, games: Table) -> None:
    games.run(game(1), game(2), game(3))
    await settle(app)
    games.run("update games set open = 0 where id = 3")
    await app.subjects.put("games:own", due=DUE, remind=["-1h"])
    await app.subjects.put("own", due=DUE, remind=["-1h"])
    before = await subjects(app)
    unseen(games, "delete from games where id = 1")
    kept = await subjects(app)

    await put(app)

    assert sorted(before) == sorted(kept) == ["games:1", "games:2", "games:3", "games:own", "own"]
    assert sorted(await subjects(app)) == ["games:2", "games:3", "games:own", "own"]
    assert await reminders(app, "games:2") == [(-1.0, "armed")]
    assert (await app.subjects.get("games:3")).status == "done"
    [event, *_] = await app.audit.list(entity="subject:games:1")
    assert event.action == "subject.delete"
    waiting = games.ours(
        "select count(*) from duetime.due as d join duetime.job as j on j.id = d.job_id"
        " where j.task like '%remind'"
    )
    armed = await app.reminders.list(status="armed")
    assert waiting[0][0] == len(armed) == 3


async def test_many_are_deleted_in_parts(
    app: Duetime, games: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.api.tables._MAX_MISSING", 3)
    games.run(*(game(number) for number in range(20)))
    await settle(app)
    unseen(games, "delete from games where id > 9")

    await put(app)

    assert sorted(await subjects(app)) == [f"games:{number}" for number in range(10)]


async def test_composite_keys(app: Duetime, table: Table) -> None:
    await app.store()
    table.run(
        f"create table seats (room text, seat text, due_at {table.due}, primary key (room, seat))"
    )

    async def put_seats() -> None:
        await app.tables.put("seats", id=["room", "seat"], due="due_at", remind=["-1h"])

    await put_seats()
    table.run(*(
        f"insert into seats values ('{room}', '{seat}', {at(DUE)})"
        for room, seat in (("a:b", "c"), ("a", "b:c"), ("it''s", "50%"), ("é", "1"))
    ))  # fmt: skip
    before = await subjects(app)
    await put_seats()
    same = await subjects(app)
    unseen(table, "delete from seats where room = 'a'")
    await put_seats()

    assert sorted(same) == sorted(before)
    assert sorted(set(before) - set(await subjects(app))) == ["seats:a:b%3Ac"]


async def test_put_empties_the_scopes_of_rows_that_are_gone(app: Duetime, table: Table) -> None:
    await app.store()
    table.run("create table teams (id integer primary key, minutes integer)")

    async def put_teams() -> None:
        await app.tables.put("teams", kind="scopes", id="id", remind="minutes")

    await put_teams()
    table.run("insert into teams values (1, 60)", "insert into teams values (2, 60)")
    table.run("insert into teams values (3, 60)")
    await settle(app)
    await app.subjects.put("game", due=DUE, scope="teams:1")
    unseen(table, "delete from teams where id < 3")

    await put_teams()
    left = [one.ref for one in await app.scopes.list()]
    ended = await reminders(app, "game")
    await put_teams()
    table.run("insert into teams values (1, 30)")

    assert sorted(left) == ["teams:1", "teams:3"]
    assert ended == [(-1.0, "superseded")]
    assert (await reminders(app, "game"))[-1] == (-0.5, "armed")


class After:
    """Does something right after the search for what is missing, and before its deletion."""

    def __init__(self, app_store: Any, monkeypatch: pytest.MonkeyPatch, do: Any) -> None:
        self.found: list[list[str]] = []
        missing, transact = app_store.triggers.missing, app_store.transact

        def find(*given: Any) -> Statements:
            found = yield from missing(*given)
            self.found.append(found)
            return found

        async def run(statements: Statements, **how: Any) -> Any:
            answer = await transact(statements, **how)
            if self.found and answer is self.found[-1]:
                await do()
            return answer

        monkeypatch.setattr(app_store.triggers, "missing", find)
        monkeypatch.setattr(app_store, "transact", run)


async def test_a_row_that_comes_back_meanwhile_keeps_its_subject(
    app: Duetime, games: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    games.run(game(1), game(2))
    await settle(app)
    unseen(games, "delete from games")

    async def insert() -> None:
        games.run(game(1))

    after = After(await app.store(), monkeypatch, insert)

    await put(app)

    assert [sorted(found) for found in after.found] == [["games:1", "games:2"]]
    assert await subjects(app) == ["games:1"]
    assert await reminders(app, "games:1") == [(-1.0, "armed")]


@on_postgres
async def test_a_row_that_is_being_inserted_keeps_its_subject(
    app: Duetime, backend: Backend, games: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    games.run(game(1))
    unseen(games, "delete from games")
    async with await psycopg.AsyncConnection.connect(backend.url) as other, TaskGroup() as group:
        await other.execute("set search_path = public")
        await other.commit()

        async def commit() -> None:
            await until(lambda: waits(backend.url))
            await other.commit()

        async def insert() -> None:
            await other.execute(cast("Any", game(1)))
            group.create_task(commit())

        after = After(await app.store(), monkeypatch, insert)
        await put(app)

    assert after.found == [["games:1"]]
    assert await subjects(app) == ["games:1"]
    assert await reminders(app, "games:1") == [(-1.0, "armed")]


@on_postgres
async def test_rows_that_a_policy_hides_are_not_gone(
    app: Duetime, backend: Backend, table: Table
) -> None:
    """To its owner too, if row-level security is forced."""
    await app.store()
    owner = "hidden_owner"
    table.run(
        f"drop role if exists {owner}",
        f"create role {owner} login",
        f"create schema hidden authorization {owner}",
        f"grant usage on schema duetime to {owner}",
        f"grant select on duetime.tracked to {owner}",
        "grant execute on function duetime.track_define, duetime.track_clear,"
        f" duetime.track_forget to {owner}",
    )
    url = backend.url.replace("//duetime@", f"//{owner}@")
    theirs = Duetime(url)
    try:
        with psycopg.connect(url) as connection:
            connection.execute("create table hidden.orders (id int primary key, at timestamptz)")
        await theirs.tables.put("hidden.orders", id="id", due="at", remind=["-1h"])
        with psycopg.connect(url) as connection:
            for number in (1, 2):
                connection.execute(
                    cast("Any", f"insert into hidden.orders values ({number}, {at(DUE)})")
                )
        unseen(table, "delete from hidden.orders where id = 1")
        await theirs.tables.put("hidden.orders", id="id", due="at", remind=["-1h"])
        seen = await subjects(app)
        with psycopg.connect(url) as connection:
            connection.execute("create policy nobody on hidden.orders using (false)")
            connection.execute("alter table hidden.orders enable row level security")
            connection.execute("alter table hidden.orders force row level security")
        await theirs.tables.put("hidden.orders", id="id", due="at", remind=["-1h"])
        hidden = await subjects(app)
        await theirs.tables.delete("orders")
    finally:
        await theirs.close()
        table.run(f"drop owned by {owner}", f"drop role {owner}")

    assert seen == ["orders:2"]
    assert hidden == ["orders:2"]
