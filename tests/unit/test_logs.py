"""What log lines look like."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import duetime
from duetime.domain.jobs.job import ClaimedJob
from duetime.errors import SettingsError
from duetime.telemetry.events import Events, log_event
from duetime.telemetry.job_labels import current_job, label_record
from duetime.telemetry.logs import (
    ConsoleFormatter,
    FallbackHandler,
    JsonFormatter,
    LogFormat,
    configure_logging,
)

EVENTS = "duetime.events"
MOMENT = datetime(2026, 3, 8, tzinfo=UTC)


def record(
    message: str, *, name: str = EVENTS, level: int = logging.INFO, error: Any = None, **extra: Any
) -> logging.LogRecord:
    """An event's record if it has fields in `duetime`, else one of an application."""
    if "duetime" in extra:
        extra["event"], message = message, f"The sentence of {message}."
    logger = logging.getLogger(name)
    return logger.makeRecord(name, level, "file.py", 1, message, (), error, extra=extra)


def as_json(line: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(line)
    assert "\n" not in text
    told: dict[str, Any] = json.loads(text)
    return told


def caught() -> Any:
    try:
        raise ValueError("boom")
    except ValueError:
        return sys.exc_info()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def fresh_logging() -> Iterator[None]:
    """Restore pytest's logging after a test that called `forget_logging`."""
    loggers = [logging.getLogger(), logging.getLogger("duetime")]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def forget_logging() -> None:
    """Logging as in a fresh process. Inside the test: pytest adds its handlers just before."""
    for logger in (logging.getLogger(), logging.getLogger("duetime")):
        logger.handlers[:] = []


def test_json_carries_time_level_event_and_the_events_fields() -> None:
    line = as_json(record("job_completed", duetime={"job_id": 7, "duration_ms": 1.5}))

    assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert line == {"level": "info", "event": "job_completed", "job_id": 7, "duration_ms": 1.5}


def test_json_of_other_loggers_carries_their_extras_and_name() -> None:
    line = as_json(record("hello", name="shop", level=logging.WARNING, order=42))

    assert (line["event"], line["logger"], line["order"]) == ("hello", "shop", 42)


def labelled(**extra: Any) -> logging.LogRecord:
    """A record of an application, made inside a handler."""
    job = ClaimedJob(7, 1, "mail.send", "mail", 5, "{}", 2, 3, MOMENT, MOMENT, key="order:1")
    label = current_job.set(job)
    try:
        return label_record(record("hello", name="shop", **extra))
    finally:
        current_job.reset(label)


def test_lines_of_a_handler_carry_its_job() -> None:
    line = as_json(labelled(order=42))

    assert {name: line[name] for name in ("job_id", "task", "key", "attempt", "queue")} == {
        "job_id": 7,
        "task": "mail.send",
        "key": "order:1",
        "attempt": 2,
        "queue": "mail",
    }
    assert line["order"] == 42
    assert not [name for name in line if name.startswith("duetime")]
    assert (
        ConsoleFormatter()
        .format(labelled())
        .endswith("job_id=7 task=mail.send key=order:1 attempt=2 queue=mail")
    )


def test_lines_about_another_job_are_not_mixed_with_the_handlers_own() -> None:
    line = as_json(labelled(job_id=8))

    assert line["job_id"] == 8
    assert not {"task", "key", "attempt", "queue"} & line.keys()


def test_json_field_never_hides_the_lines_own() -> None:
    line = as_json(record("job_failed", duetime={"time": "never", "level": 3, "event": "x"}))

    assert (line["level"], line["event"]) == ("info", "job_failed")
    assert (line["time_"], line["level_"], line["event_"]) == ("never", 3, "x")


def test_json_has_the_traceback_of_an_exception() -> None:
    line = as_json(record("service_failed", error=caught()))

    assert line["traceback"].endswith("ValueError: boom")


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, {(1, 2): 3}, "\ud800", b"\xff", timedelta(seconds=1), float("nan")]
)
def test_json_never_loses_a_line(value: Any) -> None:
    line = as_json(record("odd", duetime={"job_id": 7, "value": value}))

    assert (line["event"], line["job_id"]) == ("odd", 7)


def test_console_is_short_and_aligned() -> None:
    fields = {"job_id": 7, "task": "mail.send", "worker_id": "w", "reason": None, "ms": 1.5}
    line = ConsoleFormatter().format(record("job_completed", duetime=fields))

    moment, rest = line[:12], line[12:]
    assert moment.count(":") == 2
    assert rest == " INFO    job_completed    job_id=7 task=mail.send ms=1.5"


