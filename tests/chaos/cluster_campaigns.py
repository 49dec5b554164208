"""Failovers of a cluster under load: `make cluster`; a short one is in `make test`.

Workers and producers have one URL with three hosts. Jobs, ticks of a schedule, reminders and flows
run while the primary is killed, again and again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from duetime import Duetime, FlowRun
from duetime.domain.jobs.job import JobState
from duetime.errors import TransientError
from tests import cluster_workload, effects, flow_workload, ledger, workload
from tests.cluster import Cluster, Node
from tests.postgres_binaries import find_system
from tests.waiting import until
from tests.workload import end_worker, start_worker

RESUMES_WITHIN = 5.0
_UNFINISHED: Sequence[JobState] = [JobState.PENDING, JobState.RETRYING, JobState.RUNNING]
_RULE = {"rule": "0s", "past": "send_now"}


@dataclass
class Failover:
    """One of them: how long it took to promote another node, and then until work went on."""

    how: str
    promoted_after: float
    resumed_after: float


@dataclass
class Outcome:
    failovers: list[Failover] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class ClusterCampaign:
    """Producers in this process and workers in others, before a cluster."""

    def __init__(self, cluster: Cluster, directory: Path, *, seed: int = 0) -> None:
        self._cluster = cluster
        self._ledger = directory / "ledger.txt"
        self._log = directory / "workers.log"
        self._chance = random.Random(seed)
        self._url = ""
        self._app: Duetime
        self._accepted: dict[int, float] = {}
        """Jobs whose enqueue was acknowledged, and when."""
        self._subjects: set[int] = set()
        self._runs: dict[int, FlowRun[Any]] = {}
        self._stop = asyncio.Event()
        self.outcome = Outcome()

    @asynccontextmanager
    async def started(self, *, workers: int, all_features: bool = True) -> AsyncIterator[None]:
        """So many workers are there, and producers. At the end, everything has been worked off."""
        os.environ[ledger.VARIABLE] = str(self._ledger)
        self._url = await asyncio.to_thread(self._cluster.create_database, "shop")
        self._app = Duetime(self._url, migrate=True)
        await self._app.now()
        await asyncio.to_thread(effects.run, self._url, effects.CREATE)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._app.close)
            for _ in range(workers):
                worker = await asyncio.to_thread(
                    start_worker,
                    self._url,
                    log=self._log,
                    module="tests.cluster_workload",
                    concurrency=10,
                )
                stack.callback(end_worker, worker)
            async with asyncio.TaskGroup() as producers:
                for _ in range(4):
                    producers.create_task(self._enqueue_jobs())
                if all_features:
                    producers.create_task(self._put_subjects())
                    producers.create_task(self._start_flows())
                yield
                self._stop.set()
            await until(partial(_again_after_outages, self._is_done), seconds=180)
            await self._check_jobs()
            if all_features:
                await self._check_ticks()
                await self._check_reminders()
                await self._check_flows()

    # Producers

    async def _enqueue_jobs(self, numbers: count[int] = count()) -> None:  # noqa: B008
        effect = workload.task_of(self._app, "effect", max_attempts=500)
        while not self._stop.is_set():
            n = next(numbers)
            # The key makes it safe to repeat: whether the first one was committed is unknown.
            job = effect.using(key=f"effect:{n}", hold="1h")
            await _again_after_outages(partial(job.enqueue, n=n))
            self._accepted[n] = time.time()
            await asyncio.sleep(self._chance.uniform(0.0, 0.1))

    async def _put_subjects(self) -> None:
        for number in count():
            if self._stop.is_set():
                return
            due = await _again_after_outages(self._app.now)
            due += timedelta(seconds=self._chance.uniform(0.0, 3.0))
            put = partial(
                self._app.subjects.put,
                f"subject:{number}",
                due=due,
                remind=_RULE,
                recipients=["ann"],
            )
            await _again_after_outages(put)
            self._subjects.add(number)
            await asyncio.sleep(self._chance.uniform(0.1, 0.3))

    async def _start_flows(self) -> None:
        flow = flow_workload.register_flow(self._app)
        for number in count():
            if self._stop.is_set():
                return
            # The run holds its key until its signal has come.
            run = await _again_after_outages(partial(flow.using(key=f"run:{number}").start, number))
            self._runs[number] = run
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            for _ in range(2):
                await _again_after_outages(partial(run.signal, "go", number, key="once"))

    # Failovers

    async def fail_over(self, *, machine: bool, patience: float = 60.0) -> Node:
        """Kill the primary, and wait until another node is promoted and work goes on there."""
        primary = await asyncio.to_thread(self._cluster.wait_for_standbys)
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        killed_at = time.time()
        await asyncio.to_thread(primary.kill, machine=machine)
        await asyncio.to_thread(self._cluster.wait_for_primary)
        promoted_at = time.time()

        async def resumed() -> float | None:
            accepted = [at for at in self._accepted.values() if at > promoted_at]
            [(done,)] = await self._read(f"select min(at) from effect where at > {promoted_at}")
            return max(min(accepted), done) if accepted and done else None

        resumed_at = await until(resumed, seconds=patience)
        assert resumed_at is not None
        self.outcome.failovers.append(
            Failover(
                how="machine" if machine else "server",
                promoted_after=promoted_at - killed_at,
                resumed_after=resumed_at - promoted_at,
            )
        )
        return primary

    # What is there at the end

    async def _is_done(self) -> bool:
        unfinished = await self._app.jobs.list(state=_UNFINISHED, limit=100)
        return all(job.task == "tick" for job in unfinished)

    async def _check_jobs(self) -> None:
        done = {n for (n,) in await self._read("select n from effect where n >= 0")}
        lost = self._accepted.keys() - done
        self.outcome.counts.update(jobs=len(self._accepted), jobs_lost=len(lost))
        assert await asyncio.to_thread(effects.doubled, self._url) == []
        if self._cluster.synchronous:
            assert lost == set()

    async def _check_ticks(self) -> None:
        """Every second from the first one until now gets its effect, once."""
        now = int(time.time())

        async def all_there() -> bool:
            ticks = {-n for (n,) in await self._read("select n from effect where n < 0")}
            self.outcome.counts["ticks"] = len(ticks)
            return not set(range(min(ticks), now)) - ticks

        await until(all_there, seconds=60)

    async def _check_reminders(self) -> None:
        sent = Counter(
            line.run for line in ledger.read(self._ledger) if line.word == cluster_workload.SENT
        )
        assert self._subjects - set(sent) == set()
        statuses = Counter[str]()
        for number in self._subjects:
            page = await self._app.reminders.list(subject=f"subject:{number}")
            statuses.update(str(reminder.status) for reminder in page)
        assert statuses == {"sent": len(self._subjects)}
        # Sending is outside of the database: what was sent and could not be recorded goes again,
        # under the same key.
        repeated = sum(times - 1 for times in sent.values())
        self.outcome.counts.update(reminders=len(self._subjects), reminders_sent_again=repeated)

    async def _check_flows(self) -> None:
        states = Counter([str(await run.status()) for run in self._runs.values()])
        assert states == {"completed": len(self._runs)}
        lines = ledger.read(self._ledger)
        done = ledger.check(
            [line for line in lines if line.word != cluster_workload.SENT],
            runs=len(self._runs),
            steps=flow_workload.FLOW_STEPS,
        )
        self.outcome.counts.update(
            flows=len(self._runs), steps=done["steps"], steps_run_twice=done["twice"]
        )

    async def _read(self, statement: str) -> list[Any]:
        return await _again_after_outages(
            partial(asyncio.to_thread, effects.run, self._url, statement)
        )


async def run_campaign(
    cluster: Cluster, *, kills: int, workers: int = 3, all_features: bool = True, seed: int = 0
) -> Outcome:
    """Kill the primary so many times: its server alone and its whole machine in turn."""
    with tempfile.TemporaryDirectory(prefix="duetime-campaign-") as directory:
        campaign = ClusterCampaign(cluster, Path(directory), seed=seed)
        async with campaign.started(workers=workers, all_features=all_features):
            for number in range(kills):
                victim = await campaign.fail_over(machine=number % 2 == 1)
                print(_line(campaign.outcome.failovers[-1], number + 1), flush=True)
                victim.restart()
    return campaign.outcome


def _line(failover: Failover, number: int) -> str:
    return (
        f"  {number:2}. {failover.how:8} killed: another node promoted after"
        f" {failover.promoted_after:4.1f} s, work resumed {failover.resumed_after:3.1f} s later"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_args()
    for synchronous in (True, False):
        mode = "synchronous" if synchronous else "asynchronous"
        print(f"Three PostgreSQL nodes under Patroni and etcd, {mode} replication:", flush=True)
        kills = arguments.kills if synchronous else max(1, arguments.kills // 3)
        with Cluster(find_system(), synchronous=synchronous) as cluster:
            outcome = asyncio.run(run_campaign(cluster, kills=kills, all_features=synchronous))
        slowest = max(failover.resumed_after for failover in outcome.failovers)
        counts = ", ".join(f"{name} {number:,}" for name, number in outcome.counts.items())
        print(f"  {counts}", flush=True)
        print(f"  work resumed within {slowest:.1f} s of each promotion", flush=True)
        assert not synchronous or slowest <= RESUMES_WITHIN


async def _again_after_outages(call: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await call()
        except (TransientError, psycopg.OperationalError):
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
