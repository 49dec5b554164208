"""The long runs of flows, with their size as an argument: small in `make test`, whole in
`make chaos`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from duetime import Duetime, FlowRun
from duetime.errors import TransientError
from tests import effects, flow_workload, ledger
from tests.chaos.campaigns import SHORT
from tests.waiting import until, until_true
from tests.workload import end_worker, start_worker

Kind = Literal["function", "graph"]
Workers = list[subprocess.Popen[str]]


class Campaign:
    """Runs of a flow on workers of their own, to which something happens meanwhile."""

    def __init__(self, url: str, directory: Path, *, kind: Kind, seed: int = 0) -> None:
        self.url = url
        self.chance = random.Random(seed)
        self.workers: Workers = []
        self.stood_still: list[tuple[int, float, float]] = []
        """Workers that stood still, from when and until when."""
        self._kind = kind
        self._ledger = directory / "ledger.txt"
        self._stack = ExitStack()
        self._app = Duetime(url, migrate=True, **SHORT)
        self._flow = flow_workload.register_flow(self._app)
        self._graph = flow_workload.register_graph(self._app)
        self._runs: list[FlowRun[Any]] = []
        self._signals: asyncio.TaskGroup

    @asynccontextmanager
    async def started(self, *, workers: int = 3) -> AsyncIterator[None]:
        """So many workers are there, and signals are sent."""
        os.environ[ledger.VARIABLE] = str(self._ledger)
        await self._app.now()
        with self._stack:
            await asyncio.gather(*(self.start_worker() for _ in range(workers)))
            async with asyncio.TaskGroup() as self._signals:
                yield
        await self._app.close()

    async def start(self, *, runs: int) -> None:
        """Start more runs, each of which is sent its signal at some time."""
        for number in range(len(self._runs), len(self._runs) + runs):
            run = await _again_after_outages(partial(self._start, number))
            self._runs.append(run)
            self._signals.create_task(self._send_signal(run, number))

    async def _start(self, number: int) -> FlowRun[Any]:
        if self._kind == "function":
            return await self._flow.start(number)
        return await self._graph.start(n=number, items=flow_workload.ITEMS)

    async def start_worker(self) -> None:
        worker = await asyncio.to_thread(start_worker, self.url, concurrency=10, **SHORT)
        self._stack.callback(end_worker, worker)
        self.workers.append(worker)

    async def _send_signal(self, run: FlowRun[Any], number: int) -> None:
        """Early, while the run waits, or just as it begins to. The second changes nothing."""
        await asyncio.sleep(self.chance.uniform(0.0, 1.0))
        for _ in range(2):
            await _again_after_outages(lambda: run.signal("go", number, key="once"))

    async def until_busy(self) -> subprocess.Popen[str]:
        """Return a worker that is in the middle of a step."""
        found = await until(self._find_busy)
        assert found is not None
        return found

    async def _find_busy(self) -> subprocess.Popen[str] | None:
        under_way = Counter[int]()
        for line in ledger.read(self._ledger):
            under_way[line.pid] += {"began": 1, "effect": -1}.get(line.word, 0)
        busy = [worker for worker in self.workers if under_way[worker.pid] > 0]
        return self.chance.choice(busy) if busy else None

    @property
    def _steps(self) -> list[str]:
        function = self._kind == "function"
        return flow_workload.FLOW_STEPS if function else flow_workload.GRAPH_STEPS

    async def until_all_ended(self, *, seconds: float = 120) -> Counter[str]:
        """Every run completed, each effect is there, and no recorded step ran again."""

        async def all_ended() -> bool:
            return not await self._app.jobs.list(
                state=["pending", "retrying", "running", "parked"], limit=1
            )

        await until(lambda: _again_after_outages(all_ended), seconds=seconds)
        states = Counter([str(await run.status()) for run in self._runs])
        assert states == {"completed": len(self._runs)}
        return ledger.check(
            ledger.read(self._ledger),
            runs=len(self._runs),
            steps=self._steps,
            stood_still=self.stood_still,
        )


async def kill_workers(
    url: str, directory: Path, *, kind: Kind, runs: int, kills: int, replace: bool = True
) -> Counter[str]:
    """kill -9 of workers in the middle of steps, at moments and of victims chosen at random."""
    campaign = Campaign(url, directory, kind=kind)
    async with campaign.started():
        for _ in range(kills):
            await campaign.start(runs=runs // kills)
            await asyncio.sleep(campaign.chance.uniform(0.0, 0.05))
            victim = await campaign.until_busy()
            campaign.workers.remove(victim)
            end_worker(victim)
            if replace:
                await campaign.start_worker()
        done = await campaign.until_all_ended()
        prefix = "duetime." if url.startswith("postgresql") else "duetime_"
        [(lost,)] = effects.run(url, f"select count(*) from {prefix}attempt where outcome = 'lost'")
    assert lost > 0, "nothing was lost: the kills met idle workers"
    return done


async def stop_workers(
    url: str, directory: Path, *, kind: Kind, runs: int, stops: int
) -> Counter[str]:
    """SIGSTOP of workers until their lease is over and others have their runs; then SIGCONT."""
    campaign = Campaign(url, directory, kind=kind)
    async with campaign.started():
        for _ in range(stops):
            await campaign.start(runs=runs // stops)
            victim = await campaign.until_busy()
            stopped_at = time.time()
            victim.send_signal(signal.SIGSTOP)
            try:
                # Past its lease, which has a second, and the rescue.
                resume_at = time.monotonic() + campaign.chance.uniform(1.2, 2.0)
                await until_true(lambda: time.monotonic() > resume_at)  # noqa: B023
            finally:
                campaign.stood_still.append((victim.pid, stopped_at, time.time()))
                victim.send_signal(signal.SIGCONT)
        return await campaign.until_all_ended()


async def restart_database(
    url: str,
    directory: Path,
    restart: Callable[[], None],
    *,
    kind: Kind,
    runs: int,
    restarts: int,
) -> Counter[str]:
    """The database is restarted while flows run."""
    campaign = Campaign(url, directory, kind=kind)
    async with campaign.started():
        for _ in range(restarts):
            await campaign.start(runs=runs // restarts)
            await campaign.until_busy()
            await asyncio.to_thread(restart)
        return await campaign.until_all_ended()


async def join_branches(url: str, directory: Path, *, rounds: int, processes: int) -> None:
    """The branches of a graph end at one moment, on several processes; their join runs once."""
    path = directory / "ledger.txt"
    os.environ[ledger.VARIABLE] = str(path)
    app = Duetime(url, migrate=True)
    graph = flow_workload.register_fan_in(app)
    await app.now()
    with ExitStack() as stack:
        concurrency = flow_workload.BRANCHES // processes
        for _ in range(processes):
            worker = await asyncio.to_thread(start_worker, url, concurrency=concurrency)
            stack.callback(end_worker, worker)
        for number in range(rounds):
            run = await graph.start(n=number, at=time.time() + 0.5)
            assert await run.result() == {"join": "join"}
    await app.close()

    begun = Counter(line.run for line in ledger.read(path) if line.word == "began")
    assert begun == dict.fromkeys(range(rounds), 1)


async def _again_after_outages(call: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await call()
        except TransientError:
            await asyncio.sleep(0.1)
