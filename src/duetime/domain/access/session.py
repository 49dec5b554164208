"""Sessions: logins of accounts; and how often a login may fail."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.access.account import Role

SESSION_IDLE = timedelta(hours=8)
SESSION_LIFETIME = timedelta(days=7)
"""The defaults of the settings of these names."""
FAILURE_WINDOW = timedelta(minutes=5)
MAX_ACCOUNT_FAILURES = 10
MAX_ADDRESS_FAILURES = 30
"""Of one client address in a window. Several people may share an address."""
_BUCKETS = 2**16
_TEXT = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_IPV6_NETWORK = 64


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A login of an account that is valid at the moment."""

    id: int
    account: str
    role: Role
    address: str | None
    """From where they logged in."""
    created_at: datetime
    used_at: datetime
    """To the minute."""
    expires_at: datetime
    """When they must log in again, however active they are."""


class StartedSession(msgspec.Struct, frozen=True):
    """A session and the text that proves it, for the cookie. It cannot be shown again."""

    session: Session
    text: str

    def __repr__(self) -> str:
        """Without the text, since whatever logs an object logs this."""
        return f"StartedSession(session={self.session!r}, text='…')"


def make_session_text() -> str:
    """Return the text of a new session: 256 random bits."""
    return secrets.token_urlsafe(32)


def is_session_text(text: Any) -> bool:
    """Whether a text may be that of a session."""
    return isinstance(text, str) and _TEXT.fullmatch(text) is not None


def account_bucket(key: bytes, name: str) -> int:
    """Where failures of an account are counted, whether there is such an account or not.

    There is a fixed number of buckets, so that a flood of names does not fill the database. Who
    does not know the key cannot choose names that share a bucket with another one.
    """
    return _bucket(key, f"account:{name}")


def address_bucket(key: bytes, address: str) -> int:
    """Where failures of a client address are counted. Of IPv6 a client has a whole network."""
    return _BUCKETS + _bucket(key, f"address:{_network(address)}")


def _bucket(key: bytes, what: str) -> int:
    digest = hmac.digest(key, what.encode(errors="surrogatepass"), "sha256")
    return int.from_bytes(digest[:8], "big") % _BUCKETS


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
    return str(parsed)
