"""The application that the workers of these tests run. On DUETIME_DATABASE."""

from __future__ import annotations

import asyncio
import time

from duetime import Context, Duetime

app = Duetime()


@app.task(name="shop.send")
async def send(item_id: int) -> str:
    return f"sent {item_id}"


@app.task(name="shop.fail", max_attempts=1)
async def fail() -> None:
    raise ValueError("the shop\nis closed")


@app.task(name="shop.slow")
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(name="shop.stuck")
def stuck(seconds: float) -> None:
    """In a thread, which nobody can end."""
    time.sleep(seconds)


@app.task(name="shop.block")
async def block(ctx: Context, seconds: float) -> None:
    """On the loop, where it should not be."""
    await ctx.progress("blocking")
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
