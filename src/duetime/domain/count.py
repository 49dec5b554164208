"""How many there are of something, as exactly as it is worth counting."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from duetime.errors import InvalidInput

Precision = Literal["exact", "at_least", "about"]


class Count(msgspec.Struct, frozen=True):
    """How many there are. Large sets are not counted to the end.

    >>> str(Count(41)), str(Count(10_000, "at_least")), str(Count(1_204_311, "about"))
    ('41', '10,000+', '~1,204,311')
    """

    value: int
    precision: Precision = "exact"
    """`at_least`: counting stopped there. `about`: the database's own estimate."""

    def __str__(self) -> str:
        match self.precision:
            case "at_least":
                return f"{self.value:,}+"
            case "about":
                return f"~{self.value:,}"
        return f"{self.value:,}"

    def __bool__(self) -> bool:
        return self.value > 0


def check_count_to(count_to: Any, *, most: int) -> int:
    """Return `count_to` if so many may be counted; raise `InvalidInput`."""
    if isinstance(count_to, bool) or not isinstance(count_to, int) or not 1 <= count_to <= most:
        raise InvalidInput(f"count_to must be 1 to {most:,}, got {count_to!r:.60}.")
    return count_to
