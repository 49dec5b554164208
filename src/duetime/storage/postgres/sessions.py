"""The pool of a store, and how its named statements are run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import psycopg

from duetime.errors import SettingsError, StorageError
from duetime.storage.postgres.calls import Calls
from duetime.storage.postgres.connection import (
    check_schema_name,
    in_schema,
    is_demoted,
    limited_to,
    make_dsn,
    rows_of,
    shares_sessions,
    translate_errors,
)
from duetime.storage.postgres.dialect import PostgresDialect
from duetime.storage.postgres.direct import DirectSession
from duetime.storage.postgres.listener import Listener
from duetime.storage.postgres.pool import Connection, Pool
from duetime.storage.postgres.sleeper import PostgresSleeper
from duetime.storage.postgres.triggers import PostgresTriggers
from duetime.storage.postgres.waits import Waits
from duetime.storage.statements import load_statements
from duetime.storage.store import Row

Statement = tuple[str, dict[str, Any]]
"""A named statement and its parameters."""


_KEEPALIVES = (
    "select set_config('tcp_keepalives_idle', '10', false),"
    " set_config('tcp_keepalives_interval', '5', false),"
    " set_config('tcp_keepalives_count', '3', false)"
)
"""The server's; ours are in the DSN."""


_DIRECT = frozenset({"claim", "finish", "finish_one", "poll", "next_run_at"})
"""Statements of a worker whose parameters are texts and numbers."""
_ROLLBACK_SECONDS = 5.0
_STATEMENT_LIMIT = "select set_config('statement_timeout', %s, true)"


@contextmanager
def _translate_if_broken(
    connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any],
) -> Iterator[None]:
    """Pass the caller's own errors as they are; a lost connection is raised as our error, and so is
    a server that accepts no writes any more."""
    try:
        yield
    except psycopg.Error as error:
        ours = connection.broken or _is_refused_by(connection, error)
        with translate_errors() if ours else nullcontext():
            raise


