"""A measured process: `python -m bench.child ROLE`, with its parameters as a line of JSON."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any

# Imported when asked for: a process holds nothing in memory but what its role needs.
ROLES = {
    "worker": "bench.duetime_side:work",
    "enqueuer": "bench.duetime_side:enqueue_for",
    "calls": "bench.duetime_side:enqueue_calls",
    "bulk": "bench.duetime_side:enqueue_bulk",
    "api": "bench.api_side:serve_duetime",
    "raw_api": "bench.api_side:serve_raw",
    "api_client": "bench.api_side:call",
    "fleet": "bench.fleet:work",
    "flow_worker": "bench.flow_side:work",
    "graph_worker": "bench.flow_side:work_on_graphs",
    "flow": "bench.flow_side:run_alone",
    "fan_out": "bench.flow_side:map_many",
    "service": "bench.dashboard_side:serve",
    "serving_worker": "bench.dashboard_side:serve_and_work",
    "tabs": "bench.dashboard_side:browse",
    "bare_ticks": "bench.bare:tick",
    "raw_drain": "bench.raw:drain",
    "raw_bulk": "bench.raw:copy_bulk",
    "raw_calls": "bench.raw_enqueue:insert_calls",
    "raw_listener": "bench.raw:listen",
    "raw_sleeper": "bench.raw:sleep_until_due",
    "raw_fleet": "bench.raw:race",
    "raw_idle": "bench.raw_idle:idle",
    "raw_flows": "bench.raw_flows:insert_each",
    "raw_gathered": "bench.raw_flows:insert_gathered",
    "raw_flow": "bench.raw_flows:run_alone",
    "sqlite_drain": "bench.raw_sqlite:drain",
    "sqlite_poller": "bench.raw_sqlite:poll",
    "sqlite_bulk": "bench.raw_sqlite:insert_bulk",
    "sqlite_flows": "bench.raw_sqlite:insert_steps",
    "sqlite_flow": "bench.raw_sqlite:run_alone",
}


class Parent:
    """The process that measures: we say and hear lines of JSON."""

    def __init__(self) -> None:
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def hear(self) -> Any:
        return self._heard.get()

    async def heard(self) -> Any:
        return await asyncio.to_thread(self.hear)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._heard.put(json.loads(line))
        # Closed on purpose, or dead: there is nobody left to measure for.
        os._exit(0)


def compute_in_thread() -> None:
    """Compute for the rest of this process's life, as a plain handler would, in a thread."""

    def compute() -> None:
        number = 0
        while True:
            number += 1

    threading.Thread(target=compute, daemon=True).start()


async def sleep_until(moment: float) -> None:
    """Sleep until the wall clock shows `moment`, and never less."""
    while (left := moment - time.time()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(left)


def main() -> None:
    module, _, function = ROLES[sys.argv[1]].partition(":")
    role = getattr(importlib.import_module(module), function)
    parent = Parent()
    asyncio.run(role(parent, **parent.hear()))


if __name__ == "__main__":
    main()
