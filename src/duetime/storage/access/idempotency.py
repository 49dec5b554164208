"""Idempotency keys of requests, as statements without I/O."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import msgspec

from duetime.domain.access.idempotency import HELD_FOR, KEPT_FOR, Answer
from duetime.storage.store import Dialect, Statements

_MICROSECOND = timedelta(microseconds=1)


class KnownRequest(NamedTuple):
    """What another request with the same key has left."""

    fingerprint: str
    status: int | None
    """None: it is in progress."""
    answer: Answer | None
    """None: it is in progress, or its answer was not kept."""
    held_s: float
    """For how many seconds it may still be in progress."""


class IdempotencyStatements:
    """Every method is one transaction. Only the holder of a key finishes or releases it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def reserve(self, request_id: str, *, fingerprint: str, holder: str) -> Statements:
        """Reserve a key before the request is carried out. Returns None if that is done; else the
        `KnownRequest` that has it."""
        given = {
            "id": request_id,
            "fingerprint": fingerprint,
            "holder": holder,
            "held": HELD_FOR // _MICROSECOND,
            "kept": KEPT_FOR // _MICROSECOND,
        }
        while not (yield from self._dialect.run("idempotency_reserve", given)):
            for row in (yield from self._dialect.run("idempotency_get", {"id": request_id})):
                found, status, headers, body, held = row
                answer = None
                if status is not None and body is not None:
                    known = msgspec.json.decode(headers, type=dict[str, str])
                    answer = Answer(status, body.encode(), known)
                return KnownRequest(found, status, answer, max(0.0, held / 1_000_000))
            # It was released between the two statements.
        return None

    def finish(
        self, request_id: str, *, holder: str, status: int, answer: Answer | None
    ) -> Statements:
        """Store what was answered; return False if another one has taken over the key."""
        given = {
            "id": request_id,
            "holder": holder,
            "status": status,
            "headers": "{}" if answer is None else msgspec.json.encode(answer.headers).decode(),
            "body": None if answer is None else answer.body.decode(),
        }
        return bool((yield from self._dialect.run("idempotency_finish", given)))

    def release(self, request_id: str, *, holder: str) -> Statements:
        """Forget a request that was not carried out."""
        yield from self._dialect.run("idempotency_release", {"id": request_id, "holder": holder})

    def prune(self) -> Statements:
        """Remove some of the keys whose time is over; return how many."""
        return len((yield from self._dialect.run("idempotency_prune", {})))
