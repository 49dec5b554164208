"""Secrets of this installation, as statements without I/O."""

from __future__ import annotations

from duetime.storage.store import Dialect, Statements


def keep_secret(dialect: Dialect, name: str, candidate: str) -> Statements:
    """Return the secret with that name; the first to ask for it stores its candidate."""
    yield from dialect.run("secret_add", {"name": name, "value": candidate})
    [(value,)] = yield from dialect.run("secret_get", {"name": name})
    return value


def find_secret(dialect: Dialect, name: str) -> Statements:
    """Return the secret with that name; None if nobody has asked for it yet. Reads only."""
    rows = yield from dialect.run("secret_get", {"name": name})
    return rows[0][0] if rows else None
