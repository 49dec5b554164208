"""Idempotency keys of requests: which request a key stands for, and what was answered."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from typing import Any

import msgspec

from duetime.errors import InvalidInput

KEPT_FOR = timedelta(hours=24)
HELD_FOR = timedelta(seconds=60)
"""After this, a request that has not been answered is taken for lost: its process died."""
MAX_ANSWER_BYTES = 256 * 1024
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class Answer(msgspec.Struct, frozen=True):
    """What was answered to a request."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


def check_idempotency_key(key: Any) -> str:
    """Return the key; quotes around it, as of a structured header, do not count.

    >>> check_idempotency_key('"8e03978e-40d5"')
    '8e03978e-40d5'
    """
    if isinstance(key, str):
        bare = key[1:-1] if len(key) > 2 and key[0] == key[-1] == '"' else key
        if _KEY.fullmatch(bare):
            return bare
    raise InvalidInput(
        "The Idempotency-Key must have 1 to 255 visible ASCII characters, such as a UUID."
    )


def identify_request(visitor: str, method: str, path: str, key: str) -> str:
    """Return the id of what a key stands for: the same key of another visitor or for another path
    is another one."""
    return _digest(visitor, method.upper(), path, key)


def fingerprint_request(query: str, body: bytes) -> str:
    """Return what two requests with the same key must have in common."""
    return _digest(query, hashlib.sha256(body).hexdigest())


def _digest(*parts: str) -> str:
    # As a list, so that no two different ones are written in the same way.
    raw = msgspec.json.encode([part.encode(errors="surrogatepass").hex() for part in parts])
    return hashlib.sha256(raw).hexdigest()
