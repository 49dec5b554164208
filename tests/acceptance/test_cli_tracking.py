"""`duetime tables`, as people and scripts use them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import psycopg
import pytest

from duetime import Duetime
from tests.acceptance.test_cli_reminders import duetime
from tests.conftest import Backend

on_both = pytest.mark.parametrize("backend", ["postgres18", "sqlite"], indirect=True)
TRACK = (
    "tables", "put", "game_sessions", "--id", "id", "--due", "scheduled_at",
    "--scope", "channel:{channel_id}", "--when", "status = 'scheduled'", "--remind", "-1h",
)  # fmt: skip


def run(backend: Backend, *statements: str) -> None:
    if backend.is_postgres:
        with psycopg.connect(backend.url, options="-c search_path=public") as connection:
            for statement in statements:
                connection.execute(statement)
        return
    path = backend.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as file, file:
        for statement in statements:
            file.execute(statement)


@pytest.fixture
async def games(backend: Backend) -> Backend:
    app = Duetime(backend.url, migrate=True)
    await app.store()
    await app.close()
    kind = "timestamptz" if backend.is_postgres else "text"
    run(
        backend,
        "create table game_sessions (id integer primary key, status text,"
        f" channel_id integer, scheduled_at {kind})",
        "insert into game_sessions values (1, 'scheduled', 9, '2999-12-24T18:00Z'),"
        " (2, 'over', 9, '2999-12-24T18:00Z')",
    )
    return backend


@on_both
async def test_a_table_is_tracked_shown_and_left(games: Backend) -> None:
    url = games.url
    tracked = duetime(url, *TRACK)
    subject = duetime(url, "subjects", "get", "game_sessions:1")
    listed = duetime(url, "tables")
    as_json = json.loads(duetime(url, "tables", "--json").out)
    refused = duetime(url, "tables", "delete", "game_sessions")
    left = duetime(url, "tables", "delete", "game_sessions", "--yes")
    gone = duetime(url, "tables")

    assert (tracked.code, tracked.out) == (0, "game_sessions is now tracked: 2 rows read.\n")
    assert "2999-12-24T17:00:00Z" in subject.out
    assert listed.out.splitlines()[1].split()[-2:] == ["1", "ok"]
    assert [one["track"]["when"] for one in as_json] == ["status = 'scheduled'"]
    assert refused.code == 1
    assert refused.err.splitlines()[-1].startswith("Error: Not confirmed")
    assert left.out == "game_sessions is no longer tracked: 1 subject removed.\n"
    assert gone.out.startswith("No table is tracked.")


@on_both
async def test_a_track_of_another_name_says_so_and_what_cannot_be_read(games: Backend) -> None:
    named = duetime(games.url, *TRACK, "--name", "matches")
    if games.is_postgres:
        run(games, "update game_sessions set scheduled_at = 'infinity' where id = 1")
    else:
        run(games, "update game_sessions set scheduled_at = 'soon' where id = 1")
    again = duetime(games.url, *TRACK, "--name", "matches")

    assert named.out == "game_sessions is now tracked as matches: 2 rows read.\n"
    assert again.out.splitlines()[1].startswith("  1 problem, such as matches:1: its due time")


@on_both
async def test_a_dry_run_shows_the_sql_and_runs_none(games: Backend) -> None:
    shown = duetime(games.url, *TRACK, "--dry-run")

    assert shown.code == 0
    assert "create trigger" in shown.out
    assert "status = 'scheduled'" in shown.out
    assert duetime(games.url, "tables").out.startswith("No table is tracked.")
    assert duetime(games.url, "subjects", "get", "game_sessions:1").code == 1


@on_both
async def test_a_mistake_is_one_line_that_says_what_to_do(games: Backend) -> None:
    column = duetime(
        games.url, "tables", "put", "game_sessions", "--id", "id", "--due", "sheduled_at"
    )
    condition = duetime(games.url, *TRACK, "--when", "state = 'open'")
    name = duetime(games.url, "tables", "delete", "games", "--yes")

    assert (column.code, condition.code, name.code) == (1, 1, 1)
    assert "has no column 'sheduled_at'. Its columns are: id, status" in column.err
    assert "state" in condition.err
    assert "No tracked table is named 'games'." in name.err
    assert [answer.err.count("\n") for answer in (column, condition, name)] == [1, 1, 1]


@on_both
async def test_tables_are_not_taken_away_under_triggers(games: Backend) -> None:
    duetime(games.url, *TRACK)

    refused = duetime(games.url, "db", "downgrade", "--to", "0", "--yes")

    assert refused.code == 1
    assert "duetime tables delete" in refused.err
    run(games, "update game_sessions set status = 'over'")


@on_both
async def test_a_hierarchy_is_tracked_by_the_command_line_and_written_by_sql(
    games: Backend,
) -> None:
    url = games.url
    run(
        games,
        "create table guilds (id integer primary key, minutes text)",
        "create table channels (id integer primary key, guild_id integer, minutes text)",
    )
    scopes = ("--kind", "scopes", "--id", "id", "--remind", "minutes")
    guild = duetime(url, "tables", "put", "guilds", "--name", "guild", *scopes)
    channel = duetime(
        url, "tables", "put", "channels", "--name", "channel", *scopes,
        "--parent", "guild:{guild_id}",
    )  # fmt: skip
    refused = duetime(url, "tables", "put", "channels", "--name", "other", "--id", "id")
    duetime(url, *TRACK[:-2])
    run(
        games,
        "insert into guilds values (1, '60, 15')",
        "insert into channels values (9, 1, 'soon')",
    )
    again = duetime(url, "tables", "put", "channels", "--name", "channel", *scopes,
                    "--parent", "guild:{guild_id}")  # fmt: skip

    listed = duetime(url, "tables")
    explained = duetime(url, "scopes", "explain", "channel:9")
    left = duetime(url, "tables", "delete", "guild", "--yes")

    assert "guilds is now tracked as guild" in guild.out
    assert "channels is now tracked as channel" in channel.out
    assert refused.code != 0
    assert "--kind 'scopes'" in refused.err
    assert "channel:9: the rule 'soon' cannot be read" in again.out
    assert "guild:{guild_id}" in listed.out
    assert "column minutes" in listed.out
    assert "'channel:9' inherits the rules of 'guild:1': -1h, -15m" in explained.out
    assert "Part of the row of 'channel:9' cannot be used" in explained.out
    assert "guild is no longer tracked: 1 scope removed." in left.out
