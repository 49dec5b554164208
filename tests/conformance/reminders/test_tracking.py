"""Tracked tables on every backend: reminders follow rows, whoever writes them."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duetime import Duetime, Reason, Reminder
from duetime.errors import InvalidInput, TableNotFound
from duetime.reminders.rearm import rearm_stale
from duetime.storage.postgres.triggers import OWN_TABLES
from tests.conftest import Backend
from tests.waiting import until

DUE = datetime(2035, 6, 1, 18, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


class Table:
    """The user's own database, written with the user's own driver."""

    def __init__(self, backend: Backend) -> None:
        self.is_postgres = backend.is_postgres
        self._url = backend.url
        self.due = "timestamptz" if backend.is_postgres else "text"

    def connect(self) -> Any:
        if self.is_postgres:
            return psycopg.connect(self._url, options="-c search_path=public")
        return sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=30)

    def run(self, *statements: str) -> list[Any]:
        """In one transaction; the rows of the last."""
        with self.transaction() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with closing(self.connect()) as connection, connection:
            yield connection

    def ours(self, statement: str) -> list[Any]:
        """A statement on Duetime's tables, which are written as on PostgreSQL."""
        return self.run(
            statement if self.is_postgres else statement.replace("duetime.", "duetime_")
        )


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
    """A tracked table: a reminder an hour before the start of what is scheduled."""
    await app.store()
    table.run(
        "create table games (id integer primary key, starts_at " + table.due + ", "
        "status text not null default 'scheduled', channel_id integer, players text, note text)"
    )
    await app.scopes.put("channel:9", remind=["-1h"])
    await app.tables.put(
        "games",
        id="id",
        due="starts_at",
        scope="channel:{channel_id}",
        recipients="players",
        data=["note"],
        when="status = 'scheduled'",
    )
    return table


async def settle(app: Duetime) -> None:
    """What a worker does within milliseconds where triggers cannot compute times."""
    await rearm_stale(app)


async def reminders(app: Duetime, subject: str) -> list[tuple[float, str]]:
    """(hours from DUE, status) of a subject's reminders."""
    await settle(app)
    found = await app.reminders.list(subject=subject)
    return [((r.time - DUE) / HOUR, r.status.value) for r in found]


def at(moment: datetime) -> str:
    return f"'{moment.isoformat()}'"


def game(number: int, due: datetime | None = DUE, status: str = "scheduled") -> str:
    value = "null" if due is None else at(due)
    return (
        "insert into games (id, starts_at, status, channel_id, players, note)"
        f" values ({number}, {value}, '{status}', 9, 'ann', 'x')"
    )


async def test_an_inserted_row_is_a_subject_with_its_reminders(app: Duetime, games: Table) -> None:
    games.run(game(1))

    assert await reminders(app, "games:1") == [(-1.0, "armed")]
    subject = await app.subjects.get("games:1")
    assert (subject.scope, subject.due_at, subject.status) == ("channel:9", DUE, "open")
    assert (subject.recipients, subject.data) == (("ann",), {"note": "x"})


