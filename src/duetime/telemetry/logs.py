"""Format of log lines: one JSON object each for programs, or short and aligned for people."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from duetime.domain.text import escape_controls, escape_json
from duetime.errors import SettingsError
from duetime.telemetry.job_labels import LABELS

LogFormat = Literal["console", "json"]

LEVELS = ("debug", "info", "warning", "error")

_NOT_EXTRA = frozenset(logging.makeLogRecord({}).__dict__) | {
    "asctime",
    "duetime",
    *LABELS,
    "message",
    "taskName",
}
_COLOURS = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[31;1m",
}
_DIM = "\x1b[2m"
_BOLD = "\x1b[1m"
_RESET = "\x1b[0m"
_EVENT_WIDTH = 16


def configure_logging(
    format: LogFormat = "console",  # noqa: A002 - the word of the command line
    level: str = "info",
    *,
    stream: TextIO | None = None,
) -> logging.Handler:
    """Send log lines to `stream`, by default standard error. Calling it again replaces the former.

    An application that has set up logging itself keeps it: then only Duetime's own lines are
    written here, and they are not passed on to the application's handlers.
    """
    if format not in ("console", "json"):
        raise SettingsError(f"The log format must be console or json, got {format!r}.")
    if level.lower() not in LEVELS:
        raise SettingsError(f"The log level must be one of {', '.join(LEVELS)}, got {level!r}.")
    handler = _Handler(stream or sys.stderr)
    if format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(ConsoleFormatter(colour=_wants_colour(handler.stream)))
    root, ours = logging.getLogger(), logging.getLogger("duetime")
    for logger in (root, ours):
        for former in [h for h in logger.handlers if isinstance(h, _Handler)]:
            logger.removeHandler(former)
    ours.setLevel(level.upper())
    ours.propagate = not root.handlers
    if ours.propagate:
        root.addHandler(handler)
        root.setLevel(level.upper())
    else:
        ours.addHandler(handler)
    return handler


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": event_of(record),
        }
        if not record.name.startswith("duetime"):
            line["logger"] = record.name
        for name, value in fields_of(record).items():
            line[f"{name}_" if name in line else name] = value
        # An event may have a shorter one: without the engine's own frames.
        if not line.get("traceback") and (trace := self._trace(record)):
            line["traceback"] = trace
        try:
            return escape_json(msgspec.json.encode(line, enc_hook=str).decode())
        except (TypeError, ValueError, RecursionError):
            # A log line must never be lost: keys that are not text, lone surrogates.
            return json.dumps(line, default=repr, skipkeys=True)

    def _trace(self, record: logging.LogRecord) -> str | None:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        parts += [record.stack_info] if record.stack_info else []
        return "\n".join(parts) or None


class ConsoleFormatter(logging.Formatter):
    """`12:03:04.123 INFO  job_completed    job_id=7 task=mail.send`, in local time."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in fields_of(record).items() if value is not None}
        trace = fields.pop("traceback", None)
        event = escape_controls(event_of(record), keep="\n\t")
        if not record.name.startswith("duetime"):
            event = f"{record.name}: {event}"
        elif not event.startswith("worker_"):
            # Every line of a worker would say the same.
            fields.pop("worker_id", None)
        moment = _moment(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level = self._paint(_COLOURS.get(record.levelno, ""), f"{record.levelname:<7}")
        shown = " ".join(
            f"{self._paint(_DIM, name + '=')}{_brief(v)}" for name, v in fields.items()
        )
        if shown:
            event = self._paint(_BOLD, event) + " " * (_EVENT_WIDTH - len(event)) + " " + shown
        lines = [f"{self._paint(_DIM, moment)} {level} {event}"]
        if isinstance(trace, str):
            lines.append(_indent(trace))
        elif record.exc_info:
            lines.append(_indent(self.formatException(record.exc_info)))
        if record.stack_info:
            lines.append(_indent(record.stack_info))
        return "\n".join(lines)

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colour and colour else text


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that `configure_logging` finds it again."""


class FallbackHandler(logging.Handler):
    """For programs that have not set up logging: it prints warnings and errors as console lines,
    with their fields. It is silent as soon as any other handler is there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(ConsoleFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not self._others(record.name):
                print(self.format(record), file=sys.stderr)
        except Exception:  # noqa: BLE001 - a log line must never stop the work
            self.handleError(record)

    def _others(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def event_of(record: logging.LogRecord) -> str:
    """Return the event's name; of a record that is not one of our events, its message."""
    return str(record.__dict__["event"]) if _is_event(record) else record.getMessage()


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was logged beside the message: an event's fields, plain extras, and the job in
    whose handler it was logged."""
    own = _is_event(record)
    fields = dict(record.__dict__["duetime"]) if own else {}
    for name, value in record.__dict__.items():
        if name not in _NOT_EXTRA and not (own and name == "event"):
            fields.setdefault(name, value)
    if "job_id" not in fields and "duetime_job_id" in record.__dict__:
        for name, label in LABELS.items():
            fields.setdefault(label, record.__dict__[name])
    return fields


def _is_event(record: logging.LogRecord) -> bool:
    return "event" in record.__dict__ and isinstance(record.__dict__.get("duetime"), dict)


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _brief(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
        case list() | tuple():
            text = ",".join(map(str, value)) or "-"
        case _:
            text = str(value)
    if not text or any(c.isspace() or c in '"=' or not c.isprintable() for c in text):
        return escape_json(json.dumps(text, ensure_ascii=False))
    return text


def _indent(text: str) -> str:
    return "\n".join(
        "    " + escape_controls(line, keep="\t") for line in text.rstrip().splitlines()
    )


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
