"""Pages of the dashboard: each states its scope and its template.

A page's handler returns what its template is given. An action's handler changes something and
returns where to go next. Both take `ask: Ask`: who asks, from which zone, at what time.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlencode
from zoneinfo import ZoneInfo

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.domain.schedules.cron import parse_zone
from duetime.errors import DuetimeError, InvalidInput
from duetime.web.access import REFRESH_HEADER
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.rendering import Templates, make_url
from duetime.web.forms import Form, read_form
from duetime.web.problems import Problem, Refused, problem_of
from duetime.web.security import (
    keep_csrf_cookie,
    names_in,
    read_names,
    set_cookie,
)

ZONE_COOKIE = "duetime_zone"
SAID_COOKIE = "duetime_said"
"""What an action did, for the next page to say. In the URL anybody could write it."""
_MAX_SAID = 300
_TOKEN_PLACE = secrets.token_urlsafe(32)
"""Stands in a page for the token of its forms, which is each browser's own. Nobody knows it, so
that nothing that is stored can contain it."""

Handler = Callable[..., Awaitable[Any]]

_TEMPLATES = Templates()


class Ask(msgspec.Struct, frozen=True):
    """One request for a page."""

    request: Request
    visitor: Visitor
    zone: ZoneInfo
    """The viewer's time zone."""
    now: datetime
    """The database's clock."""

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    async def form(self) -> Form:
        """The fields of the form that an action was sent."""
        return await read_form(self.request)


class GoTo(msgspec.Struct, frozen=True):
    """An action's answer: show this page next, with a sentence about what was done.

    `parts` are the parts of its path, as `url` takes them.
    """

    parts: Sequence[object]
    said: str | None = None


class Show(msgspec.Struct, frozen=True):
    """An action's answer: show this template now, as it holds what cannot be shown again.

    Nothing in it is redacted, and it is kept nowhere: not in a cookie, not in a URL.
    """

    template: str
    values: Mapping[str, Any]


