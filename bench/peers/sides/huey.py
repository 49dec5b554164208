"""huey on SQLite: fsync on, four threads in each process, polls at least every 10 ms."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from huey import SqliteHuey  # type: ignore[import-not-found]

from bench.peers.sides import side

THREADS = 4


class Peer:
    ran: Callable[[int], None]

    async def prepare(self, url: str) -> None:
        await self.open(url)
        await self.close()

    async def open(self, url: str) -> None:
        self.huey: Any = SqliteHuey(filename=url, fsync=True, results=False, utc=False)

        @self.huey.task(name="noop")  # type: ignore[untyped-decorator]
        def noop(number: int, note: str) -> None:
            self.ran(number)

        self.noop: Any = noop

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        """There is no interface for many."""
        for number, note in jobs:
            self.noop(number, note)

    async def single(self, job: side.Job) -> None:
        self.noop(*job)

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        for number, due in timers:
            self.noop.schedule((number, ""), eta=datetime.fromtimestamp(due))  # noqa: DTZ006

    async def left(self) -> int:
        return int(self.huey.pending_count() + self.huey.scheduled_count())

    async def close(self) -> None:
        self.huey.storage.close()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        logging.getLogger("huey").setLevel(logging.WARNING)
        self.ran = ran
        await self.open(url)
        consumer = self.huey.create_consumer(
            workers=THREADS, periodic=False, initial_delay=0.001, backoff=1.15, max_delay=0.01
        )
        consumer.start()
        started()
        await stop.wait()
        await asyncio.to_thread(consumer.stop, graceful=True)


if __name__ == "__main__":
    side.run(Peer())
