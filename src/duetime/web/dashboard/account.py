"""The screen of the person who is logged in: their password and their logins."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import RedirectResponse

from duetime.domain.access.account import make_password
from duetime.domain.access.session import Session
from duetime.domain.access.token import TokenScope
from duetime.errors import InvalidInput
from duetime.web.access import SESSION_COOKIE
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages
from duetime.web.security import set_cookie


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app, access = frame.app, frame.access

    async def _own_session(ask: Ask) -> Session | None:
        """The session of the request; None for the link of this machine, and for programs."""
        text = ask.request.cookies.get(SESSION_COOKIE)
        if text is None or not ask.visitor.by_cookie:
            return None
        return await app.sessions.check(text)

    async def _account(ask: Ask) -> str:
        session = await _own_session(ask)
        if session is None:
            raise InvalidInput("You are logged in without an account, so it has no password.")
        return session.account

    @pages.page("/account", "account.html")
    async def show_own(ask: Ask) -> dict[str, Any]:
        session = await _own_session(ask)
        return {
            "own": session,
            "sessions": [] if session is None else await app.sessions.list(session.account),
        }

    # Everybody may change their own password, whatever else they may do.
    @pages.action("/account/password", scope=TokenScope.READ)
    async def change_password(ask: Ask) -> Response:
        account = await _account(ask)
        form = await ask.form()
        new = form.get("new", "")
        if new != form.get("again", ""):
            raise InvalidInput("The new password was not typed twice in the same way.")
        make_password(new, name=account)
        # By a login, as guesses at the old password are counted like any others.
        await access.log_in(ask.request, account, form.get("old", ""))
        await app.accounts.set_password(account, new, by=ask.visitor.name)
        # That ended all sessions, also this one.
        text = await access.log_in(ask.request, account, new)
        response = RedirectResponse(_root(ask) + "/account", status_code=303)
        set_cookie(ask.request, response, SESSION_COOKIE, text)
        return response

    @pages.action("/account/log_out_everywhere", scope=TokenScope.READ)
    async def log_out_everywhere(ask: Ask) -> Response:
        await app.sessions.end_all(await _account(ask), by=ask.visitor.name)
        return RedirectResponse(_root(ask) + "/login", status_code=303)

    return pages


def _root(ask: Ask) -> str:
    return str(ask.request.scope.get("root_path", ""))
