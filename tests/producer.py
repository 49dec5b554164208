"""A process that enqueues single jobs at random moments, some in transactions held open."""

from __future__ import annotations

import asyncio
import random
import sys
import time

from duetime.wiring import file_of
from tests.workload import app, started


async def produce(number: int, jobs: int) -> None:
    chance = random.Random(number)
    store = await app.store()
    holds = file_of(app.settings.database) is None
    lines = []
    for index in range(jobs):
        await asyncio.sleep(chance.choice((0.0, 0.001, 0.003, 0.01, 0.02)))
        n = number * 1_000_000 + index
        if holds and chance.random() < 0.05:
            async with store.transaction() as connection:
                await started.using(tx=connection).enqueue(n=n)
                await asyncio.sleep(chance.uniform(0, 0.03))
        else:
            await started.enqueue(n=n)
        lines.append(f"committed {n} {time.time()}")
    await app.close()
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    asyncio.run(produce(int(sys.argv[1]), int(sys.argv[2])))
