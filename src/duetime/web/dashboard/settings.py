"""The screens of administrators: API tokens, accounts, and the settings in effect."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, cast

import msgspec
from fastapi import Path

from duetime.domain.access.account import Role, RoleLike
from duetime.domain.access.token import TokenScope, TokenScopeLike
from duetime.domain.duration import format_duration, read_duration
from duetime.errors import InvalidInput
from duetime.settings import Settings
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages, Show

SessionId = Annotated[int, Path(ge=1, le=2**63 - 1)]

_ROWS = 100
_ADMIN = TokenScope.ADMIN


class ShownSetting(msgspec.Struct, frozen=True):
    """A setting in effect."""

    name: str
    value: str
    is_default: bool


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/settings", "settings.html", scope=_ADMIN)
    async def show_settings(ask: Ask) -> dict[str, Any]:
        return {"settings": list_settings(app.settings)}

    @pages.page("/settings/tokens", "tokens.html", scope=_ADMIN)
    async def show_tokens(ask: Ask) -> dict[str, Any]:
        return await _tokens(ask)

    async def _tokens(ask: Ask) -> dict[str, Any]:
        with_revoked = ask.query.get("revoked") == "yes"
        return {
            "tokens": await app.tokens.list(
                revoked=with_revoked, after=ask.query.get("after") or None, limit=_ROWS
            ),
            "with_revoked": with_revoked,
            "scopes": list(TokenScope),
            "created": None,
        }

    @pages.action("/settings/tokens", scope=_ADMIN)
    async def create_token(ask: Ask) -> Show:
        form = await ask.form()
        valid_for = form.get("expires_in", "").strip()
        created = await app.tokens.create(
            form.get("name", "").strip(),
            scope=cast("TokenScopeLike", form.get("scope", "")),
            expires_in=read_duration(valid_for, name="The time") if valid_for else None,
            by=ask.visitor.name,
        )
        return Show("tokens.html", {**await _tokens(ask), "created": created})

    @pages.action("/settings/tokens/{name}/revoke", scope=_ADMIN)
    async def revoke_token(ask: Ask, name: str) -> GoTo:
        await app.tokens.revoke(name, by=ask.visitor.name)
        return GoTo(["settings", "tokens"], said=f"Token {name} is revoked: it opens nothing more.")

    @pages.page("/settings/accounts", "accounts.html", scope=_ADMIN)
    async def show_accounts(ask: Ask) -> dict[str, Any]:
        after = ask.query.get("after") or None
        return {
            "accounts": await app.accounts.list(after=after, limit=_ROWS),
            "roles": list(Role),
        }

    @pages.action("/settings/accounts", scope=_ADMIN)
    async def add_account(ask: Ask) -> GoTo:
        form = await ask.form()
        added = await app.accounts.add(
            form.get("name", "").strip(),
            role=cast("RoleLike", form.get("role", "")),
            password=form.get("password", ""),
            by=ask.visitor.name,
        )
        said = f"{added.name} is added, and can log in."
        return GoTo(["settings", "accounts", added.name], said=said)

    @pages.page("/settings/accounts/{name}", "account_of.html", scope=_ADMIN)
    async def show_account(ask: Ask, name: str) -> dict[str, Any]:
        return {
            "account": await app.accounts.get(name),
            "sessions": await app.sessions.list(name),
            "events": await app.accounts.audit(name, limit=20),
            "roles": list(Role),
        }

    @pages.action("/settings/accounts/{name}/set_role", scope=_ADMIN)
    async def set_role(ask: Ask, name: str) -> GoTo:
        role = (await ask.form()).get("role", "")
        await app.accounts.set_role(name, cast("RoleLike", role), by=ask.visitor.name)
        return _to(name, f"The role is {role} now. Its sessions have ended.")

    @pages.action("/settings/accounts/{name}/set_password", scope=_ADMIN)
    async def set_password(ask: Ask, name: str) -> GoTo:
        password = (await ask.form()).get("password", "")
        await app.accounts.set_password(name, password, by=ask.visitor.name)
        return _to(name, "The password is changed. Its sessions have ended.")

    @pages.action("/settings/accounts/{name}/disable", scope=_ADMIN)
    async def disable(ask: Ask, name: str) -> GoTo:
        await app.accounts.disable(name, by=ask.visitor.name)
        return _to(name, f"{name} is logged out, and cannot log in.")

    @pages.action("/settings/accounts/{name}/enable", scope=_ADMIN)
    async def enable(ask: Ask, name: str) -> GoTo:
        await app.accounts.enable(name, by=ask.visitor.name)
        return _to(name, f"{name} can log in again.")

    @pages.action("/settings/accounts/{name}/delete", scope=_ADMIN)
    async def delete(ask: Ask, name: str) -> GoTo:
        await app.accounts.delete(name, by=ask.visitor.name)
        return GoTo(["settings", "accounts"], said=f"The account {name} is deleted.")

    @pages.action("/settings/accounts/{name}/sessions/end", scope=_ADMIN)
    async def end_sessions(ask: Ask, name: str) -> GoTo:
        count = await app.sessions.end_all(name, by=ask.visitor.name)
        return _to(name, f"{count} sessions have ended.")

    @pages.action("/settings/accounts/{name}/sessions/{session_id}/end", scope=_ADMIN)
    async def end_session(ask: Ask, name: str, session_id: SessionId) -> GoTo:
        if session_id not in [one.id for one in await app.sessions.list(name)]:
            raise InvalidInput("The session has ended already.")
        await app.sessions.end(session_id, by=ask.visitor.name)
        return _to(name, "The session has ended.")

    return pages


def _to(name: str, said: str) -> GoTo:
    return GoTo(["settings", "accounts", name], said=said)


def list_settings(settings: Settings) -> list[ShownSetting]:
    """The settings by name, without passwords, and whether each has its default."""
    defaults = Settings().shown()
    return [
        ShownSetting(name, _write(value), value == defaults[name])
        for name, value in sorted(settings.shown().items())
    ]


def _write(value: Any) -> str:
    match value:
        case None | "" | ():
            return "–"
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return format_duration(value)
        case Mapping():
            return ", ".join(f"{name} {_write(one)}" for name, one in value.items())
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
