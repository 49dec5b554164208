"""A worker's heartbeat: its own connection, used from its own thread."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import psycopg

from duetime.storage.postgres.connection import translate_errors
from duetime.storage.store import Beat


class PostgresHeart:
    def __init__(self, dsn: str, beat: str) -> None:
        self._dsn = dsn
        self._beat = beat
        self._connection: psycopg.Connection[Any] | None = None

    def beat(self, worker_id: int, lease: timedelta, lag: timedelta = timedelta(0)) -> Beat:
        with translate_errors():
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(
                        self._dsn, autocommit=True, prepare_threshold=None
                    )
                    # Two serializable beats at once could refuse each other.
                    self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                with self._connection.transaction():
                    # A beat that takes longer than this has failed: the next one is due.
                    # As in the pool, no name is resolved where others may create objects.
                    self._connection.execute(
                        "set local statement_timeout = '5s';"
                        " set local search_path = pg_catalog, pg_temp"
                    )
                    row = self._connection.execute(
                        self._beat, {"worker": worker_id, "lease": lease, "lag": lag}
                    ).fetchone()
            except psycopg.Error:
                self.close()
                raise
        if row is None:
            return Beat(alive=False)
        return Beat(alive=True, rank=row[0], cancelled=tuple(row[1]), fleet=row[2])

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()
