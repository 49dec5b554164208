"""The same calendar in three tables of your own: guilds, channels, games. Only SQL writes them.

`python tables.py` tracks the tables, writes to them as any other program would, and shows at which
times the events of a game are due. `duetime worker --app tables:app` sends them.
"""

import asyncio
import os
import sqlite3
from datetime import UTC, datetime, timedelta

from duetime import Console, Duetime

FILE = os.environ.get("GAMES_FILE", "games.db")
app = Duetime(f"sqlite:///{FILE}", migrate=True)
app.add_channel(Console())

SCHEMA = """
create table if not exists guilds (id integer primary key, reminder_minutes text);
create table if not exists channels (
    id integer primary key, guild_id integer references guilds (id), reminder_minutes text);
create table if not exists games (
    id integer primary key, channel_id integer references channels (id), title text,
    starts_at text, reminder_minutes text);
"""


def write(*statements: str) -> None:
    """As psql, an ORM or another language does: Duetime is not asked."""
    connection = sqlite3.connect(FILE, timeout=30)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


async def track_tables() -> None:
    await app.store()
    connection = sqlite3.connect(FILE, timeout=30)
    connection.executescript(SCHEMA)
    connection.close()
    minutes = "reminder_minutes"
    await app.tables.put("guilds", kind="scopes", name="guild", id="id", remind=minutes)
    await app.tables.put(
        "channels",
        kind="scopes",
        name="channel",
        id="id",
        parent="guild:{guild_id}",
        remind=minutes,
    )
    await app.tables.put(
        "games", name="game", id="id", due="starts_at", scope="channel:{channel_id}",
        data=["title"], remind=minutes,
    )  # fmt: skip


async def show(what: str) -> None:
    _, source = await app.subjects.rules("game:42")
    armed = await app.reminders.list(subject="game:42", status="armed")
    minutes = ", ".join(f"{one.offset_minutes:g}" for one in armed)
    print(f"{what}: {minutes or 'none'} minutes before, by {source or 'nobody'}", flush=True)


async def main() -> None:
    await track_tables()
    starts = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    async with app.worker():  # On SQLite a worker computes what the triggers have marked.
        for what, *statements in (
            (
                "The guild says 60 and 15",
                "delete from games", "delete from channels", "delete from guilds",
                "insert into guilds values (1, '[60, 15]')",
                "insert into channels values (9, 1, null)",
                f"insert into games values (42, 9, 'Chess', '{starts}', null)",  # noqa: S608
            ),
            ("The guild says 120", "update guilds set reminder_minutes = '[120]'"),
            ("The channel says 30", "update channels set reminder_minutes = '30'"),
            ("The game says -1d and -5m", "update games set reminder_minutes = '-1d, -5m'"),
            ("The game says nothing", "update games set reminder_minutes = null"),
            ("The channel says nonsense", "update channels set reminder_minutes = 'soon'"),
        ):  # fmt: skip
            await asyncio.to_thread(write, *statements)
            await applied()
            await show(what)
        print((await app.tables.get("channel")).example)
    await app.close()


async def applied() -> None:
    """Wait until the worker has seen what was written."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(pending):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def pending() -> bool:
    connection = sqlite3.connect(FILE, timeout=30)
    [(count,)] = connection.execute(
        "select (select count(*) from duetime_tracked_change)"
        " + (select count(*) from duetime_subject where rearm_at is not null)"
    )
    connection.close()
    return bool(count)


if __name__ == "__main__":
    asyncio.run(main())