def _is_refused_by(
    connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], error: BaseException
) -> bool:
    """Whether the server accepts no writes: the connection leads to a standby."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    return isinstance(cause, psycopg.errors.ReadOnlySqlTransaction) and is_demoted(connection)


class Sessions:
    """Connections for short transactions. Listeners and hearts have their own."""

    def __init__(
        self,
        url: str,
        *,
        listen_url: str | None = None,
        schema: str = "duetime",
        notify: bool = True,
        prepare: bool = True,
        pool_size: int = 4,
        call_seconds: float = 30.0,
        poll_seconds: float = 1.0,
    ) -> None:
        self.schema = check_schema_name(schema)
        self.dsn = make_dsn(url)
        self.listen_dsn = make_dsn(listen_url) if listen_url else self.dsn
        self._notify = notify
        self._prepare = prepare
        self._pool_size = pool_size
        self._call_seconds = call_seconds
        self._poll_seconds = poll_seconds
        self._sql = load_statements(
            "duetime.storage.postgres", lambda text: in_schema(text, self.schema)
        )
        self.dialect = PostgresDialect(self._sql)
        self.triggers = PostgresTriggers(self._sql, self.schema)
        self._checked_pooler = False
        self._pool: Pool | None = None
        self._transactions: Pool | None = None
        self._direct = DirectSession(self._connect_directly, self._leave_server)
        self._listeners: WeakSet[Listener] = WeakSet()
        self._calls = Calls(self._open_pool)
        self._turns = asyncio.Semaphore(pool_size)
        self._waits = Waits()
        self._sleepers: WeakSet[PostgresSleeper] = WeakSet()
        """Of the workers of this process."""

    async def open(self) -> None:
        """Connect; a wrong password or host fails at once."""
        with translate_errors():
            probe = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
            await probe.close()
        self._pool = self._make_pool("calls", self._configure_ours)
        await self._pool.open()

    async def check_pooler(self) -> None:
        """Raise `SettingsError` if a worker cannot work through the pooler that is in between."""
        if self._checked_pooler:
            return
        with translate_errors():
            is_pooled = await shares_sessions(self.dsn)
            listens_pooled = is_pooled
            if self._notify and self.listen_dsn != self.dsn:
                listens_pooled = await shares_sessions(self.listen_dsn)
        if self._notify and listens_pooled:
            name = "listen_database" if self.listen_dsn != self.dsn else "database"
            raise SettingsError(
                f"The URL of {name} leads to a connection pooler in transaction mode, such as "
                "pgbouncer, which does not support LISTEN. Set listen_database "
                "(DUETIME_LISTEN_DATABASE) to the URL of the server itself, or set notify "
                "(DUETIME_NOTIFY) to off, so that workers poll every second. Also set prepare "
                "(DUETIME_PREPARE) to off."
            )
        if self._prepare and is_pooled:
            raise SettingsError(
                "The URL of database leads to a connection pooler in transaction mode, such as "
                "pgbouncer, which shares sessions. Set prepare (DUETIME_PREPARE) to off."
            )
        self._checked_pooler = True

    async def close(self) -> None:
        await self._direct.close()
        for pool in (self._pool, self._transactions):
            if pool is not None:
                await pool.close()
        self._pool = self._transactions = None

    def _make_pool(
        self, name: str, configure: Callable[[Connection], Awaitable[None]], *, keep: int = 1
    ) -> Pool:
        return Pool(
            self.dsn,
            name=name,
            size=self._pool_size,
            keep=keep,
            kwargs={"autocommit": True, "prepare_threshold": 0 if self._prepare else None},
            configure=configure,
            refused=self._leave_server,
        )

    def _leave_server(self) -> None:
        """The server accepts no writes, as the old primary after a failover.

        It may accept them again while its sessions stay read-only, and it may be another server
        that does. So every session is replaced; hearts notice by themselves.
        """
        for pool in (self._pool, self._transactions):
            if pool is not None:
                pool.leave_server()
        self._direct.leave_server()
        for listener in self._listeners:
            listener.leave_server()

    def _make_listener(
        self,
        channels: Sequence[str],
        on_notify: Callable[[str, str], None],
        *,
        claims: bool = False,
    ) -> Listener:
        """A session that listens; with `claims`, our statements also run there."""
        connect = self._connect_directly if claims else self._connect_to_listen
        listener = Listener(connect, channels, on_notify, self._leave_server)
        self._listeners.add(listener)
        return listener

    @asynccontextmanager
    async def transaction(
        self, *, before_commit: Callable[[Any], Awaitable[None]] | None = None
    ) -> AsyncIterator[Connection]:
        pool = await self._transaction_pool()
        # Handlers may queue for a connection that others hold: the task's own timeout limits
        # that wait. The wait for the database is limited as for any call.
        async with self._turns:
            async with limited_to(self._call_seconds):
                connection = await pool.take(self._call_seconds)
            try:
                async with limited_to(self._call_seconds):
                    await connection.execute("begin")
                    # The caller's own statements are planned as anywhere else.
                    await connection.execute("set local enable_seqscan = on")
                try:
                    with _translate_if_broken(connection):
                        yield connection
                    async with limited_to(self._call_seconds):
                        if before_commit is not None:
                            await before_commit(connection)
                        await connection.commit()
                except BaseException as error:
                    with contextlib.suppress(StorageError):
                        async with limited_to(_ROLLBACK_SECONDS):
                            await connection.rollback()
                    if _is_refused_by(connection, error):
                        await connection.close()
                        self._leave_server()
                    raise
            finally:
                await pool.give_back(connection)

    @contextmanager
    def transaction_sync(
        self, *, before_commit: Callable[[Any], None] | None = None
    ) -> Iterator[psycopg.Connection[Any]]:
        with translate_errors():
            connection = psycopg.connect(self.dsn, prepare_threshold=None)
        with closing(connection):
            # As in `transaction`, whatever the database's default.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            with _translate_if_broken(connection):
                yield connection
            with translate_errors():
                if before_commit is not None:
                    # Of what the caller does, only a lock can make our statement wait.
                    limit = f"{self._call_seconds * 1000:.0f}"
                    connection.execute(_STATEMENT_LIMIT, (limit,))
                    before_commit(connection)
                connection.commit()

    async def _configure_ours(self, connection: Connection) -> None:
        """For connections on which only our own statements run."""
        await self._configure(connection)
        if self._prepare:
            # Our statements name our schema. Every other name is PostgreSQL's own, not one that
            # some role created in a schema on the path, to have it run with our rights.
            await connection.execute("set search_path = pg_catalog, pg_temp")

    async def _configure(self, connection: Connection) -> None:
        if not self._prepare:
            # Behind a pooler, what is set for a session reaches the sessions of others.
            return
        await connection.execute("set jit = off")
        # Whatever the database's default: each statement must see what was committed before it.
        await connection.execute("set default_transaction_isolation = 'read committed'")
        # A prepared plan outlives the size of the table that it was made for: one made for
        # an empty `due` would scan a million rows. Plans made each time see the size.
        await connection.execute("set enable_seqscan = off")
        # If our machine is gone without a word, its locks go within seconds too, not after the
        # kernel's two hours.
        await connection.execute(_KEEPALIVES)
        if not self._notify:
            await connection.execute(in_schema("set duetime.notify = 'off'", self.schema))

    async def _connect_to_listen(self) -> Connection:
        return await psycopg.AsyncConnection.connect(self.listen_dsn, autocommit=True)

    async def _connect_directly(self) -> Connection:
        connection = await psycopg.AsyncConnection.connect(
            self.dsn, autocommit=True, prepare_threshold=None
        )
        await self._configure_ours(connection)
        # Planning would take longer than the rest, and nothing depends on the values.
        await connection.execute("set plan_cache_mode = force_generic_plan")
        return connection

    def _open_pool(self) -> Pool:
        if self._pool is None:
            raise AssertionError("the store is not open")
        return self._pool

    async def _transaction_pool(self) -> Pool:
        """Handlers hold these for as long as they like; our short statements never wait for one."""
        if self._transactions is None:
            self._transactions = self._make_pool("transactions", self._configure, keep=0)
            await self._transactions.open()
        return self._transactions

    @asynccontextmanager
    async def _connection(self, *, fail_fast: bool = False) -> AsyncIterator[Connection]:
        """A connection for one short call. With `fail_fast`, it does not wait while the server is
        down: a worker's loop must go on, and notice when it is to stop."""
        async with limited_to(self._call_seconds):
            async with self._open_pool().connection(
                self._call_seconds, fail_fast=fail_fast
            ) as connection:
                yield connection

    @asynccontextmanager
    async def _lasting_connection(self) -> AsyncIterator[Connection]:
        """One whose user bounds each statement, not the whole."""
        with translate_errors():
            async with self._open_pool().connection(self._call_seconds) as connection:
                yield connection

    async def _rows(self, name: str, /, **parameters: Any) -> list[Row]:
        async with self._connection() as connection:
            return await self._on(connection, name, **parameters)

    async def _on(self, connection: Connection, name: str, /, **parameters: Any) -> list[Row]:
        cursor = await self._send(connection, name, **parameters)
        return await rows_of(cursor)

    async def _together(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run statements in one round trip and one transaction; return the rows of each."""
        # A pipeline costs us 0.3 ms more than a statement alone.
        lone = len(statements) == 1
        if lone and (session := self._direct_session(statements[0][0])) is not None:
            return [await self._at_once(*statements[0], session=session)]
        async with self._connection(fail_fast=True) as connection:
            async with nullcontext() if lone else connection.pipeline():
                cursors = [
                    await self._send(connection, name, **parameters)
                    for name, parameters in statements
                ]
            # Its end sends the commit with them. Asked before, the answers would come first, and
            # the transaction would stay open, with its locks, until we had taken them.
            return [await cursor.fetchall() for cursor in cursors]

    def _direct_session(self, name: str) -> DirectSession | None:
        """A session that takes this statement at once. A claim goes where its worker listens: that
        session was woken just now. The end of a lone flow goes where its steps were recorded."""
        if name not in _DIRECT:
            return None
        if name == "finish_one" and self._direct.is_ready:
            return self._direct
        for sleeper in self._sleepers:
            if (session := sleeper.session) is not None:
                return session
        return self._direct if self._direct.is_ready else None

    async def _at_once(
        self, name: str, parameters: dict[str, Any], *, session: DirectSession | None = None
    ) -> list[Row]:
        with translate_errors():
            return await (session or self._direct).execute(
                self._sql[name], parameters, self._call_seconds
            )

    async def _send(
        self, connection: Connection, name: str, /, **parameters: Any
    ) -> psycopg.AsyncCursor[Row]:
        cursor = connection.cursor(binary=True)
        await cursor.execute(self._sql[name], parameters)
        return cursor
