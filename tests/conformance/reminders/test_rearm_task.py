"""`duetime.rearm` on every backend: subjects that are marked are armed again, whatever happens."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Duetime, Snooze
from duetime.domain.jobs.job import AttemptOutcome
from duetime.domain.reminders.reminder import REARM_TASK
from duetime.reminders.rearm import rearm_stale
from duetime.storage.reminders.rearm import RearmStatements
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.store import Statements
from tests.conformance.hand import Hand, ended
from tests.conftest import Backend
from tests.log_events import events_of
from tests.waiting import until, waits

DUE = datetime(2035, 6, 1, 18, tzinfo=UTC)
DAY = timedelta(days=1)
on_postgres = pytest.mark.parametrize("backend", ["postgres15"], indirect=True)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    """An app without a task, a handler or a channel."""
    app = Duetime(backend.url, migrate=True)
    yield app
    await app.close()


class Database:
    """Another connection, as someone else's."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def connect(self) -> Any:
        if self._backend.is_postgres:
            return psycopg.connect(self._backend.url)
        return sqlite3.connect(self._backend.url.removeprefix("sqlite:///"), timeout=30)

    def run(self, statement: str) -> list[Any]:
        if not self._backend.is_postgres:
            statement = statement.replace("duetime.", "duetime_")
        with closing(self.connect()) as connection, connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def database(backend: Backend) -> Database:
    return Database(backend)


async def mark(app: Duetime, database: Database, at: datetime | None = None) -> None:
    """Move every subject by a day behind the back of the reminders, and mark it."""
    store = await app.store()
    statements = ReminderStatements(store.dialect)

    def work() -> Statements:
        yield from statements.request_rearm(at)

    moment = await app.now() if at is None else at
    if database._backend.is_postgres:
        when = f"timestamptz '{moment.isoformat()}'"
        shift = "interval '1 day'"
    else:
        when = str(int(moment.timestamp() * 1_000_000))
        shift = str(86_400_000_000)
    database.run(f"update duetime.subject set due_at = due_at + {shift}, rearm_at = {when}")
    await store.transact(work())


async def armed(app: Duetime) -> list[datetime]:
    found = await app.reminders.list(status="armed")
    return sorted(reminder.due_at for reminder in found)


async def test_any_worker_arms_what_is_marked(app: Duetime, database: Database) -> None:
    for number in range(3):
        await app.subjects.put(f"game:{number}", due=DUE, remind=["-1h"])
    await mark(app, database)
    stale = [reminder.stale for reminder in await app.reminders.list()]
    async with app.worker():

        async def done() -> bool:
            return await armed(app) == [DUE + DAY] * 3

        await until(done)

    assert stale == [True] * 3
    assert database.run("select count(*) from duetime.subject where rearm_at is not null") == [(0,)]
    assert database.run("select count(*) from duetime.parked") == [(0,)]


async def test_a_mark_for_later_waits_for_its_time(app: Duetime, database: Database) -> None:
    await app.subjects.put("game:1", due=DUE, remind=["-1h"])
    await mark(app, database, datetime.now(UTC) + timedelta(seconds=1.5))
    await rearm_stale(app)
    before = await armed(app)
    async with app.worker():

        async def done() -> bool:
            return await armed(app) == [DUE + DAY]

        await until(done)

    assert before == [DUE]


async def test_what_came_due_since_the_mark_is_late_and_not_past(
    app: Duetime, database: Database
) -> None:
    """As if the change had been computed when it was made."""
    await app.subjects.put("game:1", due=datetime.now(UTC) - timedelta(hours=23), remind=["-1h"])
    await mark(app, database, datetime.now(UTC) - timedelta(minutes=1))
    await rearm_stale(app)
    since = [r.status.value for r in await app.reminders.list(status="armed")]
    await app.subjects.put("game:2", due=datetime.now(UTC) - timedelta(hours=24), remind=["-1h"])
    await mark(app, database, datetime.now(UTC) - timedelta(hours=2))
    await rearm_stale(app)
    found = await app.reminders.list(subject="game:2", status="armed")

    assert since == ["armed"]
    assert [r.run_at == r.time < datetime.now(UTC) for r in found] == [True]


