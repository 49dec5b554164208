"""The one start/stop loop of everything that runs every so often."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from duetime.errors import DatabaseCorrupted, TransactionConflict, TransientError
from duetime.telemetry.events import log_event
from duetime.telemetry.outage import Outage

log = logging.getLogger("duetime.engine")

BACKOFF = (1.0, 2.0, 4.0, 8.0)
OUTAGE_SECONDS = 1.0
"""How long to wait before asking again a database that is away, however long it has been away."""
_CANCEL_AGAIN_SECONDS = 2.0


def backoff(failures: int) -> float:
    """How long to wait after so many failures in a row: 1, 2, 4, 8 s."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1] if failures else 0.0


async def repeat(
    name: str,
    work: Callable[[], Awaitable[float]],
    *,
    stopping: asyncio.Event,
    outage: Outage,
    wait: float = 0.0,
) -> None:
    """Wait, and do `work`, again and again; it returns the seconds to wait. No error ends the
    loop but a damaged database.

    `stopping` does, between two rounds: a round that is cancelled in the middle of a database call
    costs its connection.
    """
    failures = 0
    while not await _stopped(stopping, wait):
        try:
            wait = await work()
            failures = 0
            outage.worked(name)
        except TransactionConflict as error:
            wait = OUTAGE_SECONDS
            log_event(
                log,
                logging.WARNING,
                "transaction_conflict",
                "The %(service)s service tries again in %(retry_in_s)g s: %(error)s",
                service=name,
                error=str(error),
                retry_in_s=wait,
            )
        except TransientError as error:
            wait = OUTAGE_SECONDS
            outage.failed(name, error, wait)
        except DatabaseCorrupted:
            raise
        except Exception as error:  # noqa: BLE001 - no error ends the loop
            failures += 1
            wait = backoff(failures)
            log_event(
                log,
                logging.ERROR,
                "service_failed",
                "The %(service)s service failed and tries again in %(retry_in_s)g s.",
                service=name,
                retry_in_s=wait,
                exc_info=error,
            )


async def _stopped(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until it is set; return whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
    return stopping.is_set()


async def end_all(services: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Wait until services that were told to stop have ended; what takes longer is cancelled.

    Until all have ended: before Python 3.12 `wait_for`, which drivers use, may swallow a cancel
    that comes at the moment of its answer. Not too often: a second cancel would hit the driver
    while it clears up after the first.
    """
    _, left = await asyncio.wait(services, timeout=seconds)
    while left:
        for service in left:
            service.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_SECONDS)
