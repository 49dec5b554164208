"""All nouns of the API, under `/api/v1`, and its description."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.responses import JSONResponse

from duetime.app import Duetime
from duetime.domain.access.token import TokenScope
from duetime.web.access import Access
from duetime.web.api import (
    accounts,
    audit,
    flows,
    jobs,
    presets,
    queues,
    recipients,
    reminders,
    schedules,
    scopes,
    stats,
    subjects,
    tables,
    tokens,
    workers,
)
from duetime.web.api.routing import add_routes, include

_NOUNS = (
    jobs,
    queues,
    workers,
    schedules,
    presets,
    subjects,
    scopes,
    recipients,
    reminders,
    flows,
    tables,
    stats,
    audit,
    tokens,
    accounts,
)


def add_api(service: FastAPI, app: Duetime, access: Access) -> None:
    """Add the routes of every noun, and the OpenAPI document."""
    include(service, [noun.routes(app, access) for noun in _NOUNS])
    documents = APIRouter(include_in_schema=False)

    @documents.get("/api/openapi.json", dependencies=[Depends(access.require(TokenScope.READ))])
    async def openapi() -> Response:
        return JSONResponse(service.openapi())

    add_routes(service, documents)
