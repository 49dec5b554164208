"""procrastinate: batch_defer, 50 jobs at a time, LISTEN/NOTIFY, finished jobs kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from bench.peers.sides import side

CONCURRENCY = 50
UNFINISHED = "select count(*) as left from procrastinate_jobs where status in ('todo', 'doing')"


class Peer:
    ran: Callable[[int], None]

    def connect(self, url: str) -> None:
        self.app: Any = App(connector=PsycopgConnector(conninfo=url))

        @self.app.task(name="noop")  # type: ignore[untyped-decorator]
        async def noop(number: int, note: str) -> None:
            self.ran(number)

        self.noop: Any = noop

    async def prepare(self, url: str) -> None:
        self.connect(url)
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def open(self, url: str) -> None:
        self.connect(url)
        await self.app.open_async()

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        await self.noop.batch_defer_async(
            *({"number": number, "note": note} for number, note in jobs)
        )

    async def single(self, job: side.Job) -> None:
        await self.noop.defer_async(number=job[0], note=job[1])

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        for number, due in timers:
            at = datetime.fromtimestamp(due, UTC)
            await self.noop.configure(schedule_at=at).defer_async(number=number, note="")

    async def left(self) -> int:
        row = await self.app.connector.execute_query_one_async(UNFINISHED)
        return int(row["left"])

    async def close(self) -> None:
        await self.app.close_async()

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        self.ran = ran
        self.connect(url)
        async with self.app.open_async():
            working = asyncio.create_task(
                self.app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
            )
            started()
            await side.first_of(stop.wait(), working)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


if __name__ == "__main__":
    side.run(Peer())
