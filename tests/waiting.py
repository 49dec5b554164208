"""Wait for what should happen, with a deadline; never for a fixed time.

What has to be cheap is measured in CPU time, which a busy machine does not change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds; much more than a busy machine needs, and nobody waits for it unless the test fails."""


async def until(condition: Callable[[], Awaitable[T]], *, seconds: float = PATIENCE) -> T:
    """Return the condition's first true answer; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {condition}, last answer {answer!r}")
        await asyncio.sleep(0.01)


async def until_true(condition: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Wait until the plain function's answer is true."""

    async def ask() -> object:
        return condition()

    await until(ask, seconds=seconds)


async def waits(url: str) -> bool:
    """Whether a session of a PostgreSQL database waits for a lock."""
    return await count_waits(url) > 0


async def count_waits(url: str, *, longer_than: float = 0.0) -> int:
    """How many sessions of a PostgreSQL database wait for a lock, for more than these seconds."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
            " and clock_timestamp() - query_start >= make_interval(secs => %s)",
            [longer_than],
        )
        return len(await cursor.fetchall())


@contextmanager
def cpu_at_most(seconds: float) -> Iterator[None]:
    """Fail if the block uses more CPU time than that, on all threads of this process."""
    began = time.process_time()
    yield
    used = time.process_time() - began
    assert used < seconds, f"it took {used:.2f} s of CPU time, and may take {seconds:g} s"
