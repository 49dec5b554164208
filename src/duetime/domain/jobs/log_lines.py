"""The log lines of a handler, kept with its attempt: the last ones, up to a size."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime

import msgspec

DEFAULT_LOG_LINES = 100
MAX_BYTES = 32 * 1024
"""Of the lines of one attempt, as JSON."""
MAX_MESSAGE = 2_000


class LogLine(msgspec.Struct, frozen=True):
    """One line that a handler logged."""

    at: datetime
    level: str
    logger: str
    message: str


class CapturedLog(msgspec.Struct, frozen=True):
    """What the handler of one attempt logged: the last lines."""

    lines: tuple[LogLine, ...]
    dropped: int = 0
    """How many earlier lines were not kept."""


class LogLines:
    """Collects the lines of one attempt. Its methods may be called from several threads.

    >>> lines = LogLines(2)
    >>> for number in range(3):
    ...     lines.add(1.5, "INFO", "shop", f"line {number}")
    >>> lines.write()
    '{"lines":[{"at":"1970-01-01T00:00:01.500000Z","level":"INFO","logger":"shop",\
"message":"line 1"},{"at":"1970-01-01T00:00:01.500000Z","level":"INFO","logger":"shop",\
"message":"line 2"}],"dropped":1}'
    """

    __slots__ = ("_count", "_lines")

    def __init__(self, most: int) -> None:
        self._lines: deque[tuple[float, str, str, str]] = deque(maxlen=most)
        self._count = 0

    @property
    def is_off(self) -> bool:
        return self._lines.maxlen == 0

    def add(self, created: float, level: str, logger: str, message: str) -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]} …"
        self._count += 1
        self._lines.append((created, level, logger, message))

    def write(self) -> str | None:
        """Return the last lines as JSON, as many as fit. None: there are none."""
        kept: list[msgspec.Raw] = []
        left = MAX_BYTES
        for created, *texts in reversed(self._lines.copy()):
            line = LogLine(datetime.fromtimestamp(created, UTC), *map(_storable, texts))
            raw = msgspec.json.encode(line)
            left -= len(raw)
            if left < 0:
                break
            kept.append(msgspec.Raw(raw))
        if not kept:
            return None
        log = {"lines": kept[::-1], "dropped": max(self._count - len(kept), 0)}
        return msgspec.json.encode(log).decode()


def _storable(text: str) -> str:
    """Return text that every database can store."""
    return text.replace("\x00", "\\0").encode(errors="backslashreplace").decode()


def read_log(text: str | None) -> CapturedLog | None:
    """Return what `LogLines.write` wrote."""
    return None if text is None else msgspec.json.decode(text, type=CapturedLog)
