"""Jobs enqueued through the caller's own transaction, with every library for real."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import psycopg
import psycopg2.extras
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from duetime.domain.jobs.job import (
    AttemptOutcome,
    ClaimedJob,
    FinishedJob,
    JobState,
    NewJob,
    Requeued,
)
from duetime.domain.jobs.queue import Limits
from duetime.domain.reasons import Reason
from duetime.errors import UnsupportedTransaction
from duetime.settings import Settings
from duetime.storage import transaction
from duetime.storage.jobs.changes import JobStatements
from duetime.storage.jobs.queues import QueueStatements
from duetime.storage.migrations import upgrade
from duetime.storage.store import Lane, Statements, Store
from duetime.wiring import make_migrator, make_store
from tests.conftest import fresh_database
from tests.integration.callers import POSTGRES, SQLITE, Aiosqlite, Asyncpg, Caller, PsycopgAsync
from tests.servers import PostgresServer


class Database:
    """A migrated database with a table `ticket` of the user's, read over a connection apart."""

    def __init__(self, url: str) -> None:
        self.url = url
        settings = Settings(database=url)
        upgrade(make_migrator(settings))
        self.store: Store = make_store(settings)
        self._tables = "duetime_" if url.startswith("sqlite") else "duetime."
        self.query("create table ticket (name text)")

    def tickets(self, name: str) -> int:
        [(count,)] = self.query(f"select count(*) from ticket where name = '{name}'")
        return int(count)

    def jobs(self, task: str) -> int:
        """How many jobs of the task wait."""
        due, job = f"{self._tables}due", f"{self._tables}job"
        [(count,)] = self.query(
            f"select count(*) from {due} join {job} on id = job_id where task = '{task}'"
        )
        return int(count)

    def events(self, job_id: int) -> list[str]:
        """What the audit has of a job."""
        entity = f"job:{job_id}"
        audit = f"select action from {self._tables}audit where entity = '{entity}' order by id"
        return [row[0] for row in self.query(audit)]

    def queue(self, name: str) -> Any:
        columns = "running, rate, pause_reason"
        rows = self.query(f"select {columns} from {self._tables}queue where name = '{name}'")
        return tuple(rows[0]) if rows else None

    def attempts(self, job: ClaimedJob) -> int:
        [(count,)] = self.query(
            f"select count(*) from {self._tables}attempt where job_id = {job.id}"
        )
        return int(count)

    def query(self, sql: str) -> Sequence[Any]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file, file:
                return file.execute(sql).fetchall()
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def postgres(postgres15: PostgresServer) -> Iterator[Database]:
    with fresh_database(postgres15) as url:
        yield Database(url)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return Database(f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'shared.db'}")


LIBRARIES = [("postgres", cls) for cls in POSTGRES] + [("sqlite", cls) for cls in SQLITE]
every_library = pytest.mark.parametrize(
    "library", LIBRARIES, ids=[f"{database}-{cls.__name__}" for database, cls in LIBRARIES]
)


@pytest.fixture
def database(request: pytest.FixtureRequest, library: tuple[str, type[Caller]]) -> Database:
    found: Database = request.getfixturevalue(library[0])
    return found


@pytest.fixture
def caller(library: tuple[str, type[Caller]], database: Database) -> Iterator[Caller]:
    with library[1](database.url, database.store) as caller:
        yield caller


@pytest.fixture
def committing(library: tuple[str, type[Caller]], database: Database) -> Iterator[Caller]:
    """A caller without a transaction, whose library commits each statement."""
    with library[1](database.url, database.store, autocommit=True) as caller:
        yield caller


@pytest.fixture
def name() -> str:
    """Of this test's task and ticket, alone in the shared database."""
    return f"test {uuid.uuid4()}"


LIMITS = Limits(running=1, rate=2, period=timedelta(minutes=1))


class Undo(Exception):
    pass


def failing(name: str, store: Store) -> Statements:
    yield f"insert into ticket (name) values ('{name}')", ()
    yield from store.enqueue_in([NewJob(task=name)])
    yield "select missing from nowhere", ()


# Every library


@every_library
def test_commit_keeps_the_row_and_the_job(caller: Caller, database: Database, name: str) -> None:
    caller.write(name)
    [enqueued] = caller.enqueue(NewJob(task=name))

    assert enqueued.action == "created"
    assert (database.tickets(name), database.jobs(name)) == (0, 0)
    caller.commit()
    assert (database.tickets(name), database.jobs(name)) == (1, 1)