async def test_rows_that_were_there_are_back_filled_once(app: Duetime, table: Table) -> None:
    await app.store()
    table.run(f"create table tasks (id integer primary key, due_at {table.due})")
    with table.transaction() as connection:
        for number in range(2503):
            connection.execute(f"insert into tasks values ({number}, {at(DUE)})")
    seen: list[tuple[int, int]] = []

    put = await app.tables.put(
        "tasks", id="id", due="due_at", remind=["-1d"],
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    again = await app.tables.put("tasks", id="id", due="due_at", remind=["-1d"])
    await rearm_stale(app)

    assert (put, put.affected) == ("added", 2503)
    assert (again, again.affected) == ("same", 2503)
    assert seen == [(2000, 2503), (2503, 2503)]
    assert table.ours("select count(*), max(revision) from duetime.subject") == [(2503, 1)]
    assert table.ours("select count(*) from duetime.reminder") == [(2503,)]


async def test_a_moved_row_moves_its_reminders(app: Duetime, games: Table) -> None:
    games.run(game(1))
    await settle(app)
    games.run(f"update games set starts_at = {at(DUE + DAY)} where id = 1")

    assert await reminders(app, "games:1") == [(-1.0, "superseded"), (23.0, "armed")]
    [old, _] = await app.reminders.list(subject="games:1")
    assert str(old.reason) == "the subject moved to 2035-06-02T18:00:00Z"


async def test_an_unrelated_update_changes_nothing(app: Duetime, games: Table) -> None:
    games.run(game(1))
    await settle(app)
    before = games.ours("select id, revision, updated_at from duetime.subject")
    jobs = games.ours("select count(*) from duetime.job")
    games.run("update games set channel_id = channel_id, starts_at = starts_at")
    await settle(app)

    assert games.ours("select id, revision, updated_at from duetime.subject") == before
    assert games.ours("select count(*) from duetime.job") == jobs


async def test_a_change_of_data_is_stored_and_arms_nothing_anew(app: Duetime, games: Table) -> None:
    games.run(game(1))
    await settle(app)
    games.run("update games set note = 'y'")

    assert await reminders(app, "games:1") == [(-1.0, "armed")]
    subject = await app.subjects.get("games:1")
    assert (subject.data, subject.revision) == ({"note": "y"}, 1)


async def test_a_change_of_a_large_scope_reaches_a_row_that_changes_meanwhile(
    app: Duetime, games: Table
) -> None:
    with games.transaction() as connection:
        for number in range(1, 602):
            connection.execute(game(number))
    await settle(app)

    await app.scopes.put("channel:9", remind=["-15m"])
    games.run("update games set note = 'y' where id = 1")

    assert (-0.25, "armed") in await reminders(app, "games:1")
    found = await app.reminders.list(status="armed", limit=1000)
    assert {reminder.rule.text for reminder in found} == {"-15m"}


async def test_what_came_due_before_a_row_is_written_again_is_late_and_not_past(
    app: Duetime, games: Table
) -> None:
    """No worker runs meanwhile."""
    due = await app.now() + HOUR + timedelta(seconds=0.5)
    games.run(*(game(number, due) for number in range(1, 5)))

    async def is_due() -> bool:
        return await app.now() > due - HOUR

    await until(is_due)
    moved = due - timedelta(minutes=1)
    games.run(
        "update games set note = 'y' where id = 1",
        f"update games set starts_at = {at(moved)} where id = 2",
        "update games set status = 'off' where id = 3",
        "update games set status = 'scheduled' where id = 3",
        "delete from games where id = 4",
        game(4, due),
    )
    await settle(app)

    found = {
        number: [
            (r.status.value, r.run_at) for r in await app.reminders.list(subject=f"games:{number}")
        ]
        for number in range(1, 5)
    }
    assert found[1] == [("armed", due - HOUR)]
    # What was written when it was past is past.
    for number in (2, 3, 4):
        assert "armed" not in dict(found[number])


async def test_a_row_that_stops_matching_is_completed_and_opens_again(
    app: Duetime, games: Table
) -> None:
    games.run(game(1), game(2, status="cancelled"))
    await settle(app)
    games.run("update games set status = 'cancelled' where id = 1")
    closed = await reminders(app, "games:1")
    status = (await app.subjects.get("games:1")).status
    games.run("update games set status = 'scheduled'")

    assert (closed, status) == ([(-1.0, "cancelled")], "done")
    assert await reminders(app, "games:1") == [(-1.0, "cancelled"), (-1.0, "armed")]
    assert await reminders(app, "games:2") == [(-1.0, "armed")]


async def test_a_deleted_row_leaves_nothing_that_waits(app: Duetime, games: Table) -> None:
    games.run(game(1), game(2))
    await settle(app)
    games.run("delete from games where id = 1")
    await settle(app)

    assert games.ours("select ref from duetime.subject") == [("games:2",)]
    assert games.ours(
        "select count(*) from duetime.due as d join duetime.job as j on j.id = d.job_id"
        " where j.task = 'duetime' || '.remind'"
    ) == [(1,)]
    [event, *_] = await app.audit.list(entity="subject:games:1")
    assert (event.action, event.actor.split(":")[0]) == ("subject.delete", "trigger")


async def test_upserts_bulk_updates_and_changed_keys(app: Duetime, games: Table) -> None:
    games.run(game(1), game(2))
    moved = DUE + DAY
    games.run(
        f"{game(1, moved)} on conflict (id) do update set starts_at = excluded.starts_at",
        f"{game(3, moved)} on conflict (id) do update set starts_at = excluded.starts_at",
        "update games set id = id + 100 where id = 2",
    )
    await settle(app)

    assert games.ours("select ref from duetime.subject order by ref") == [
        ("games:1",), ("games:102",), ("games:3",),
    ]  # fmt: skip
    assert (await reminders(app, "games:1"))[-1] == (23.0, "armed")
    assert await reminders(app, "games:3") == [(23.0, "armed")]
    games.run(f"update games set starts_at = {at(DUE + 2 * DAY)}")
    await settle(app)
    found = await app.reminders.list(status="armed")
    assert sorted((r.subject, (r.time - DUE) / HOUR) for r in found) == [
        ("games:1", 47.0), ("games:102", 47.0), ("games:3", 47.0),
    ]  # fmt: skip


async def test_what_is_rolled_back_never_was(app: Duetime, games: Table) -> None:
    games.run(game(1))
    await settle(app)
    jobs = games.ours("select count(*) from duetime.job")
    with closing(games.connect()) as connection:
        connection.execute(game(2))
        connection.execute(f"update games set starts_at = {at(DUE + DAY)}")
        connection.execute("delete from games where id = 1")
        connection.rollback()

    assert await reminders(app, "games:1") == [(-1.0, "armed")]
    assert games.ours("select ref from duetime.subject") == [("games:1",)]
    assert games.ours("select count(*) from duetime.job") == jobs


async def test_a_savepoint_takes_back_its_part_alone(app: Duetime, games: Table) -> None:
    with games.transaction() as connection:
        connection.execute(game(1))
        connection.execute("savepoint one")
        connection.execute(game(2))
        connection.execute(f"update games set starts_at = {at(DUE + DAY)} where id = 1")
        connection.execute("rollback to savepoint one")

    assert await reminders(app, "games:1") == [(-1.0, "armed")]
    assert games.ours("select ref from duetime.subject") == [("games:1",)]


async def test_a_row_without_a_due_time_has_no_reminders(app: Duetime, games: Table) -> None:
    games.run(game(1, None), game(2))
    empty = await reminders(app, "games:1")
    games.run(
        f"update games set starts_at = {at(DUE)} where id = 1",
        "update games set starts_at = null where id = 2",
    )

    assert empty == []
    assert await reminders(app, "games:1") == [(-1.0, "armed")]
    assert await reminders(app, "games:2") == [(-1.0, "superseded")]
    [gone] = await app.reminders.list(subject="games:2")
    assert gone.reason == Reason("subject_without_due")


async def test_times_without_a_zone_are_read_in_the_zone_given(app: Duetime, table: Table) -> None:
    await app.store()
    kind = "timestamp" if table.is_postgres else "text"
    table.run(
        f"create table calls (id integer primary key, at {kind}, zone text)",
        # In the gap, shown twice, plain, and in a zone that is not there.
        "insert into calls values (1, '2035-03-25 02:30:00', 'Europe/Berlin'),"
        " (2, '2035-10-28 02:30:00', 'Europe/Berlin'), (3, '2035-06-01 12:00:00', null),"
        " (4, '2035-06-01 12:00:00', 'Europe/Berlim')",
    )
    await app.tables.put("calls", id="id", due="at", tz="zone", remind=["0s"])
    await app.tables.put(
        "calls", id="id", due="at", due_tz="Asia/Tokyo", remind=["0s"], name="tokyo"
    )

    found = {
        subject: (await app.subjects.get(subject)).due_at
        for subject in ("calls:1", "calls:2", "calls:3", "calls:4", "tokyo:3")
    }

    assert found == {
        "calls:1": datetime(2035, 3, 25, 1, tzinfo=UTC),
        "calls:2": datetime(2035, 10, 28, 0, 30, tzinfo=UTC),
        "calls:3": datetime(2035, 6, 1, 12, tzinfo=UTC),
        "calls:4": datetime(2035, 6, 1, 12, tzinfo=UTC),
        "tokyo:3": datetime(2035, 6, 1, 3, tzinfo=UTC),
    }
    [calls, _] = await app.tables.list()
    assert (calls.subjects, calls.problems, calls.broken) == (4, 1, None)
    unknown = Reason.of("zone_unknown", tz="Europe/Berlim", used="UTC")
    assert calls.example == Reason.of(
        "row_of_subject", subject="calls:4", why=Reason.of("row_unusable", problems=[unknown])
    )
    assert str(calls.example) == "calls:4: there is no time zone 'Europe/Berlim': UTC is used"


async def test_what_cannot_be_read_does_not_fail_the_write(app: Duetime, games: Table) -> None:
    impossible = "'infinity'" if games.is_postgres else "'tomorrow'"
    games.run(game(1))
    games.run(f"update games set starts_at = {impossible}, channel_id = 77")
    await settle(app)

    subject = await app.subjects.get("games:1")
    assert (subject.due_at, subject.scope) == (None, "channel:77")
    [info] = await app.tables.list()
    assert info.problems == 1
    # The scope was made: it says nothing itself, and can be put later.
    assert {scope.ref: scope.rules for scope in await app.scopes.list()}["channel:77"] is None
    games.run(f"update games set starts_at = {at(DUE)}")
    await settle(app)
    assert (await app.scopes.put("channel:77", remind=["-1d"])).affected == 1
    assert (await reminders(app, "games:1"))[-1] == (-24.0, "armed") or (-24.0, "armed") in (
        await reminders(app, "games:1")
    )
    [info] = await app.tables.list()
    assert info.problems == 0


async def test_composite_and_uuid_keys(app: Duetime, table: Table) -> None:
    await app.store()
    uuid = "uuid" if table.is_postgres else "text"
    table.run(
        f"create table seats (room text, seat text, until {table.due}, primary key (room, seat))",
        f"create table bookings (id {uuid} primary key, until {table.due})",
        f"insert into seats values ('a:b', 'c', {at(DUE)}), ('a', 'b:c', {at(DUE)})",
        f"insert into bookings values ('3f1c1d2e-0000-4000-8000-000000000001', {at(DUE)})",
    )
    await app.tables.put("seats", id=["room", "seat"], due="until", remind=["-1h"])
    await app.tables.put("bookings", id="id", due="until", remind=["-1h"])
    table.run("delete from seats where seat = 'c'")
    await settle(app)

    assert table.ours("select ref from duetime.subject order by ref") == [
        ("bookings:3f1c1d2e-0000-4000-8000-000000000001",),
        ("seats:a:b%3Ac",),
    ]


async def test_two_tracks_of_one_table(app: Duetime, games: Table) -> None:
    await app.tables.put("games", id="id", due="starts_at", remind=["-2h"], name="staff")
    games.run(game(1, status="cancelled"))
    await settle(app)
    assert games.ours("select ref from duetime.subject") == [("staff:1",)]
    assert await app.tables.delete("staff") == 1
    games.run(game(2))
    await settle(app)

    assert games.ours("select ref from duetime.subject") == [("games:2",)]


async def test_untrack_leaves_no_trace(app: Duetime, games: Table) -> None:
    games.run(game(1), game(2))
    await settle(app)

    assert await app.tables.delete("games") == 2

    games.run(game(3), "update games set note = 'z'", "delete from games where id = 1")
    await settle(app)
    for name in ("subject", "reminder", "tracked"):
        assert games.ours(f"select count(*) from duetime.{name}") == [(0,)], name
    assert await app.tables.list() == []
    if games.is_postgres:
        left = "select count(*) from pg_trigger where tgname like 'duetime%'"
        assert games.run(left) == [(0,)]
        left = "select count(*) from pg_proc where proname like 'duetime_track%'"
        assert games.run(left) == [(0,)]
    else:
        left = "select count(*) from sqlite_schema where name like 'duetime_track_%game%'"
        assert games.run(left) == [(0,)]
    with pytest.raises(TableNotFound, match="No tracked table is named 'games'"):
        await app.tables.delete("games")


async def test_reminders_of_rows_are_sent_when_due(app: Duetime, games: Table) -> None:
    sent: list[str] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> None:
        sent.append(reminder.subject)

    async with app.worker():
        soon = datetime.now(UTC) + HOUR + timedelta(seconds=1)
        games.run(game(1, soon), game(2, soon), game(3, soon))
        games.run("update games set status = 'cancelled' where id = 2")
        games.run(f"update games set starts_at = {at(DUE)} where id = 3")

        async def arrived() -> bool:
            return bool(sent)

        await until(arrived)

    assert sent == ["games:1"]


async def test_a_stale_reminder_waits_until_its_subject_was_armed_again(
    app: Duetime, games: Table
) -> None:
    """Nothing is sent for what changed, even if the change is computed later than it is due."""
    sent: list[tuple[str, datetime]] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> None:
        sent.append((reminder.subject, reminder.due_at))

    soon = datetime.now(UTC) + HOUR + timedelta(seconds=4)
    games.run(game(1, soon))
    await settle(app)
    games.run(f"update games set starts_at = {at(DUE)}")
    games.run(game(2, soon))
    async with app.worker():

        async def arrived() -> bool:
            return bool(sent)

        await until(arrived)

    assert sent == [("games:2", soon)]


async def test_concurrent_writers_and_a_back_fill_end_in_the_truth(
    app: Duetime, table: Table
) -> None:
    await app.store()
    table.run(f"create table jobs (id integer primary key, due_at {table.due}, note text)")
    with table.transaction() as connection:
        for number in range(1500):
            connection.execute(f"insert into jobs values ({number}, {at(DUE)}, '')")
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(first: int) -> None:
        hours = 0
        try:
            with closing(table.connect()) as connection:
                while not stop.is_set():
                    hours += 1
                    due = at(DUE + hours * HOUR)
                    for number in (first, first + 700, 1499 - first):
                        connection.execute(f"update jobs set due_at = {due} where id = {number}")
                        connection.commit()
                    connection.execute(f"delete from jobs where id = {first + 100}")
                    connection.execute(f"insert into jobs values ({first + 100}, {due}, 'again')")
                    connection.commit()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    writers = [threading.Thread(target=write, args=(first,)) for first in (1, 2, 3)]
    for writer in writers:
        writer.start()
    try:
        await app.tables.put("jobs", id="id", due="due_at", remind=["-1h"])
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    await settle(app)

    assert errors == []
    rows = {f"jobs:{row[0]}": _moment(row[1]) for row in table.run("select id, due_at from jobs")}
    found = table.ours(
        "select s.ref, s.due_at, r.due_at, r.status from duetime.subject as s"
        " join duetime.reminder as r on r.subject_id = s.id and r.status = 'armed'"
    )
    assert {row[0]: _moment(row[1]) for row in found} == rows
    assert len(found) == len(rows)
    assert all(row[1] == row[2] for row in found)


def _moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, int):
        return datetime.fromtimestamp(value / 1_000_000, UTC)
    return datetime.fromisoformat(value).astimezone(UTC)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"due": "start"}, "has no column 'start'. Its columns are: id, starts_at"),
        ({"id": "status"}, "no unique key on status"),
        ({"when": "state = 'open'"}, "with the condition"),
        ({"when": "true); drop table games; --"}, "a single SQL condition"),
        ({"when": "status = 'open"}, "an unclosed quote"),
        ({"when": "count(*) > 1"}, "with the condition"),
        ({"when": "not dne"}, "dne"),
        ({"scope": "channel:{}"}, "scope must be a column, or a pattern"),
        ({"scope": "{guild_id}"}, "has no column 'guild_id'"),
        ({"tz": "Europe/Berlim"}, "tz must be a column or a time zone"),
        ({"remind": ["sometime"]}, "sometime"),
        ({"id": []}, "id must name the column"),
    ],
)
async def test_what_cannot_be_tracked_is_told_and_changes_nothing(
    app: Duetime, table: Table, options: dict[str, Any], told: str
) -> None:
    await app.store()
    table.run(f"create table games (id integer primary key, starts_at {table.due}, status text)")
    given: dict[str, Any] = {"id": "id", "due": "starts_at"} | options

    with pytest.raises(InvalidInput, match=_escaped(told)) as refused:
        await app.tables.put("games", **given)

    assert "db upgrade" not in str(refused.value)

    assert await app.tables.list() == []
    for name in ("gmaes", "a.b.c", "a.b.c.d.e", "x y", "a..b", '"unterminated'):
        with pytest.raises(InvalidInput, match=f"There is no table .*{_escaped(name[-2:])}"):
            await app.tables.put(name, id="id", due="starts_at")


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "()*{}.|+?[]" else c for c in text)