async def test_a_subject_that_cannot_be_read_does_not_hold_up_the_others(
    app: Duetime, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        await app.subjects.put(f"game:{number}", due=DUE, remind=["-1h"])
    database.run("""update duetime.subject set rules = '[{"id": "odd"}]' where ref = 'game:1'""")
    await mark(app, database)

    with caplog.at_level(logging.ERROR, "duetime.rearm"):
        answer = await rearm_stale(app)

    assert answer is None
    assert await armed(app) == [DUE + DAY] * 2
    [odd] = await app.reminders.list(subject="game:1")
    assert odd.status == "superseded"
    assert odd.reason is not None
    assert odd.reason.code == "not_computable"
    [event, *_] = await app.audit.list(entity="subject:game:1")
    assert (event.action, event.reason) == ("subject.not_armed", None)
    assert event.after == {"why": {"code": "not_computable", "facts": odd.reason.facts}}
    assert events_of(caplog) == ["rearm_failed"]


async def test_two_at_once_arm_each_subject_once(app: Duetime, database: Database) -> None:
    for number in range(40):
        await app.subjects.put(f"game:{number}", due=DUE, remind=["-1h", "-1d"])
    for _ in range(3):
        await mark(app, database)
        await asyncio.gather(*(rearm_stale(app) for _ in range(4)))
        await until(lambda: _all_done(app))

    assert await armed(app) == [DUE + 3 * DAY] * 80
    doubled = (
        "select subject_id, rule, time from duetime.reminder where status = 'armed'"
        " group by 1, 2, 3 having count(*) > 1"
    )
    assert database.run(doubled) == []


async def _all_done(app: Duetime) -> bool:
    return await rearm_stale(app) is None


@on_postgres
async def test_one_that_is_locked_is_armed_after_the_lock(app: Duetime, database: Database) -> None:
    """Its holder may roll back, and leave the mark as it was: the job comes back for it."""
    await app.subjects.put("game:1", due=DUE, remind=["-1h"])
    await app.subjects.put("game:2", due=DUE, remind=["-1h"])
    await mark(app, database)
    with closing(database.connect()) as other:
        other.execute("select 1 from duetime.subject where ref = 'game:1' for update")
        answer = await rearm_stale(app)
        meanwhile = await armed(app)
        other.rollback()
    again = await rearm_stale(app)

    assert isinstance(answer, Snooze)
    assert meanwhile == [DUE, DUE + DAY]
    assert again is None
    assert await armed(app) == [DUE + DAY] * 2


@on_postgres
async def test_a_scope_that_is_being_changed_holds_up_its_own_subjects_alone(
    app: Duetime, database: Database
) -> None:
    for tree in ("a", "b"):
        await app.scopes.put(tree, remind=["-1h"])
        await app.scopes.put(f"{tree}:inner", parent=tree)
        await app.subjects.put(f"game:{tree}", due=DUE, scope=f"{tree}:inner")
    await mark(app, database)
    with closing(database.connect()) as other:
        other.execute("update duetime.scope set updated_at = now() where ref = 'a'")
        answer = await asyncio.wait_for(rearm_stale(app), 20)
        meanwhile = await armed(app)
        other.rollback()
    again = await rearm_stale(app)

    assert isinstance(answer, Snooze)
    assert meanwhile == [DUE, DUE + DAY]
    assert again is None
    assert await armed(app) == [DUE + DAY] * 2


@on_postgres
async def test_one_that_is_marked_again_meanwhile_stays_marked(
    app: Duetime, database: Database
) -> None:
    await app.subjects.put("game:1", due=DUE, remind=["-1h"])
    await mark(app, database)
    store = await app.store()
    with closing(database.connect()) as other:
        # The second change waits for the row, which the first re-arm has locked and cleared.
        async with store.transaction() as first:
            await first.execute("select 1 from duetime.subject for update")
            waiting = asyncio.create_task(
                asyncio.to_thread(
                    other.execute,
                    "update duetime.subject set due_at = due_at + interval '1 day',"
                    " rearm_at = clock_timestamp()",
                )
            )
            await until(lambda: waits(app.settings.database))
            await first.execute("update duetime.subject set rearm_at = null")
        await waiting
        other.commit()
    await rearm_stale(app)

    assert await armed(app) == [DUE + 2 * DAY]


# A mark whose job is gone


async def _lose(app: Duetime, database: Database, how: str) -> None:
    """Its job ends before it has done anything."""
    [job] = await app.jobs.list(task=REARM_TASK)
    if how == "cancelled":
        await app.jobs.cancel(job.id)
    elif how == "deleted":
        database.run(f"delete from duetime.due where job_id = {job.id}")
        database.run(f"delete from duetime.job where id = {job.id}")
    else:
        store = await app.store()
        hand = await Hand.register(store, ("default",), timedelta(seconds=30), "hand")
        await hand.end(ended(await hand.claim_one(), AttemptOutcome.DEAD, error="it broke"))


@pytest.mark.parametrize("how", ["cancelled", "deleted", "dead"])
async def test_a_mark_whose_job_is_gone_gets_another(
    app: Duetime, database: Database, how: str
) -> None:
    await app.subjects.put("game:1", due=DUE, remind=["-1h"])
    await mark(app, database, datetime.now(UTC) - timedelta(seconds=10))
    await _lose(app, database, how)
    async with app.worker():

        async def done() -> bool:
            return await armed(app) == [DUE + DAY]

        await until(done)


async def test_of_workers_that_repair_at_once_one_does(
    app: Duetime, backend: Backend, database: Database
) -> None:
    await app.subjects.put("game:1", due=DUE, remind=["-1h"])
    await mark(app, database, datetime.now(UTC) - timedelta(seconds=10))
    await _lose(app, database, "deleted")
    others = [Duetime(backend.url) for _ in range(4)]

    async def repair(one: Duetime) -> bool:
        store = await one.store()
        repaired: bool = await store.transact(RearmStatements(store.dialect).repair())
        return repaired

    repaired = await asyncio.gather(*(repair(one) for one in others * 3))
    for one in others:
        await one.close()

    assert sorted(repaired) == [False] * 11 + [True]
    assert len(await app.jobs.list(task=REARM_TASK)) == 1


async def test_a_job_that_lives_is_not_doubled(app: Duetime, database: Database) -> None:
    """It waits behind others, or it runs; a job for a later time does not help."""
    store = await app.store()
    statements = RearmStatements(store.dialect)
    await app.subjects.put("game:1", due=DUE, remind=["-1h"])
    await mark(app, database, datetime.now(UTC) - timedelta(seconds=10))
    waiting = await store.transact(statements.repair())
    hand = await Hand.register(store, ("default",), timedelta(seconds=30), "hand")
    job = await hand.claim_one()
    running = await store.transact(statements.repair())
    await hand.end(ended(job, AttemptOutcome.CANCELLED))
    await store.transact(statements.request_rearm(datetime.now(UTC) + timedelta(minutes=1)))
    gone = await store.transact(statements.repair())

    assert (waiting, running, gone) == (False, False, True)


async def test_a_mark_of_just_now_is_left_to_its_job(app: Duetime, database: Database) -> None:
    await app.subjects.put("game:1", due=DUE, remind=["-1h"])
    await mark(app, database)
    await _lose(app, database, "deleted")
    store = await app.store()
    statements = RearmStatements(store.dialect)

    assert not await store.transact(statements.overdue(), reads=True)
    assert not await store.transact(statements.repair())


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_row_that_changed_is_not_forgotten_with_its_job(
    app: Duetime, database: Database
) -> None:
    """A new row has no subject that could be marked."""
    database_url = database._backend.url.removeprefix("sqlite:///")
    await app.store()
    with closing(sqlite3.connect(database_url)) as connection, connection:
        connection.execute("create table game (id integer primary key, starts text)")
    await app.tables.put("game", id="id", due="starts", remind=["-1h"])
    with closing(sqlite3.connect(database_url)) as connection, connection:
        connection.execute("insert into game (starts) values ('2035-06-01T18:00:00Z')")
        connection.execute("update duetime_tracked_change set at = at - 10000000")
    await _lose(app, database, "deleted")
    async with app.worker():

        async def done() -> bool:
            return await armed(app) == [DUE]

        await until(done)
