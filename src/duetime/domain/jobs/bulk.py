"""Bulk actions: what is done to all jobs that match a filter, by a job of its own."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from duetime.domain.checks import OWN_TASKS
from duetime.domain.jobs.job import JobFilter, JobInfo, JobState

BULK_TASK = f"{OWN_TASKS}bulk"
"""The task of the jobs that do it."""

BulkVerb = Literal["cancel", "requeue", "reschedule"]


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was requested: the arguments of the job."""

    action: BulkVerb
    which: JobFilter
    """Bounded by what there was at that time."""
    by: str
    reason: str | None = None
    at: datetime | None = None


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a bulk action has come."""

    matched: int | None = None
    """How many jobs matched when it began. None: they are being counted."""
    done: int = 0
    """Jobs that it has changed."""
    skipped: int = 0
    """Jobs that had changed meanwhile, or whose key another job holds."""
    below: int | None = None
    """It goes on with jobs below this id."""


class BulkAction(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action as people see it."""

    id: int
    """The job that does it: cancel that to stop the action."""
    action: BulkVerb
    filters: dict[str, Any]
    by: str
    reason: str | None
    at: datetime | None
    state: JobState
    matched: int | None
    done: int
    skipped: int
    created_at: datetime
    finished_at: datetime | None
    error: str | None


def read_bulk_action(job: JobInfo) -> BulkAction:
    """Return what the job of a bulk action does, and how far it has come."""
    request = msgspec.convert(job.args["request"], BulkRequest)
    progress = read_progress(job.progress)
    return BulkAction(
        id=job.id,
        action=request.action,
        filters=describe_filter(request.which),
        by=request.by,
        reason=request.reason,
        at=request.at,
        state=job.state,
        matched=progress.matched,
        done=progress.done,
        skipped=progress.skipped,
        created_at=job.created_at,
        finished_at=job.finished_at,
        error=job.error,
    )


def read_progress(stored: Any) -> BulkProgress:
    return BulkProgress() if stored is None else msgspec.convert(stored, BulkProgress)


def describe_filter(which: JobFilter) -> dict[str, Any]:
    """Return the filters that were given, as JSON data, under the names by which they are given."""
    names = (
        "queue", "task", "key", "error_code", "created_since", "created_before", "due_since",
        "due_before",
    )  # fmt: skip
    given = {name: value for name in names if (value := getattr(which, name)) is not None}
    states = {"state": [state.value for state in which.states]} if which.states else {}
    args = {"args": [str(one) for one in which.args]} if which.args else {}
    described: dict[str, Any] = msgspec.to_builtins(states | given | args)
    return described
