"""Hierarchies in the user's own tables on every backend: written by SQL alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Duetime, Reminder
from duetime.errors import InvalidInput
from duetime.storage.reminders.pruning import PruneStatements
from tests.conformance.reminders.test_tracking import DUE, Table, at, reminders, settle
from tests.conftest import Backend
from tests.waiting import until, until_true


@pytest.fixture
def table(backend: Backend) -> Table:
    return Table(backend)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url, migrate=True)
    yield app
    await app.close()


def minutes(table: Table, *offsets: Any) -> str:
    """A column of `reminder_minutes`, as the user's own schema has it."""
    said = ["null" if offset is None else str(offset) for offset in offsets]
    return f"'{{{','.join(said)}}}'" if table.is_postgres else f"'[{','.join(said)}]'"


def make_tables(table: Table) -> None:
    kind = "integer[]" if table.is_postgres else "text"
    table.run(
        f"create table guilds (id integer primary key, reminder_minutes {kind})",
        "create table channels (id integer primary key, guild_id integer references guilds (id)"
        f" on delete cascade, reminder_minutes {kind})",
        "create table games (id integer primary key, channel_id integer references channels (id)"
        f" on delete cascade, starts_at {table.due}, reminder_minutes {kind})",
    )


GUILDS = {"table": "guilds", "kind": "scopes", "id": "id", "remind": "reminder_minutes"}
CHANNELS = GUILDS | {"table": "channels", "parent": "guilds:{guild_id}"}
GAMES = {
    "table": "games", "id": "id", "due": "starts_at", "scope": "channels:{channel_id}",
    "remind": "reminder_minutes",
}  # fmt: skip


async def track(app: Duetime, *tracks: dict[str, Any]) -> None:
    for options in tracks:
        given = dict(options)
        await app.tables.put(given.pop("table"), **given)


@pytest.fixture
async def guild(app: Duetime, table: Table) -> Table:
    """A guild with a channel and a game in it; the guild says 60 and 15 minutes before."""
    await app.store()
    make_tables(table)
    await track(app, GUILDS, CHANNELS, GAMES)
    table.run(
        f"insert into guilds values (1, {minutes(table, 60, 15)})",
        "insert into channels values (9, 1, null)",
        f"insert into games values (42, 9, {at(DUE)}, null)",
    )
    return table


async def armed(app: Duetime, subject: str = "games:42") -> list[float]:
    """The minutes before the due time at which it is armed, the first first."""
    return [-60 * hours for hours, status in await reminders(app, subject) if status == "armed"]


async def test_the_nearest_level_that_says_something_holds(app: Duetime, guild: Table) -> None:
    of_guild = await armed(app)
    guild.run(f"update channels set reminder_minutes = {minutes(guild, 30)}")
    of_channel = await armed(app)
    guild.run(f"update games set reminder_minutes = {minutes(guild, 5)}")
    of_game = await armed(app)
    guild.run(f"update games set reminder_minutes = {minutes(guild)}")
    none = await armed(app)
    guild.run(
        "update games set reminder_minutes = null", "update channels set reminder_minutes = null"
    )

    assert (of_guild, of_channel, of_game, none) == ([60, 15], [30], [5], [])
    assert await armed(app) == [60, 15]


async def test_a_change_of_a_guild_re_arms_all_below(app: Duetime, guild: Table) -> None:
    guild.run(
        f"insert into games values (43, 9, {at(DUE)}, null)",
        f"insert into games values (44, 9, {at(DUE)}, {minutes(guild, 5)})",
    )
    await settle(app)

    guild.run(f"update guilds set reminder_minutes = {minutes(guild, 120)}")

    assert await armed(app) == [120]
    assert await armed(app, "games:43") == [120]
    assert await armed(app, "games:44") == [5]


@pytest.fixture
async def match(app: Duetime, table: Table) -> Table:
    """A game with data of its own, in a channel that says 60 minutes before."""
    await app.store()
    table.run(
        "create table channels (id integer primary key, minutes text)",
        "create table games (id integer primary key, channel_id integer, title text,"
        f" starts_at {table.due})",
    )
    await app.tables.put("channels", kind="scopes", id="id", remind="minutes")
    await app.tables.put(
        "games", id="id", due="starts_at", scope="channels:{channel_id}", data=["title"]
    )
    table.run(
        "insert into channels values (9, '60')",
        f"insert into games values (42, 9, 'Chess', {at(DUE)})",
    )
    await settle(app)
    return table


