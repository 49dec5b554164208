"""The floor of a machine's precision: handlers on an event loop, without a database."""

from __future__ import annotations

import asyncio
import math
import time

from bench.child import Parent, sleep_until


async def tick(parent: Parent, *, schedules: int, warm_up: float, seconds: float) -> None:
    """Sleep until each whole second, then begin every handler; say when they began."""
    ticks: list[tuple[float, float]] = []

    async def handle(at: int) -> None:
        ticks.append((at, time.time()))

    first = math.ceil(time.time() + warm_up)
    for at in range(math.ceil(time.time()), first + math.ceil(seconds)):
        await sleep_until(at)
        await asyncio.gather(*(handle(at) for _ in range(schedules)))
    parent.say({"first": first, "ticks": ticks})
