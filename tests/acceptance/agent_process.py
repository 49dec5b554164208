"""The example of an agent in a process of its own, which kills itself at a write of the run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request  # noqa: F401 - imported before the processes are forked, which is faster
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import duetime.engine.worker
import duetime.flows.execution
import duetime.storage.sqlite.store  # noqa: F401
from duetime.flows.recorder import Recorder
from tests.acceptance.command import ROOT

QUESTION = "Is there enough tea?"

sys.path.insert(0, str(ROOT / "examples"))

Moment = Literal["before", "after"]


class Kill(NamedTuple):
    """At which write of the run its process is killed. Each is the record of one call, or the
    suspension of the run."""

    write: int
    moment: Moment
    """Before it: the call is made and not recorded. After it: the record is committed."""


def run_agent(folder: Path, settings: dict[str, str], kill: Kill | None) -> None:
    """Run the example in this folder until it ends, or is killed."""
    os.chdir(folder)
    os.environ.update(settings)
    if kill is not None:
        _kill_at(kill)
    asyncio.run(import_module("agent_flow").main(QUESTION))


def _kill_at(kill: Kill) -> None:
    writes = 0

    def killing(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*args: Any, **options: Any) -> Any:
            nonlocal writes
            writes += 1
            number = writes
            if kill == (number, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await write(*args, **options)
            if kill == (number, "after"):
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return wrapped

    for name in ("record", "suspend"):
        setattr(Recorder, name, killing(getattr(Recorder, name)))
