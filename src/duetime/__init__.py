"""Durable reminders, schedules, jobs and flows for Python, on the database you already have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime.api.jobs import JobHandle
    from duetime.api.tasks import Task
    from duetime.app import Duetime
    from duetime.channels.channel import Sent
    from duetime.domain.jobs.job import JobInfo, JobState
    from duetime.domain.jobs.outcome import Cancel, Completed, Discard, Retry, Skip, Snooze
    from duetime.domain.jobs.retry import Constant, Custom, Delays, Exponential
    from duetime.domain.reasons import Explanation, Reason
    from duetime.domain.reminders.digest import Digest
    from duetime.domain.reminders.recipient import Recipient
    from duetime.domain.reminders.reminder import Reminder
    from duetime.engine.context import Context
    from duetime.errors import DuetimeError

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
    "Explanation",
    "Exponential",
    "JobHandle",
    "JobInfo",
    "JobState",
    "Reason",
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
    "Cancel": "duetime.domain.jobs.outcome",
    "Completed": "duetime.domain.jobs.outcome",
    "Constant": "duetime.domain.jobs.retry",
    "Context": "duetime.engine.context",
    "Custom": "duetime.domain.jobs.retry",
    "Delays": "duetime.domain.jobs.retry",
    "Digest": "duetime.domain.reminders.digest",
    "Discard": "duetime.domain.jobs.outcome",
    "Duetime": "duetime.app",
    "DuetimeError": "duetime.errors",
    "Explanation": "duetime.domain.reasons",
    "Exponential": "duetime.domain.jobs.retry",
    "JobHandle": "duetime.api.jobs",
    "JobInfo": "duetime.domain.jobs.job",
    "JobState": "duetime.domain.jobs.job",
    "Reason": "duetime.domain.reasons",
    "Recipient": "duetime.domain.reminders.recipient",
    "Reminder": "duetime.domain.reminders.reminder",
    "Retry": "duetime.domain.jobs.outcome",
    "Sent": "duetime.channels.channel",
    "Skip": "duetime.domain.jobs.outcome",
    "Snooze": "duetime.domain.jobs.outcome",
    "Task": "duetime.api.tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
