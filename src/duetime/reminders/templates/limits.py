"""How large templates and their texts may be, and how one is refused."""

from __future__ import annotations

from duetime.errors import InvalidInput

MAX_SOURCE_LENGTH = 16 * 1024
MAX_TEXT_LENGTH = 64 * 1024


class TemplateError(InvalidInput):
    """A template cannot be read, or cannot be filled with what was given; `line` if it is known."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message if line is None else f"Line {line} of the template: {message}")
        self.line = line