@pytest.mark.parametrize("first", ["channel", "game"])
@pytest.mark.parametrize("together", [True, False], ids=["one_transaction", "two_transactions"])
async def test_a_change_of_a_scope_reaches_a_row_that_changes_with_it(
    app: Duetime, match: Table, first: str, together: bool
) -> None:
    changes = {
        "channel": "update channels set minutes = '15'",
        "game": "update games set title = 'Go'",
    }
    in_order = [changes.pop(first), *changes.values()]
    for statements in [in_order] if together else [[one] for one in in_order]:
        match.run(*statements)
    of_both = await armed(app)
    match.run("update channels set minutes = '60'", "update games set title = 'Chess'")
    back_again = await armed(app)
    match.run("update channels set minutes = '60'", "update games set title = 'Chess'")

    assert (of_both, back_again, await armed(app)) == ([15], [60], [60])
    assert not (await app.subjects.get("games:42")).stale


async def test_a_change_of_a_scope_reaches_more_rows_than_one_pass_applies(
    app: Duetime, match: Table
) -> None:
    with match.transaction() as connection:
        for number in range(100, 700):
            connection.execute(f"insert into games values ({number}, 9, 'Chess', {at(DUE)})")
    await settle(app)

    match.run("update channels set minutes = '15'", "update games set title = 'Go'")
    await settle(app)

    found = await app.reminders.list(status="armed", limit=1000)
    assert {reminder.rule.text for reminder in found} == {"-15m"}
    assert len(found) == 601


async def test_a_channel_that_moves_to_another_guild_takes_its_rules(
    app: Duetime, guild: Table
) -> None:
    guild.run(f"insert into guilds values (2, {minutes(guild, 7)})")

    guild.run("update channels set guild_id = 2")

    assert await armed(app) == [7]


async def test_a_rollback_changes_nothing(app: Duetime, guild: Table) -> None:
    await settle(app)
    before = await app.reminders.list(subject="games:42")

    connection = guild.connect()
    connection.execute(f"update guilds set reminder_minutes = {minutes(guild, 120)}")
    connection.execute(f"insert into guilds values (5, {minutes(guild, 1)})")
    connection.rollback()
    connection.close()

    assert await armed(app) == [60, 15]
    assert await app.reminders.list(subject="games:42") == before
    assert "guilds:5" not in {scope.ref for scope in await app.scopes.list()}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_rows_that_are_there_are_followed_in_any_order_of_the_tables(
    app: Duetime, table: Table, order: tuple[int, ...]
) -> None:
    await app.store()
    make_tables(table)
    table.run(
        f"insert into guilds values (1, {minutes(table, 60, 15)})",
        "insert into channels values (9, 1, null)",
        f"insert into games values (42, 9, {at(DUE)}, null)",
    )

    await track(app, *((GUILDS, CHANNELS, GAMES)[place] for place in order))

    assert await armed(app) == [60, 15]


async def test_a_guild_that_is_deleted_with_all_below_leaves_nothing(
    app: Duetime, guild: Table
) -> None:
    await settle(app)

    with guild.transaction() as connection:
        if not guild.is_postgres:
            connection.execute("pragma foreign_keys = on")
            connection.commit()
        connection.execute("delete from guilds")
    await settle(app)

    assert not list(await app.scopes.list())
    assert not list(await app.subjects.list())


async def test_a_scope_whose_row_is_gone_sets_nothing_and_goes_with_what_is_inside(
    app: Duetime, table: Table
) -> None:
    await app.store()
    table.run(
        "create table teams (id integer primary key, minutes integer)",
        f"create table shifts (id integer primary key, team integer, starts_at {table.due})",
    )
    await app.tables.put("teams", kind="scopes", id="id", remind="minutes")
    await app.tables.put("shifts", id="id", due="starts_at", scope="teams:{team}")
    table.run("insert into teams values (1, 60)", f"insert into shifts values (1, 1, {at(DUE)})")
    first = await armed(app, "shifts:1")

    table.run("delete from teams")
    none = await armed(app, "shifts:1")
    said = str((await app.tables.get("teams")).example)
    table.run("insert into teams values (1, 30)")
    again = await armed(app, "shifts:1")
    table.run("delete from teams", "delete from shifts")
    await settle(app)

    assert (first, none, again) == ([60], [], [30])
    assert said.startswith("teams:1: its row is gone")
    assert not list(await app.scopes.list())


async def scopes_after_pruning(app: Duetime) -> list[str]:
    await settle(app)
    store = await app.store()
    statements = PruneStatements(store.dialect)
    refs = await store.transact(statements.gone_scopes(), reads=True)
    if refs:
        await store.transact(statements.drop_scopes(refs))
    return [scope.ref for scope in await app.scopes.list()]