@every_library
def test_rollback_leaves_neither(caller: Caller, database: Database, name: str) -> None:
    caller.write(name)
    caller.enqueue(NewJob(task=name))
    caller.rollback()

    assert (database.tickets(name), database.jobs(name)) == (0, 0)


@every_library
def test_job_is_the_caller_s_to_commit_when_it_comes_first(
    caller: Caller, database: Database, name: str
) -> None:
    caller.enqueue(NewJob(task=name))
    assert database.jobs(name) == 0

    caller.rollback()
    assert database.jobs(name) == 0


@every_library
def test_savepoint_takes_back_its_own_jobs(caller: Caller, database: Database, name: str) -> None:
    caller.write(name)
    with contextlib.suppress(Undo), caller.nested():
        caller.enqueue(NewJob(task=f"{name} undone"))
        raise Undo
    with caller.nested():
        caller.enqueue(NewJob(task=name))
    caller.commit()

    assert (database.tickets(name), database.jobs(name)) == (1, 1)
    assert database.jobs(f"{name} undone") == 0


@every_library
def test_two_enqueues_in_one_transaction(caller: Caller, database: Database, name: str) -> None:
    first = caller.enqueue(NewJob(task=name))
    more = caller.enqueue(NewJob(task=name), NewJob(task=name))
    caller.commit()

    assert len({enqueued.job_id for enqueued in first + more}) == 3
    assert database.jobs(name) == 3


@every_library
def test_held_key_leaves_the_transaction_usable(
    caller: Caller, database: Database, name: str
) -> None:
    job = NewJob(task=name, key="once", on_conflict="reject")
    [first] = caller.enqueue(job)
    [second] = caller.enqueue(job)
    caller.write(name)
    caller.commit()

    assert (second.action, second.job_id) == ("rejected", first.job_id)
    assert (database.tickets(name), database.jobs(name)) == (1, 1)


@every_library
def test_text_arrives_as_it_was_given(caller: Caller, database: Database, name: str) -> None:
    args = {"text": "100 % of 'it'? :name $1 %s ünï \\ \"quoted\""}
    [enqueued] = caller.enqueue(
        NewJob(task=name, args=msgspec.Raw(json.dumps(args).encode()), key="50 %?")
    )
    caller.commit()

    table = "duetime_job" if database.url.startswith("sqlite") else "duetime.job"
    [(stored, key)] = database.query(f"select args, key from {table} where id = {enqueued.job_id}")
    assert (json.loads(stored) if isinstance(stored, str) else stored) == args
    assert key == "50 %?"


@every_library
def test_many_jobs_are_many_statements_of_one_transaction(
    caller: Caller, database: Database, name: str
) -> None:
    caller.enqueue(*[NewJob(task=name)] * 4500)
    assert database.jobs(name) == 0

    caller.commit()
    assert database.jobs(name) == 4500


@every_library
def test_statement_that_begins_with_with_is_the_caller_s_to_commit(
    caller: Caller, database: Database, name: str
) -> None:
    def statements() -> Statements:
        given = f"with given as (select '100 % {name}' as name)"
        yield f"{given} insert into ticket (name) select name from given", ()

    caller.run(statements())
    assert database.tickets(f"100 % {name}") == 0
    caller.rollback()
    assert database.tickets(f"100 % {name}") == 0


@every_library
def test_jobs_are_changed_in_the_caller_s_transaction(
    caller: Caller, database: Database, name: str
) -> None:
    [kept, cancelled, again] = caller.enqueue(*[NewJob(task=name) for _ in range(3)])
    jobs = JobStatements(database.store.dialect)
    later = datetime(2099, 1, 1, tzinfo=UTC)

    caller.run(jobs.reschedule(kept.job_id, later, by="ann"))
    caller.run(jobs.reprioritise(kept.job_id, 1, by="ann"))
    for job in (cancelled, again):
        was = caller.run(jobs.cancel(job.job_id, reason=Reason("cancelled"), by="ann"))
        assert was is JobState.PENDING
    requeued = caller.run(jobs.requeue([again.job_id], run_at=later, by="ann"))
    assert requeued == Requeued([again.job_id], {})
    caller.run(QueueStatements(database.store.dialect).limit(name, LIMITS, by="ann"))
    caller.run(QueueStatements(database.store.dialect).pause(name, by="ann", reason="tea"))
    assert (database.jobs(name), database.events(kept.job_id)) == (0, [])

    caller.commit()

    assert database.jobs(name) == 2
    assert database.events(kept.job_id) == ["job.reschedule", "job.reprioritise"]
    assert database.events(again.job_id) == ["job.cancel", "job.requeue"]
    assert database.queue(name) == (1, 2, "tea")


