"""Which of two releases of a service is the newer one."""

from __future__ import annotations

import re

_PARTS = re.compile(r"[0-9]+|[^0-9]+")


def is_older(release: str, than: str) -> bool:
    """Whether a release comes before another: numbers in it are compared as numbers.

    >>> is_older("v1.9.0", than="v1.10.0"), is_older("2026-11-17.2", than="2026-11-17.1")
    (True, False)

    No release at all (the empty text) is older than any.
    """
    return _order(release) < _order(than)


def _order(release: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part[0] in "0123456789" else (-1, part)
        for part in _PARTS.findall(release)
    ]
