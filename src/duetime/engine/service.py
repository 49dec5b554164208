"""The one start/stop loop of everything that runs every so often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from duetime.errors import DatabaseUnreachable

log = logging.getLogger("duetime.engine")

BACKOFF = (1.0, 2.0, 4.0, 8.0)


def backoff(failures: int) -> float:
    """How long to wait after so many failures in a row of the infrastructure: 1, 2, 4, 8 s."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1] if failures else 0.0


async def repeat(name: str, work: Callable[[], Awaitable[float]]) -> None:
    """Do `work` again and again; it returns the seconds to wait. An error never ends the loop."""
    failures = 0
    while True:
        try:
            wait = await work()
            failures = 0
        except DatabaseUnreachable as error:
            failures += 1
            wait = backoff(failures)
            log.warning(
                "database_unreachable",
                extra={"service": name, "error": str(error), "retry_in_s": wait},
            )
        except Exception:
            failures += 1
            wait = backoff(failures)
            log.exception("service_failed", extra={"service": name, "retry_in_s": wait})
        await asyncio.sleep(wait)