@pytest.mark.parametrize("leaves", ["row", "put", "delete", "inner_row", "inner_put"])
async def test_a_scope_whose_row_is_gone_goes_when_the_last_has_left(
    app: Duetime, table: Table, leaves: str
) -> None:
    await app.store()
    table.run(
        "create table teams (id integer primary key, minutes integer)",
        "create table crews (id integer primary key, team integer)",
        f"create table shifts (id integer primary key, team integer, starts_at {table.due})",
        "insert into teams values (1, 60)",
    )
    await app.tables.put("teams", kind="scopes", id="id", remind="minutes")
    await app.tables.put("crews", kind="scopes", id="id", parent="teams:{team}")
    await app.tables.put("shifts", id="id", due="starts_at", scope="teams:{team}")
    await settle(app)
    match leaves:
        case "row":
            table.run(f"insert into shifts values (1, 1, {at(DUE)})")
        case "put" | "delete":
            await app.subjects.put("own", due=DUE, scope="teams:1")
        case "inner_row":
            table.run("insert into crews values (7, 1)")
        case "inner_put":
            await app.scopes.put("own", parent="teams:1")
    table.run("delete from teams")
    before = await scopes_after_pruning(app)
    match leaves:
        case "row":
            table.run("update shifts set team = null")
        case "put":
            await app.subjects.put("own", due=DUE)
        case "delete":
            await app.subjects.delete("own")
        case "inner_row":
            table.run("update crews set team = null")
        case "inner_put":
            await app.scopes.put("own")
    after = await scopes_after_pruning(app)

    assert "teams:1" in before
    assert "teams:1" not in after
    assert (await app.tables.get("teams")).problems == 0


async def test_a_scope_whose_row_is_gone_stays_while_it_is_used(app: Duetime, table: Table) -> None:
    """By a subject that is done, or by the application, which has put its rules."""
    await app.store()
    table.run("create table teams (id integer primary key, minutes integer)")
    await app.tables.put("teams", kind="scopes", id="id", remind="minutes")
    table.run("insert into teams values (1, 60), (2, 60)")
    await settle(app)
    await app.subjects.put("done", due=DUE, scope="teams:1")
    await app.subjects.put("open", due=DUE, scope="teams:2")
    table.run("delete from teams")
    await settle(app)
    await app.subjects.complete("done")
    await app.scopes.put("teams:2", remind=["-5m"])
    await app.subjects.delete("open")
    left = await scopes_after_pruning(app)
    await app.subjects.delete("done")

    assert left == ["teams:1", "teams:2"]
    assert await scopes_after_pruning(app) == ["teams:2"]


async def test_workers_remove_scopes_whose_rows_are_gone(backend: Backend, table: Table) -> None:
    app = Duetime(backend.url, migrate=True, prune_every="50ms")
    await app.store()
    table.run("create table teams (id integer primary key, minutes integer)")
    await app.tables.put("teams", kind="scopes", id="id", remind="minutes")
    table.run("insert into teams values (1, 60)")
    await settle(app)
    await app.subjects.put("game", due=DUE, scope="teams:1")
    table.run("delete from teams")
    async with app.worker():
        await app.subjects.delete("game")

        async def is_gone() -> bool:
            return not list(await app.scopes.list())

        await until(is_gone)
    await app.close()


@pytest.mark.parametrize(
    ("value", "holds", "said"),
    [
        ("-5", [60, 15], "the rule '-5' cannot be read"),
        ("'soon'", [60, 15], "the rule 'soon' cannot be read"),
        ("'-10m, soon'", [10], "the rule 'soon' cannot be read"),
        ("'[10, null]'", [10], "the rule 'null' cannot be read"),
        ("'" + ",".join(["1"] * 51) + "'", [60, 15], "more than 50 rules"),
        ("'[10'", [60, 15], "the rule '[10' cannot be read"),
    ],
)
async def test_a_value_that_is_no_rule_never_fails_the_write(
    app: Duetime, guild: Table, value: str, holds: list[float], said: str
) -> None:
    guild.run(
        "create table notes (id integer primary key, rules text, channel integer)",
        "create table meetings (id integer primary key, note integer, rules text,"
        f" starts_at {guild.due})",
    )
    await app.tables.put(
        "notes", kind="scopes", id="id", parent="channels:{channel}", remind="rules"
    )
    await app.tables.put("meetings", id="id", due="starts_at", scope="notes:{note}", remind="rules")

    guild.run(
        f"insert into notes values (1, {value}, 9)",
        "insert into notes values (2, null, 9)",
        f"insert into meetings values (1, 1, null, {at(DUE)})",
        f"insert into meetings values (2, 2, {value}, {at(DUE)})",
    )

    assert await armed(app, "meetings:1") == holds
    assert await armed(app, "meetings:2") == holds
    assert said in str((await app.tables.get("notes")).example)
    assert said in str((await app.tables.get("meetings")).example)
    for explanation in (
        await app.scopes.explain("notes:1"),
        await app.subjects.explain("meetings:1"),
    ):
        assert any(said in str(step) for step in explanation.steps)
    found = [one for one in await app.examine() if one.code == "table_rows"]
    assert {one.facts["table"] for one in found} == {"notes", "meetings"}
    assert all(said in one.message for one in found)
    guild.run("update notes set rules = null where id = 1")
    await settle(app)
    assert (await app.tables.get("notes")).problems == 0


