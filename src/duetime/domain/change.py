"""What a `put` did."""

from __future__ import annotations

from typing import Literal


class Put(str):
    """`added`, `changed` or `same`; and how many other things that affected.

    >>> put = Put("changed", affected=3)
    >>> put == "changed", put.affected
    (True, 3)
    """

    __slots__ = ("affected",)
    affected: int

    def __new__(cls, result: Literal["added", "changed", "same"], *, affected: int) -> Put:
        put = super().__new__(cls, result)
        put.affected = affected
        return put
