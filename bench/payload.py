"""What every measured job carries: 150 bytes of JSON."""

from __future__ import annotations

ARGS_BYTES = 150
_EMPTY = len('{"number":,"note":""}')


def note_for(number: int) -> str:
    """Return the text that fills the arguments of job `number` up to 150 bytes."""
    return "n" * (ARGS_BYTES - _EMPTY - len(str(number)))
