"""The long runs, with their size as an argument: small in `make test`, whole in `make chaos`."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from duetime import Duetime
from tests import effects, workload
from tests.waiting import until, until_true
from tests.workload import end_worker, start_worker

SHORT: dict[str, Any] = {"lease": "1s", "heartbeat": "250ms", "rescue_every": "250ms"}


async def enqueue_at_random_moments(url: str, *, jobs: int, directory: Path) -> dict[str, float]:
    """Single enqueues from 8 processes against workers that fall asleep between them.

    NOTIFY on, the safety poll at 60 s: a lost wake-up shows as a start a minute late.
    Returns the worst and the 99th percentile of (start - commit), in seconds.
    """
    producers = 8
    outputs = [directory / f"worker-{number}.txt" for number in range(3)]
    with ExitStack() as stack:
        for output in outputs:
            process = start_worker(url, output=output, poll="60s")
            stack.callback(end_worker, process)
        running = []
        for number in range(producers):
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "tests.producer", str(number), str(jobs // producers)],
                env={**os.environ, "DUETIME_DATABASE": url},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(end_worker, process)
            running.append(process)
        texts = await asyncio.gather(*(asyncio.to_thread(read_all, one) for one in running))
        committed = dict(pair for text in texts for pair in pairs(text, "committed"))

        def started() -> dict[int, float]:
            return dict(pair for output in outputs for pair in pairs(output.read_text(), "started"))

        await until_true(lambda: len(started()) == len(committed))
        begun = started()
    assert len(committed) == producers * (jobs // producers)
    late = sorted(begun[n] - committed[n] for n in committed)
    return {"worst": late[-1], "p99": late[int(len(late) * 0.99)], "p50": late[len(late) // 2]}


async def kill_workers(url: str, *, kills: int, jobs: int, seed: int = 0) -> Counter[str]:
    """kill -9 of workers while they run jobs, at moments and of victims that `seed` chooses.

    Every job's effect is there once. Returns how the attempts ended: some were lost.
    """
    chance = random.Random(seed)
    app = Duetime(url, migrate=True, **SHORT)
    await app.now()
    effects.run(url, effects.CREATE)
    effect = workload.task_of(app, "effect", max_attempts=500)
    more = 0

    async def enqueue(count: int) -> None:
        nonlocal more
        await app.enqueue_many(effect.job(n=n, seconds=0.02) for n in range(more, more + count))
        more += count

    async def is_busy(process: subprocess.Popen[str]) -> bool:
        if not await app.jobs.list(state="pending", limit=1):
            await enqueue(50)
        mine = [one for one in await app.workers.list() if f":{process.pid}:" in one.name]
        return any(worker.running for worker in mine)

    async def all_done() -> bool:
        left = await app.jobs.list(state=["pending", "retrying", "running", "parked"], limit=1)
        return not left

    with ExitStack() as stack:
        workers: list[subprocess.Popen[str]] = []

        async def start() -> None:
            worker = await asyncio.to_thread(start_worker, url, concurrency=10, **SHORT)
            stack.callback(end_worker, worker)
            workers.append(worker)

        await enqueue(jobs)
        for _ in range(3):
            await start()
        for _ in range(kills):
            victim = workers.pop(chance.randrange(len(workers)))
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            await until(partial(is_busy, victim))
            end_worker(victim)
            await start()
        await until(all_done, seconds=120)
    prefix = "duetime." if url.startswith("postgresql") else "duetime_"
    ended = effects.run(url, f"select outcome, count(*) from {prefix}attempt group by 1")
    await app.close()

    assert effects.doubled(url) == []
    assert effects.count(url) == more
    counted = Counter({str(name): int(count) for name, count in ended})
    assert counted["lost"] > 0, "nothing was lost: the kills met idle workers"
    return counted


def read_all(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate()
    assert process.returncode == 0
    return text


def pairs(text: str, word: str) -> list[tuple[int, float]]:
    """Lines `word N … TIME` as (N, TIME); an unfinished last line is left out."""
    lines = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return [(int(words[1]), float(words[-1])) for words in lines if words and words[0] == word]
