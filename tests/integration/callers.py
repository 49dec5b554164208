"""A user's code around a job: each library with a transaction of its own, behind one face.

Everything is called from plain code; asynchronous libraries run on an event loop of their caller.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy as sa
from django.conf import settings
from django.db import connection, connections
from django.db import transaction as django_transaction
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.storage import transaction
from duetime.storage.store import Statements, Store


class Caller:
    """Opened in a transaction, or with `autocommit` in none."""

    tx: Any

    def __init__(self, url: str, store: Store, *, autocommit: bool = False) -> None:
        self.url = url
        self.path = url.removeprefix("sqlite:///")
        self.autocommit = autocommit
        self.store = store
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self.do(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.close())
        self._runner.close()

    def enqueue(self, *jobs: NewJob) -> list[Enqueued]:
        answers: list[Enqueued] = self.run(self.store.enqueue_in(jobs))
        return answers

    def run(self, statements: Statements) -> Any:
        placeholder = self.store.placeholder
        if transaction.is_async(self.tx):
            return self.do(transaction.run_async(self.tx, statements, placeholder=placeholder))
        return transaction.run(self.tx, statements, placeholder=placeholder)

    def write(self, name: str) -> None:
        self.do(self.execute(f"insert into ticket (name) values ('{name}')"))

    @contextmanager
    def nested(self) -> Iterator[None]:
        """A savepoint, of the library's own if it has them; undone if the block raises."""
        block = self.savepoint()
        asynchronous = hasattr(block, "__aenter__")
        self.do(block.__aenter__() if asynchronous else block.__enter__())
        leave = block.__aexit__ if asynchronous else block.__exit__
        try:
            yield
        except BaseException as error:
            if not self.do(leave(type(error), error, error.__traceback__)):
                raise
        else:
            self.do(leave(None, None, None))

    def do(self, answer: Any) -> Any:
        if not inspect.isawaitable(answer):
            return answer

        async def wait() -> Any:
            return await answer

        return self._runner.run(wait())

    # What each library does its own way; awaited where it has to be.

    def open(self) -> Any:
        raise NotImplementedError

    def close(self) -> Any:
        return self.tx.close()

    def execute(self, sql: str) -> Any:
        return self.tx.execute(sql)

    def savepoint(self) -> Any:
        return _Savepoint(self)

    def commit(self) -> Any:
        self.do(self.tx.commit())

    def rollback(self) -> Any:
        self.do(self.tx.rollback())


