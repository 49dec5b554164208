"""Sessions, and how often logins failed, as statements without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from duetime.domain.access.account import Role
from duetime.domain.access.session import FAILURE_WINDOW, Session
from duetime.domain.audit import make_event
from duetime.storage.store import Dialect, Row, Statements

_MICROSECOND = timedelta(microseconds=1)
_TOUCH_EVERY = timedelta(minutes=1)
_MAX_SESSIONS = 50
"""Of one account. The oldest end."""


class Bucket(NamedTuple):
    """Where failures are counted, and how many are too many."""

    number: int
    most: int


class SessionStatements:
    """Every method is one transaction. No row that they return holds a hash."""

    def __init__(self, dialect: Dialect, *, idle: timedelta) -> None:
        self._dialect = dialect
        self._times = {
            "idle": idle // _MICROSECOND,
            "touch_every": min(_TOUCH_EVERY, idle / 4) // _MICROSECOND,
        }

    def count_attempt(self, buckets: Sequence[Bucket]) -> Statements:
        """Count a login as failed before its password is checked. Returns the seconds after which
        to try again, if too many failed; else None.

        Buckets after one that is full are not counted: who is refused for their address does not
        lock an account.
        """
        for bucket in buckets:
            given = {"bucket": bucket.number, "window": FAILURE_WINDOW // _MICROSECOND}
            [(count, left)] = yield from self._dialect.run("login_count", given)
            if count > bucket.most:
                return left / 1_000_000
        return None

    def start(
        self,
        *,
        hashed: str,
        account: str,
        stamp: str,
        address: str | None,
        lifetime: timedelta,
        buckets: Sequence[Bucket],
        replaces: str | None,
    ) -> Statements:
        """Store a session of an account that is as it was when its password was checked; return
        None if it is not. The login is no longer counted as failed."""
        for bucket in buckets:
            yield from self._dialect.run("login_uncount", {"bucket": bucket.number})
        given = {
            "hash": hashed,
            "account": account,
            "stamp": stamp,
            "address": address,
            "lifetime": lifetime // _MICROSECOND,
        }
        rows = yield from self._dialect.run("session_start", given)
        if not rows:
            return None
        if replaces is not None:
            yield from self._dialect.run("session_end", {"hash": replaces})
        yield from self._dialect.run("session_cap", {"account": account, "most": _MAX_SESSIONS})
        session = self._read(rows[0])
        after = {"session": session.id, "address": address}
        yield from self._audit("log_in", account, by=account, after=after)
        return session

    def check(self, hashed: str) -> Statements:
        """Return the session with that hash, if it is valid, and whether to `touch` it; else None.
        Reads only."""
        for row in (yield from self._dialect.run("session_check", self._times | {"hash": hashed})):
            return self._read(row), bool(row[7])
        return None

    def touch(self, session_id: int) -> Statements:
        """Record that the session is used, unless that was recorded within the last minute."""
        yield from self._dialect.run("session_touch", self._times | {"id": session_id})

    def rotate(self, hashed: str, new: str) -> Statements:
        """Give a valid session another text; return it, or None."""
        rows = yield from self._dialect.run("session_check", self._times | {"hash": hashed})
        if not rows:
            return None
        changed = yield from self._dialect.run("session_rotate", {"hash": hashed, "new": new})
        return self._read(rows[0]) if changed else None

    def log_out(self, hashed: str) -> Statements:
        """End the session with that hash; return whether there was one."""
        rows = yield from self._dialect.run("session_end", {"hash": hashed})
        for session_id, account in rows:
            yield from self._audit("log_out", account, by=account, after={"session": session_id})
        return bool(rows)

    def end(self, session_id: int, *, by: str) -> Statements:
        """End one session; return whether there was one."""
        rows = yield from self._dialect.run("session_end_id", {"id": session_id})
        for ended, account in rows:
            yield from self._audit("end_session", account, by=by, after={"session": ended})
        return bool(rows)

    def end_all(self, account: str, *, by: str) -> Statements:
        """End all sessions of an account; return how many."""
        rows = yield from self._dialect.run("session_end_all", {"account": account})
        if rows:
            yield from self._audit("end_sessions", account, by=by, after={"ended": len(rows)})
        return len(rows)

    def find(self, account: str) -> Statements:
        """Return the valid sessions of an account, newest first. Reads only."""
        rows = yield from self._dialect.run("session_list", self._times | {"account": account})
        return [self._read(row) for row in rows]

    def prune(self) -> Statements:
        """Remove sessions that are over, and failures that no longer count; return how many."""
        sessions = yield from self._dialect.run("session_prune", self._times)
        failures = yield from self._dialect.run("login_prune", {})
        return len(sessions) + len(failures)

    def _audit(self, action: str, account: str, *, by: str, after: Any) -> Statements:
        event = make_event(by, f"account.{action}", f"account:{account}", after=after)
        yield from self._dialect.run("audit_write", [event])

    def _read(self, row: Row) -> Session:
        return Session(
            id=row[0],
            account=row[1],
            role=Role(row[2]),
            address=row[3],
            created_at=self._dialect.moment(row[4]),
            used_at=self._dialect.moment(row[5]),
            expires_at=self._dialect.moment(row[6]),
        )
