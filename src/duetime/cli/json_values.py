"""JSON that is given on the command line."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str) -> Any:
    """Return the value of a JSON text; raise `ValueError` with what is wrong."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