async def test_a_track_keeps_its_table_and_key(app: Duetime, games: Table) -> None:
    games.run(f"create table others (id integer primary key, starts_at {games.due})")

    with pytest.raises(InvalidInput, match=r"'games' already tracks .*games.* by id"):
        await app.tables.put("others", id="id", due="starts_at", name="games")

    # The condition and the rest may change.
    games.run(game(1, status="cancelled"))
    await app.tables.put("games", id="id", due="starts_at", remind=["-2h"])
    assert await reminders(app, "games:1") == [(-2.0, "armed")]


async def test_the_plan_is_what_would_be_run(app: Duetime, table: Table) -> None:
    await app.store()
    table.run(f'create table "my games" (id integer primary key, "starts at" {table.due})')

    plan = await app.tables.plan('"my games"' if table.is_postgres else "my games",
                                id="id", due="starts at", remind=["-1h"])  # fmt: skip

    assert await app.tables.list() == []
    assert any("create trigger" in statement for statement in plan)
    assert all('"my games"' in s for s in plan if s.startswith("create trigger"))


async def test_a_dropped_table_is_shown_as_broken_and_can_be_untracked(
    app: Duetime, games: Table
) -> None:
    games.run(game(1))
    await settle(app)
    games.run("drop table games")

    [info] = await app.tables.list()

    assert info.broken is not None
    assert info.broken.code == "triggers_gone"
    assert await app.tables.delete("games") == 1


