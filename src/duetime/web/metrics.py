"""`/metrics`: for Prometheus, which reads it with a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Response

from duetime.domain.access.token import TokenScope
from duetime.web.access import Access
from duetime.web.problems import Refused

if TYPE_CHECKING:
    from duetime.app import Duetime


def router(app: Duetime, access: Access) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/metrics", dependencies=[Depends(access.require(TokenScope.READ))])
    async def metrics() -> Response:
        try:
            from duetime.telemetry.metrics import CONTENT_TYPE
        except ImportError as error:
            raise Refused(501, "package_missing", str(error)) from None
        return Response(await app.metrics(), headers={"content-type": CONTENT_TYPE})

    return routes
