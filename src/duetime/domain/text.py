"""Text from others, made safe to show on a terminal; and names for messages."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

_JOINERS = "\u200c\u200d"
"""Invisible, but parts of words and of emoji."""
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def escape_controls(text: str, *, keep: str = "") -> str:
    r"""Return the text with its control characters written as escapes, such as \x1b.

    Nothing that is left can move the cursor, change colours, hide text or reverse its direction.

    >>> escape_controls("\x1b[2Jgone\n"), escape_controls("a\tb\n", keep="\n\t")
    ('\\x1b[2Jgone\\n', 'a\tb\n')
    """
    if text.isprintable():
        return text
    return "".join(
        c if _is_safe(c) or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def escape_json(line: str) -> str:
    r"""Return a line of JSON with what is unsafe for a terminal escaped. Its value is the same.

    >>> escape_json('{"text": "\x9b2J"}')
    '{"text": "\\u009b2J"}'
    """
    if line.isprintable():
        return line
    # Such characters occur in strings only.
    return "".join(c if _is_safe(c) else json.dumps(c)[1:-1] for c in line)


def _is_safe(character: str) -> bool:
    return unicodedata.category(character) not in _UNSAFE or character in _JOINERS


def name_function(function: Callable[..., Any]) -> str:
    """The function's full name, for messages."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"{module}.{name}" if module else name
