"""`/healthz` and `/readyz`: for probes, which have no token and learn nothing but a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from duetime.health import Check, check_live, check_ready

if TYPE_CHECKING:
    from duetime.app import Duetime

_KEEP_SECONDS = 1.0


def router(app: Duetime) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    readiness = _Readiness(app)

    @routes.get("/healthz")
    async def healthz() -> Response:
        return _answer(check_live(app))

    @routes.get("/readyz")
    async def readyz() -> Response:
        return _answer(await readiness.check())

    return routes


class _Readiness:
    """However often it is asked, the database is asked once a second at most."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._turn = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checks: Sequence[Check] = ()

    async def check(self) -> Sequence[Check]:
        async with self._turn:
            if time.monotonic() - self._checked_at >= _KEEP_SECONDS:
                self._checks = await check_ready(self._app)
                self._checked_at = time.monotonic()
            return self._checks


def _answer(checks: Sequence[Check]) -> Response:
    failing = [check.name for check in checks if not check.ok]
    if failing:
        return JSONResponse({"status": "failing", "checks": failing}, status_code=503)
    return JSONResponse({"status": "ok"})