class Pages:
    """The routes of one screen."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._access = frame.access
        self.router = APIRouter(include_in_schema=False)

    def page(
        self,
        path: str,
        template: str,
        *,
        scope: TokenScope = TokenScope.READ,
        from_replica: bool = True,
    ) -> Callable[[Handler], Handler]:
        """`GET path` shows the template with what the handler returns.

        `from_replica`: the handler only reads, so it may read from a replica."""

        def add(handler: Handler) -> Handler:
            async def show(request: Request, visitor: Visitor, values: dict[str, Any]) -> Response:
                async def make() -> str | Response:
                    ask = await self._ask(request, visitor)
                    shown = await handler(ask=ask, **values)
                    if isinstance(shown, Response):
                        return shown
                    totals = await self._frame.totals.get()
                    return self._write(
                        template, ask, {"totals": totals, **self._frame.app.redacted(shown)}
                    )

                replica = self._frame.replica if from_replica else None

                async def read() -> str | Response:
                    return await (make() if replica is None else replica.read(request, make))

                try:
                    if REFRESH_HEADER in request.headers and SAID_COOKIE not in request.cookies:
                        # Tabs that show the same share the page.
                        source = replica is not None and replica.serves(request)
                        same = (str(request.url), visitor, zone_of(request).key, source)
                        made = await self._frame.refreshes.get(same, read)
                    else:
                        made = await read()
                except DuetimeError as error:
                    return await self._failed(request, visitor, error)
                if isinstance(made, Response):
                    return made
                return await self._answer(request, visitor, made)

            self._add("GET", path, handler, show, scope)
            return handler

        return add

    def action(
        self, path: str, *, scope: TokenScope = TokenScope.OPERATE
    ) -> Callable[[Handler], Handler]:
        """`POST path` changes something; the handler returns what comes next: `GoTo` or `Show`."""

        def add(handler: Handler) -> Handler:
            async def act(request: Request, visitor: Visitor, values: dict[str, Any]) -> Response:
                try:
                    ask = await self._ask(request, visitor)
                    done = await handler(ask=ask, **values)
                except DuetimeError as error:
                    return await self._failed(request, visitor, error)
                finally:
                    self._frame.refreshes.clear()
                if isinstance(done, GoTo):
                    done = self._go(request, done)
                elif isinstance(done, Show):
                    totals = await self._frame.totals.get()
                    values = {"totals": totals, **done.values}
                    done = await self._render(done.template, ask, values)
                assert isinstance(done, Response)
                self._frame.replica.remember_change(request, done)
                return done

            self._add("POST", path, handler, act, scope)
            return handler

        return add

    def _add(
        self,
        method: str,
        path: str,
        handler: Handler,
        answer: Callable[[Request, Visitor, dict[str, Any]], Awaitable[Response]],
        scope: TokenScope,
    ) -> None:
        check = self._access.require(scope)

        in_path = names_in(path)

        async def call(request: Request, visitor: Visitor, **values: Any) -> Response:
            read_names(values, in_path)
            response = await answer(request, visitor, values)
            keep_csrf_cookie(request, response)
            return response

        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [
            parameter.replace(kind=keyword)
            for name, parameter in inspect.signature(handler, eval_str=True).parameters.items()
            if name != "ask"
        ]
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("request", keyword, annotation=Request),
                inspect.Parameter(
                    "visitor", keyword, annotation=Annotated[Visitor, Depends(check)]
                ),
                *own,
            ]
        )
        call.__name__ = handler.__name__
        self.router.add_api_route(
            path, call, methods=[method], response_model=None, openapi_extra={"x-scope": str(scope)}
        )

    async def _ask(self, request: Request, visitor: Visitor) -> Ask:
        return Ask(request, visitor, zone_of(request), await self._frame.app.now())

    async def _render(
        self, template: str, ask: Ask, values: Mapping[str, Any], *, status: int = 200
    ) -> Response:
        page = self._write(template, ask, values)
        return await self._answer(ask.request, ask.visitor, page, status=status)

    def _write(self, template: str, ask: Ask, values: Mapping[str, Any]) -> str:
        """The page, with `_TOKEN_PLACE` where the token of the browser belongs."""
        request = ask.request
        return self._frame.templates.render(
            template,
            root=request.scope.get("root_path", ""),
            path=request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/",
            query=request.query_params,
            visitor=ask.visitor,
            can_operate=ask.visitor.scope.includes(TokenScope.OPERATE)
            and not self._access.read_only,
            can_admin=ask.visitor.scope.includes(TokenScope.ADMIN) and not self._access.read_only,
            read_only=self._access.read_only,
            has_login=self._access.has_login,
            zone=ask.zone,
            now=ask.now,
            csrf=_TOKEN_PLACE,
            said=unquote(request.cookies.get(SAID_COOKIE, "")),
            values=values,
        )

    async def _answer(
        self, request: Request, visitor: Visitor, page: str, *, status: int = 200
    ) -> Response:
        shown = page.replace(_TOKEN_PLACE, await self._csrf(request, visitor))
        response = HTMLResponse(shown, status_code=status)
        if SAID_COOKIE in request.cookies:
            response.delete_cookie(SAID_COOKIE, path=request.scope.get("root_path", "") or "/")
        return response

    async def _csrf(self, request: Request, visitor: Visitor) -> str:
        try:
            return await self._access.csrf_token(request, visitor)
        except DuetimeError:
            return ""  # The database does not answer: this page says so, and has no forms.

    async def _failed(self, request: Request, visitor: Visitor, error: DuetimeError) -> Response:
        """Show an error of ours as a page, or beside the form that it is about."""
        problem = problem_of(error)
        ask = Ask(request, visitor, zone_of(request), datetime.now(zone_of(request)))
        return await self._render(
            "problem.html", ask, {"problem": problem, "totals": None}, status=problem.status
        )

    def _go(self, request: Request, where: GoTo) -> Response:
        root = request.scope.get("root_path", "")
        response = RedirectResponse(make_url(root, *where.parts), status_code=303)
        if where.said is not None:
            set_cookie(request, response, SAID_COOKIE, quote(where.said[:_MAX_SAID]), max_age=60)
        return response


def zone_of(request: Request) -> ZoneInfo:
    """The viewer's zone, which their browser tells by a cookie; UTC if it does not."""
    try:
        return parse_zone(request.cookies.get(ZONE_COOKIE) or "UTC")
    except InvalidInput:
        return ZoneInfo("UTC")


def login_page(request: Request, refused: Refused) -> Response | None:
    """Where a page sends a browser that is not logged in; None: the request is not a browser's."""
    is_page = "text/html" in request.headers.get("accept", "")
    if refused.problem.status != 401 or not is_page or request.method != "GET":
        return None
    root = request.scope.get("root_path", "")
    wanted = request.scope["path"].removeprefix(root)
    if request.url.query:
        wanted += "?" + request.url.query
    return RedirectResponse(f"{root}/login?{urlencode({'next': wanted})}", status_code=303)


def show_problem(request: Request, problem: Problem) -> Response:
    """A page that says what is wrong, without the frame: the visitor may not be logged in."""
    page = _TEMPLATES.render(
        "refused.html",
        root=request.scope.get("root_path", ""),
        query={},
        zone=zone_of(request),
        now=None,
        values={"problem": problem},
    )
    return HTMLResponse(page, status_code=problem.status)


def read_local(text: str, zone: ZoneInfo) -> datetime:
    """A time that a form gives in the viewer's zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r:.60} is not a date and time.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)
