"""The LISTEN connection: never pooled, its own DSN, reconnects by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import PGnotify

from duetime.storage.postgres.connection import first_line, rows_of
from duetime.telemetry.events import LogThrottle, log_event

log = logging.getLogger("duetime.listener")

_BACKOFF = (0.1, 1.0)
_CALL_SECONDS = 10.0
_STAY_SECONDS = 5.0
"""If no server accepts writes, it does not reconnect more often than this."""


class Listener:
    """Calls `on_notify(channel, payload)` for each NOTIFY; `on_notify("", "")` after a reconnect,
    since what was sent meanwhile is lost.

    Every role that may connect can send any payload: it says what to check, never what is true.
    """

    def __init__(
        self, dsn: str, channels: Sequence[str], on_notify: Callable[[str, str], None]
    ) -> None:
        self._dsn = dsn
        self._channels = channels
        self._on_notify = on_notify
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._busy = asyncio.Lock()
        self._reconnecting: asyncio.Task[None] | None = None
        self._closed = False
        self._fd = -1
        self._connected_at = -math.inf

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def open(self) -> None:
        await self._connect()

    async def execute(self, statement: str, parameters: Sequence[Any]) -> list[Any] | None:
        """Run a statement on the listening session. None: there is no connection now."""
        async with self._busy:
            connection = self._connection
            if connection is None:
                return None
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._fd)
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    cursor = await connection.execute(statement, parameters)
                    rows = await rows_of(cursor)
            except (psycopg.Error, TimeoutError, OSError) as error:
                self._lost(error)
                return None
            except asyncio.CancelledError:
                # The session's state is unknown: begin a new one.
                self._lost(RuntimeError("a call was cancelled"))
                raise
            loop.add_reader(self._fd, self._read)
            self._read()
            return rows

    def leave_server(self) -> None:
        """The server accepts no writes: perhaps the URL leads to another one now."""
        stayed = time.monotonic() - self._connected_at
        if stayed > _STAY_SECONDS and not self._busy.locked():
            self._lost(RuntimeError("the server accepts no writes"))

    async def close(self) -> None:
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reconnecting
        connection, self._connection = self._connection, None
        if connection is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            await connection.close()

    async def _connect(self) -> None:
        connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
        try:
            for channel in self._channels:
                await connection.execute(f'listen "{channel}"')
        except BaseException:
            await connection.close()
            raise
        # Not `add_notify_handler`: that decodes strictly, and would raise out of `execute`.
        connection.pgconn.notify_handler = self._hand_over
        self._connection = connection
        self._connected_at = time.monotonic()
        # Kept here: a broken connection no longer knows it, and the number is soon reused.
        self._fd = connection.fileno()
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.pgconn.consume_input()
            while (notify := connection.pgconn.notifies()) is not None:
                self._hand_over(notify)
        except psycopg.Error as error:
            self._lost(error)

    def _hand_over(self, notify: PGnotify) -> None:
        # In a database without an encoding, the bytes may be any.
        channel, payload = (
            notify.relname.decode(errors="replace"),
            notify.extra.decode(errors="replace"),
        )
        try:
            self._on_notify(channel, payload)
        except Exception as error:  # noqa: BLE001
            log_event(
                log,
                logging.ERROR,
                "notification_failed",
                "Handling the notification %(payload)r on %(channel)s failed.",
                channel=channel,
                payload=payload[:200],
                exc_info=error,
            )

    def _lost(self, error: BaseException) -> None:
        connection, self._connection = self._connection, None
        if connection is None or self._closed:
            return
        log_event(
            log,
            logging.WARNING,
            "listener_lost",
            "The listening connection was lost; the worker polls until it is back: %(error)s",
            error=first_line(error),
        )
        asyncio.get_running_loop().remove_reader(self._fd)
        self._reconnecting = asyncio.ensure_future(self._reconnect(connection))

    async def _reconnect(self, old: psycopg.AsyncConnection[Any]) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            await old.close()
        seldom = LogThrottle()
        for attempt in range(10**9):
            await asyncio.sleep(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    await self._connect()
            except (psycopg.Error, OSError, TimeoutError) as error:
                if seldom.passes():
                    log_event(
                        log,
                        logging.WARNING,
                        "listener_reconnect_failed",
                        "The listening connection could not be opened again: %(error)s",
                        error=first_line(error),
                    )
                continue
            log_event(
                log,
                logging.INFO,
                "listener_reconnected",
                "The listening connection is back after %(attempt)s attempts.",
                attempt=attempt + 1,
            )
            self._on_notify("", "")
            return
