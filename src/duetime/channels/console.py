"""Messages for developers: on the console, or in the log."""

from __future__ import annotations

import logging
import sys
from datetime import UTC
from typing import TextIO

from duetime.channels.channel import Message, NotSent, Sent


class Console:
    """Writes each message as one line to `stream`, by default standard output."""

    def __init__(self, stream: TextIO | None = None, *, name: str = "console") -> None:
        self.name = name
        self._stream = stream

    async def send(self, message: Message) -> Sent:
        """Write and flush it."""
        # Looked up at each call: tests and servers replace it.
        stream = self._stream or sys.stdout
        try:
            stream.write(line_of(message) + "\n")
            stream.flush()
        except OSError as error:
            raise NotSent(
                f"The message cannot be written to the stream: {error}.", transient=True
            ) from error
        except ValueError as error:
            raise NotSent(f"The stream cannot be used: {error}.", transient=False) from error
        return Sent(message.key)

    async def close(self) -> None:
        """The stream belongs to the code that opened it, and stays open."""


class Log:
    """Writes each message to a logger, with its facts as attributes of the record."""

    def __init__(
        self,
        logger: logging.Logger | str = "duetime.reminders",
        *,
        level: int = logging.INFO,
        name: str = "log",
    ) -> None:
        self.name = name
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level

    async def send(self, message: Message) -> Sent:
        """Log it; a level that is off is a permanent failure, since nobody would see it."""
        if not self._logger.isEnabledFor(self._level):
            raise NotSent(
                f"The logger {self._logger.name!r} discards messages of level "
                f"{logging.getLevelName(self._level)}. Enable that level, or choose another one.",
                transient=False,
            )
        self._logger.log(
            self._level,
            "%s",
            line_of(message),
            extra={
                "key": message.key,
                "subject": message.subject,
                "recipient": message.recipient,
                "due_at": message.due_at,
            },
        )
        return Sent(message.key)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def line_of(message: Message) -> str:
    """The message on one line; nothing in it can move the cursor or begin another line."""
    due = message.due_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    to = f"{message.recipient}: " if message.recipient else ""
    text = f"{due} {to}{message.title}"
    if message.body and message.body != message.title:
        text += f" | {message.body}"
    if message.rule is not None:
        text += f" ({message.rule} of {message.subject})"
    return "".join(c if c.isprintable() else " " for c in f"{text} [{message.key}]")
