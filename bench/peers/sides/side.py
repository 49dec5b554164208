"""What every measured system can be asked to do, and the process that does it.

Run by the interpreter that has the system: nothing but the standard library is imported here.
`python -m bench.peers.sides.NAME prepare|produce|work`, with parameters as a line of JSON.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from bench.child import Parent
from bench.payload import note_for

Job = tuple[int, str]
"""Its number and a text; together 150 bytes of JSON."""
Timer = tuple[int, float]
"""The number of a job and the second of the epoch at which it is due."""
_REPORT_SECONDS = 0.05
_STOP_SECONDS = 10.0


class Side(Protocol):
    """A system as a user would run it, with the settings that its manual recommends."""

    async def prepare(self, url: str) -> None:
        """Create its tables in an empty database."""

    async def open(self, url: str) -> None:
        """Connect a producer."""

    async def bulk(self, jobs: Sequence[Job]) -> None:
        """Enqueue all jobs by the fastest interface there is."""

    async def single(self, job: Job) -> None:
        """Enqueue one job, durably, when it returns."""

    async def timers(self, timers: Sequence[Timer]) -> None:
        """Enqueue jobs for the future."""

    async def left(self) -> int:
        """Return how many jobs the system itself believes unfinished."""

    async def close(self) -> None: ...

    async def work(
        self,
        url: str,
        ran: Callable[[int], None],
        started: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        """Run a worker until `stop`; its handler calls `ran` with the job's number."""


def run(side: Side) -> None:
    roles: dict[str, Any] = {"prepare": prepare, "produce": produce, "work": work}
    role = roles[sys.argv[1]]
    parent = Parent()
    asyncio.run(role(side, parent, **parent.hear()))
    # Some systems leave threads behind that would keep the process alive.
    sys.stdout.flush()
    os._exit(0)


async def first_of(*awaited: Awaitable[Any]) -> None:
    """Wait until one of them is done."""
    futures = [asyncio.ensure_future(one) for one in awaited]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def prepare(side: Side, parent: Parent, *, url: str) -> None:
    await side.prepare(url)
    parent.say("prepared")


async def produce(side: Side, parent: Parent, *, url: str) -> None:
    """Enqueue what is asked for, and say how long it took."""
    await side.open(url)
    parent.say("ready")
    while (asked := await parent.heard()) != "stop":
        parent.say(await _answer(side, **asked))
    await side.close()
    parent.say("stopped")


async def _answer(side: Side, do: str, **given: Any) -> dict[str, Any]:
    if do == "left":
        return {"left": await side.left()}
    if do == "timers":
        await side.timers([(number, due) for number, due in given["timers"]])
        return {}
    if do == "single":
        count, until = 0, time.monotonic() + given["seconds"]
        began = time.monotonic()
        while count < given["most"] and (not count or time.monotonic() < until):
            number = given["first"] + count
            await side.single((number, note_for(number)))
            count += 1
        ended = time.monotonic()
        return {"count": count, "began": began, "ended": ended}
    jobs = [(n, note_for(n)) for n in range(given["first"], given["first"] + given["count"])]
    began = time.monotonic()
    await side.bulk(jobs)
    return {"seconds": time.monotonic() - began}


async def work(side: Side, parent: Parent, *, url: str, tell: bool) -> None:
    """Run a worker; say how many handlers ran, or, if so asked, each job as it runs."""
    executions: list[tuple[int, float]] = []

    def ran(number: int) -> None:
        executions.append((number, time.monotonic()))
        if tell:
            parent.say({"number": number})

    parent.say("ready")
    await parent.heard()
    stop = asyncio.Event()
    told = asyncio.create_task(parent.heard())
    working = asyncio.create_task(side.work(url, ran, lambda: parent.say("started"), stop))
    reported = 0
    while not told.done() and not working.done():
        await asyncio.wait(
            [told, working],
            timeout=None if tell else _REPORT_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not tell and len(executions) > reported:
            reported = len(executions)
            parent.say({"count": reported})
    stop.set()
    await asyncio.wait([working], timeout=_STOP_SECONDS)
    if working.done():
        working.result()
    parent.say({"executions": executions})
