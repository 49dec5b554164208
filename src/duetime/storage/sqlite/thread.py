"""Transactions, and the thread that owns a store's connection: it runs them one after another."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Empty
from typing import Any, TypeVar

from duetime.errors import DatabaseCorrupted, DatabaseUnreachable, InvalidInput
from duetime.interpreter import frequent_switches
from duetime.storage.sqlite.connection import connect, is_locked, persist, translate_error
from duetime.storage.sqlite.inbox import Inbox, PolledInbox, Written, open_inbox
from duetime.storage.sqlite.shared import Shared, Turn, call_soon
from duetime.storage.store import Row, Statements
from duetime.telemetry.events import LogThrottle, log_event

log = logging.getLogger("duetime.sqlite")

T = TypeVar("T")

_CHECKPOINT_PAGES = 4000
"""Checkpoint when the log has 16 MB; it then costs little, and the log stays small."""
_IDLE_SECONDS = 1.0
_WATCHED_SECONDS = 0.05
"""How often a file is polled of which the kernel reports the writes: it may report none of those
that another machine makes to a shared folder."""
_WRITTEN_SECONDS = 0.001
"""A write is reported before its commit is visible: poll again after 1, 2, 4 … ms."""
_OWN_SECONDS = 0.004
"""The same after a write of our own: that of another process may have been reported with it."""
_MAX_SLEEP_US = 600_000_000
_UNKNOWN = -1
"""Not a version that SQLite reports."""


class Transaction:
    """Runs named statements; collects what is to be announced once it has committed."""

    __slots__ = ("_sql", "concerns_anyone", "connection", "finished", "now", "queues")

    def __init__(self, connection: sqlite3.Connection, sql: Mapping[str, str], now: int) -> None:
        self.connection = connection
        self._sql = sql
        self.now = now
        """Taken once the write lock is held: later transactions have later times."""
        self.queues: set[str] = set()
        """Queues whose sleepers are to be woken."""
        self.finished: list[int] = []
        """Jobs that have finished, for those who wait for them."""
        self.concerns_anyone = False
        """Whom it concerns is not known: each is checked after the commit."""

    def statement(self, name: str) -> str:
        return self._sql[name]

    def rows(self, statement: str, /, **parameters: Any) -> list[Row]:
        return self.connection.execute(self._sql[statement], parameters).fetchall()

    def value(self, statement: str, /, **parameters: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self.connection.execute(self._sql[statement], parameters).fetchone()
        return None if row is None else row[0]

    def run(self, statement: str, /, **parameters: Any) -> int:
        """Return how many rows were changed."""
        return self.connection.execute(self._sql[statement], parameters).rowcount

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        self.connection.executemany(self._sql[name], rows)

    def drive(self, statements: Statements) -> Any:
        """Run statements that were written without I/O; return their result."""
        try:
            sql, parameters = next(statements)
            while True:
                rows = self.connection.execute(sql, parameters).fetchall()
                sql, parameters = statements.send(rows)
        except StopIteration as stop:
            return stop.value

    def wake(self, queue: str, run_at: int | None = None) -> None:
        """Wake who sleeps on this queue. No worker sleeps longer than ten minutes."""
        if run_at is None or run_at <= self.now + _MAX_SLEEP_US:
            self.queues.add(queue)


Work = Callable[[Transaction], T]


class _Call:
    """A transaction that someone waits for."""

    __slots__ = ("abandoned", "answer", "read", "work")

    def __init__(
        self,
        read: Work[Any] | None,
        work: Work[Any] | None,
        answer: Callable[[Any, Any], None],
    ) -> None:
        self.read = read
        """Only reads; if it returns something, that is the answer."""
        self.work = work
        """Writes, in a transaction of its own."""
        self.answer = answer
        self.abandoned = False
        """The caller waits no longer; if it has not begun, it must not."""

    def is_awaited(self) -> bool:
        return not self.abandoned


class StoreThread:
    def __init__(
        self,
        path: str,
        sql: Mapping[str, str],
        shared: Shared,
        turn: Turn,
        *,
        call_seconds: float,
        poll_seconds: float,
        changed: Callable[[Transaction], None],
    ) -> None:
        self._path = path
        self._sql = sql
        self._shared = shared
        self._turn = turn
        self._call_seconds = call_seconds
        # Half of a call's time for the lock, so that it fails with SQLite's own error.
        self._lock_seconds = call_seconds / 2
        self._poll_seconds = poll_seconds
        self._changed = changed
        self._calls: Inbox[_Call | None] = PolledInbox()
        self._pause = poll_seconds
        """Until the next poll, while the file is watched."""
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._polled = 0.0
        self._seldom = LogThrottle()
        self._written = 0.0
        """When something was written that no checkpoint has moved yet; 0: nothing."""

    def start(self) -> None:
        """Open the connection, off the event loop."""
        connection = connect(
            self._path, lock_seconds=self._lock_seconds, checkpoint_pages=_CHECKPOINT_PAGES
        )
        try:
            persist(lambda: connection.execute("pragma journal_mode = wal"), self._lock_seconds)
            self._version = persist(lambda: self._data_version(connection), self._lock_seconds)
            _check_writable(connection)
        except BaseException:
            connection.close()
            raise
        self._calls = open_inbox(f"{self._path}-wal")
        self._connection = connection
        self._thread = threading.Thread(target=self._run_thread, name="duetime-sqlite", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued, then close the connection."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join()

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a transaction that holds the write lock."""
        answer: T = await self._call(None, work)
        return answer

    async def read(self, read: Work[T]) -> T:
        """Run `read` on one snapshot; it must not write."""
        answer: T = await self._call(read, None)
        return answer

    async def write_unless(self, read: Work[T | None], work: Work[T]) -> T:
        """Return what `read` returns; if that is None, run `work` under the write lock."""
        answer: T = await self._call(read, work)
        return answer

    def write_from_thread(self, work: Work[T], seconds: float) -> T:
        """As `write`, for a caller without an event loop. Gives up after `seconds`."""
        done = threading.Event()
        answers: list[tuple[Any, Any]] = []

        def answer(result: Any, error: Any) -> None:
            answers.append((result, error))
            done.set()

        call = _Call(None, work, answer)
        self._put(call)
        if not done.wait(seconds):
            call.abandoned = True
            raise DatabaseUnreachable(f"{self._path}: no answer within {seconds:g} s.")
        result, error = answers[0]
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def poll_now(self) -> None:
        """Another connection of this process has committed: check at once."""
        if self._thread is not None and self._shared.anyone:
            self._calls.put(_Call(None, None, _ignore))

    async def _call(self, read: Work[Any] | None, work: Work[Any] | None) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def answer(result: Any, error: Any) -> None:
            call_soon(loop, _resolve, future, result, error)

        call = _Call(read, work, answer)
        self._put(call)
        timer = loop.call_later(self._call_seconds, _expire, future, self._path, self._call_seconds)
        try:
            return await future
        finally:
            call.abandoned = True
            timer.cancel()

    def _put(self, call: _Call) -> None:
        if self._thread is None:
            raise AssertionError("the store is not open")
        self._calls.put(call)

    # On the thread

    def _run_thread(self) -> None:
        with frequent_switches:
            self._serve()

    def _serve(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            while True:
                try:
                    call = self._calls.get(self._patience(), watch=self._shared.anyone)
                except Empty as empty:
                    if isinstance(empty, Written):
                        self._pause = _WRITTEN_SECONDS
                    else:
                        self._pause = min(self._pause * 2, _WATCHED_SECONDS)
                    self._rest(connection)
                    continue
                if call is None:
                    return
                if not call.abandoned:
                    self._answer(connection, call)
                if (call.work is None and call.read is None) or self._is_time_to_poll():
                    self._poll(connection)
        finally:
            connection.close()
            self._calls.close()

    def _patience(self) -> float | None:
        if self._shared.anyone:
            return self._pause if self._calls.watches else self._poll_seconds
        return _IDLE_SECONDS if self._written else None

    def _answer(self, connection: sqlite3.Connection, call: _Call) -> None:
        try:
            result = self._run(connection, call)
        except sqlite3.Error as error:
            translated = translate_error(error, self._path)
            translated.__cause__ = error
            call.answer(None, translated)
        except OverflowError:
            call.answer(
                None, InvalidInput("The number is too large: SQLite integers have 64 bits.")
            )
        except BaseException as error:  # noqa: BLE001 -- raised where the caller waits.
            call.answer(None, error)
        else:
            call.answer(result, None)

    def _run(self, connection: sqlite3.Connection, call: _Call) -> Any:
        if call.read is not None:
            answer = persist(
                partial(self._read, connection, call.read),
                self._lock_seconds,
                is_awaited=call.is_awaited,
            )
            if answer is not None or call.work is None:
                return answer
        if call.work is None:
            return None
        with self._write_lock(connection, call):
            # The caller may have given up while this waited for the lock.
            if call.abandoned:
                return None
            transaction = self._transaction(connection)
            answer = call.work(transaction)
        self._written = time.monotonic()
        self._calls.forget_writes()
        self._pause = min(self._pause, _OWN_SECONDS)
        self._announce(connection, transaction)
        return answer

    def _read(self, connection: sqlite3.Connection, read: Work[T]) -> T:
        connection.execute("begin")
        try:
            return read(self._transaction(connection))
        finally:
            connection.execute("commit")

    @contextmanager
    def _write_lock(self, connection: sqlite3.Connection, call: _Call) -> Iterator[None]:
        self._turn.take(self._lock_seconds)
        try:
            persist(
                lambda: connection.execute("begin immediate"),
                self._lock_seconds,
                is_awaited=call.is_awaited,
            )
            try:
                yield
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        finally:
            self._turn.release()

    def _transaction(self, connection: sqlite3.Connection) -> Transaction:
        return Transaction(connection, self._sql, self._shared.now_us())

    def _announce(self, connection: sqlite3.Connection, transaction: Transaction) -> None:
        if transaction.queues:
            self._shared.wake(transaction.queues)
        if transaction.finished:
            self._shared.notify_finished(transaction.finished)
        if transaction.concerns_anyone:
            self._version = _UNKNOWN
            self._poll(connection)

    def _rest(self, connection: sqlite3.Connection) -> None:
        """Nothing to do: check for changes; checkpoint the log."""
        self._poll(connection)
        if self._written and time.monotonic() - self._written > _IDLE_SECONDS:
            self._written = 0.0
            try:
                connection.execute("pragma wal_checkpoint(passive)").fetchall()
            except sqlite3.Error as error:
                if isinstance(translate_error(error, self._path), DatabaseCorrupted):
                    return
                if self._seldom.passes():
                    log_event(
                        log,
                        logging.WARNING,
                        "checkpoint_failed",
                        "A checkpoint of the SQLite file failed and is tried again: %(error)s",
                        error=str(error),
                    )

    def _is_time_to_poll(self) -> bool:
        return time.monotonic() - self._polled > self._poll_seconds

    def _poll(self, connection: sqlite3.Connection) -> None:
        """If something was written since the last poll, notify those affected."""
        self._polled = time.monotonic()
        if not self._shared.anyone:
            return
        try:
            version = self._data_version(connection)
            if version != self._version:
                self._changed(self._transaction(connection))
                # Kept only now: a read that failed is repeated.
                self._version = version
        except sqlite3.Error as error:
            # Workers report a damaged file themselves.
            damaged = isinstance(translate_error(error, self._path), DatabaseCorrupted)
            if not damaged and self._seldom.passes():
                log_event(
                    log,
                    logging.WARNING,
                    "poll_failed",
                    "The SQLite file could not be polled for changes: %(error)s",
                    error=str(error),
                )

    def _data_version(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute("pragma data_version").fetchone()[0])


def _check_writable(connection: sqlite3.Connection) -> None:
    """A file that cannot be written fails now, not at the first job. One that another process is
    writing to can be written; who only reads need not wait for that."""
    try:
        connection.execute("begin immediate")
        connection.execute("rollback")
    except sqlite3.OperationalError as error:
        if not is_locked(error):
            raise


def _ignore(result: Any, error: Any) -> None:
    pass


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _expire(future: asyncio.Future[Any], path: str, seconds: float) -> None:
    if not future.done():
        future.set_exception(DatabaseUnreachable(f"{path}: no answer within {seconds:g} s."))
