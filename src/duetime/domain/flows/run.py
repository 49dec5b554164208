"""A run of a flow as people see it: its state, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from duetime.domain.checks import STEP_KEYS
from duetime.domain.flows.flow import StepInfo, StepState
from duetime.domain.jobs.job import JobState
from duetime.domain.reasons import Reason


class FlowState(StrEnum):
    """Where a run is in its life."""

    PENDING = "pending"
    """It waits for a worker: to begin, or to go on."""
    RUNNING = "running"
    """A worker runs it. Of a graph also: its steps wait for workers or run."""
    SLEEPING = "sleeping"
    WAITING = "waiting"
    """It waits for a signal, or for jobs or runs that it has started."""
    RETRYING = "retrying"
    """A step or the flow itself failed, and is tried again later."""
    PARKED = "parked"
    """No worker that met it knows this flow."""
    COMPENSATING = "compensating"
    """It has failed or was cancelled, and its compensations run."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"

    @property
    def finished(self) -> bool:
        """Whether it is final, unless the run is retried."""
        return self in _FINISHED


FlowStateLike = (
    FlowState
    | Literal[
        "pending", "running", "sleeping", "waiting", "retrying", "parked", "compensating",
        "completed", "failed", "cancelled", "expired", "superseded",
    ]
)  # fmt: skip

_FINISHED = frozenset(
    {
        FlowState.COMPLETED,
        FlowState.FAILED,
        FlowState.CANCELLED,
        FlowState.EXPIRED,
        FlowState.SUPERSEDED,
    }
)
_OF_JOB = {
    JobState.COMPLETED: FlowState.COMPLETED,
    JobState.DEAD: FlowState.FAILED,
    JobState.CANCELLED: FlowState.CANCELLED,
    JobState.EXPIRED: FlowState.EXPIRED,
    JobState.SUPERSEDED: FlowState.SUPERSEDED,
    JobState.RUNNING: FlowState.RUNNING,
    JobState.PARKED: FlowState.PARKED,
}
STOPS = ("failure", "cancel")
"""The kinds of the row 0 of a run that is stopping."""


class FlowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a flow as people see it."""

    id: int
    flow: str
    state: FlowState
    args: Any
    key: str | None
    queue: str
    priority: int
    parent: int | None
    """The run that has started this one as its child."""
    created_at: datetime
    """When its start was requested."""
    started_at: datetime | None
    """When it first ran."""
    run_at: datetime | None
    """When it runs next; None if it runs, has ended, or waits for something without a time."""
    finished_at: datetime | None
    worker: str | None
    waits: tuple[StepInfo, ...]
    """What it waits for: sleeps, signals, retries, jobs and runs that have not ended."""
    error_code: str | None
    error: str | None
    parked_reason: Reason | None
    result: Any = None
    """What it returned. Lists leave it out."""


def state_of_run(
    job: JobState,
    waits: Sequence[StepInfo],
    *,
    is_due: bool,
    has_begun: bool,
    is_stopping: bool,
    is_undone: bool,
) -> FlowState:
    """Derive a run's state from that of its job and from what it waits for.

    `is_stopping`: it has failed or is to be cancelled, and its job has not ended. `is_undone`: its
    job has ended, and another one runs its compensations.
    """
    if is_undone or (is_stopping and not job.finished):
        return FlowState.COMPENSATING
    if job in _OF_JOB:
        return _OF_JOB[job]
    if any(step.state is StepState.RUNNING for step in waits):
        return FlowState.RUNNING
    if job is JobState.RETRYING:
        return FlowState.RETRYING
    if is_due or not has_begun:
        return FlowState.PENDING
    if any(step.state is StepState.WAITING and step.kind != "sleep" for step in waits):
        return FlowState.WAITING
    if any(step.state is StepState.RETRYING for step in waits):
        return FlowState.RETRYING
    return FlowState.SLEEPING if waits else FlowState.WAITING


def parent_of(key: str | None) -> int | None:
    """The run that has started the run with this key.

    >>> parent_of("flow:42:3")
    42
    >>> parent_of("order:7")
    """
    if key is None or not key.startswith(STEP_KEYS):
        return None
    run, _, _ = key.removeprefix(STEP_KEYS).partition(":")
    return int(run) if run.isdigit() else None
