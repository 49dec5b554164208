"""Old rows of who may use the service are removed, as statements without I/O."""

from __future__ import annotations

from datetime import timedelta

from duetime.storage.access.idempotency import IdempotencyStatements
from duetime.storage.access.sessions import SessionStatements
from duetime.storage.access.tokens import TokenStatements
from duetime.storage.store import Dialect, Statements


def prune_access(dialect: Dialect, age: timedelta, *, idle: timedelta) -> Statements:
    """Remove tokens that were revoked or expired longer ago than `age`, sessions that are over,
    failed logins that no longer count and old idempotency keys; return how many rows."""
    tokens = yield from TokenStatements(dialect).prune(age)
    sessions = yield from SessionStatements(dialect, idle=idle).prune()
    keys = yield from IdempotencyStatements(dialect).prune()
    return tokens + sessions + keys
