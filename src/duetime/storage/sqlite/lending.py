"""Transactions lent to handlers: connections of their own, one at a time in a process."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

from duetime.storage.sqlite.connection import connect, persist, translate_errors
from duetime.storage.sqlite.shared import Turn


class Lender:
    """Begins and commits off the event loop. `committed` is called after each commit."""

    def __init__(
        self, path: str, turn: Turn, *, lock_seconds: float, committed: Callable[[], None]
    ) -> None:
        self._path = path
        self._turn = turn
        self._lock_seconds = lock_seconds
        self._committed = committed
        # A thread of our own: in a shared pool a commit could wait behind those who wait for it.
        self._executor: ThreadPoolExecutor | None = None

    @asynccontextmanager
    async def lend(
        self, before_commit: Callable[[sqlite3.Connection], Awaitable[None]] | None = None
    ) -> AsyncIterator[sqlite3.Connection]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "duetime-sqlite-lender")
        loop = asyncio.get_running_loop()
        await self._turn.take_async(self._lock_seconds)
        beginning = loop.run_in_executor(self._executor, self._begin)
        try:
            connection = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # It may still begin, and nothing would end it.
            beginning.add_done_callback(self._give_up)
            raise
        try:
            yield connection
            if before_commit is not None:
                await before_commit(connection)
        except BaseException:
            self._roll_back(connection)
            raise
        # Once begun, the commit is not interrupted: a cancelled caller learns what it did.
        committing = loop.run_in_executor(self._executor, self._commit, connection)
        try:
            await asyncio.shield(committing)
        except asyncio.CancelledError:
            await asyncio.wait([committing])
            raise

    @contextmanager
    def lend_sync(
        self, before_commit: Callable[[sqlite3.Connection], None] | None = None
    ) -> Iterator[sqlite3.Connection]:
        self._turn.take(self._lock_seconds)
        connection = self._begin()
        try:
            yield connection
            if before_commit is not None:
                before_commit(connection)
        except BaseException:
            self._roll_back(connection)
            raise
        self._commit(connection)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    # Each of these is called in the turn; all but a successful `_begin` release it.

    def _begin(self) -> sqlite3.Connection:
        try:
            with translate_errors(self._path):
                connection = connect(self._path, lock_seconds=self._lock_seconds)
                try:
                    persist(lambda: connection.execute("begin immediate"), self._lock_seconds)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except BaseException:
            self._turn.release()
            raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            with translate_errors(self._path):
                try:
                    if connection.in_transaction:
                        connection.execute("commit")
                finally:
                    connection.close()
        finally:
            self._turn.release()
        self._committed()

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            # Closing rolls back; nothing is waited for.
            connection.close()
        finally:
            self._turn.release()

    def _give_up(self, beginning: asyncio.Future[sqlite3.Connection]) -> None:
        if not beginning.cancelled() and beginning.exception() is None:
            self._roll_back(beginning.result())