async def test_scopes_inside_each_other_are_a_problem_that_is_told(
    app: Duetime, table: Table
) -> None:
    await app.store()
    table.run("create table folders (id integer primary key, parent integer, minutes integer)")
    await app.tables.put(
        "folders", kind="scopes", id="id", parent="folders:{parent}", remind="minutes"
    )
    table.run("insert into folders values (1, null, 60), (2, 1, null), (3, 2, null)")
    await settle(app)

    table.run("update folders set parent = 3 where id = 1")
    await settle(app)

    info = await app.tables.get("folders")
    assert str(info.example).startswith("folders:1: the scope 'folders:3' is inside it")
    assert (await app.scopes.get("folders:1")).parent is None
    assert (await app.scopes.get("folders:3")).parent == "folders:2"


@pytest.mark.parametrize(
    ("order", "others"), [((1, 2), []), ((2, 1), []), ((9, 1), range(100, 800))]
)
async def test_a_parent_and_its_child_change_places(
    app: Duetime, table: Table, order: tuple[int, int], others: Sequence[int]
) -> None:
    """`others`: scopes that the same statement changes; on SQLite a worker follows 500 rows at a
    time."""
    inner, outer = order
    table.run("create table levels (id integer primary key, parent_id integer, minutes text)")
    await app.tables.put(
        "levels", kind="scopes", id="id", remind="minutes", parent="levels:{parent_id}"
    )
    table.run(
        f"insert into levels values ({outer}, null, '60'), ({inner}, {outer}, null)",
        *(f"insert into levels values ({other}, null, null)" for other in others),
    )
    await settle(app)

    table.run(
        f"update levels set parent_id = case id when {outer} then {inner} end, minutes = '30'",
    )
    await settle(app)

    found = {n: (await app.scopes.get(f"levels:{n}")).parent for n in (outer, inner)}
    [tracked] = await app.tables.list()
    assert found == {outer: f"levels:{inner}", inner: None}
    assert tracked.problems == 0


async def test_a_scope_that_the_application_has_put_is_left_alone(
    app: Duetime, table: Table
) -> None:
    await app.store()
    await app.scopes.put("teams:1", remind=["-1d"])
    table.run("create table teams (id integer primary key, minutes integer)")
    table.run("insert into teams values (1, 60)")

    await app.tables.put("teams", kind="scopes", id="id", remind="minutes")

    scope = await app.scopes.get("teams:1")
    assert [rule.text for rule in scope.rules or ()] == ["-1d"]
    assert "was put by the application" in str((await app.tables.get("teams")).example)
    await app.scopes.put("teams:1")
    await app.tables.put("teams", kind="scopes", id="id", remind="minutes")
    scope = await app.scopes.get("teams:1")
    assert [rule.text for rule in scope.rules or ()] == ["-1h"]
    assert (await app.tables.get("teams")).problems == 0


@pytest.fixture
async def team(app: Duetime, table: Table) -> Table:
    """A team, as a scope, and a shift inside it."""
    await app.store()
    table.run(
        "create table teams (id integer primary key, minutes integer)",
        f"create table shifts (id integer primary key, team integer, starts_at {table.due})",
    )
    await app.tables.put("teams", kind="scopes", id="id", remind="minutes")
    await app.tables.put("shifts", id="id", due="starts_at", scope="teams:{team}")
    table.run("insert into teams values (1, 60)", f"insert into shifts values (1, 1, {at(DUE)})")
    await settle(app)
    return table


async def test_a_scope_that_the_application_puts_after_its_row_has_gone_is_kept(
    app: Duetime, team: Table
) -> None:
    team.run("delete from teams")
    await settle(app)

    put = await app.scopes.put("teams:1")
    team.run("delete from shifts")

    assert put == "same"
    assert await scopes_after_pruning(app) == ["teams:1"]
    await app.subjects.put("own", scope="teams:1", due=DUE)


