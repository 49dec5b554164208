"""Hand-written SQL on SQLite: WAL, synchronous=FULL, and a file that is polled every 20 ms."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec

from bench import raw_sqlite
from bench.peers.sides import side
from bench.peers.sides.raw import encode

_POLL_SECONDS = 0.02


class RawSqlite:
    async def prepare(self, url: str) -> None:
        raw_sqlite.create(url)

    async def open(self, url: str) -> None:
        self.connection = raw_sqlite.connect(url)

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        now = int(time.time() * 1e6)
        self._insert([(encode(job), now) for job in jobs])

    async def single(self, job: side.Job) -> None:
        self.connection.execute(raw_sqlite.INSERT, (encode(job), int(time.time() * 1e6)))

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        self._insert([(encode((number, "")), int(due * 1e6)) for number, due in timers])

    async def left(self) -> int:
        return int(self.connection.execute("select count(*) from raw_job").fetchone()[0])

    async def close(self) -> None:
        self.connection.close()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        connection = raw_sqlite.connect(url)
        connection.execute("pragma busy_timeout = 5000")
        started()
        while not stop.is_set():
            connection.execute("begin immediate")
            rows = connection.execute(raw_sqlite.CLAIM, (int(time.time() * 1e6),)).fetchall()
            connection.execute("commit")
            for _, _, args in rows:
                ran(msgspec.json.decode(args)["number"])
            if rows:
                connection.execute("begin immediate")
                ids = [(row[0],) for row in rows]
                connection.executemany("delete from raw_job where id = ?", ids)
                connection.execute("commit")
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _POLL_SECONDS)
            await asyncio.sleep(0)
        connection.close()

    def _insert(self, rows: Sequence[tuple[str, int]]) -> None:
        self.connection.execute("begin immediate")
        self.connection.executemany(raw_sqlite.INSERT, rows)
        self.connection.execute("commit")


if __name__ == "__main__":
    side.run(RawSqlite())
