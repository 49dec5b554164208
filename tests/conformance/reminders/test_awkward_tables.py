"""Tracked tables with triggers, keys, collations and values that few tables have."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from duetime import Duetime
from duetime.errors import InvalidInput
from tests.conformance.reminders.test_hierarchies import CHANNELS, GAMES, GUILDS, make_tables
from tests.conformance.reminders.test_hierarchies import track as put_tables
from tests.conformance.reminders.test_tracking import (
    DAY,
    DUE,
    Table,
    at,
    on_postgres,
    reminders,
    settle,
)
from tests.conftest import Backend


@pytest.fixture
def table(backend: Backend) -> Table:
    return Table(backend)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url, migrate=True)
    await app.store()
    yield app
    await app.close()


def add_trigger(table: Table, event: str, does: str) -> None:
    """A trigger of the user's own, for each row that is written."""
    if table.is_postgres:
        table.run(
            "create or replace function own() returns trigger language plpgsql as $$ begin"
            f" if pg_trigger_depth() = 1 then {does}; end if; return null; end $$",
            f"create trigger own after {event} on games for each row execute function own()",
        )
    else:
        table.run(f"create trigger own after {event} on games begin {does}; end")


async def put_games(app: Duetime) -> None:
    await app.tables.put("games", id="id", due="starts_at", remind=["-1h"], data=["note"])


@pytest.mark.parametrize("order", ["trigger_first", "tracked_first"])
@pytest.mark.parametrize("event", ["insert", "update"])
async def test_what_another_trigger_makes_of_a_row_is_followed(
    app: Duetime, table: Table, event: str, order: str
) -> None:
    table.run(f"create table games (id integer primary key, starts_at {table.due}, note text)")
    moves = f"update games set starts_at = {at(DUE + DAY)}, note = 'moved' where id = new.id"
    if order == "trigger_first":
        add_trigger(table, event, moves)
    await put_games(app)
    if order == "tracked_first":
        add_trigger(table, event, moves)

    table.run(f"insert into games values (1, {at(DUE)}, 'new')")
    if event == "update":
        table.run("update games set note = 'changed'")

    due = [hours for hours, status in await reminders(app, "games:1") if status == "armed"]
    assert due == [23.0]
    assert (await app.subjects.get("games:1")).data == {"note": "moved"}


@pytest.mark.parametrize("order", ["trigger_first", "tracked_first"])
async def test_a_deleted_row_that_another_trigger_inserts_again_is_followed(
    app: Duetime, table: Table, order: str
) -> None:
    table.run(f"create table games (id integer primary key, starts_at {table.due}, note text)")
    keeps = f"insert into games values (old.id, {at(DUE + DAY)}, 'kept')"
    if order == "trigger_first":
        add_trigger(table, "delete", keeps)
    await put_games(app)
    if order == "tracked_first":
        add_trigger(table, "delete", keeps)
    table.run(f"insert into games values (1, {at(DUE)}, 'new')")

    table.run("delete from games")

    due = [hours for hours, status in await reminders(app, "games:1") if status == "armed"]
    assert due == [23.0]


@pytest.mark.parametrize("order", ["trigger_first", "tracked_first"])
async def test_a_row_that_another_trigger_deletes_at_once_leaves_nothing(
    app: Duetime, table: Table, order: str
) -> None:
    table.run(f"create table games (id integer primary key, starts_at {table.due}, note text)")
    if order == "trigger_first":
        add_trigger(table, "insert", "delete from games where id = new.id")
    await put_games(app)
    if order == "tracked_first":
        add_trigger(table, "insert", "delete from games where id = new.id")

    table.run(f"insert into games values (1, {at(DUE)}, 'new')")
    await settle(app)

    assert not list(await app.subjects.list())


@pytest.mark.parametrize("order", ["trigger_first", "tracked_first"])
async def test_what_another_trigger_makes_of_a_scope_is_followed(
    app: Duetime, table: Table, order: str
) -> None:
    table.run(
        "create table games (id integer primary key, minutes text)",
        f"create table parts (id integer primary key, game_id integer, starts_at {table.due})",
    )
    changes = "update games set minutes = '30' where id = new.id and minutes <> '30'"
    if order == "trigger_first":
        add_trigger(table, "update", changes)
    await app.tables.put("games", kind="scopes", id="id", remind="minutes")
    await app.tables.put("parts", id="id", due="starts_at", scope="games:{game_id}")
    if order == "tracked_first":
        add_trigger(table, "update", changes)

    table.run(
        "insert into games values (1, '60')",
        f"insert into parts values (7, 1, {at(DUE)})",
        "update games set minutes = '15'",
    )

    due = [hours for hours, status in await reminders(app, "parts:7") if status == "armed"]
    assert due == [-0.5]