@pytest.mark.parametrize("rules", [["-2h"], ["-60m"]], ids=["other_rules", "same_rules"])
@pytest.mark.parametrize("followed", [True, False])
async def test_a_row_that_comes_back_leaves_what_the_application_has_put_meanwhile(
    app: Duetime, team: Table, followed: bool, rules: list[str]
) -> None:
    """`followed`: whether a worker on SQLite has seen that the row has gone."""
    team.run("delete from teams")
    if followed:
        await settle(app)
    await app.scopes.put("teams:1", remind=rules)
    of_application = await armed(app, "shifts:1")
    team.run("insert into teams values (1, 30)")

    assert await armed(app, "shifts:1") == of_application == [120 if rules == ["-2h"] else 60]
    assert "was put by the application" in str((await app.tables.get("teams")).example)
    team.run("delete from teams")
    assert await armed(app, "shifts:1") == of_application


async def test_a_table_of_scopes_that_is_tracked_no_longer_sets_nothing(
    app: Duetime, guild: Table
) -> None:
    await settle(app)

    count = await app.tables.delete("guilds")

    assert count == 1
    assert await armed(app) == []
    await track(app, GUILDS)
    assert await armed(app) == [60, 15]


async def test_fixed_rules_and_locks_of_scopes_follow_their_columns(
    app: Duetime, table: Table
) -> None:
    await app.store()
    kind = "boolean" if table.is_postgres else "integer"
    yes, no = ("true", "false") if table.is_postgres else ("1", "0")
    table.run(
        f"create table teams (id integer primary key, strict {kind}, gone {kind})",
        f"create table shifts (id integer primary key, team integer, starts_at {table.due},"
        " minutes integer)",
    )
    await app.tables.put(
        "teams", kind="scopes", id="id", remind=["-2h"], locked="strict", when="not gone"
    )
    await app.tables.put("shifts", id="id", due="starts_at", scope="teams:{team}", remind="minutes")
    table.run(
        f"insert into teams values (1, {yes}, {no})",
        f"insert into shifts values (1, 1, {at(DUE)}, 5)",
    )
    locked = await armed(app, "shifts:1")
    table.run(f"update teams set strict = {no}")
    free = await armed(app, "shifts:1")
    table.run("update shifts set minutes = null", f"update teams set gone = {yes}")

    assert (locked, free) == ([120], [5])
    assert await armed(app, "shifts:1") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "scopes", "due": "starts_at"}, "due is an option of tables of subjects"),
        ({}, "due must name the column"),
        ({"due": "starts_at", "parent": "guilds:{x}"}, "parent is an option of tables of scopes"),
        ({"due": "starts_at", "kind": "guilds"}, "kind must be"),
        ({"due": "starts_at", "remind": "no_such_column"}, "neither"),
        ({"due": "starts_at", "remind": "soon!"}, "not a valid rule"),
    ],
)
async def test_what_cannot_be_tracked_is_refused_with_a_reason(
    app: Duetime, guild: Table, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        await app.tables.put("games", id="id", name="other", **options)


async def test_three_tables_written_by_sql_alone_send_at_the_offsets_of_the_nearest_level(
    app: Duetime, guild: Table
) -> None:
    sent: list[tuple[str, str]] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> None:
        sent.append((reminder.subject, reminder.rule.text))

    async with app.worker(poll="100ms"):
        start = datetime.now(UTC) + timedelta(seconds=4)
        hour, quarter = (at(start + timedelta(minutes=m)) for m in (60, 15))
        await asyncio.to_thread(
            guild.run,
            f"insert into games values (1, 9, {hour}, null)",
            f"insert into games values (2, 9, {quarter}, null)",
            f"insert into games values (3, 9, {hour}, {minutes(guild, 30)})",
            "insert into guilds values (2, null)",
            "insert into channels values (10, 2, null)",
            f"insert into games values (4, 10, {hour}, null)",
        )
        await until_true(lambda: len(sent) >= 2)
        assert sorted(sent) == [("games:1", "-1h"), ("games:2", "-15m")]

        late = at(datetime.now(UTC) + timedelta(minutes=20, seconds=4))
        await asyncio.to_thread(
            guild.run,
            f"update games set starts_at = {late} where id = 4",
            f"update guilds set reminder_minutes = {minutes(guild, 20)} where id = 2",
        )
        await until_true(lambda: len(sent) >= 3)

    assert sent[2:] == [("games:4", "-20m")]
