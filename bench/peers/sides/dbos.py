"""DBOS: a job is a workflow on a queue that is polled every 100 ms; enqueued in one transaction."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig  # type: ignore[import-not-found]

from bench.peers.sides import side

QUEUE = "bench"
POLL_SECONDS = 0.1
UNFINISHED = """
select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING', 'DELAYED')
"""
ran_number: Callable[[int], None] = lambda number: None  # noqa: E731


@DBOS.workflow(name="noop")  # type: ignore[untyped-decorator]
async def noop(number: int, note: str) -> None:
    ran_number(number)


class Peer:
    options: dict[str, Any] = {"queue_name": QUEUE, "workflow_name": "noop"}  # noqa: RUF012

    async def launch(self, url: str) -> None:
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": url,
            "run_admin_server": False,
            "log_level": "ERROR",
            # With one name for all, a process that starts would run what others have begun.
            "executor_id": f"bench-{os.getpid()}",
        }
        DBOS(config=config)
        DBOS.launch()
        await DBOS.register_queue_async(QUEUE, polling_interval_sec=POLL_SECONDS)

    async def prepare(self, url: str) -> None:
        await self.launch(url)
        await asyncio.to_thread(DBOS.destroy)

    async def open(self, url: str) -> None:
        self.client: Any = DBOSClient(system_database_url=url)
        self.engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        with self.engine.begin() as connection:
            for number, note in jobs:
                self.client.enqueue_in_transaction(connection, self.options, number, note)

    async def single(self, job: side.Job) -> None:
        await self.client.enqueue_async(self.options, *job)

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        for number, due in timers:
            options = self.options | {"delay_seconds": due - time.time()}
            await self.client.enqueue_async(options, number, "")

    async def left(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(sa.text(UNFINISHED)).scalar_one())

    async def close(self) -> None:
        self.client.destroy()
        self.engine.dispose()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        global ran_number  # noqa: PLW0603 - a workflow is a function of a module.
        ran_number = ran
        await self.launch(url)
        started()
        await stop.wait()
        await asyncio.to_thread(DBOS.destroy)


if __name__ == "__main__":
    side.run(Peer())
