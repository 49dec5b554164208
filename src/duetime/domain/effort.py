"""How much one request may compute: people, files and stored rows say what is to be searched for.

A step takes about half a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from duetime.errors import InvalidSchedule

STEPS_A_TICK = 25
"""What it takes to find a tick that is near."""


class _Effort:
    def __init__(self, steps: int, message: str, outer: _Effort | None) -> None:
        self.left = steps
        self.message = message
        self.outer = outer

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise InvalidSchedule(self.message)
        if self.outer is not None:
            self.outer.spend(steps)


_current: ContextVar[_Effort | None] = ContextVar("effort", default=None)


@contextmanager
def limited(steps: int, message: str) -> Iterator[None]:
    """Let what is searched for inside take so many steps in all, then raise `InvalidSchedule`."""
    token = _current.set(_Effort(steps, message, _current.get()))
    try:
        yield
    finally:
        _current.reset(token)


def spend(steps: int) -> None:
    """Count steps of a search."""
    if (effort := _current.get()) is not None:
        effort.spend(steps)
