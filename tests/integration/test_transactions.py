"""Jobs enqueued through the caller's own transaction, with every library for real."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest

from duetime import transaction
from duetime.domain.job import NewJob
from duetime.errors import UnsupportedTransaction
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.store import Statements, Store
from tests.conftest import fresh_database
from tests.integration import callers
from tests.integration.callers import Caller
from tests.servers import PostgresServer

NAME = "name"


class Database:
    """A migrated database with a table `ticket` of the user's, read over a connection apart."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store

    def tickets(self, name: str) -> int:
        return self._count("select count(*) from ticket where name = ", name)

    def jobs(self, task: str) -> int:
        return self._count("select count(*) from duetime.due join duetime.job on id = job_id where task = ", task)

    def _count(self, sql: str, value: str) -> int:
        with psycopg.connect(self.url) as connection:
            row = connection.execute((sql + "%s").encode(), (value,)).fetchone()
            assert row is not None
            return int(row[0])


@pytest.fixture(scope="module")
def postgres(postgres15: PostgresServer) -> Iterator[Database]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        with psycopg.connect(url) as connection:
            connection.execute("create table ticket (name text)")
        yield Database(url, PostgresStore(url))


@pytest.fixture(params=callers.POSTGRES, ids=lambda cls: cls.__name__)
def library(request, postgres):
    return request.param, postgres


@pytest.fixture
def database(library) -> Database:
    return library[1]


@pytest.fixture
def caller(library) -> Iterator[Caller]:
    cls, database = library
    with cls(database.url, database.store) as caller:
        yield caller


@pytest.fixture
def autocommit(library) -> Iterator[Caller]:
    cls, database = library
    with cls(database.url, database.store, autocommit=True) as caller:
        yield caller


@pytest.fixture
def name() -> str:
    """Of this test's task and ticket, alone in the shared database."""
    return f"test {uuid.uuid4()}"


class Undo(Exception):
    pass


def test_commit_keeps_the_row_and_the_job(caller, database, name):
    caller.write(name)
    [enqueued] = caller.enqueue(NewJob(task=name))
    assert enqueued.outcome == "created"
    assert (database.tickets(name), database.jobs(name)) == (0, 0)

    caller.commit()
    assert (database.tickets(name), database.jobs(name)) == (1, 1)


def test_rollback_leaves_neither(caller, database, name):
    caller.write(name)
    caller.enqueue(NewJob(task=name))
    caller.rollback()
    assert (database.tickets(name), database.jobs(name)) == (0, 0)


def test_rollback_of_the_job_alone(caller, database, name):
    caller.enqueue(NewJob(task=name))
    caller.rollback()
    assert database.jobs(name) == 0


def test_savepoint(caller, database, name):
    caller.write(name)
    with pytest.raises(Undo), caller.nested():
        caller.enqueue(NewJob(task=name + " undone"))
        raise Undo
    with caller.nested():
        caller.enqueue(NewJob(task=name))
    caller.commit()
    assert (database.tickets(name), database.jobs(name)) == (1, 1)
    assert database.jobs(name + " undone") == 0


def test_autocommit(autocommit, database, name):
    autocommit.enqueue(NewJob(task=name), NewJob(task=name))
    assert database.jobs(name) == 2


def test_autocommit_atomic(autocommit, database, name):
    def fails(store) -> Statements:
        yield f"insert into ticket (name) values ('{name}')", ()
        yield from store.enqueue_in([NewJob(task=name)])
        yield "select nothing from nowhere", ()
    with pytest.raises(Exception, match="nowhere"):
        autocommit.run(fails(database.store))
    assert (database.tickets(name), database.jobs(name)) == (0, 0)
    autocommit.enqueue(NewJob(task=name))
    assert database.jobs(name) == 1

def test_key(caller, database, name):
    job = NewJob(task=name, key="k", on_conflict="reject")
    [a] = caller.enqueue(job)
    [b] = caller.enqueue(job)
    assert b.outcome == "rejected" and b.job_id == a.job_id
    caller.write(name)
    caller.commit()
    assert (database.tickets(name), database.jobs(name)) == (1, 1)

def test_bulk(caller, database, name):
    caller.enqueue(*[NewJob(task=name)] * 4500)
    caller.commit()
    assert database.jobs(name) == 4500
