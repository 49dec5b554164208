"""Applications with hooks: one that cannot start, and one that is stopped while it starts."""

from __future__ import annotations

import os
import signal
import sys

from duetime import Duetime

failing = Duetime()
brief = Duetime()


@failing.on_startup
async def open_client() -> None:
    raise ConnectionError("no route to the bank")


@brief.on_startup
def stop_at_once() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@brief.on_shutdown
async def close_client() -> None:
    print("client closed", file=sys.stderr)