@every_library
def test_a_rollback_takes_back_changes_of_jobs_and_queues(
    caller: Caller, database: Database, name: str
) -> None:
    jobs = JobStatements(database.store.dialect)

    caller.write(name)
    [enqueued] = caller.enqueue(NewJob(task=name))
    caller.run(jobs.cancel(enqueued.job_id, reason=Reason("cancelled"), by="ann"))
    caller.run(QueueStatements(database.store.dialect).pause(name, by="ann", reason="tea"))
    caller.rollback()

    assert (database.tickets(name), database.jobs(name)) == (0, 0)
    assert database.events(enqueued.job_id) == []
    assert database.queue(name) is None


@every_library
def test_finish_commits_with_the_caller_s_rows(
    library: tuple[str, type[Caller]], database: Database, name: str
) -> None:
    job = asyncio.run(claim(database, name))
    ended = FinishedJob(job, AttemptOutcome.COMPLETED, 100, 200, result='"done %?"')
    for expected in (0, 1):
        with library[1](database.url, database.store) as caller:
            caller.write(name)
            assert caller.run(database.store.finish_in(ended)) is True
            caller.commit() if expected else caller.rollback()
        assert (database.tickets(name), database.attempts(job)) == (expected, expected)

    with library[1](database.url, database.store) as caller:
        caller.write(name)
        assert caller.run(database.store.finish_in(ended)) is False
        caller.rollback()
    assert database.attempts(job) == 1


@every_library
def test_failure_is_the_caller_s_to_roll_back(
    caller: Caller, database: Database, name: str
) -> None:
    with pytest.raises(Exception, match=r"nowhere|missing"):
        caller.run(failing(name, database.store))
    caller.rollback()

    assert (database.tickets(name), database.jobs(name)) == (0, 0)


@every_library
def test_without_a_transaction_jobs_commit_at_once(
    committing: Caller, database: Database, name: str
) -> None:
    committing.enqueue(NewJob(task=name), NewJob(task=name))

    assert database.jobs(name) == 2


@every_library
def test_without_a_transaction_all_is_written_or_nothing(
    committing: Caller, database: Database, name: str
) -> None:
    with pytest.raises(Exception, match=r"nowhere|missing"):
        committing.run(failing(name, database.store))
    assert (database.tickets(name), database.jobs(name)) == (0, 0)

    committing.enqueue(NewJob(task=name))
    committing.write(name)
    assert (database.tickets(name), database.jobs(name)) == (1, 1)


@every_library
def test_transaction_of_another_database_is_refused(
    caller: Caller, database: Database, name: str, request: pytest.FixtureRequest
) -> None:
    other = "postgres" if database.url.startswith("sqlite") else "sqlite"
    store: Store = request.getfixturevalue(other).store
    caller.write(name)

    caller.store = store
    with pytest.raises(UnsupportedTransaction, match=r"are stored on (sqlite|postgresql)"):
        caller.enqueue(NewJob(task=name))
    caller.commit()
    assert (database.tickets(name), database.jobs(name)) == (1, 0)


@pytest.mark.parametrize(
    "library", [("postgres", PsycopgAsync), ("postgres", Asyncpg), ("sqlite", Aiosqlite)]
)
def test_asynchronous_transaction_cannot_be_used_from_plain_code(
    caller: Caller, database: Database
) -> None:
    statements = database.store.enqueue_in([NewJob(task="never")])

    with pytest.raises(UnsupportedTransaction, match="await"):
        transaction.run(caller.tx, statements, placeholder="%s")


# What callers may have set up


@pytest.mark.parametrize("cursor_factory", [psycopg.RawCursor, psycopg.ClientCursor])
def test_psycopg_with_factories_of_its_own(
    postgres: Database, name: str, cursor_factory: Any
) -> None:
    options: Any = {"row_factory": dict_row, "cursor_factory": cursor_factory}
    with psycopg.connect(postgres.url, **options) as connection:
        enqueue(connection, postgres, name)

    assert postgres.jobs(name) == 1


