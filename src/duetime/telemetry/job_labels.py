"""Adds the job to log records that its handler makes: id, task, key, attempt and queue. Keeps the
lines with the attempt."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from traceback import format_exception_only
from typing import Any

from duetime.domain.jobs.job import ClaimedJob
from duetime.domain.jobs.log_lines import DEFAULT_LOG_LINES, LogLines

current_job: ContextVar[ClaimedJob | None] = ContextVar("duetime_job", default=None)
"""The job whose handler runs in this context. Tasks and threads of the handler inherit it."""

LABELS = {
    "duetime_job_id": "job_id",
    "duetime_task": "task",
    "duetime_key": "key",
    "duetime_attempt": "attempt",
    "duetime_queue": "queue",
}
"""The attributes of a record that is made inside a handler, and their names in our log lines.

They have a prefix, since an application's `extra={"task": …}` raises an error if the record has an
attribute of that name.
"""

OWN_LOGGER = "duetime"
_is_installed = False


def label_records() -> None:
    """Label every log record of this process that is made inside a handler, from now on.

    Filters cannot do it: those of a logger do not see the records of the loggers below it.
    """
    global _is_installed  # noqa: PLW0603
    if not _is_installed:
        _is_installed = True
        logging.setLogRecordFactory(_Labelling(logging.getLogRecordFactory()))


class _Labelling:
    """A record factory around the one that was set before."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = label_record(self._make(*args, **kwargs))
        job = current_job.get()
        if job is not None:
            capture(record, job)
        return record


def capture(record: logging.LogRecord, job: ClaimedJob) -> None:
    """Keep the line with the job's attempt, unless it is one of Duetime's own."""
    if record.name == OWN_LOGGER or record.name.startswith(f"{OWN_LOGGER}."):
        return
    lines = job.lines
    if lines is None:
        lines = job.lines = LogLines(DEFAULT_LOG_LINES)
    elif lines.is_off:
        return
    try:
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            message += f"\n{''.join(format_exception_only(record.exc_info[1])).rstrip()}"
    except Exception:  # noqa: BLE001 - logging itself reports what cannot be formatted
        message = str(record.msg)
    lines.add(record.created, record.levelname, record.name, message)


def label_record(record: logging.LogRecord) -> logging.LogRecord:
    """Set the attributes, if the record is made inside a handler."""
    job = current_job.get()
    if job is not None:
        record.duetime_job_id = job.id
        record.duetime_task = job.task
        record.duetime_key = job.key
        record.duetime_attempt = job.attempt
        record.duetime_queue = job.queue
    return record
