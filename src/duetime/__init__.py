"""Durable reminders, schedules, jobs and flows for Python, on the database you already have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.channels.channel import Sent
    from duetime.domain.digest import Digest
    from duetime.domain.job import JobInfo, JobState
    from duetime.domain.outcome import Cancel, Completed, Discard, Retry, Skip, Snooze
    from duetime.domain.recipient import Recipient
    from duetime.domain.reminder import Reminder
    from duetime.domain.retry import Constant, Custom, Delays, Exponential
    from duetime.engine.context import Context
    from duetime.errors import DuetimeError
    from duetime.task import JobHandle, Task

__version__ = "0.1.0"

__all__ = [
    "Cancel",
    "Completed",
    "Constant",
    "Context",
    "Custom",
    "Delays",
    "Digest",
    "Discard",
    "Duetime",
    "DuetimeError",
    "Exponential",
    "JobHandle",
    "JobInfo",
    "JobState",
    "Recipient",
    "Reminder",
    "Retry",
    "Sent",
    "Skip",
    "Snooze",
    "Task",
]

# Imported on first use: pytest loads our plugin in every run, and the CLI its help.
_HOMES = {
    "Cancel": "duetime.domain.outcome",
    "Completed": "duetime.domain.outcome",
    "Constant": "duetime.domain.retry",
    "Context": "duetime.engine.context",
    "Custom": "duetime.domain.retry",
    "Delays": "duetime.domain.retry",
    "Digest": "duetime.domain.digest",
    "Discard": "duetime.domain.outcome",
    "Duetime": "duetime.app",
    "DuetimeError": "duetime.errors",
    "Exponential": "duetime.domain.retry",
    "JobHandle": "duetime.task",
    "JobInfo": "duetime.domain.job",
    "JobState": "duetime.domain.job",
    "Recipient": "duetime.domain.recipient",
    "Reminder": "duetime.domain.reminder",
    "Retry": "duetime.domain.outcome",
    "Sent": "duetime.channels.channel",
    "Skip": "duetime.domain.outcome",
    "Snooze": "duetime.domain.outcome",
    "Task": "duetime.task",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