@on_postgres
async def test_rows_that_row_security_hides_from_the_owner_stay_followed(
    app: Duetime, table: Table
) -> None:
    table.run(
        "do $$ begin create role tenants; exception when duplicate_object then null; end $$",
        "grant usage on schema duetime to tenants",
        f"create table games (id integer primary key, starts_at {table.due}, note text)",
        "grant create on schema public to tenants",
        "alter table games owner to tenants",
    )
    await put_games(app)
    add_trigger(table, "insert", "update games set note = 'moved' where id = new.id")
    [(function,)] = table.run(
        "select oid::regprocedure::text from pg_proc where proname like 'duetime_track%'"
    )
    table.run(
        f"alter function {function} owner to tenants",
        "alter table games enable row level security",
        "alter table games force row level security",
    )

    table.run(f"insert into games values (1, {at(DUE)}, 'new')")

    assert await reminders(app, "games:1") == [(-1.0, "armed")]


@on_postgres
async def test_a_key_that_is_checked_at_commit_is_refused(app: Duetime, table: Table) -> None:
    table.run(
        "create table games (id integer primary key deferrable initially deferred,"
        " starts_at timestamptz)"
    )

    with pytest.raises(InvalidInput, match="deferrable"):
        await app.tables.put("games", id="id", due="starts_at")


@on_postgres
async def test_a_unique_index_that_includes_other_columns_is_a_key(
    app: Duetime, table: Table
) -> None:
    table.run(
        "create table games (id integer, starts_at timestamptz, note text,"
        " unique (id) include (note))"
    )
    await put_games(app)

    table.run(f"insert into games values (1, {at(DUE)}, 'x')")

    assert await reminders(app, "games:1") == [(-1.0, "armed")]


