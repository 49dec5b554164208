"""A connection for single statements whose answer somebody waits for right now."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from duetime.storage.postgres.pool import Connection
from duetime.storage.store import Row

READ = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_IDLE_SECONDS = 10.0
"""An idle session is closed after so long. To open it again takes milliseconds."""
_CANCEL_SECONDS = 1.0
"""How long it waits until the server has received that a statement is to be cancelled."""
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?s|%%")


class DirectSession:
    """Runs one prepared statement at a time, outside of a transaction, by libpq itself.

    For each statement psycopg's cursor takes about 0.1 ms of CPU, and the pool half of that: more
    than the server does. A flow that runs alone waits for it at every step. Whoever finds the
    session busy uses the pool, or waits.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        refused: Callable[[], None] = lambda: None,
        *,
        on_notify: Callable[[pq.PGnotify], None] | None = None,
        on_lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`refused` is called if the server accepts no writes. With `on_lost`, who owns the session
        decides when to leave it."""
        self._connect = connect
        self._refused = refused
        self._on_notify = on_notify
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._prepared: dict[str, Prepared] = {}
        self._turn = asyncio.Lock()
        self._used_at = 0.0
        self._results: list[pq.abc.PGresult] = []
        self._pipelined = False
        self._answer: asyncio.Future[pq.abc.PGresult] | None = None

    @property
    def is_free(self) -> bool:
        return not self._turn.locked() and self._loop in (None, asyncio.get_running_loop())

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def is_ready(self) -> bool:
        """Whether it is free, and need not connect first."""
        return self._connection is not None and self.is_free

    def has_prepared(self, statement: str) -> bool:
        """Whether it is free, and would send this statement at once."""
        return statement in self._prepared and self.is_ready

    async def open(self) -> None:
        async with self._turn:
            if self._connection is None:
                await self._open()

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any], seconds: float
    ) -> list[Row]:
        """Return the rows. Parameters are texts and numbers. Raises the driver's errors."""
        result = await self._run(statement, parameters, seconds, settles=False)
        transformer = Transformer(self._connection)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    async def write(self, statement: str, parameters: Mapping[str, Any], seconds: float) -> int:
        """As `execute`; return the number of rows. A caller that is cancelled once the statement is
        sent is released only when its answer has arrived: a write cannot be undone."""
        return (await self._run(statement, parameters, seconds, settles=True)).ntuples

    async def fetch_bytes(
        self, statement: str, parameters: Mapping[str, bytes | None], seconds: float
    ) -> bytes:
        """As `Calls.fetch_bytes`."""
        form = pq.Format.BINARY
        result = await self._run(statement, parameters, seconds, settles=True, form=form)
        return result.get_value(0, 0) or b""

    async def _run(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any],
        seconds: float,
        *,
        settles: bool,
        form: pq.Format = pq.Format.TEXT,
    ) -> pq.abc.PGresult:
        try:
            async with self._turn:
                return await self._execute(
                    statement, parameters, seconds, settles=settles, form=form
                )
        except psycopg.errors.ReadOnlySqlTransaction:
            self._refused()
            raise

    async def _execute(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any],
        seconds: float,
        *,
        settles: bool,
        form: pq.Format,
    ) -> pq.abc.PGresult:
        try:
            connection = self._connection
            if connection is None:
                async with asyncio.timeout(seconds):
                    connection = await self._open()
            prepared = self._prepared.get(statement)
            if prepared is None:
                prepared = await self._prepare(connection, statement, seconds)
            values = prepared.order(parameters)
            connection.pgconn.send_query_prepared(
                prepared.name, values, [form] * len(values), result_format=pq.Format.BINARY
            )
            return await self._receive(connection, seconds, settles=settles)
        except _Settled:
            raise asyncio.CancelledError from None
        except (psycopg.OperationalError, TimeoutError, asyncio.CancelledError) as error:
            await self.give_up(error)
            raise
        except psycopg.errors.ReadOnlySqlTransaction:
            if self._on_lost is None:
                await self.close()
            raise
        finally:
            self._used_at = time.monotonic()

    async def execute_together(
        self, statements: Sequence[tuple[str, Sequence[Any] | Mapping[str, Any]]], seconds: float
    ) -> list[list[Row]]:
        """As `execute`, for several: in one round trip, and one transaction. The session must be
        open."""
        async with self._turn:
            results = await self._execute_together(statements, seconds)
        transformer = Transformer(self._connection)
        found = []
        for result in results:
            if result.status not in READ:
                error = error_from_result(result)
                if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                    self._refused()
                raise error
            transformer.set_pgresult(result)
            found.append(transformer.load_rows(0, result.ntuples, tuple))
        return found

    async def _execute_together(
        self, statements: Sequence[tuple[str, Sequence[Any] | Mapping[str, Any]]], seconds: float
    ) -> list[pq.abc.PGresult]:
        try:
            connection = self._connection
            if connection is None:
                raise psycopg.OperationalError("the session is closed")
            prepared = [
                self._prepared.get(text) or await self._prepare(connection, text, seconds)
                for text, _ in statements
            ]
            # Before the pipeline: a text that cannot be sent must not leave it half filled.
            ordered = [
                (one.name, one.order(parameters))
                for one, (_, parameters) in zip(prepared, statements, strict=True)
            ]
            pgconn = connection.pgconn
            pgconn.enter_pipeline_mode()
            for name, values in ordered:
                pgconn.send_query_prepared(name, values, result_format=pq.Format.BINARY)
            pgconn.pipeline_sync()
            await self._receive(connection, seconds, pipelined=True)
            pgconn.exit_pipeline_mode()
            return self._results[:-1]
        except (psycopg.OperationalError, TimeoutError, asyncio.CancelledError) as error:
            await self.give_up(error)
            raise
        finally:
            self._used_at = time.monotonic()

    async def _prepare(self, connection: Connection, statement: str, seconds: float) -> Prepared:
        prepared = Prepared(f"duetime_{len(self._prepared)}".encode(), statement)
        connection.pgconn.send_prepare(prepared.name, prepared.text)
        await self._receive(connection, seconds)
        self._prepared[statement] = prepared
        return prepared

    async def close(self) -> None:
        connection = self._forget()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(psycopg.OperationalError("the session was closed"))
        if connection is not None:
            try:
                if connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                    # A statement that waits for a lock must not take effect later.
                    await cancel_statement(connection, _CANCEL_SECONDS)
            finally:
                await connection.close()

    async def give_up(self, error: BaseException) -> None:
        """Close it, since what it does now is unknown."""
        is_open = self._connection is not None
        await self.close()
        if is_open and self._on_lost is not None:
            self._on_lost(error)

    def leave_server(self) -> None:
        """Close the session, unless it is in use: then it is refused by itself."""
        connection = None if self._turn.locked() else self._forget()
        if connection is not None:
            connection.pgconn.finish()

    async def _open(self) -> Connection:
        connection = await self._connect()
        self._loop = asyncio.get_running_loop()
        self._fd = connection.fileno()
        self._loop.add_reader(self._fd, self._read)
        self._connection = connection
        if self._on_lost is None:
            self._loop.call_later(_IDLE_SECONDS, self._close_if_idle, connection)
        return connection

    def _close_if_idle(self, connection: Connection) -> None:
        if self._connection is not connection or self._loop is None:
            return
        idle = 0.0 if self._turn.locked() else time.monotonic() - self._used_at
        if idle >= _IDLE_SECONDS:
            self._forget()
            connection.pgconn.finish()
        else:
            self._loop.call_later(_IDLE_SECONDS - idle, self._close_if_idle, connection)

    def _forget(self) -> Connection | None:
        connection, self._connection = self._connection, None
        self._prepared.clear()
        if connection is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        return connection

    async def _receive(
        self,
        connection: Connection,
        seconds: float,
        *,
        settles: bool = False,
        pipelined: bool = False,
    ) -> pq.abc.PGresult:
        assert self._loop is not None
        self._results = []
        self._pipelined = pipelined
        self._answer = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._expire)
        try:
            if connection.pgconn.flush():
                self._loop.add_writer(self._fd, self._write)
            try:
                result = await self._answer
            except asyncio.CancelledError:
                if not settles:
                    raise
                if self._answer.cancelled():
                    if self._connection is not connection:
                        raise
                    self._answer = self._loop.create_future()
                    # What has arrived since then is in the buffer: the socket has nothing more.
                    self._read()
                try:
                    await self._answer
                except (psycopg.Error, TimeoutError):
                    raise asyncio.CancelledError from None
                raise _Settled from None
        finally:
            timer.cancel()
            self._answer = None
        if not pipelined and result.status not in READ:
            raise error_from_result(result)
        return result

    def _expire(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(TimeoutError("The server did not answer in time."))

    def _write(self) -> None:
        """Send what did not fit into the socket's buffer."""
        assert self._loop is not None
        try:
            if self._connection is None or not self._connection.pgconn.flush():
                self._loop.remove_writer(self._fd)
        except psycopg.Error as error:
            self.fail(error)

    def _read(self) -> None:
        if self._connection is None:
            return
        pgconn = self._connection.pgconn
        try:
            pgconn.consume_input()
            nothing = False
            while self._answer is not None and not self._answer.done() and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None:
                    self._results.append(result)
                    if result.status == pq.ExecStatus.PIPELINE_SYNC:
                        self._answer.set_result(result)
                elif not self._pipelined:
                    self._answer.set_result(self._results[-1])
                elif nothing:
                    # Each statement of a pipeline ends so; the next one has not arrived yet.
                    break
                nothing = result is None
            while self._on_notify is not None and (notify := pgconn.notifies()) is not None:
                self._on_notify(notify)
        except psycopg.Error as error:
            self.fail(error)

    def fail(self, error: psycopg.Error) -> None:
        """The connection is gone, perhaps while nobody waited, or is to be left."""
        connection = self._forget()
        if connection is not None:
            connection.pgconn.finish()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if connection is not None and self._on_lost is not None:
            self._on_lost(error)


async def cancel_statement(connection: Connection, seconds: float) -> bool:
    """Have the server cancel what the connection executes. Returns whether it has received that:
    if not, it may still cancel a later statement of this connection.

    A caller that is cancelled meanwhile is released only when this is done: else the statement
    would go on.
    """
    request = asyncio.create_task(_request_cancel(connection, seconds))
    is_cancelled = False
    while not request.done():
        try:
            await asyncio.wait([request])
        except asyncio.CancelledError:
            is_cancelled = True
    is_received = request.result()
    if is_cancelled:
        raise asyncio.CancelledError
    return is_received


async def _request_cancel(connection: Connection, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await connection.cancel_safe(timeout=seconds)
    except (psycopg.Error, OSError):
        return False
    return True


class _Settled(Exception):
    """The caller was cancelled, and the answer to its statement has arrived."""


class Prepared:
    """A statement as the server knows it: its placeholders are numbered."""

    def __init__(self, name: bytes, statement: str) -> None:
        self.name = name
        self._keys: dict[str, int] = {}
        """The names of its parameters, each with its number."""
        self._count = 0
        self.text = _PLACEHOLDER.sub(self._number, statement).encode()

    def _number(self, placeholder: re.Match[str]) -> str:
        if placeholder[0] == "%%":
            return "%"
        key = placeholder[1]
        if key is None:
            self._count += 1
            return f"${self._count}"
        return f"${self._keys.setdefault(key, len(self._keys) + 1)}"

    def order(self, parameters: Sequence[Any] | Mapping[str, Any]) -> list[bytes | None]:
        if isinstance(parameters, Mapping):
            parameters = [parameters[key] for key in self._keys]
        return [
            value if value is None or isinstance(value, bytes) else _write_text(str(value))
            for value in parameters
        ]


def _write_text(text: str) -> bytes:
    if "\0" in text:
        # libpq would send what comes before it.
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text.encode()
