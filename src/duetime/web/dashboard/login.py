"""Log in and out: by name and password, or by the link that the service printed at its start."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from duetime.errors import LoginFailed, TooManyLogins
from duetime.web.access import SESSION_COOKIE, Access
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import zone_of
from duetime.web.forms import read_form
from duetime.web.problems import Refused
from duetime.web.security import is_same_origin, keep_csrf_cookie, set_cookie

_WRONG_LINK = "That link was used before, or the service has been restarted since it was printed."


def router(frame: Frame) -> APIRouter:
    """The routes of the login. They are open to everybody."""
    router = APIRouter(include_in_schema=False)
    access = frame.access

    @router.get("/login")
    async def show_login(request: Request) -> Response:
        return await _form(request, frame, next=request.query_params.get("next", ""))

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        await _check_form(request, access)
        form = await read_form(request)
        name, wanted = form.get("name", ""), form.get("next", "")
        try:
            session = await access.log_in(request, name, form.get("password", ""))
        except (LoginFailed, TooManyLogins) as error:
            status = 429 if isinstance(error, TooManyLogins) else 403
            return await _form(
                request, frame, problem=str(error), next=wanted, name=name, status=status
            )
        return _logged_in(request, session, wanted or "/")

    @router.get("/login/{secret}")
    async def follow_link(request: Request, secret: str) -> Response:
        session = access.link.open(secret) if access.link is not None else None
        if session is None:
            return await _form(request, frame, problem=_WRONG_LINK, status=403)
        return _logged_in(request, session, "/")

    @router.post("/logout")
    async def log_out(request: Request) -> Response:
        await _check_form(request, access)
        await access.log_out(request)
        response = RedirectResponse(_root(request) + "/login", status_code=303)
        response.delete_cookie(SESSION_COOKIE, path=_root(request) or "/")
        return response

    return router


def _logged_in(request: Request, session: str, wanted: str) -> Response:
    # Only a path of ours: never another site, which `//host` would be.
    inside = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    response = RedirectResponse(_root(request) + (wanted if inside else "/"), status_code=303)
    set_cookie(request, response, SESSION_COOKIE, session)
    return response


async def _check_form(request: Request, access: Access) -> None:
    given = (await read_form(request)).get("csrf")
    if not is_same_origin(request) or not await access.has_csrf_token(request, given):
        raise Refused(403, "csrf_failed", "The page is too old. Reload it and try again.")


async def _form(request: Request, frame: Frame, *, status: int = 200, **values: Any) -> Response:
    given = {"problem": None, "next": "", "name": ""} | values
    page = frame.templates.render(
        "login.html",
        root=_root(request),
        query=request.query_params,
        zone=zone_of(request),
        now=None,
        values=given,
        csrf=await frame.access.csrf_token(request),
    )
    response = HTMLResponse(page, status_code=status)
    keep_csrf_cookie(request, response)
    return response


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))