def test_psycopg_pipeline(postgres: Database, name: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        with contextlib.suppress(Undo), connection.pipeline(), connection.transaction():
            connection.execute("select 1")
            enqueue(connection, postgres, name)
            raise Undo
        assert postgres.jobs(name) == 0

        with connection.pipeline():
            connection.execute("select 1")
            enqueue(connection, postgres, name)
        assert postgres.jobs(name) == 1


async def test_psycopg_async_pipeline(postgres: Database, name: str) -> None:
    connect = psycopg.AsyncConnection.connect(postgres.url)
    async with await connect as connection, connection.pipeline():
        await connection.execute("select 1")
        statements = postgres.store.enqueue_in([NewJob(task=name)])
        [enqueued] = await transaction.run_async(connection, statements, placeholder="%s")
        assert postgres.jobs(name) == 0

    assert enqueued.action == "created"
    assert postgres.jobs(name) == 1


def test_psycopg2_with_a_cursor_factory_of_its_own(postgres: Database, name: str) -> None:
    factory = psycopg2.extras.RealDictCursor
    connection = psycopg2.connect(postgres.url, cursor_factory=factory)
    with closing(connection), connection:
        enqueue(connection, postgres, name)

    assert postgres.jobs(name) == 1


async def test_asyncpg_with_a_json_codec_of_its_own(postgres: Database, name: str) -> None:
    connection = await asyncpg.connect(postgres.url)
    await connection.set_type_codec(
        "json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
    )
    statements = postgres.store.enqueue_in([NewJob(task=name)])
    await transaction.run_async(connection, statements, placeholder="%s")
    await connection.close()

    assert postgres.jobs(name) == 1


def test_sqlite3_with_factories_of_its_own(sqlite: Database, name: str) -> None:
    with closing(sqlite3.connect(sqlite.url.removeprefix("sqlite:///"))) as connection:
        connection.row_factory = lambda cursor, row: {"row": row}
        enqueue(connection, sqlite, name)
        connection.commit()

    assert sqlite.jobs(name) == 1


def test_proxy_shows_its_object_s_class(postgres: Database, name: str) -> None:
    class Proxy:
        """As Werkzeug's LocalProxy does."""

        def __getattribute__(self, attribute: str) -> Any:
            return getattr(session, attribute)

    with Session(sa.create_engine(postgres.url.replace(":", "+psycopg:", 1))) as session:
        enqueue(Proxy(), postgres, name)
        session.commit()

    assert postgres.jobs(name) == 1


async def test_plain_transaction_is_run_inline_by_async_code(sqlite: Database, name: str) -> None:
    with closing(sqlite3.connect(sqlite.url.removeprefix("sqlite:///"))) as connection:
        statements = sqlite.store.enqueue_in([NewJob(task=name)])
        [enqueued] = await transaction.run_async(connection, statements, placeholder="?")
        connection.commit()

    assert enqueued.action == "created"
    assert sqlite.jobs(name) == 1


@pytest.mark.parametrize("tx", [object(), "a connection", sa.create_engine("sqlite://")])
def test_what_is_not_known_is_refused(tx: Any, sqlite: Database) -> None:
    with pytest.raises(UnsupportedTransaction, match=r"Connection") as refusal:
        transaction.run(tx, sqlite.store.enqueue_in([]), placeholder="?")

    assert type(tx).__name__ in str(refusal.value)
    assert "sqlalchemy.AsyncSession" in str(refusal.value)


def test_no_library_is_imported_before_it_is_met() -> None:
    code = (
        "import sys, duetime.storage.transaction; "
        "print(*{'psycopg', 'asyncpg', 'sqlalchemy', 'django', 'aiosqlite'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Helpers


def enqueue(tx: Any, database: Database, name: str) -> None:
    statements = database.store.enqueue_in([NewJob(task=name)])
    [enqueued] = transaction.run(tx, statements, placeholder=database.store.placeholder)
    assert enqueued.action == "created"


async def claim(database: Database, queue: str) -> ClaimedJob:
    """Enqueue a job in a queue of its own, and claim it."""
    store = make_store(Settings(database=database.url))
    await store.open()
    try:
        await store.enqueue([NewJob(task="finish", queue=queue)])
        worker = await store.register_worker(
            name="test", queues=[queue], tasks={}, concurrency=1, lease=timedelta(minutes=1)
        )
        lane = Lane(queue, 5, datetime(1970, 1, 1, tzinfo=UTC))
        [job] = (await store.exchange(worker, lanes=[lane], want=1)).claimed
        return job
    finally:
        await store.close()
