"""Who uses the service, and what they may do."""

from __future__ import annotations

import msgspec

from duetime.domain.access.token import TokenScope


class Visitor(msgspec.Struct, frozen=True):
    """Who makes a request: a person who logged in, or a program with an API token."""

    name: str
    """The actor in the audit: `ann`, or `token:deploy`."""
    scope: TokenScope
    by_cookie: bool = True
    """Whether a browser sends the proof by itself, as it sends a cookie: then changes need a CSRF
    token. False for what a program sends on purpose, such as an API token."""
