"""An application for tests that need workers in processes of their own.

Its tasks leave their effects in the table `effect`, in the same transaction as the job's end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from duetime import Constant, Context, Duetime, Task
from duetime.domain.jobs.job import NewJob
from tests import flow_workload

app = Duetime()
"""On DUETIME_DATABASE."""

flow_workload.register_flow(app)
flow_workload.register_graph(app)
flow_workload.register_fan_in(app)

INSERT = "insert into effect (n, job_id, token, worker, at) values ({p}, {p}, {p}, {p}, {p})"


def effect_sql(connection: Any) -> str:
    return INSERT.format(p="?" if isinstance(connection, sqlite3.Connection) else "%s")


@app.task(name="effect", retry=Constant("0s", max_attempts=200))
async def effect(ctx: Context, n: int, seconds: float = 0.0) -> None:
    """Leave one row for each time that this job's effect was committed."""
    if seconds:
        await asyncio.sleep(seconds)
    async with ctx.transaction() as connection:
        values = (n, ctx.id, ctx.token, ctx.worker, time.time())
        result = connection.execute(effect_sql(connection), values)
        if not isinstance(connection, sqlite3.Connection):
            await result


@app.task(name="started", retry=Constant("0s", max_attempts=50))
async def started(ctx: Context, n: int, seconds: float = 0.0) -> None:
    """Write a line to standard output when it starts, and when it ends."""
    print(f"started {n} {ctx.attempt} {time.time()}", flush=True)
    if seconds:
        await asyncio.sleep(seconds)
    print(f"ended {n} {ctx.attempt} {time.time()}", flush=True)


@app.task(name="poison", retry=Constant("0s", max_attempts=3))
async def poison() -> None:
    """End the process, as a crash in native code would."""
    os._exit(99)


def task_of(other: Duetime, name: str, *, max_attempts: int = 200) -> Task[..., None]:
    """A task of this application, registered in another one too."""
    definition = other.tasks[name] = app.tasks[name]
    return Task(other, definition, NewJob(task=name, max_attempts=max_attempts))


async def work(**options: Any) -> None:
    loop = asyncio.get_running_loop()
    # Before the worker starts: that waits for a database that is away.
    watch = asyncio.create_task(end_with(os.getppid()))
    async with app.worker(**options) as worker:
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        print(f"ready {worker.name}", flush=True)
        await stop.wait()
    watch.cancel()
    await app.close()


async def end_with(parent: int) -> None:
    """End this process if its parent is gone."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    os._exit(1)


@contextmanager
def worker_process(url: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own; ended by kill -9 if it is still there."""
    process = start_worker(url, **options)
    try:
        yield process
    finally:
        end_worker(process)


def start_worker(
    url: str,
    *,
    output: Path | None = None,
    log: Path | None = None,
    module: str = "tests.workload",
    **options: Any,
) -> subprocess.Popen[str]:
    """Start a worker and wait until it is ready; what it prints goes to a pipe, or a file. What it
    logs goes to `log`, if that is given."""
    arguments = [f"{name}={value}" for name, value in options.items()]
    with ExitStack() as stack:
        file = subprocess.PIPE if output is None else stack.enter_context(output.open("w"))
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "DUETIME_DATABASE": url},
            stdout=file,
            stderr=None if log is None else stack.enter_context(log.open("a")),
            text=True,
        )
    try:
        wait_until_ready(process, output)
    except BaseException:
        end_worker(process)
        raise
    return process


def wait_until_ready(process: subprocess.Popen[str], output: Path | None) -> None:
    if process.stdout is not None:
        line = process.stdout.readline()
        assert line.startswith("ready"), f"the worker did not start: {line!r}"
    elif output is not None:
        deadline = time.monotonic() + 20
        while not output.read_text().startswith("ready"):
            assert process.poll() is None, "the worker did not start"
            assert time.monotonic() < deadline, "the worker did not start in time"
            time.sleep(0.01)


def end_worker(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(work(**dict(argument.split("=", 1) for argument in sys.argv[1:])))