async def test_a_renamed_table_is_followed_on(app: Duetime, games: Table) -> None:
    games.run("alter table games rename to matches")
    games.run(game(1).replace("games", "matches"))

    assert await reminders(app, "games:1") == [(-1.0, "armed")]
    assert [info.broken for info in await app.tables.list()] == [None]


# PostgreSQL alone

on_postgres = pytest.mark.parametrize("backend", ["postgres15", "postgres18"], indirect=True)
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)


@on_postgres
async def test_copy_merge_and_truncate(app: Duetime, games: Table) -> None:
    with games.transaction() as connection:
        with connection.cursor().copy("copy games (id, starts_at, channel_id) from stdin") as copy:
            for number in range(300):
                copy.write_row((number, DUE, 9))
    assert len(await app.reminders.list(status="armed", limit=1000)) == 300
    games.run(
        f"merge into games as g using (values (1), (999)) as n(id) on g.id = n.id"
        f" when matched then update set starts_at = {at(DUE + DAY)}"
        f" when not matched then insert (id, starts_at, channel_id) values (n.id, {at(DUE)}, 9)"
    )
    assert (await reminders(app, "games:1"))[-1] == (23.0, "armed")
    assert await reminders(app, "games:999") == [(-1.0, "armed")]
    games.run("truncate games")

    assert games.ours("select count(*) from duetime.subject") == [(0,)]
    assert games.ours("select count(*) from duetime.due") == [(0,)]


