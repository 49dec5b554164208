"""A worker's heartbeat, called from its own thread."""

from __future__ import annotations

from datetime import timedelta

from duetime.storage.sqlite.dialect import span_to_us
from duetime.storage.sqlite.thread import StoreThread, Transaction
from duetime.storage.store import Beat

_BEAT_SECONDS = 5.0


class SqliteHeart:
    """Beats through the store's thread, not over a connection of its own.

    The thread does not depend on the event loop, and all that it runs is short; a connection of
    our own would wait for the same write lock, and would be a second writer in this process. A
    beat that takes longer than a few seconds has failed: the next one is due.
    """

    def __init__(self, thread: StoreThread) -> None:
        self._thread = thread

    def beat(self, worker_id: int, lease: timedelta, lag: timedelta = timedelta(0)) -> Beat:
        def work(tx: Transaction) -> Beat:
            rank = tx.value(
                "beat",
                worker=worker_id,
                now=tx.now,
                lease_until=tx.now + span_to_us(lease),
                lag=span_to_us(lag),
            )
            if rank is None:
                return Beat(alive=False)
            cancelled = tx.rows("cancelled_of", worker=worker_id)
            return Beat(alive=True, rank=rank, cancelled=tuple(row[0] for row in cancelled))

        return self._thread.write_from_thread(work, _BEAT_SECONDS)

    def close(self) -> None:
        """There is nothing of our own to close."""
