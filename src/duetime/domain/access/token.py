"""API tokens: how programs prove who they are, and what they may do."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from duetime.domain.checks import check_name
from duetime.errors import InvalidInput

TOKEN_PREFIX = "dt_"
"""By this, scanners for leaked secrets recognise a token."""
_SECRET_BYTES = 32
_TOKEN = re.compile(TOKEN_PREFIX + r"[A-Za-z0-9_-]{43}", re.ASCII)


class TokenScope(StrEnum):
    """What the holder may do. Each scope includes those before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: TokenScope) -> bool:
        """Whether the holder may do what `other` allows.

        >>> TokenScope.OPERATE.includes(TokenScope.READ)
        True
        >>> TokenScope.OPERATE.includes(TokenScope.ADMIN)
        False
        """
        order = list(TokenScope)
        return order.index(self) >= order.index(other)


TokenScopeLike = TokenScope | Literal["read", "operate", "admin"]


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """An API token, without its text: that is shown once, when it is created, and not stored."""

    id: int
    name: str
    scope: TokenScope
    expires_at: datetime | None
    created_at: datetime
    created_by: str
    last_used_at: datetime | None
    """To the minute."""
    revoked_at: datetime | None
    revoked_by: str | None


class CreatedToken(msgspec.Struct, frozen=True):
    """A new API token and its text, which cannot be shown again."""

    token: ApiToken
    text: str

    def __repr__(self) -> str:
        """Without the text, since whatever logs an object logs this."""
        return f"CreatedToken(token={self.token!r}, text='{TOKEN_PREFIX}…')"


def make_token_text() -> str:
    """Return the text of a new token: 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def is_token_text(text: Any) -> bool:
    """Whether a text may be that of a token.

    >>> is_token_text(make_token_text()), is_token_text("dt_short")
    (True, False)
    """
    return isinstance(text, str) and _TOKEN.fullmatch(text) is not None


def hash_secret(text: str) -> str:
    """Return what is stored of a random secret. It needs no salt: 256 random bits cannot be
    guessed."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_token_name(name: Any) -> str:
    """Return `name` if a token can have it: the audit shows it as `token:name`."""
    check_name(name, what="name of the token")
    if not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"The name of the token must be printable and must not begin or end with a "
            f"space, got {name!r:.60}."
        )
    return str(name)


def parse_scope(scope: Any) -> TokenScope:
    """Return the scope that is meant; raise `InvalidInput`."""
    try:
        return TokenScope(scope)
    except ValueError:
        known = ", ".join(TokenScope)
        raise InvalidInput(f"The scope must be one of {known}, got {scope!r:.60}.") from None
