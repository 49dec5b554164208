"""Hand-written SQL on PostgreSQL: COPY, LISTEN, a claim of 500, one delete for them.

No history, retries, leases or fences: what a job queue adds is what it costs beside this.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

from bench import raw
from bench.peers.sides import side

INSERT_AND_WAKE = """
with put as (
    insert into raw_job (queue, task, args, priority) values ('default', 'noop', $1, 5) returning id
)
select pg_notify('raw_job', '') from put
"""


class Raw:
    async def prepare(self, url: str) -> None:
        raw.create(url)

    async def open(self, url: str) -> None:
        self.connection: Any = await asyncpg.connect(url)
        self.insert: Any = await self.connection.prepare(INSERT_AND_WAKE)

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        await self.connection.copy_records_to_table(
            "raw_job",
            columns=["queue", "task", "args", "priority"],
            records=[("default", "noop", encode(job), 5) for job in jobs],
        )

    async def single(self, job: side.Job) -> None:
        await self.insert.fetch(encode(job))

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        async with self.connection.transaction():
            await self.connection.executemany(
                raw.INSERT,
                [(encode((n, "")), datetime.fromtimestamp(due, UTC)) for n, due in timers],
            )
            await self.connection.execute("select pg_notify('raw_job', '')")

    async def left(self) -> int:
        return int(await self.connection.fetchval("select count(*) from raw_job"))

    async def close(self) -> None:
        await self.connection.close()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        connection: Any = await asyncpg.connect(url)
        woken = asyncio.Event()
        await connection.add_listener("raw_job", lambda *_: woken.set())
        claim = await connection.prepare(raw.CLAIM)
        delete = await connection.prepare("delete from raw_job where id = any ($1)")
        ahead = await connection.prepare(raw.NEXT)
        started()
        while not stop.is_set():
            woken.clear()
            if rows := await claim.fetch():
                for row in rows:
                    ran(msgspec.json.decode(row[2])["number"])
                await delete.fetch([row[0] for row in rows])
                continue
            at = await ahead.fetchval()
            # Until the next timer; at most a second, in case a notification was lost.
            pause = 1.0 if at is None else min(1.0, max(0.0, at - time.time()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), pause)
        await connection.close()


def encode(job: side.Job) -> str:
    return msgspec.json.encode({"number": job[0], "note": job[1]}).decode()


if __name__ == "__main__":
    side.run(Raw())