@on_postgres
@pytest.mark.parametrize("key", ["id", "id, part"])
async def test_texts_that_differ_in_case_alone_are_followed_where_they_count_as_equal(
    app: Duetime, table: Table, key: str
) -> None:
    try:
        table.run(
            "create collation any_case (provider = icu, locale = 'und-u-ks-level2',"
            " deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
    table.run(
        "create table channels (id text collate any_case primary key, minutes text)",
        "create table games (id text collate any_case, part text default 'a',"
        " starts_at timestamptz,"
        " channel text collate any_case, player text collate any_case, zone text collate any_case,"
        f" minutes text collate any_case, primary key ({key}))",
    )
    await app.tables.put("channels", kind="scopes", id="id", remind="minutes")
    await app.tables.put(
        "games", id=key.split(", "), due="starts_at", scope="channels:{channel}", tz="zone",
        recipients="player", remind="minutes",
    )  # fmt: skip
    table.run(
        "insert into channels values ('q', '[60]'), ('p', '15')",
        "insert into games (id, starts_at, channel, player, zone, minutes)"
        f" values ('x', {at(DUE)}, 'q', 'ann', 'UTC', '30')",
    )

    table.run(
        "update channels set id = 'Q' where id = 'q'",
        "update games set id = 'X', channel = 'Q', player = 'Ann', minutes = null",
    )

    [subject] = await app.subjects.list()
    assert (subject.ref, subject.scope) == ("games:X" + ":a" * (", " in key), "channels:Q")
    assert [(r.recipient, r.time) for r in await app.reminders.list(status="armed")] == [
        ("Ann", DUE - DAY / 24)
    ]


# `json` accepts them, `jsonb` does not.
ODD_JSON = [r'["\u0000"]', r'["a", "\ud800"]', "[1e999999]", r'{"a": "\u0000"}']


@on_postgres
@pytest.mark.parametrize("value", ODD_JSON)
async def test_json_that_cannot_be_converted_does_not_fail_the_write(
    app: Duetime, table: Table, value: str
) -> None:
    table.run(
        "create type pair as (a json, b integer)",
        "create table games (id integer primary key, starts_at timestamptz, players json,"
        " minutes json, texts text, many json[], note json, notes json[], both_notes pair)",
    )
    notes = ["note", "notes", "both_notes"]
    await app.tables.put("games", id="id", due="starts_at", remind="minutes", data=notes)
    await app.tables.put("games", name="told", id="id", due="starts_at", recipients="players")
    await app.tables.put("games", name="text", id="id", due="starts_at", remind="texts")
    await app.tables.put("games", name="many", id="id", due="starts_at", remind="many")

    table.run(
        f"insert into games values (1, {at(DUE)}, '{value}', '{value}', '{value}',"
        f" array['{value}']::json[], '{value}', array['{value}']::json[], row('{value}', 1))"
    )

    found = {s.ref: await app.subjects.get(s.ref) for s in await app.subjects.list()}
    assert found["games:1"].data["note"] == value
    assert "the rule" in str(found["games:1"].problem)
    assert "recipients" in str(found["told:1"].problem)
    assert found["told:1"].recipients == ()
    assert "the rule" in str(found["text:1"].problem)
    assert "the rule" in str(found["many:1"].problem)


DEEP = "[" * 5000 + "]" * 5000
LONG = "[" + "9" * 5000 + "]"


@pytest.mark.parametrize("value", [DEEP, "[" * 5000, LONG, "[" * 400 + "]" * 400])
@pytest.mark.parametrize("column", ["minutes", "players"])
async def test_a_value_that_python_cannot_decode_holds_up_no_other_row(
    app: Duetime, table: Table, column: str, value: str
) -> None:
    table.run(
        f"create table games (id integer primary key, starts_at {table.due}, minutes text,"
        " players text)"
    )
    await app.tables.put(
        "games", id="id", due="starts_at", remind="minutes", recipients="players"
    )  # fmt: skip

    table.run(
        f"insert into games (id, starts_at, {column}) values (1, {at(DUE)}, '{value}')",
        f"insert into games values (2, {at(DUE)}, '60', 'ann')",
    )

    assert await reminders(app, "games:2") == [(-1.0, "armed")]
    assert (await app.subjects.get("games:1")).problem is not None


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["id", "minutes", "players", "channel", "note", "starts_at"])
@pytest.mark.parametrize("kind", ["subjects", "scopes"])
async def test_a_text_that_is_not_utf_8_holds_up_no_other_row(
    app: Duetime, table: Table, column: str, kind: str
) -> None:
    if kind == "scopes" and column not in ("id", "minutes", "channel"):
        pytest.skip("scopes have no such column")
    table.run(
        "create table games (id text primary key, starts_at text, minutes text, players text,"
        " channel text, note text)",
        "create table others (id integer primary key, starts_at text)",
    )
    await app.tables.put("others", id="id", due="starts_at", remind=["-1h"])
    if kind == "scopes":
        await app.tables.put("games", kind="scopes", id="id", remind="minutes", parent="channel")
    else:
        await app.tables.put(
            "games", id="id", due="starts_at", remind="minutes", recipients="players",
            scope="channel", data=["note"],
        )  # fmt: skip

    table.run(
        f"insert into games values ('1', {at(DUE)}, '60', 'ann', 'c', 'x')",
        f"update games set {column} = cast(x'41ff' as text)",
        f"insert into others values (2, {at(DUE)})",
    )
    armed = await reminders(app, "others:2")
    table.run("delete from games")
    await settle(app)

    assert armed == [(-1.0, "armed")]
    assert [s.ref for s in await app.subjects.list()] == ["others:2"]
    assert not [s.ref for s in await app.scopes.list() if s.ref.startswith("games:")]


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_rows_whose_id_is_not_utf_8_are_found_when_their_table_is_put_again(
    app: Duetime, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.api.tables._MAX_ROWS", 1)
    table.run(
        "create table games (id text primary key, starts_at text, note text)",
        f"insert into games values (cast(x'61ff' as text), {at(DUE)}, 'x')",
        f"insert into games values ('it''s', {at(DUE)}, 'y'), ('z', {at(DUE)}, 'z')",
    )
    for _ in range(2):
        await put_games(app)
        await settle(app)

    subjects = await app.subjects.list()
    assert sorted(s.ref for s in subjects) == ["games:a\ufffd", "games:it's", "games:z"]


@on_postgres
@pytest.mark.parametrize("kind", ["json", "jsonb"])
async def test_data_that_is_nested_too_deeply_is_left_out(
    app: Duetime, table: Table, kind: str
) -> None:
    table.run(f"create table games (id integer primary key, starts_at timestamptz, note {kind})")
    await put_games(app)

    table.run(f"insert into games values (1, {at(DUE)}, '{DEEP}'), (2, {at(DUE)}, '[[[1]]]')")

    deep, plain = [await app.subjects.get(f"games:{number}") for number in (1, 2)]
    assert (deep.data, plain.data) == ({}, {"note": [[[1]]]})
    assert "nested" in str(deep.problem)
    assert plain.problem is None
    assert len(await app.reminders.list(status="armed")) == 2


@on_postgres
async def test_tables_of_scopes_that_are_truncated_leave_nothing(
    app: Duetime, table: Table
) -> None:
    make_tables(table)
    await put_tables(app, GUILDS, CHANNELS, GAMES)
    table.run(
        "insert into guilds values (1, '{60}')",
        "insert into channels values (9, 1, null), (8, 1, null)",
        f"insert into games values (42, 9, {at(DUE)}, null)",
    )

    table.run("truncate guilds cascade")

    assert not list(await app.subjects.list())
    assert not list(await app.scopes.list())


@on_postgres
async def test_a_truncated_scope_follows_its_row_again(app: Duetime, table: Table) -> None:
    table.run(
        "create table channels (id integer primary key, minutes text)",
        "create table games (id integer primary key, channel_id integer, starts_at timestamptz)",
    )
    await app.tables.put("channels", kind="scopes", id="id", remind="minutes")
    await app.tables.put("games", id="id", due="starts_at", scope="channels:{channel_id}")
    table.run(
        "insert into channels values (9, '60')", f"insert into games values (1, 9, {at(DUE)})"
    )

    table.run("truncate channels")
    left = [scope.ref for scope in await app.scopes.list()]
    none = [r for r in await reminders(app, "games:1") if r[1] == "armed"]
    table.run("insert into channels values (9, '30')")

    assert (left, none) == (["channels:9"], [])
    assert [r for r in await reminders(app, "games:1") if r[1] == "armed"] == [(-0.5, "armed")]
