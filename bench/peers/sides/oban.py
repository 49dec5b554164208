"""Oban (Python): enqueue_many, a queue of 100 at a time, LISTEN/NOTIFY, finished jobs kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from oban import Oban, worker  # type: ignore[import-not-found]
from oban.schema import install  # type: ignore[import-not-found]

from bench.peers.sides import side

LIMIT = 100
BULK = 1_000
UNFINISHED = """
select count(*) from oban_jobs where state in ('available', 'scheduled', 'executing', 'retryable')
"""
ran_number: Callable[[int], None] = lambda number: None  # noqa: E731


@worker(queue="default")  # type: ignore[untyped-decorator]
class Noop:
    async def process(self, job: Any) -> None:
        ran_number(job.args["number"])


class Peer:
    async def prepare(self, url: str) -> None:
        pool = await Oban.create_pool(url)
        await install(pool)
        await pool.close()

    async def open(self, url: str) -> None:
        self.pool: Any = await Oban.create_pool(url)
        self.oban: Any = Oban(pool=self.pool)
        await self.oban.start()

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        for first in range(0, len(jobs), BULK):
            await self.oban.enqueue_many(
                Noop.new({"number": number, "note": note})
                for number, note in jobs[first : first + BULK]
            )

    async def single(self, job: side.Job) -> None:
        await self.oban.enqueue(Noop.new({"number": job[0], "note": job[1]}))

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        await self.oban.enqueue_many(
            Noop.new({"number": number, "note": ""}, scheduled_at=datetime.fromtimestamp(due, UTC))
            for number, due in timers
        )

    async def left(self) -> int:
        async with self.pool.connection() as connection:
            cursor = await connection.execute(UNFINISHED)
            return int((await cursor.fetchone())[0])

    async def close(self) -> None:
        await self.oban.stop()
        await self.pool.close()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        global ran_number  # noqa: PLW0603 - Oban makes the worker by itself.
        ran_number = ran
        pool = await Oban.create_pool(url)
        async with Oban(pool=pool, queues={"default": LIMIT}):
            started()
            await stop.wait()
        await pool.close()


if __name__ == "__main__":
    side.run(Peer())
