"""DBOS with flows of some steps that do nothing. Run by the interpreter that has it.

The argument is JSON: url, steps of each flow, in_flight, seconds of the load, idle, the number of
flows that run alone, and the pause before each of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from dbos import DBOS, DBOSConfig  # type: ignore[import-not-found]


@DBOS.step()  # type: ignore[untyped-decorator]
async def add(number: int) -> int:
    return number + 1


@DBOS.workflow()  # type: ignore[untyped-decorator]
async def count(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await add(number)
    return number


async def run(steps: int) -> None:
    handle = await DBOS.start_workflow_async(count, steps)
    found = await handle.get_result()
    if found != steps:
        sys.exit(f"a flow of {steps} steps returned {found}")


async def main(
    url: str, steps: int, in_flight: int, seconds: float, idle: int, pause: float
) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "run_admin_server": False,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    await asyncio.gather(*(run(steps) for _ in range(in_flight // 10)))
    milliseconds = []
    for _ in range(idle):
        await asyncio.sleep(pause)
        began = time.perf_counter()
        await run(steps)
        milliseconds.append((time.perf_counter() - began) * 1e3)
    flows = 0

    async def run_on() -> None:
        nonlocal flows
        while time.perf_counter() - began < seconds:
            await run(steps)
            flows += 1

    began = time.perf_counter()
    await asyncio.gather(*(run_on() for _ in range(in_flight)))
    rate = flows * steps / (time.perf_counter() - began)
    sys.stdout.write(json.dumps({"steps_per_second": rate, "idle_ms": milliseconds}) + "\n")
    sys.stdout.flush()
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
