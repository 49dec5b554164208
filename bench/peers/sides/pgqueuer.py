"""PgQueuer: lists of jobs in one insert, batches of 100, finished jobs written in batches."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from bench.peers.sides import side

BATCH = 100


class Peer:
    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self, url: str) -> None:
        self.connection: Any = await asyncpg.connect(url)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        await self.queries.enqueue(
            ["noop"] * len(jobs), [encode(job) for job in jobs], [0] * len(jobs)
        )

    async def single(self, job: side.Job) -> None:
        await self.queries.enqueue("noop", encode(job))

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        await self.queries.enqueue(
            ["noop"] * len(timers),
            [encode((number, "")) for number, _ in timers],
            [0] * len(timers),
            [timedelta(seconds=due - time.time()) for _, due in timers],
        )

    async def left(self) -> int:
        return int(await self.connection.fetchval("select count(*) from pgqueuer"))

    async def close(self) -> None:
        await self.connection.close()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        connection = await asyncpg.connect(url)
        app = PgQueuer.from_asyncpg_connection(connection)

        @app.entrypoint("noop")  # type: ignore[untyped-decorator]
        async def noop(job: Any) -> None:
            ran(json.loads(job.payload)["number"])

        working = asyncio.create_task(app.run(batch_size=BATCH))
        started()
        await side.first_of(stop.wait(), working)
        app.shutdown.set()
        await working
        await connection.close()


def encode(job: side.Job) -> bytes:
    return json.dumps({"number": job[0], "note": job[1]}, separators=(",", ":")).encode()


if __name__ == "__main__":
    side.run(Peer())
