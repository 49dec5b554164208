"""Duetime with its defaults, on PostgreSQL or SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from bench.peers.sides import side
from duetime import Duetime
from duetime.settings import load_settings
from duetime.storage.migrations import upgrade
from duetime.wiring import make_migrator


class Ours:
    ran: Callable[[int], None]

    async def prepare(self, url: str) -> None:
        await asyncio.to_thread(upgrade, make_migrator(load_settings({"database": url})))

    async def open(self, url: str) -> None:
        self.app = Duetime(url)
        self.noop = self.app.task(name="noop")(self._noop)
        await self.app.store()

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        await self.app.enqueue_many(
            self.noop.job(number=number, note=note) for number, note in jobs
        )

    async def single(self, job: side.Job) -> None:
        await self.noop.enqueue(number=job[0], note=job[1])

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        await self.app.enqueue_many(
            self.noop.using(at=datetime.fromtimestamp(due, UTC)).job(number=number, note="")
            for number, due in timers
        )

    async def left(self) -> int:
        queues = await self.app.queues.list()
        return sum(queue.pending + queue.running + queue.parked for queue in queues)

    async def close(self) -> None:
        await self.app.close()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        self.ran = ran
        await self.open(url)
        async with self.app.worker():
            started()
            await stop.wait()
        await self.app.close()

    async def _noop(self, number: int, note: str) -> None:
        self.ran(number)


if __name__ == "__main__":
    side.run(Ours())
