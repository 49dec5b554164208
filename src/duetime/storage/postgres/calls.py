"""Single prepared statements on connections of the pool, without the driver's cursor."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from duetime.storage.postgres.direct import READ, Prepared, cancel_statement
from duetime.storage.postgres.pool import Connection, Pool
from duetime.storage.store import Row

_SETTLE_SECONDS = 0.1
"""How long a caller that was cancelled waits for the server's answer before the statement is
cancelled, too. Most take a millisecond, and a request to cancel needs a connection of its own."""
_CANCEL_SECONDS = 5.0
"""How long it waits from then on."""
_LATE_CANCEL_SECONDS = 1.0
"""The same, for a statement whose answer is late. The server may not answer at all."""


class Calls:
    """Runs a statement as a transaction of its own, by libpq itself: one round trip.

    psycopg's cursor and its pool take 0.15 ms of CPU for a statement, more than the server takes
    to enqueue a job. Any number of calls may run at once, each on a connection of the pool.
    """

    def __init__(self, pool: Callable[[], Pool]) -> None:
        self._pool = pool
        self._prepared: WeakKeyDictionary[Connection, dict[str, Prepared]] = WeakKeyDictionary()
        self._numbers = itertools.count()
        """No name is used twice: a statement may have been prepared for a caller that was
        cancelled."""

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
            prepared = Prepared(f"duetime_call_{next(self._numbers)}".encode(), statement)
            pgconn.send_prepare(prepared.name, prepared.text)
            await _answer(connection, seconds)
            known[statement] = prepared
        values = prepared.order(parameters)
        pgconn.send_query_prepared(
            prepared.name, values, [form] * len(values), result_format=pq.Format.BINARY
        )
        return await _answer(connection, seconds)


async def _answer(connection: Connection, seconds: float) -> pq.abc.PGresult:
    """Send what was queued, and return the result of the statement.

    A caller that is cancelled is released when the answer has arrived: only then is it certain what
    the statement did, and the connection can be used again. A statement that takes longer, such as
    one that waits for a lock, is cancelled in the server: it must not take effect later, and the
    session must not go on waiting. The same holds for one whose answer is late.
    """
    exchange = _Exchange(connection, asyncio.get_running_loop())
    timer = exchange.loop.call_later(seconds, exchange.expire)
    try:
        exchange.send()
        try:
            result = await exchange.answer
        except asyncio.CancelledError:
            # Its own time may be over soon, too: from now on `settle` says when.
            timer.cancel()
            await exchange.settle()
            raise
        except TimeoutError:
            # It may have been finished at the last moment.
            result = await exchange.stop_late()
    finally:
        timer.cancel()
        exchange.end()
        if not exchange.is_reusable:
            await connection.close()
    if result.status not in READ:
        raise error_from_result(result)
    return result


class _Exchange:
    """A statement that was sent, until its result is read."""

    __slots__ = (
        "_connection", "_fd", "_pgconn", "_results", "_writes", "answer", "is_reusable", "loop",
    )  # fmt: skip

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answer: asyncio.Future[pq.abc.PGresult] = loop.create_future()
        self.is_reusable = True
        """Whether the connection can be used again once the answer has arrived."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._fd = self._pgconn.socket
        self._results: list[pq.abc.PGresult] = []
        self._writes = False

    def send(self) -> None:
        self.loop.add_reader(self._fd, self._read)
        if self._pgconn.flush():
            self._writes = True
            self.loop.add_writer(self._fd, self._write)

    async def settle(self) -> None:
        """Wait for the answer, although the caller was cancelled."""
        if self.answer.cancelled() or isinstance(self.answer.exception(), TimeoutError):
            self._read_on()
        try:
            await asyncio.wait([self.answer], timeout=_SETTLE_SECONDS)
        finally:
            # Also if the caller is cancelled once more.
            if not self.answer.done():
                await self._stop(_CANCEL_SECONDS)

    async def stop_late(self) -> pq.abc.PGresult:
        """Return the answer if the statement was finished after all; else raise `TimeoutError`."""
        self._read_on()
        try:
            await self._stop(_LATE_CANCEL_SECONDS)
            result = self.answer.result()
            if result.status not in READ:
                raise error_from_result(result)
        except psycopg.Error as error:
            self.is_reusable = False
            raise _too_late() from error
        return result

    async def _stop(self, seconds: float) -> None:
        """Have the server cancel the statement, and wait for its answer."""
        timer = self.loop.call_later(seconds, self.expire)
        try:
            # A request that arrives late would cancel the next statement of the connection.
            self.is_reusable = False
            self.is_reusable = await cancel_statement(self._connection, seconds)
            await asyncio.wait([self.answer])
        finally:
            timer.cancel()

    def _read_on(self) -> None:
        self.answer = self.loop.create_future()
        # What has arrived since then is in the buffer: the socket has nothing more.
        self._read()

    def end(self) -> None:
        self.loop.remove_reader(self._fd)
        if self._writes:
            self.loop.remove_writer(self._fd)
        if self.answer.done() and not self.answer.cancelled():
            # If nobody takes it any more, asyncio does not report it.
            self.answer.exception()

    def expire(self) -> None:
        self._fail(_too_late())

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


def _too_late() -> TimeoutError:
    return TimeoutError("The server did not answer in time.")
