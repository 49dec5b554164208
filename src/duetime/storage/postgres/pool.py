"""A pool that hands out connections which work, and is back soon after the database is."""

from __future__ import annotations

import asyncio
import logging
import math
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from duetime.errors import DatabaseUnreachable
from duetime.storage.postgres.connection import first_line
from duetime.storage.store import Row

Connection = psycopg.AsyncConnection[Row]

_RECONNECT_SECONDS = 2.0
"""psycopg's pool doubles its pauses without bound. After this many seconds it gives up, and starts
again with a pause of one second: recovery takes no longer after a long outage than after a short
one."""
_IDLE_SECONDS = 10.0
"""A connection that was idle for so long is closed, except for those to `keep`: hundreds of
idle workers must not use up the server's connections. To open one again takes milliseconds."""
_NAME = "duetime-"
_KEEP_SECONDS = 300.0
"""How long a spare connection is kept before psycopg's pool checks its age."""
_READS = 3
"""A server that ends a session sends a message first, and then closes the connection."""


class Pool:
    """A pool of connections, configured and checked.

    `take` checks without a round trip. A connection that the server closed is replaced.
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        size: int,
        keep: int = 1,
        kwargs: dict[str, Any],
        configure: Callable[[Connection], Awaitable[None]],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`refused` is called if the server accepts no writes."""
        self._size = size
        self._lent = 0
        self._refused = refused
        self._keeps = keep > 0
        self._waiting = 0
        self._spare: Connection | None = None
        """The connection that was given back last: taken again without psycopg's pool, which takes
        longer than a short statement. It counts as lent there."""
        self._kept_since = 0.0
        self._error: psycopg.Error | None = None
        """Why the last attempt to connect failed; None: it did not."""
        self._impatient: set[asyncio.Timeout] = set()
        self._opened: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        self._left_at = -math.inf
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            dsn,
            connection_class=self._watched_class(),
            kwargs=kwargs,
            min_size=keep,
            max_size=size,
            max_idle=_IDLE_SECONDS,
            reconnect_timeout=_RECONNECT_SECONDS,
            reconnect_failed=self._keep_trying,
            configure=configure,
            open=False,
            name=_NAME + name,
        )
        logging.getLogger("psycopg.pool").addFilter(_without_ours)

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        if self._spare is not None:
            spare, self._spare = self._spare, None
            await self._pool.putconn(spare)
        await self._pool.close(timeout=2)

    def get_stats(self) -> dict[str, int]:
        return self._pool.get_stats()

    @asynccontextmanager
    async def connection(
        self, seconds: float, *, fail_fast: bool = False
    ) -> AsyncIterator[Connection]:
        """Lend a connection in autocommit mode. See `take`."""
        connection = await self.take(seconds, fail_fast=fail_fast)
        try:
            async with connection:
                yield connection
        except psycopg.errors.ReadOnlySqlTransaction:
            await self.refuse(connection)
            raise
        finally:
            await self.give_back(connection)

    async def take(self, seconds: float, *, fail_fast: bool = False) -> Connection:
        """Return a connection that works, as far as can be known without a round trip.

        Waits up to `seconds` for one. With `fail_fast`, it does not wait while the server is down.
        """
        if self._spare is not None:
            spare, self._spare = self._spare, None
            if self._works(spare):
                self._lent += 1
                return spare
            await spare.close()
            await self._pool.putconn(spare)
        try:
            if not fail_fast:
                return await self._take(seconds)
            async with asyncio.timeout(seconds) as limit:
                self._impatient.add(limit)
                self._stop_waiting()
                try:
                    return await self._take(seconds)
                finally:
                    self._impatient.discard(limit)
        except (TimeoutError, PoolTimeout) as error:
            if self._error is not None:
                raise DatabaseUnreachable(
                    f"PostgreSQL cannot be reached: {first_line(self._error)}"
                ) from error
            raise

    async def _take(self, seconds: float) -> Connection:
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        while True:
            self._waiting += 1
            try:
                connection = await self._pool.getconn(timeout=seconds)
            finally:
                self._waiting -= 1
            if task.cancelling() > cancelled:
                # Before Python 3.12, `asyncio.wait_for`, on which psycopg's pool relies, returns as
                # if nothing had happened if it is cancelled in the turn in which it ends.
                await self._pool.putconn(connection)
                raise asyncio.CancelledError
            if self._works(connection):
                self._lent += 1
                return connection
            await connection.close()
            await self._pool.putconn(connection)

    def leave_server(self) -> None:
        """Use none of the connections any more that are open now."""
        self._left_at = time.monotonic()

    def _works(self, connection: Connection) -> bool:
        """Whether the server has not closed it, and is not one that we left."""
        if _is_stale(connection):
            return False
        return self._opened.get(connection, math.inf) >= self._left_at

    async def refuse(self, connection: Connection) -> None:
        """The connection leads to a server that accepts no writes."""
        await connection.close()
        self._refused()

    async def give_back(self, connection: Connection) -> None:
        self._lent -= 1
        if not self._keep(connection):
            await self._pool.putconn(connection)

    def _keep(self, connection: Connection) -> bool:
        """Whether it is now the spare one."""
        if not self._keeps or self._spare is not None or self._waiting or self._pool.closed:
            return False
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        now = time.monotonic()
        if self._kept_since and now - self._kept_since > _KEEP_SECONDS:
            self._kept_since = 0.0
            return False
        self._kept_since = self._kept_since or now
        self._spare = connection
        return True

    def _watched_class(self) -> type[Connection]:
        pool = self

        class Watched(psycopg.AsyncConnection[Row]):
            of_duetime = True

            @classmethod
            async def connect(cls, *args: Any, **kwargs: Any) -> Self:
                try:
                    connection = await super().connect(*args, **kwargs)
                except psycopg.Error as error:
                    pool._error = error
                    pool._stop_waiting()
                    raise
                pool._error = None
                pool._opened[connection] = time.monotonic()
                return connection

        return Watched

    def _stop_waiting(self) -> None:
        """Stop the waits of callers with `fail_fast`, if the server is down."""
        if self._error is not None and not self._lent:
            fail_fast, self._impatient = self._impatient, set()
            for limit in fail_fast:
                limit.reschedule(0)

    async def _keep_trying(self, pool: AsyncConnectionPool[Connection]) -> None:
        stats = pool.get_stats()
        if stats["pool_size"] < stats["pool_min"] or stats.get("requests_waiting"):
            await pool.check()


def _is_stale(connection: Connection) -> bool:
    """Whether the server has closed it: a check of the socket, which costs microseconds."""
    try:
        for _ in range(_READS):
            socket = select.poll()
            socket.register(connection.fileno(), select.POLLIN)
            if not socket.poll(0):
                return False
            connection.pgconn.consume_input()
    except psycopg.Error:
        return True
    return connection.closed


def _without_ours(record: logging.LogRecord) -> bool:
    """The pool logs each attempt to connect. We report an outage ourselves."""
    about = record.args[0] if isinstance(record.args, tuple) and record.args else None
    if isinstance(about, str):
        return not about.startswith(_NAME)
    return not getattr(about, "of_duetime", False)