@on_postgres
async def test_a_partition_is_not_tracked_but_the_whole_table(app: Duetime, table: Table) -> None:
    """Statements on the whole table do not call the triggers of a partition."""
    await app.store()
    table.run(
        "create table visits (id bigint primary key, due timestamptz) partition by range (id)",
        "create table visits_1 partition of visits for values from (1) to (100)",
        "create table visits_2 partition of visits for values from (100) to (200)",
    )
    with pytest.raises(InvalidInput, match=r"is a partition of public\.visits"):
        await app.tables.put("visits_1", id="id", due="due", remind=["-1h"])
    await app.tables.put("visits", id="id", due="due", remind=["-1h"])
    table.run(f"insert into visits values (1, {at(DUE)})")
    table.run("update visits set id = 150")

    assert await reminders(app, "visits:150") == [(-1.0, "armed")]
    assert [one.track.name for one in await app.tables.list()] == ["visits"]


@on_postgres
async def test_our_own_tables_are_not_tracked(app: Duetime, table: Table) -> None:
    await app.store()
    found = table.ours(
        "select relname from pg_class where relnamespace = 'duetime'::regnamespace"
        " and relkind in ('r', 'p')"
    )

    assert {name for (name,) in found} == OWN_TABLES
    for name in ("duetime.job", "duetime.subject"):
        with pytest.raises(InvalidInput, match=f"{name} is one of Duetime's own tables"):
            await app.tables.put(name, id="id", due="created_at")


@on_postgres
async def test_lists_of_recipients(app: Duetime, table: Table) -> None:
    await app.store()
    table.run(
        "create table tasks (id int primary key, due_at date, who text[], also jsonb)",
        "insert into tasks values (1, '2035-06-01', array['ann', 'bob', 'ann', null],"
        " '[\"eve\", 7]'), (2, '2035-06-01', null, null)",
    )
    await app.tables.put("tasks", id="id", due="due_at", recipients="who", remind=["-1h"])
    await app.tables.put(
        "tasks", id="id", due="due_at", recipients="also", remind=["-1h"], name="also"
    )

    found = {
        ref: (await app.subjects.get(ref)).recipients
        for ref in ("tasks:1", "tasks:2", "also:1", "also:2")
    }
    assert found == {"tasks:1": ("ann", "bob"), "tasks:2": (), "also:1": ("eve", "7"), "also:2": ()}


@pytest.mark.parametrize("kind", ["json", "jsonb"])
@pytest.mark.parametrize(
    ("value", "recipients"),
    [
        ('["ann", 7, null, "ann"]', ("ann", "7")),
        ("[]", ()),
        ('"ann"', ("ann",)),
        ("7", ("7",)),
        ('{"id": 7}', None),
        ('["ann", {"id": 7}]', None),
        ('[["ann"]]', None),
        ("[true]", None),
    ],
)
async def test_recipients_in_json_are_names_or_a_problem_of_the_row(
    app: Duetime, table: Table, kind: str, value: str, recipients: tuple[str, ...] | None
) -> None:
    await app.store()
    table.run(f"create table tasks (id int primary key, due_at {table.due}, who {kind})")
    await app.tables.put("tasks", id="id", due="due_at", recipients="who", remind=["-1h"])
    table.run(f"insert into tasks values (1, {at(DUE)}, '{value}')")
    await settle(app)
    subject = await app.subjects.get("tasks:1")
    found = [one.recipient for one in await app.reminders.list(subject="tasks:1")]
    table.run("update tasks set who = '[\"bob\"]'")
    await settle(app)
    mended = await app.subjects.get("tasks:1")

    assert subject.recipients == (recipients or ())
    assert (mended.recipients, mended.problem) == (("bob",), None)
    if recipients is None:
        assert found == [], "the handler would choose who is reminded"
        assert str(subject.problem) == (
            "its recipients are neither a name nor a list of names: nobody is reminded"
        )
    else:
        assert subject.problem is None
        assert sorted(found) == sorted(recipients or ("",))


@on_postgres
@pytest.mark.parametrize(("value", "is_problem"), [("true", True), ("null", False)])
async def test_recipients_that_are_a_boolean_or_null_in_json(
    app: Duetime, table: Table, value: str, is_problem: bool
) -> None:
    await app.store()
    table.run(
        "create table tasks (id int primary key, due_at date, who jsonb)",
        f"insert into tasks values (1, '2035-06-01', '{value}')",
    )
    await app.tables.put("tasks", id="id", due="due_at", recipients="who", remind=["-1h"])
    subject = await app.subjects.get("tasks:1")

    assert subject.recipients == ()
    assert (subject.problem is not None) == is_problem


@on_postgres
@pytest.mark.parametrize(("name", "kept"), [("", False), ("x" * 200, True), ("x" * 201, False)])
@pytest.mark.parametrize("form", ["{}", "[{}]"])
async def test_names_in_json_that_are_empty_or_too_long_are_left_out(
    app: Duetime, table: Table, form: str, name: str, kept: bool
) -> None:
    await app.store()
    value = form.format(f'"{name}"')
    table.run(
        "create table tasks (id int primary key, due_at date, who jsonb)",
        f"insert into tasks values (1, '2035-06-01', '{value}')",
    )
    await app.tables.put("tasks", id="id", due="due_at", recipients="who", remind=["-1h"])

    assert (await app.subjects.get("tasks:1")).recipients == ((name,) if kept else ())


