"""Durable reminders, schedules, jobs and flows for Python, on the database you already have."""

from duetime.app import Duetime
from duetime.domain.job import JobInfo, JobState
from duetime.domain.outcome import Cancel, Completed, Discard, Retry, Snooze
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
    "Discard",
    "Duetime",
    "DuetimeError",
    "Exponential",
    "JobHandle",
    "JobInfo",
    "JobState",
    "Retry",
    "Snooze",
    "Task",
]
