"""The LISTEN connection: never pooled, its own DSN, reconnects by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import PGnotify

from duetime.storage.postgres.connection import first_line
from duetime.storage.postgres.direct import DirectSession
from duetime.storage.postgres.pool import Connection
from duetime.storage.store import Row
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
        self,
        connect: Callable[[], Awaitable[Connection]],
        channels: Sequence[str],
        on_notify: Callable[[str, str], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._channels = channels
        self._on_notify = on_notify
        self.session = DirectSession(
            self._listen, refused, on_notify=self._hand_over, on_lost=self._lost
        )
        """Runs single statements in the session that listens."""
        self._reconnecting: asyncio.Task[None] | None = None
        self._closed = False
        self._connected_at = -math.inf

    @property
    def connected(self) -> bool:
        return self.session.is_open

    async def open(self) -> None:
        await self.session.open()

    async def execute(self, statement: str, parameters: Sequence[Any]) -> list[Row] | None:
        """Run a statement on the listening session. None: there is no connection now."""
        if not self.session.is_open:
            return None
        try:
            return await self.session.execute(statement, parameters, _CALL_SECONDS)
        except (psycopg.Error, TimeoutError, OSError) as error:
            await self.session.give_up(error)
            return None

    def leave_server(self) -> None:
        """The server accepts no writes: perhaps the URL leads to another one now."""
        stayed = time.monotonic() - self._connected_at
        if stayed > _STAY_SECONDS and self.session.is_ready:
            self.session.fail(psycopg.OperationalError("the server accepts no writes"))

    async def close(self) -> None:
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reconnecting
        await self.session.close()

    async def _listen(self) -> Connection:
        connection = await self._connect()
        try:
            # Not `add_notify_handler`: that decodes strictly, and would raise out of `execute`.
            connection.pgconn.notify_handler = self._hand_over
            for channel in self._channels:
                await connection.execute(f'listen "{channel}"'.encode())
        except BaseException:
            await connection.close()
            raise
        self._connected_at = time.monotonic()
        return connection

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
        if self._closed:
            return
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("a call was cancelled")
        log_event(
            log,
            logging.WARNING,
            "listener_lost",
            "The listening connection was lost; the worker polls until it is back: %(error)s",
            error=first_line(error),
        )
        self._reconnecting = asyncio.ensure_future(self._reconnect())

    async def _reconnect(self) -> None:
        seldom = LogThrottle()
        for attempt in range(10**9):
            await asyncio.sleep(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    await self.session.open()
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