@on_postgres
async def test_a_role_with_few_rights_tracks_its_own_table(
    app: Duetime, backend: Backend, table: Table
) -> None:
    await app.store()
    owner, writer = "few_owner", "few_writer"
    table.run(
        f"drop role if exists {owner}",
        f"drop role if exists {writer}",
        f"create role {owner} login",
        f"create role {writer} login",
        f"create schema shop authorization {owner}",
        f"grant usage on schema shop to {writer}",
        *_manual_grants(owner),
    )
    theirs = Duetime(_as(backend.url, owner))
    try:
        with psycopg.connect(_as(backend.url, owner)) as connection:
            connection.execute("create table shop.orders (id int primary key, pay_by timestamptz)")
            connection.execute(f"grant all on shop.orders to {writer}")
            connection.execute(f"insert into shop.orders values (1, {at(DUE)})")
        await theirs.tables.put("shop.orders", id="id", due="pay_by", remind=["-1h"])
        with psycopg.connect(_as(backend.url, writer)) as connection:
            # A function of the writer's own does not come before ours.
            connection.execute("create temp table subject (id int)")
            connection.execute(f"insert into shop.orders values (2, {at(DUE)})")
            connection.execute(f"update shop.orders set pay_by = {at(DUE + DAY)} where id = 1")
        for role, statement in (
            (writer, "select duetime.track_clear('orders')"),
            (writer, "select duetime.track_forget('orders', 'me')"),
            (owner, "select * from duetime.subject"),
            (owner, "insert into duetime.due select"),
        ):  # fmt: skip
            with psycopg.connect(_as(backend.url, role)) as connection:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)

        assert (await reminders(app, "orders:1"))[-1] == (23.0, "armed")
        assert await reminders(app, "orders:2") == [(-1.0, "armed")]
        [event, *_] = await app.audit.list(entity="subject:orders:2")
        assert event.actor == f"trigger: {writer}"
        assert await theirs.tables.delete("orders") == 2
    finally:
        await theirs.close()
        table.run(f"drop owned by {owner}, {writer}", f"drop role {owner}", f"drop role {writer}")


def _manual_grants(role: str) -> list[str]:
    """The statements of the manual, for this role."""
    manual = Path(__file__).parents[3] / "docs" / "guide" / "tracked-tables.md"
    [text] = re.findall(r"```sql\n(grant.*?)```", manual.read_text(), re.DOTALL)
    return [part for part in text.replace("to shop", f"to {role}").split(";") if part.strip()]


def _as(url: str, role: str) -> str:
    return url.replace("//duetime@", f"//{role}@")


@on_postgres
async def test_only_the_owner_can_track(app: Duetime, backend: Backend, table: Table) -> None:
    await app.store()
    table.run(
        "drop role if exists few_other",
        "create role few_other login",
        "create table public.games (id int primary key, starts_at timestamptz)",
        "grant usage on schema duetime to few_other",
        "grant select on all tables in schema duetime to few_other",
        "grant all on public.games to few_other",
    )
    theirs = Duetime(_as(backend.url, "few_other"))
    try:
        with pytest.raises(InvalidInput, match="belongs to another role"):
            await theirs.tables.put("public.games", id="id", due="starts_at")
    finally:
        await theirs.close()
        table.run("drop owned by few_other", "drop role few_other")


@on_postgres
async def test_a_gone_column_is_told(app: Duetime, games: Table) -> None:
    games.run("alter table games rename column starts_at to begins_at")

    [info] = await app.tables.list()
    assert info.broken == Reason.of("column_gone", column="starts_at")
    await app.tables.put("games", id="id", due="begins_at", remind=["-1h"])
    games.run("insert into games (id, begins_at) values (1, " + at(DUE) + ")")
    assert await reminders(app, "games:1") == [(-1.0, "armed")]


@on_postgres
async def test_a_change_of_rules_and_a_move_of_rows_take_turns(app: Duetime, games: Table) -> None:
    """Whichever commits first, in the end every row has the reminders of the rules that hold."""
    games.run(*(game(number) for number in range(40)))
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(first: int) -> None:
        hours = 0
        try:
            with closing(games.connect()) as connection:
                while not stop.is_set():
                    hours += 1
                    connection.execute(
                        f"update games set starts_at = {at(DUE + hours * HOUR)},"
                        f" channel_id = {9 + hours % 2} where id %% 2 = {first}".replace("%%", "%")
                    )
                    connection.commit()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    for writer in writers:
        writer.start()
    try:
        for number in range(1, 9):
            await app.scopes.put("channel:9", remind=[f"-{number}h"])
            await app.scopes.put("channel:10", remind=[f"-{number}h", "-1d"])
    finally:
        stop.set()
        for writer in writers:
            writer.join()

    assert errors == []
    found = games.ours(
        "select s.scope, s.due_at - r.time, count(*) from duetime.subject as s"
        " join duetime.reminder as r on r.subject_id = s.id and r.status = 'armed'"
        " and r.due_at = s.due_at group by 1, 2"
    )
    wanted = {("channel:9", 8 * HOUR), ("channel:10", 8 * HOUR), ("channel:10", DAY)}
    assert {(row[0], row[1]) for row in found} <= wanted
    assert sum(row[2] for row in found if row[1] == 8 * HOUR) == 40
    assert games.ours(
        "select count(*) from duetime.due as d left join duetime.reminder as r"
        " on r.job_id = d.job_id and r.status = 'armed' where r.id is null"
    ) == [(0,)]


# SQLite alone


@on_sqlite
async def test_numbers_are_seconds_or_milliseconds(app: Duetime, table: Table) -> None:
    await app.store()
    seconds = int(DUE.timestamp())
    table.run(
        "create table tasks (id integer primary key, due)",
        f"insert into tasks values (1, {seconds}), (2, {seconds}.5), (3, {seconds}000),"
        f" (4, '{seconds}'), (5, x'00')",
    )
    await app.tables.put("tasks", id="id", due="due", remind=["-1h"])

    found = [(await app.subjects.get(f"tasks:{number}")).due_at for number in range(1, 6)]

    assert found == [DUE, DUE + timedelta(seconds=0.5), DUE, DUE, None]
    assert [info.problems for info in await app.tables.list()] == [1]


