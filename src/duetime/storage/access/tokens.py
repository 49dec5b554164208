"""What is done to API tokens, as statements without I/O."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.access.token import ApiToken, TokenScope
from duetime.domain.audit import make_event
from duetime.errors import NameTaken
from duetime.storage.store import Dialect, Row, Statements

_MICROSECOND = timedelta(microseconds=1)
_TOUCH_EVERY = timedelta(minutes=1)


class TokenStatements:
    """Every method is one transaction. No row that they return holds a hash."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def create(
        self, name: str, *, hashed: str, scope: TokenScope, expires_in: timedelta | None, by: str
    ) -> Statements:
        """Store a token; raise `NameTaken` if one that is neither revoked nor expired has the
        name."""
        for row in (yield from self._dialect.run("token_retire", {"name": name, "by": by})):
            # An expired token gives its name back.
            yield from self._audit("revoke", name, by=by, before=self._shown(self._read(row)))
        given = {
            "name": name,
            "hash": hashed,
            "scope": scope,
            "expires_in": None if expires_in is None else expires_in // _MICROSECOND,
            "by": by,
        }
        rows = yield from self._dialect.run("token_create", given)
        if not rows:
            raise NameTaken("API token", name, hint="Revoke that one first")
        token = self._read(rows[0])
        yield from self._audit("create", name, by=by, after=self._shown(token))
        return token

    def check(self, hashed: str) -> Statements:
        """Return the token with that hash, if it is valid, and whether to `touch` it; else None.
        Reads only."""
        given = {"hash": hashed, "touch_every": _TOUCH_EVERY // _MICROSECOND}
        for row in (yield from self._dialect.run("token_check", given)):
            return self._read(row), bool(row[9])
        return None

    def touch(self, token_id: int) -> Statements:
        """Record that the token is used, unless that was recorded within the last minute."""
        given = {"id": token_id, "touch_every": _TOUCH_EVERY // _MICROSECOND}
        yield from self._dialect.run("token_touch", given)

    def revoke(self, name: str, *, by: str) -> Statements:
        """Revoke the token with that name. Returns True; False if it was revoked before; None if
        there was none."""
        rows = yield from self._dialect.run("token_revoke", {"name": name, "by": by})
        if not rows:
            rows = yield from self._dialect.run("token_latest", {"name": name})
            return False if rows else None
        token = self._read(rows[0])
        before = self._shown(token) | {"revoked_at": None, "revoked_by": None}
        yield from self._audit("revoke", name, by=by, before=before, after=self._shown(token))
        return True

    def get(self, name: str) -> Statements:
        """Return the token with that name, the newest one if it was revoked; else None."""
        rows = yield from self._dialect.run("token_latest", {"name": name})
        return self._read(rows[0]) if rows else None

    def find(self, *, revoked: bool, after: tuple[str, int] | None, limit: int) -> Statements:
        """Return tokens by name. Reads only."""
        name, after_id = after or ("", 0)
        given = {"revoked": revoked, "name": name, "id": after_id, "limit": limit}
        rows = yield from self._dialect.run("token_list", given)
        return [self._read(row) for row in rows]

    def prune(self, age: timedelta) -> Statements:
        """Remove tokens that were revoked or expired longer ago than `age`; return how many."""
        given = {"age": age // _MICROSECOND}
        return len((yield from self._dialect.run("token_prune", given)))

    def _audit(
        self, action: str, name: str, *, by: str, before: Any = None, after: Any = None
    ) -> Statements:
        event = make_event(by, f"token.{action}", f"token:{name}", before=before, after=after)
        yield from self._dialect.run("audit_write", [event])

    def _shown(self, token: ApiToken) -> dict[str, Any]:
        return dict(msgspec.to_builtins(token))

    def _read(self, row: Row) -> ApiToken:
        return ApiToken(
            id=row[0],
            name=row[1],
            scope=TokenScope(row[2]),
            expires_at=self._maybe_moment(row[3]),
            created_at=self._dialect.moment(row[4]),
            created_by=row[5],
            last_used_at=self._maybe_moment(row[6]),
            revoked_at=self._maybe_moment(row[7]),
            revoked_by=row[8],
        )

    def _maybe_moment(self, value: Any) -> datetime | None:
        return None if value is None else self._dialect.moment(value)
