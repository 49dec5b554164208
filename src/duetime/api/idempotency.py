"""Requests that are carried out once, however often they are sent: `Idempotency-Key`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING

from duetime.domain.access.idempotency import (
    MAX_ANSWER_BYTES,
    Answer,
    check_idempotency_key,
    fingerprint_request,
    identify_request,
)
from duetime.errors import (
    AnswerNotKept,
    IdempotencyKeyReused,
    RequestInProgress,
    StorageError,
)
from duetime.storage.access.idempotency import IdempotencyStatements, KnownRequest
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.access")

_FIRST_LOOK_S = 0.02
_LONGEST_LOOK_S = 0.5


class KeyedRequest:
    """A request with an idempotency key. If it has an `answer`, send that and do nothing."""

    def __init__(self, app: Duetime, request_id: str, holder: str, answer: Answer | None) -> None:
        self._app = app
        self._id = request_id
        self._holder = holder
        self.answer = answer
        self.is_finished = answer is not None

    async def finish(
        self,
        status: int,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        secret: bool = False,
    ) -> None:
        """Keep what is answered, for the next request with the key.

        A `secret` answer, such as a new API token, is not kept, and neither is one that is too
        large: the next request learns that this one was carried out. If the database fails
        now, the client still gets its answer.
        """
        answer = Answer(status, body, dict(headers or {}))
        kept = not secret and len(body) <= MAX_ANSWER_BYTES and _is_text(body)
        # Whatever happens now, the request was carried out: its key must not be free at once.
        self.is_finished = True
        try:
            stored: bool = await self._app._perform(
                lambda dialect: IdempotencyStatements(dialect).finish(
                    self._id, holder=self._holder, status=status, answer=answer if kept else None
                )
            )
        except StorageError as error:
            log_event(
                log,
                logging.ERROR,
                "idempotency_answer_lost",
                "A request was carried out, and its answer could not be kept: %(error)s",
                error=str(error),
            )
            return
        if not stored:
            log_event(
                log,
                logging.WARNING,
                "idempotency_key_lost",
                "A request took so long that another one with the same key was carried out, too.",
            )

    async def release(self) -> None:
        """Forget the request: it was not carried out, and may be sent again with the same key."""
        try:
            await self._app._perform(
                lambda dialect: IdempotencyStatements(dialect).release(
                    self._id, holder=self._holder
                )
            )
        except StorageError as error:
            # It is free again when the reservation runs out. The request's own error matters more.
            log_event(
                log,
                logging.WARNING,
                "idempotency_key_held",
                "The key of a failed request stays reserved for a minute: %(error)s",
                error=str(error),
            )


class Idempotency:
    """`app._idempotency`: for the HTTP API."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    @asynccontextmanager
    async def begin(
        self,
        *,
        visitor: str,
        method: str,
        path: str,
        key: str,
        query: str = "",
        body: bytes = b"",
        wait: float = 5.0,
    ) -> AsyncIterator[KeyedRequest]:
        """Carry out the block once for each key: reserve the key, and keep what is answered.

        If the block ends without `finish`, or raises, the key is free again. If the process dies,
        it is free after a minute. A second request with the key waits up to `wait` seconds for the
        first. Raises `RequestInProgress`, `IdempotencyKeyReused`, `AnswerNotKept`, `InvalidInput`.
        """
        request_id = identify_request(visitor, method, path, check_idempotency_key(key))
        fingerprint = fingerprint_request(query, body)
        holder = secrets.token_hex(16)
        known = await self._reserve(request_id, fingerprint, holder, wait)
        answer = None if known is None else _replay(known, fingerprint)
        request = KeyedRequest(self._app, request_id, holder, answer)
        try:
            yield request
        finally:
            if not request.is_finished:
                await request.release()

    async def _reserve(
        self, request_id: str, fingerprint: str, holder: str, wait: float
    ) -> KnownRequest | None:
        """Return None once the key is reserved, or the request that has it and is finished."""
        until = monotonic() + wait
        pause = _FIRST_LOOK_S
        while True:
            known: KnownRequest | None = await self._app._perform(
                lambda dialect: IdempotencyStatements(dialect).reserve(
                    request_id, fingerprint=fingerprint, holder=holder
                )
            )
            if known is None or known.status is not None or known.fingerprint != fingerprint:
                return known
            left = until - monotonic()
            if left <= 0:
                raise RequestInProgress(known.held_s)
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_LOOK_S)


def _replay(known: KnownRequest, fingerprint: str) -> Answer:
    if known.fingerprint != fingerprint:
        raise IdempotencyKeyReused
    if known.answer is None:
        raise AnswerNotKept(known.status or 0)
    return known.answer


def _is_text(body: bytes) -> bool:
    try:
        return "\x00" not in body.decode()
    except UnicodeDecodeError:
        return False