@on_sqlite
async def test_conflict_clauses_of_the_write_do_not_reach_our_tables(
    app: Duetime, games: Table
) -> None:
    games.run(game(1))
    for clause in ("replace", "ignore", "abort", "fail", "rollback"):
        moved = game(1, DUE + DAY).replace("insert", f"insert or {clause}", 1)
        try:
            games.run(moved, f"update or {clause} games set note = '{clause}'")
        except sqlite3.IntegrityError:
            games.run(f"update or {clause} games set note = '{clause}'")
        await settle(app)

        assert (await app.subjects.get("games:1")).data == {"note": clause}


@on_sqlite
async def test_one_job_is_asked_for_however_many_rows_change(app: Duetime, games: Table) -> None:
    games.run(*(game(number) for number in range(50)))
    games.run("update games set note = 'y'")

    assert games.ours("select count(*) from duetime.job where task = 'duetime' || '.rearm'") == [
        (1,)
    ]


async def test_an_infinite_number_is_text_in_a_subject_s_data(app: Duetime, table: Table) -> None:
    await app.store()
    table.run(f"create table prices (id integer primary key, due {table.due}, price float)")
    await app.tables.put("prices", id="id", due="due", data=["price"], remind=["-1h"])
    infinity = "'Infinity'::float" if table.is_postgres else "9e999"
    table.run(
        f"insert into prices values (1, {at(DUE)}, {infinity}), (2, {at(DUE)}, -{infinity}), "
        f"(3, {at(DUE)}, 1.5)"
    )
    await settle(app)

    found = [(await app.subjects.get(f"prices:{number}")).data["price"] for number in (1, 2, 3)]
    assert found == ["Infinity", "-Infinity", 1.5]


async def test_apostrophes_in_every_text_that_reaches_a_trigger(app: Duetime, table: Table) -> None:
    """Names of the track, its table, columns and scope; and what rows, rules and people say."""
    await app.store()
    games = '"Ann\'s games"'
    on, off = "'it''s on'", "'it''s off'"
    row = f"{at(DUE)}, 'd''Arcy', {{}}, 'x''y'"
    table.run(
        f'create table {games} ("id\'s" text primary key, "it\'s due" {table.due}, "who\'s" text,'
        ' "what\'s up" text, "where\'s" text)',
        f"insert into {games} values ('O''Hara', {row.format(on)})",
    )
    await app.scopes.put("guild's:x'y", remind={"rule": "-1h", "template": "it's"})

    put = await app.tables.put(
        games if table.is_postgres else games.strip('"'),
        id="id's",
        due="it's due",
        recipients="who's",
        data=["what's up"],
        scope="guild's:{where's}",
        when=f'"what\'s up" <> {off}',
        name="ann's own",
        by="O'Brien",
    )
    await settle(app)
    first = await app.subjects.get("ann's own:O'Hara")
    [armed] = await app.reminders.list(subject=first.ref)
    table.run(
        f"insert into {games} values ('b''', {row.format(on)}), ('c''''', {row.format(off)})",
        f"update {games} set \"who's\" = 'l''autre' where \"id's\" = 'O''Hara'",
    )
    await settle(app)
    opened = {one.ref for one in await app.subjects.list(status="open")}
    [moved] = [r for r in await app.reminders.list(subject=first.ref) if r.status == "armed"]
    table.run(f"delete from {games} where \"id's\" = 'b'''")
    await settle(app)
    left = {one.ref for one in await app.subjects.list(status="open")}
    [shown] = await app.tables.list()
    removed = await app.tables.delete("ann's own", by="O'Brien")

    assert put.affected == 1
    assert (first.recipients, first.scope) == (("d'Arcy",), "guild's:x'y")
    assert first.data == {"what's up": "it's on"}
    assert (armed.recipient, armed.rule.template) == ("d'Arcy", "it's")
    assert opened == {first.ref, "ann's own:b'"}
    assert moved.recipient == "l'autre"
    assert left == {first.ref}
    assert (shown.track.name, shown.problems, shown.broken) == ("ann's own", 0, None)
    assert removed >= 1


async def test_apostrophes_where_a_back_fill_goes_on(app: Duetime, table: Table) -> None:
    """Each batch begins after the last key of the one before."""
    await app.store()
    table.run(f"create table many (id text primary key, at {table.due})")
    with table.transaction() as connection:
        mark = "%s" if table.is_postgres else "?"
        rows = [(f"o'{n:04}", DUE.isoformat()) for n in range(1001)]
        connection.cursor().executemany(f"insert into many values ({mark}, {mark})", rows)

    put = await app.tables.put("many", id="id", due="at", remind=["0s"])

    assert put.affected == 1001
    await settle(app)
    assert (await app.subjects.get("many:o'1000")).due_at == DUE


# Others in the same database


@on_postgres
async def test_an_operator_planted_in_the_tables_schema_does_not_run_as_the_owner(
    app: Duetime, backend: Backend, table: Table
) -> None:
    await app.store()
    table.run(
        "create role few_owner login",
        "create role few_thief login",
        "create schema shop authorization few_owner",
        "grant usage, create on schema shop to few_thief",
        *_manual_grants("few_owner"),
    )
    theirs = Duetime(_as(backend.url, "few_owner"))
    plant = """
        create table shop.seen (who text);
        grant insert on shop.seen to public;
        create function shop.note(text) returns text language sql as
            'insert into shop.seen values (current_user); select $1';
        create function shop.to_jsonb(text[]) returns jsonb language sql as
            'select shop.note(null); select pg_catalog.to_jsonb($1)';
        create function shop.is(varchar, varchar) returns boolean language sql as
            'select shop.note(null); select $1::text operator(pg_catalog.=) $2::text';
        create operator shop.= (leftarg = varchar, rightarg = varchar, procedure = shop.is);
    """
    try:
        with psycopg.connect(_as(backend.url, "few_owner")) as connection:
            connection.execute(
                "create table shop.orders (id int primary key, pay_by timestamptz,"
                " state varchar(9), other varchar(9), who text[])"
            )
        with psycopg.connect(_as(backend.url, "few_thief")) as connection:
            connection.execute(plant.encode())
        await theirs.tables.put(
            "shop.orders", id="id", due="pay_by", recipients="who", when="state = other",
            data=["state"], remind=["-1h"],
        )  # fmt: skip
        with psycopg.connect(_as(backend.url, "few_owner")) as connection:
            connection.execute(
                f"insert into shop.orders values (1, {at(DUE)}, 'a', 'a', '{{ann}}')"
            )
        with psycopg.connect(_as(backend.url, "few_thief")) as connection:
            seen = connection.execute("select who from shop.seen").fetchall()

        assert await reminders(app, "orders:1") == [(-1.0, "armed")]
        assert seen == []
        with pytest.raises(InvalidInput, match="with its schema"):
            await theirs.tables.put(
                "shop.orders", id="id", due="pay_by", when="is(state, other)", name="two"
            )
        await theirs.tables.delete("orders")
    finally:
        await theirs.close()
        table.run("drop owned by few_owner, few_thief", "drop role few_owner, few_thief")


