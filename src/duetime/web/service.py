"""The service as an ASGI application: the API, the dashboard, and what every request passes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.staticfiles import StaticFiles

from duetime import __version__
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.web import metrics, probes, problems
from duetime.web.access import Access, Authenticate, LoginLink
from duetime.web.api.nouns import add_api
from duetime.web.api.routing import add_routes
from duetime.web.dashboard import (
    account,
    api_docs,
    audit,
    doctor,
    flows,
    jobs,
    login,
    now,
    queues,
    recipients,
    reminders,
    schedules,
    search,
    settings,
    subjects,
    tables,
    timing,
    workers,
)
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.live import Live
from duetime.web.dashboard.pages import login_page, show_problem
from duetime.web.security import BodyTooLarge, Guard

if TYPE_CHECKING:
    from duetime.app import Duetime

Part = Literal["api", "dashboard"]
PARTS: tuple[Part, ...] = ("api", "dashboard")

_STATIC = Path(__file__).parent / "dashboard" / "static"
_SCREENS = (
    now, timing, jobs, schedules, reminders, subjects, recipients, flows, queues, workers,
    tables, audit, doctor, search, settings,
)  # fmt: skip


class Service(FastAPI):
    """The service of an app. It can be mounted in another application, under any path."""

    access: Access


def make_service(
    app: Duetime,
    *,
    parts: Collection[Part] = PARTS,
    authenticate: Authenticate | None = None,
    link: LoginLink | None = None,
    allowed_hosts: Collection[str] | None = None,
    read_only: bool = False,
) -> Service:
    """Return the service.

    `authenticate`: the login of the application that hosts it; without it, people log in here.
    `allowed_hosts`: the names that it answers to; None: any, as the host has checked them.
    """
    service = Service(
        title="Duetime", version=__version__, docs_url=None, redoc_url=None, openapi_url=None
    )
    service.access = Access(
        app, authenticate=authenticate, link=link, read_only=read_only or app.settings.read_only
    )
    if "api" in parts:
        add_api(service, app, service.access)
    if "dashboard" in parts:
        _add_dashboard(service, app, with_api="api" in parts)
    add_routes(service, probes.router(app))
    add_routes(service, metrics.router(app, service.access))
    show = _show_problem if "dashboard" in parts else _show_nothing
    problems.add_handlers(service, show)
    _add_handlers(service, show)
    service.add_middleware(Guard, allowed_hosts=allowed_hosts)
    return service


def _add_dashboard(service: Service, app: Duetime, *, with_api: bool) -> None:
    frame = Frame(app, service.access)
    live = Live(app, frame.refreshes)
    for screen in _SCREENS:
        add_routes(service, screen.pages(frame).router)
    if with_api:
        add_routes(service, api_docs.pages(frame, service.openapi).router)
    if service.access.has_login:
        add_routes(service, login.router(frame))
        add_routes(service, account.pages(frame).router)
    events = APIRouter(include_in_schema=False)

    known = Depends(service.access.require(TokenScope.READ))

    async def place(visitor: Visitor = known) -> AsyncIterator[None]:
        with live.place(visitor.name):
            yield

    @events.get("/live", response_class=EventSourceResponse, dependencies=[Depends(place)])
    async def changes(request: Request) -> AsyncIterator[ServerSentEvent]:
        async for _ in live.changes():
            if not await service.access.is_still_known(request):
                return
            yield ServerSentEvent(event="changed", raw_data="")

    add_routes(service, events)
    service.mount("/static", StaticFiles(directory=_STATIC))


def _show_problem(request: Request, problem: problems.Problem) -> Response | None:
    """A problem as a page, for a browser that asked for one."""
    wants_page = "text/html" in request.headers.get("accept", "")
    if not wants_page or request.url.path.startswith(request.scope.get("root_path", "") + "/api/"):
        return None
    return show_problem(request, problem)


def _show_nothing(request: Request, problem: problems.Problem) -> Response | None:
    return None


def _add_handlers(service: Service, show: problems.Show) -> None:
    @service.exception_handler(problems.Refused)
    async def refused(request: Request, error: problems.Refused) -> Response:
        if service.access.has_login and (page := login_page(request, error)) is not None:
            return page
        return show(request, error.problem) or problems.write(error.problem, headers=error.headers)

    @service.exception_handler(BodyTooLarge)
    async def too_large(_request: Request, error: BodyTooLarge) -> Response:
        return problems.write(error.problem)
