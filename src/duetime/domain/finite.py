"""NaN and infinity: JSON has no words for them, and a codec would write null without a word."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import msgspec

from duetime.errors import InvalidInput

_SIGNS = (b"null", b"NaN", b"Infinity", b'"nan"', b'"inf"', b'"-inf"')
"""What the codec writes for them."""


def check_finite(value: Any, raw: bytes, *, what: str) -> None:
    """Raise `InvalidInput` if a number in `value`, which was written as `raw`, is not finite."""
    if not any(sign in raw for sign in _SIGNS):
        return
    try:
        number = find_unfinite(value)
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply.") from None
    if number is not None:
        verb = "is" if isinstance(value, float | Decimal) else "holds"
        raise InvalidInput(
            f"{what} {verb} {number}, which JSON does not support. Use None or a finite number."
        )


def find_unfinite(value: Any) -> float | Decimal | None:
    """Return a number in it, however deep, that is not finite."""
    left = [msgspec.to_builtins(value, builtin_types=(Decimal,))]
    while left:
        match left.pop():
            case float() as number if not math.isfinite(number):
                return number
            case Decimal() as number if not number.is_finite():
                return number
            case dict() as items:
                left += items
                left += items.values()
            case list() | tuple() | set() | frozenset() as items:
                left += items
    return None
