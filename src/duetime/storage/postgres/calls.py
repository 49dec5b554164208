"""Single prepared statements on connections of the pool, without the driver's cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from duetime.storage.postgres.direct import READ, Prepared
from duetime.storage.postgres.pool import Connection, Pool
from duetime.storage.store import Row

_CANCEL_SECONDS = 5.0
"""How long a caller that was cancelled waits for the server's answer."""


class Calls:
    """Runs a statement as a transaction of its own, by libpq itself: one round trip.

    psycopg's cursor and its pool take 0.15 ms of CPU for a statement, more than the server takes
    to enqueue a job. Any number of calls may run at once, each on a connection of the pool.
    """

    def __init__(self, pool: Callable[[], Pool]) -> None:
        self._pool = pool
        self._prepared: WeakKeyDictionary[Connection, dict[str, Prepared]] = WeakKeyDictionary()

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any], seconds: float
    ) -> list[Row]:
        """Return the rows. Parameters are texts and numbers. Raises the driver's errors."""
        pool = self._pool()
        connection = await pool.take(seconds)
        try:
            result = await self._run(connection, statement, parameters, pq.Format.TEXT, seconds)
            transformer = Transformer(connection)
            transformer.set_pgresult(result)
            return transformer.load_rows(0, result.ntuples, tuple)
        finally:
            await pool.give_back(connection)

    async def fetch_bytes(
        self, statement: str, parameters: Mapping[str, bytes | None], seconds: float
    ) -> bytes:
        """Return the first column of the only row. It and the parameters are binary."""
        pool = self._pool()
        connection = await pool.take(seconds)
        try:
            result = await self._run(connection, statement, parameters, pq.Format.BINARY, seconds)
            return result.get_value(0, 0) or b""
        finally:
            await pool.give_back(connection)

    async def _run(
        self,
        connection: Connection,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any],
        form: pq.Format,
        seconds: float,
    ) -> pq.abc.PGresult:
        pgconn = connection.pgconn
        try:
            try:
                return await self._send(connection, statement, parameters, form, seconds)
            except psycopg.errors.InvalidSqlStatementName:
                # After a ROLLBACK the driver removes all statements of its session, also ours.
                self._prepared.pop(connection, None)
                return await self._send(connection, statement, parameters, form, seconds)
        except psycopg.errors.ReadOnlySqlTransaction:
            await self._pool().refuse(connection)
            raise
        except BaseException:
            # What the session does now is unknown, unless it has answered.
            if pgconn.transaction_status != pq.TransactionStatus.IDLE:
                await connection.close()
            raise

    async def _send(
        self,
        connection: Connection,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any],
        form: pq.Format,
        seconds: float,
    ) -> pq.abc.PGresult:
        pgconn = connection.pgconn
        known = self._prepared.get(connection)
        if known is None:
            known = self._prepared[connection] = {}
        prepared = known.get(statement)
        if prepared is None:
            prepared = Prepared(f"duetime_call_{len(known)}".encode(), statement)
            pgconn.send_prepare(prepared.name, prepared.text)
            await _answer(pgconn, seconds)
            known[statement] = prepared
        values = prepared.order(parameters)
        pgconn.send_query_prepared(
            prepared.name, values, [form] * len(values), result_format=pq.Format.BINARY
        )
        return await _answer(pgconn, seconds)


async def _answer(pgconn: pq.abc.PGconn, seconds: float) -> pq.abc.PGresult:
    """Send what was queued, and return the result of the statement.

    A caller that is cancelled is released when the answer has arrived: only then is it certain what
    the statement did, and the connection can be used again.
    """
    exchange = _Exchange(pgconn, asyncio.get_running_loop())
    timer = exchange.loop.call_later(seconds, exchange.expire)
    try:
        exchange.send()
        try:
            result = await exchange.answer
        except asyncio.CancelledError:
            await exchange.settle()
            raise
    finally:
        timer.cancel()
        exchange.end()
    if result.status not in READ:
        raise error_from_result(result)
    return result


class _Exchange:
    """A statement that was sent, until its result is read."""

    __slots__ = ("_fd", "_pgconn", "_results", "_writes", "answer", "loop")

    def __init__(self, pgconn: pq.abc.PGconn, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answer: asyncio.Future[pq.abc.PGresult] = loop.create_future()
        self._pgconn = pgconn
        self._fd = pgconn.socket
        self._results: list[pq.abc.PGresult] = []
        self._writes = False

    def send(self) -> None:
        self.loop.add_reader(self._fd, self._read)
        if self._pgconn.flush():
            self._writes = True
            self.loop.add_writer(self._fd, self._write)

    async def settle(self) -> None:
        """Wait for the answer, although the caller was cancelled."""
        if self.answer.cancelled():
            self.answer = self.loop.create_future()
            # What has arrived since then is in the buffer: the socket has nothing more.
            self._read()
        timer = self.loop.call_later(_CANCEL_SECONDS, self.expire)
        try:
            await self.answer
        except (psycopg.Error, TimeoutError):
            pass
        finally:
            timer.cancel()

    def end(self) -> None:
        self.loop.remove_reader(self._fd)
        if self._writes:
            self.loop.remove_writer(self._fd)

    def expire(self) -> None:
        self._fail(TimeoutError("The server did not answer in time."))

    def _read(self) -> None:
        try:
            self._pgconn.consume_input()
            while not self.answer.done() and not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    self.answer.set_result(self._results[-1])
                else:
                    self._results.append(result)
        except psycopg.Error as error:
            self._fail(error)

    def _write(self) -> None:
        """Send what did not fit into the socket's buffer."""
        try:
            if not self._pgconn.flush():
                self._writes = False
                self.loop.remove_writer(self._fd)
        except psycopg.Error as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
