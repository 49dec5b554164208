"""Where pages are read: from the replica if there is one, else from the primary.

A replica shows changes a moment later. So a browser that has just changed something reads the
primary for some seconds. What the replica does not have, or cannot answer, is read there, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request, Response

from duetime.database import on_replica
from duetime.errors import DuetimeError, StorageError
from duetime.telemetry.events import log_event
from duetime.web.security import set_cookie

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.web")

T = TypeVar("T")

_CHANGED_COOKIE = "duetime_changed"
_PRIMARY_SECONDS = 10
"""How long a browser reads the primary after a change."""
_ANSWER_SECONDS = 3.0
_REST_SECONDS = 30.0
"""A replica that failed is not used for so long, so that pages do not wait for it each time."""


class Replica:
    """The replica of an app's database, if it has one."""

    def __init__(self, app: Duetime) -> None:
        self._exists = app.settings.replica_database is not None
        self._rests_until = 0.0

    def serves(self, request: Request) -> bool:
        """Whether the page of this request is read from it."""
        return (
            self._exists
            and _CHANGED_COOKIE not in request.cookies
            and time.monotonic() >= self._rests_until
        )

    async def read(self, request: Request, make: Callable[[], Awaitable[T]]) -> T:
        """Make a page, from what the replica has or, if that does not do, from the primary."""
        if self.serves(request):
            try:
                with on_replica():
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        return await make()
            except (StorageError, TimeoutError) as error:
                self._rest(error)
            except DuetimeError:
                pass  # It may be too new for the replica. If it is nowhere, the primary says so.
        return await make()

    def remember_change(self, request: Request, response: Response) -> None:
        """Have this browser read the primary for a while."""
        if self._exists:
            set_cookie(request, response, _CHANGED_COOKIE, "1", max_age=_PRIMARY_SECONDS)

    def _rest(self, error: Exception) -> None:
        self._rests_until = time.monotonic() + _REST_SECONDS
        log_event(
            log,
            logging.WARNING,
            "replica_failed",
            "The replica did not answer; pages are read from the primary for %(seconds)g s: "
            "%(error)s",
            seconds=_REST_SECONDS,
            error=str(error) or f"no answer within {_ANSWER_SECONDS:g} s",
        )