def test_console_names_the_worker_where_it_is_the_news() -> None:
    fields = {"worker_id": "w", "queues": ["a", "b"]}
    line = ConsoleFormatter().format(record("worker_started", duetime=fields))

    assert line.endswith("worker_started   worker_id=w queues=a,b")


def test_console_prints_a_traceback_below_and_quotes_what_has_spaces() -> None:
    fields = {"error": "two\nlines", "traceback": "Traceback:\n  here\nValueError: two"}
    line = ConsoleFormatter().format(record("job_failed", level=logging.ERROR, duetime=fields))

    first, *below = line.splitlines()
    assert first.endswith('error="two\\nlines"')
    assert below == ["    Traceback:", "      here", "    ValueError: two"]


def test_console_cannot_be_spoofed_by_control_characters() -> None:
    line = ConsoleFormatter().format(record("job_parked", duetime={"task": "\x1b[31mred\r"}))

    assert "\x1b" not in line
    assert "\r" not in line


@pytest.mark.usefixtures("fresh_logging")
def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_logging()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    written = []
    for stream in (io.StringIO(), Terminal()):
        configure_logging(stream=stream)
        Events().worker_stopped("w", given_back=0)
        written.append(stream.getvalue())
    monkeypatch.setenv("NO_COLOR", "1")
    quiet = Terminal()
    configure_logging(stream=quiet)
    Events().worker_stopped("w", given_back=0)

    plain, coloured = written
    assert "\x1b" not in plain
    assert "\x1b[32m" in coloured
    assert "\x1b" not in quiet.getvalue()


@pytest.mark.usefixtures("fresh_logging")
@pytest.mark.parametrize("kind", ["console", "json"])
def test_configuring_again_replaces(kind: LogFormat) -> None:
    forget_logging()
    first, second = io.StringIO(), io.StringIO()
    configure_logging(kind, stream=first)
    configure_logging(kind, level="warning", stream=second)

    Events().worker_stopped("w", given_back=0)
    Events().worker_fenced("w", "gone", held=1)
    logging.getLogger("shop").warning("hello")

    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 2


@pytest.mark.usefixtures("fresh_logging")
def test_an_applications_own_logging_is_left_alone() -> None:
    forget_logging()
    theirs, ours = io.StringIO(), io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(theirs))
    configure_logging("json", stream=ours)

    logging.getLogger("shop").warning("hello")
    Events().worker_fenced("w", "gone", held=1)

    assert theirs.getvalue() == "hello\n"
    assert json.loads(ours.getvalue())["event"] == "worker_fenced"


def test_unknown_format_and_level_are_refused() -> None:
    with pytest.raises(SettingsError, match="console or json"):
        configure_logging("xml")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="debug, info"):
        configure_logging(level="loud")


@pytest.mark.usefixtures("fresh_logging")
def test_without_logging_a_warning_is_told_with_its_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert any(isinstance(one, FallbackHandler) for one in logging.getLogger("duetime").handlers)
    forget_logging()
    logging.getLogger("duetime").addHandler(FallbackHandler())
    log = logging.getLogger(EVENTS)

    def tell(level: int, event: str, **fields: Any) -> None:
        log_event(log, level, event, "Job %(job_id)s failed.", **fields)

    tell(logging.WARNING, "job_failed", job_id=7, error="no answer")
    tell(logging.INFO, "job_started", job_id=8)
    alone = capsys.readouterr().err
    listener = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(listener)
    tell(logging.WARNING, "job_failed", job_id=9)

    assert alone.endswith('WARNING job_failed       job_id=7 error="no answer"\n')
    assert alone.count("\n") == 1
    assert capsys.readouterr().err == ""
    assert listener.stream.getvalue() == "Job 9 failed.\n"


def test_every_event_has_a_sentence() -> None:
    """A record whose message is the event's name alone is of no use to who reads plain logs."""
    source = Path(duetime.__file__).parent
    nameless = re.compile(r"\blog\.(?:debug|info|warning|error|exception|critical|log)\(")
    found = [file.name for file in source.rglob("*.py") if nameless.search(file.read_text())]

    assert found == []


def test_a_failing_filter_of_the_application_does_not_stop_the_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    log = logging.getLogger("duetime.test")
    log.addFilter(fail)
    try:
        log_event(log, logging.WARNING, "some_event", "Something happened.")
    finally:
        log.removeFilter(fail)

    assert "ZeroDivisionError" in capsys.readouterr().err