class _Savepoint:
    """For libraries that leave savepoints to SQL."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __enter__(self) -> None:
        self._execute("savepoint inner_part")

    def __exit__(self, error: object, *_: object) -> None:
        self._execute("rollback to inner_part" if error else "release inner_part")

    def _execute(self, sql: str) -> None:
        self._caller.do(self._caller.execute(sql))


# Drivers for PostgreSQL


class Psycopg(Caller):
    def open(self) -> Any:
        self.tx = psycopg.connect(self.url, autocommit=self.autocommit)

    def savepoint(self) -> Any:
        return self.tx.transaction()


class PsycopgCursor(Psycopg):
    def open(self) -> Any:
        super().open()
        self.tx = self.tx.cursor()

    def close(self) -> Any:
        self.tx.connection.close()

    def savepoint(self) -> Any:
        return self.tx.connection.transaction()

    def commit(self) -> Any:
        self.tx.connection.commit()

    def rollback(self) -> Any:
        self.tx.connection.rollback()


class PsycopgAsync(Psycopg):
    async def open(self) -> None:
        self.tx = await psycopg.AsyncConnection.connect(self.url, autocommit=self.autocommit)


class Psycopg2(Caller):
    def open(self) -> Any:
        self.tx = psycopg2.connect(self.url)
        self.tx.autocommit = self.autocommit

    def execute(self, sql: str) -> Any:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)


class Asyncpg(Caller):
    async def open(self) -> None:
        self.tx = await asyncpg.connect(self.url)
        await self.begin()

    async def begin(self) -> None:
        self.outer = self.tx.transaction()
        if not self.autocommit:
            await self.outer.start()

    def savepoint(self) -> Any:
        return self.tx.transaction()

    def commit(self) -> Any:
        self.do(self.outer.commit())

    def rollback(self) -> Any:
        self.do(self.outer.rollback())


class AsyncpgPool(Asyncpg):
    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.tx = await self.pool.acquire()
        await self.begin()

    async def close(self) -> None:
        await self.pool.release(self.tx)
        await self.pool.close()


# Drivers for SQLite


class Sqlite3(Caller):
    def open(self) -> Any:
        self.tx = sqlite3.connect(
            self.path, isolation_level=None if self.autocommit else "DEFERRED"
        )


class Sqlite3Begun(Caller):
    """No help from the module: the caller says BEGIN."""

    def open(self) -> Any:
        self.tx = sqlite3.connect(self.path, isolation_level=None)
        if not self.autocommit:
            self.tx.execute("begin immediate")


class Sqlite3Cursor(Sqlite3):
    def open(self) -> Any:
        super().open()
        self.connection = self.tx
        self.tx = self.connection.cursor()

    def close(self) -> Any:
        self.connection.close()

    def commit(self) -> Any:
        self.connection.commit()

    def rollback(self) -> Any:
        self.connection.rollback()


class Aiosqlite(Caller):
    async def open(self) -> None:
        level = None if self.autocommit else "IMMEDIATE"
        self.tx = await aiosqlite.connect(self.path, isolation_level=level)


# SQLAlchemy


class _SqlAlchemy(Caller):
    driver: ClassVar[str]

    @property
    def engine_url(self) -> str:
        return f"{self.driver}:{self.url.partition(':')[2]}"

    @property
    def options(self) -> dict[str, Any]:
        return {"isolation_level": "AUTOCOMMIT"} if self.autocommit else {}

    def execute(self, sql: str) -> Any:
        return self.tx.execute(sa.text(sql))

    def savepoint(self) -> Any:
        return self.tx.begin_nested()


class SqlAlchemySession(_SqlAlchemy):
    driver = "postgresql+psycopg"

    def open(self) -> Any:
        self.engine = sa.create_engine(self.engine_url, **self.options)
        self.tx = self.make()

    def make(self) -> Any:
        return Session(self.engine)

    def close(self) -> Any:
        self.tx.close()
        self.engine.dispose()


class SqlAlchemyScoped(SqlAlchemySession):
    def make(self) -> Any:
        return scoped_session(sessionmaker(self.engine))


class SqlAlchemyConnection(SqlAlchemySession):
    def make(self) -> Any:
        return self.engine.connect()


class SqlAlchemyPsycopg2(SqlAlchemySession):
    driver = "postgresql+psycopg2"


class SqlAlchemyAsyncSession(_SqlAlchemy):
    driver = "postgresql+asyncpg"

    async def open(self) -> None:
        self.engine = create_async_engine(self.engine_url, **self.options)
        self.tx = self.make()

    def make(self) -> Any:
        return AsyncSession(self.engine)

    async def close(self) -> None:
        await self.tx.close()
        await self.engine.dispose()


class SqlAlchemyAsyncPsycopg(SqlAlchemyAsyncSession):
    driver = "postgresql+psycopg"


class SqlAlchemyAsyncScoped(SqlAlchemyAsyncSession):
    def make(self) -> Any:
        return async_scoped_session(async_sessionmaker(self.engine), scopefunc=lambda: self)


class SqlAlchemyAsyncConnection(SqlAlchemyAsyncSession):
    async def open(self) -> None:
        await super().open()
        self.tx = await self.engine.connect()


class SqlAlchemyPysqlite(SqlAlchemySession):
    driver = "sqlite"


class SqlAlchemyPysqliteConnection(SqlAlchemyConnection):
    driver = "sqlite"


class SqlAlchemyPysqliteBegun(SqlAlchemySession):
    """As SQLAlchemy's manual tells to make savepoints work: it says BEGIN, not sqlite3."""

    driver = "sqlite"

    def open(self) -> Any:
        super().open()
        if self.autocommit:
            return

        @sa.event.listens_for(self.engine, "connect")
        def take_over(connection: sqlite3.Connection, _: object) -> None:
            connection.isolation_level = None

        @sa.event.listens_for(self.engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql("begin")


class SqlAlchemyAiosqlite(SqlAlchemyAsyncSession):
    driver = "sqlite+aiosqlite"


class SqlAlchemyAiosqliteConnection(SqlAlchemyAsyncConnection):
    driver = "sqlite+aiosqlite"


# Django


class Django(Caller):
    alias: ClassVar[str] = "default"

    def open(self) -> Any:
        configure_django({self.alias: self.url})
        self.tx = connection if self.alias == "default" else connections[self.alias]
        self.outer = django_transaction.atomic(using=self.alias)
        if not self.autocommit:
            self.outer.__enter__()

    def close(self) -> Any:
        if connections[self.alias].in_atomic_block:
            self.rollback()
        connections.close_all()

    def execute(self, sql: str) -> Any:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)

    def savepoint(self) -> Any:
        return django_transaction.atomic(using=self.alias)

    def commit(self) -> Any:
        self.outer.__exit__(None, None, None)

    def rollback(self) -> Any:
        django_transaction.set_rollback(True, using=self.alias)
        self.outer.__exit__(None, None, None)


class DjangoOther(Django):
    alias = "other"


def configure_django(urls: dict[str, str]) -> None:
    """Give this process's Django these databases, by alias."""
    if not settings.configured:
        settings.configure(INSTALLED_APPS=[], USE_TZ=True)
        django.setup()
    for open_connection in connections.all(initialized_only=True):
        open_connection.close()
        del connections[open_connection.alias]
    databases = {alias: _django_database(url) for alias, url in urls.items()}
    databases.setdefault("default", {})
    connections.settings = connections.configure_settings(databases)


def _django_database(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": url.removeprefix("sqlite:///"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


POSTGRES: Sequence[type[Caller]] = (
    Psycopg,
    PsycopgCursor,
    PsycopgAsync,
    Psycopg2,
    Asyncpg,
    AsyncpgPool,
    SqlAlchemySession,
    SqlAlchemyScoped,
    SqlAlchemyConnection,
    SqlAlchemyPsycopg2,
    SqlAlchemyAsyncSession,
    SqlAlchemyAsyncPsycopg,
    SqlAlchemyAsyncScoped,
    SqlAlchemyAsyncConnection,
    Django,
    DjangoOther,
)
SQLITE: Sequence[type[Caller]] = (
    Sqlite3,
    Sqlite3Begun,
    Sqlite3Cursor,
    Aiosqlite,
    SqlAlchemyPysqlite,
    SqlAlchemyPysqliteConnection,
    SqlAlchemyPysqliteBegun,
    SqlAlchemyAiosqlite,
    SqlAlchemyAiosqliteConnection,
    Django,
)
