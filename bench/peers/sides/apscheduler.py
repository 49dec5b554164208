"""APScheduler 4 on PostgreSQL: jobs through its data store, 100 at a time, asyncpg's events.

It has no job for later: a timer is a schedule with a date. It has no interface for many jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

from apscheduler import AsyncScheduler  # type: ignore[import-not-found]
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore  # type: ignore[import-not-found]
from apscheduler.eventbrokers.asyncpg import AsyncpgEventBroker  # type: ignore[import-not-found]
from apscheduler.triggers.date import DateTrigger  # type: ignore[import-not-found]
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from bench.peers.sides import side

AT_ONCE = 100
IN_FLIGHT = 10
UNFINISHED = """
select (select count(*) from jobs)
    + (select count(*) from schedules where next_fire_time is not null)
"""
ran_number: Callable[[int], None] = lambda number: None  # noqa: E731


async def noop(number: int, note: str) -> None:
    ran_number(number)


class Peer:
    async def prepare(self, url: str) -> None:
        await self.open(url)
        await self.close()

    async def open(self, url: str) -> None:
        self.stack = AsyncExitStack()
        self.engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
        self.scheduler: Any = await self.stack.enter_async_context(
            AsyncScheduler(
                SQLAlchemyDataStore(self.engine),
                AsyncpgEventBroker.from_async_sqla_engine(self.engine),
                max_concurrent_jobs=AT_ONCE,
            )
        )
        await self.scheduler.configure_task("noop", func=noop, max_running_jobs=AT_ONCE)

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        async def add(part: Sequence[side.Job]) -> None:
            for number, note in part:
                await self.scheduler.add_job("noop", args=(number, note))

        await asyncio.gather(*(add(jobs[place::IN_FLIGHT]) for place in range(IN_FLIGHT)))

    async def single(self, job: side.Job) -> None:
        await self.scheduler.add_job("noop", args=job)

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        for number, due in timers:
            trigger = DateTrigger(datetime.fromtimestamp(due, UTC))
            await self.scheduler.add_schedule("noop", trigger, args=(number, ""))

    async def left(self) -> int:
        async with self.engine.connect() as connection:
            return int((await connection.execute(text(UNFINISHED))).scalar_one())

    async def close(self) -> None:
        await self.stack.aclose()
        await self.engine.dispose()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        global ran_number  # noqa: PLW0603 - the stored name of a task is that of a function.
        ran_number = ran
        await self.open(url)
        await self.scheduler.start_in_background()
        started()
        await stop.wait()
        await self.scheduler.stop()
        await self.close()


if __name__ == "__main__":
    side.run(Peer())
