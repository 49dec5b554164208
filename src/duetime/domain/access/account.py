"""Accounts: the people who may use the service, their roles, and what a password must be."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from duetime.domain.access.token import TokenScope
from duetime.domain.checks import check_text
from duetime.errors import InvalidInput

MAX_ACCOUNT_NAME = 100
MIN_PASSWORD = 12
MAX_PASSWORD = 1000


class Role(StrEnum):
    """What a person may do. Each role includes those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def scope(self) -> TokenScope:
        """The scope of an API token that allows the same.

        >>> Role.OPERATOR.scope
        <TokenScope.OPERATE: 'operate'>
        """
        return _SCOPES[self]


_SCOPES = dict(zip(Role, TokenScope, strict=True))
RoleLike = Role | Literal["viewer", "operator", "admin"]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A person who may use the service, without the hash of their password."""

    name: str
    role: Role
    created_at: datetime
    created_by: str
    password_set_at: datetime
    disabled_at: datetime | None
    disabled_by: str | None
    last_login_at: datetime | None


def make_account_name(name: Any) -> str:
    """Return the name as it is stored: one spelling for all that look or sound the same.

    >>> make_account_name("Ann"), make_account_name("ａｎｎ")
    ('ann', 'ann')
    """
    check_text(name, what="The name of the account")
    stored = fold_name(name)
    if not 1 <= len(stored) <= MAX_ACCOUNT_NAME:
        raise InvalidInput(
            f"The name of the account must have 1 to {MAX_ACCOUNT_NAME} characters, got "
            f"{len(stored)}."
        )
    # A colon would let a person pass for a token in the audit: `token:ci`.
    if ":" in stored or not stored.isprintable() or any(sign.isspace() for sign in stored):
        raise InvalidInput(
            f"{name!r:.60} is not a valid account name: it must not contain colons, spaces or "
            "control characters."
        )
    return stored


def fold_name(name: str) -> str:
    """Return the one spelling under which an account is looked for."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def make_password(password: Any, *, name: str) -> str:
    """Return a new password as it is hashed; raise `InvalidInput` if it is too weak."""
    check_text(password, what="The password")
    prepared = prepare_password(password)
    if len(prepared) < MIN_PASSWORD:
        raise InvalidInput(f"The password must have at least {MIN_PASSWORD} characters.")
    if len(prepared) > MAX_PASSWORD:
        raise InvalidInput(f"The password must have at most {MAX_PASSWORD:,} characters.")
    if fold_name(prepared) == name or len(set(prepared)) == 1:
        raise InvalidInput("The password is too easy to guess. Choose another one.")
    return prepared


def prepare_password(password: str) -> str:
    """Return the password in one form, whichever keyboard it was typed on.

    >>> prepare_password("Zu\u0308rich") == prepare_password("Z\u00fcrich")
    True
    """
    return unicodedata.normalize("NFKC", password)


def parse_role(role: Any) -> Role:
    """Return the role that is meant; raise `InvalidInput`."""
    try:
        return Role(role)
    except ValueError:
        known = ", ".join(Role)
        raise InvalidInput(f"The role must be one of {known}, got {role!r:.60}.") from None
