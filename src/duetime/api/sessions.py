"""`app.sessions`: logins of accounts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from duetime.api.tokens import MAX_SHARED
from duetime.domain.access.account import fold_name
from duetime.domain.access.session import (
    MAX_ACCOUNT_FAILURES,
    MAX_ADDRESS_FAILURES,
    Session,
    StartedSession,
    account_bucket,
    address_bucket,
    is_session_text,
    make_session_text,
)
from duetime.domain.access.token import hash_secret
from duetime.domain.checks import check_actor, check_sought
from duetime.engine.batching import Batcher
from duetime.errors import InvalidInput, LoginFailed, TooManyLogins
from duetime.storage.access.sessions import Bucket, SessionStatements
from duetime.storage.store import Dialect
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.access")

_MAX_ADDRESS = 100
_MAX_NAME = 1000
"""Of what people send as a name; accounts have shorter ones."""


class Sessions:
    """`app.sessions`: logins of accounts, for the cookies of a web service.

    A session ends when its account is disabled or deleted, or gets another role or password.
    """

    def __init__(self, app: Duetime) -> None:
        self._app = app
        # As for tokens: a page and what it loads share a check.
        self._checks: Batcher[tuple[str, bool], Session | None] = Batcher(
            self._check, max_size=MAX_SHARED
        )

    async def log_in(
        self, name: str, password: str, *, address: str | None = None, replaces: str | None = None
    ) -> StartedSession:
        """Check a password and start a session, whose `text` is returned here and never again.

        `address`: of the client. Raises `LoginFailed`, and `TooManyLogins` if too many logins of
        the account or from the address have failed; then the password is not checked.
        `replaces`: the text of an earlier session of the same browser, which ends.
        """
        if not isinstance(name, str) or not isinstance(password, str):
            raise InvalidInput("The name and the password must be strings.")
        seen = None if address is None else _shorten(address)
        buckets = await self._buckets(fold_name(name[:_MAX_NAME]), seen)
        wait: float | None = await self._app._perform(
            lambda dialect: self._on(dialect).count_attempt(buckets)
        )
        if wait is not None:
            log_event(
                log,
                logging.WARNING,
                "logins_limited",
                "A login from %(address)s was refused: too many have failed.",
                address=seen,
            )
            raise TooManyLogins(wait)
        stored = await self._app.accounts._check_password(name, password)
        text = make_session_text()
        session: Session | None = None
        if stored is not None:
            old = hash_secret(replaces) if is_session_text(replaces) and replaces else None
            known = stored
            session = await self._app._perform(
                lambda dialect: self._on(dialect).start(
                    hashed=hash_secret(text),
                    account=known.account.name,
                    stamp=known.stamp,
                    address=seen,
                    lifetime=self._app.settings.session_lifetime,
                    buckets=buckets,
                    replaces=old,
                )
            )
        if session is None:
            # The name is not logged: people type passwords into the wrong field.
            log_event(
                log,
                logging.WARNING,
                "login_failed",
                "A login from %(address)s failed.",
                address=seen,
            )
            raise LoginFailed
        return StartedSession(session, text)

    async def check(self, text: str, *, is_use: bool = True) -> Session | None:
        """Return the session with this text; None if there is none, or it has ended.

        Records that it is used, at most once a minute; with `is_use=False` it does not, for
        requests that a page makes by itself, such as live updates.
        """
        if not is_session_text(text):
            return None
        hashed = hash_secret(text)
        return await self._checks.submit((hashed, is_use), group=(hashed, is_use))

    async def rotate(self, text: str) -> StartedSession | None:
        """Give the session a new text; the old one is no longer valid. None if it has ended."""
        if not is_session_text(text):
            return None
        new = make_session_text()
        session: Session | None = await self._app._perform(
            lambda dialect: self._on(dialect).rotate(hash_secret(text), hash_secret(new))
        )
        return None if session is None else StartedSession(session, new)

    async def log_out(self, text: str) -> bool:
        """End the session with this text; return whether there was one."""
        if not is_session_text(text):
            return False
        ended: bool = await self._app._perform(
            lambda dialect: self._on(dialect).log_out(hash_secret(text))
        )
        return ended

    async def list(self, account: str) -> list[Session]:
        """Return the valid sessions of an account, newest first."""
        name = fold_name(check_sought(account, what="account"))
        found: list[Session] = await self._app._perform(
            lambda dialect: self._on(dialect).find(name), reads=True
        )
        return found

    async def end(self, session_id: int, *, by: str = "unknown") -> bool:
        """End one session by its id; return whether there was one."""
        if isinstance(session_id, bool) or not isinstance(session_id, int):
            raise InvalidInput(f"The id of a session must be an integer, got {session_id!r:.60}.")
        actor = check_actor(by)
        ended: bool = await self._app._perform(
            lambda dialect: self._on(dialect).end(session_id, by=actor)
        )
        return ended

    async def end_all(self, account: str, *, by: str = "unknown") -> int:
        """End all sessions of an account; return how many there were."""
        name = fold_name(check_sought(account, what="account"))
        actor = check_actor(by)
        ended: int = await self._app._perform(
            lambda dialect: self._on(dialect).end_all(name, by=actor)
        )
        return ended

    async def _check(self, asked: Sequence[tuple[str, bool]]) -> Sequence[Session | None]:
        """Check a session once for all who asked for it."""
        hashed, is_use = asked[0]
        found: tuple[Session, bool] | None = await self._app._perform(
            lambda dialect: self._on(dialect).check(hashed), reads=True
        )
        if found is None:
            return [None] * len(asked)
        session, is_to_touch = found
        if is_to_touch and is_use:
            await self._app._perform(lambda dialect: self._on(dialect).touch(session.id))
        return [session] * len(asked)

    def _on(self, dialect: Dialect) -> SessionStatements:
        return SessionStatements(dialect, idle=self._app.settings.session_idle)

    async def _buckets(self, name: str, address: str | None) -> Sequence[Bucket]:
        key = await self._app._secrets.get("login")
        buckets = [Bucket(account_bucket(key, name), MAX_ACCOUNT_FAILURES)]
        if address is not None:
            buckets.insert(0, Bucket(address_bucket(key, address), MAX_ADDRESS_FAILURES))
        return buckets


def _shorten(address: str) -> str:
    return "".join(sign for sign in address if sign.isprintable())[:_MAX_ADDRESS]