@on_postgres
async def test_one_tenant_cannot_touch_the_subjects_of_another(
    app: Duetime, backend: Backend, table: Table
) -> None:
    await app.subjects.put("ours:1", due=DUE, recipients=["ann"], remind=["-1h"])
    table.run(
        "create role few_ann login",
        "create role few_bob login",
        "create schema ann authorization few_ann",
        "create schema bob authorization few_bob",
        *_manual_grants("few_ann"),
        *_manual_grants("few_bob"),
    )
    ann, bob = Duetime(_as(backend.url, "few_ann")), Duetime(_as(backend.url, "few_bob"))
    try:
        for name in ("ann", "bob"):
            with psycopg.connect(_as(backend.url, f"few_{name}")) as connection:
                connection.execute(
                    f"create table {name}.orders (id text primary key, at timestamptz)"
                )
                connection.execute(f"insert into {name}.orders values ('1', {at(DUE)})")
        await ann.tables.put("ann.orders", id="id", due="at", remind=["-1h"])
        with pytest.raises(InvalidInput, match=r"tracks ann\.orders"):
            await bob.tables.put("bob.orders", id="id", due="at", remind=["-1h"], name="orders")
        [call] = table.run(
            "select proname from pg_proc where proname ~ '^_track_[0-9a-f]{32}$'"
            " and pronamespace = 'duetime'::regnamespace and prosecdef"
        )[0]
        for statement in (
            "select duetime.track_clear('orders')",
            "select duetime.track_forget('orders', 'bob')",
            "select duetime.track_define('orders', 'bob.orders', '{}', 'bob')",
            "select duetime.track_define('mine', 'ann.orders', '{}', 'bob')",
            f"select duetime.{call}({'null, ' * 9} '{{orders:1}}')",
            f"select duetime.{call}_clear()",
            f"select duetime.{call}_refs(null)",
            "select duetime._track_clear('orders', null)",
            "select duetime._track_refs('orders', null)",
        ):
            with psycopg.connect(_as(backend.url, "few_bob")) as connection:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)
        # Under a name whose subjects are the application's.
        await bob.tables.put("bob.orders", id="id", due="at", remind=["-2h"], name="ours")
        [told] = [one for one in await app.tables.list() if one.track.name == "ours"]
        await bob.tables.delete("ours")

        assert await reminders(app, "ours:1") == [(-1.0, "armed")]
        assert await reminders(app, "orders:1") == [(-1.0, "armed")]
        assert told.example == Reason.of("subject_not_tracked", subject="ours:1")
        with pytest.raises(InvalidInput, match="colon"):
            await bob.tables.put("bob.orders", id="id", due="at", name="orders:1")
        await ann.tables.delete("orders")
    finally:
        await ann.close()
        await bob.close()
        table.run("drop owned by few_ann, few_bob", "drop role few_ann, few_bob")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"scope": "x" * 3200}, "scope has more than 200"),
        ({"players": [f"p{n}" for n in range(20_000)]}, "more than 1000 recipients"),
        ({"players": ["ann", "b" * 3000]}, "recipient of more than 200"),
        ({"title": "t" * 20_000_000}, "data takes more than 1 MiB"),
        ({"id": "i" * 2500}, "id is too long"),
    ],
    ids=["scope", "recipients", "recipient", "data", "id"],
)
async def test_whatever_a_row_holds_its_write_succeeds_and_the_problem_is_shown(
    app: Duetime, backend: Backend, table: Table, values: dict[str, Any], problem: str
) -> None:
    if "id" in values and not backend.is_postgres:
        pytest.skip("SQLite's indexes have no such limit")
    kind = "text[]" if backend.is_postgres else "text"
    table.run(
        f"create table games (id text primary key, starts_at {table.due}, channel text,"
        f" players {kind}, title text)"
    )
    await app.tables.put(
        "games", id="id", due="starts_at", scope="channel", recipients="players",
        data=["title"], remind=["-1h"],
    )  # fmt: skip
    row = {"id": "1", "scope": "c", "players": ["ann"], "title": "t"} | values
    players = row["players"] if backend.is_postgres else json.dumps(row["players"])
    with table.transaction() as connection:
        connection.execute(
            f"insert into games values (?, {at(DUE)}, ?, ?, ?)".replace(
                "?", "%s" if backend.is_postgres else "?"
            ),
            [row["id"], row["scope"], players, row["title"]],
        )
    await settle(app)
    [(ref,)] = table.ours("select ref from duetime.subject")
    subject = await app.subjects.get(ref)
    sent = await app.reminders.list(subject=ref)
    told = [str(await app.reminders.explain(one)) for one in sent]
    [tracked] = await app.tables.list()
    table.run("delete from games")
    await settle(app)

    assert problem in str(subject.problem)
    assert tracked.problems == 1
    assert [one.recipient for one in sent] == ["ann"] * (len(row["players"]) <= 1000)
    assert all(problem in sentence for sentence in told)
    assert table.ours("select ref from duetime.subject") == []
