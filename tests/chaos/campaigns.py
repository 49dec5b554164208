"""The long runs, with their size as an argument: small in `make test`, whole in `make chaos`."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
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
        running = [
            subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "tests.producer", str(number), str(jobs // producers)],
                env={**os.environ, "DUETIME_DATABASE": url},
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(producers)
        ]
        texts = await asyncio.gather(*(asyncio.to_thread(read_all, one) for one in running))
        committed = dict(pair for text in texts for pair in pairs(text, "committed"))

        def started() -> dict[int, float]:
            return dict(pair for output in outputs for pair in pairs(output.read_text(), "started"))

        await until_true(lambda: len(started()) == len(committed), seconds=15)
        begun = started()
    assert len(committed) == producers * (jobs // producers)
    late = sorted(begun[n] - committed[n] for n in committed)
    return {"worst": late[-1], "p99": late[int(len(late) * 0.99)], "p50": late[len(late) // 2]}


async def kill_workers(url: str, *, kills: int, jobs: int) -> Counter[str]:
    """kill -9 of workers under load. Returns how the attempts ended."""
    app = Duetime(url, migrate=True, **SHORT)
    await app.now()
    effects.run(url, effects.CREATE)
    effect = workload.task_of(app, "effect", max_attempts=500)
    await app.enqueue_many(effect.job(n=n, seconds=0.005) for n in range(jobs))
    workers = [start_worker(url, concurrency=10, **SHORT) for _ in range(3)]
    more = jobs
    try:
        for _ in range(kills):
            await asyncio.sleep(random.uniform(0.02, 0.15))
            victim = workers.pop(random.randrange(len(workers)))
            end_worker(victim)
            workers.append(await asyncio.to_thread(start_worker, url, concurrency=10, **SHORT))
            await app.enqueue_many(effect.job(n=n, seconds=0.005) for n in range(more, more + 20))
            more += 20

        async def all_done() -> bool:
            left = await app.jobs.find(state=["pending", "retrying", "running", "parked"], limit=1)
            return not left

        await until(all_done, seconds=120)
    finally:
        for worker in workers:
            end_worker(worker)
    prefix = "duetime." if url.startswith("postgresql") else "duetime_"
    ended = effects.run(url, f"select ended_as, count(*) from {prefix}attempt group by 1")
    await app.close()

    assert effects.doubled(url) == []
    assert effects.count(url) == more
    return Counter({str(name): int(count) for name, count in ended})


def read_all(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate()
    assert process.returncode == 0
    return text


def pairs(text: str, word: str) -> list[tuple[int, float]]:
    """Lines `word N … TIME` as (N, TIME); an unfinished last line is left out."""
    lines = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return [(int(words[1]), float(words[-1])) for words in lines if words and words[0] == word]
