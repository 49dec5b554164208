"""A job's values: what is enqueued, what is claimed, how it ended, what people see."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from math import inf
from typing import Any, Literal

import msgspec

from duetime.domain.reasons import Reason, describe_error

# In SQL too, for tasks that no worker has registered: `_task_options`, `task_default`.
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_MAX_ATTEMPTS = 3
DEFAULT_MAX_ARGS_BYTES = 1024 * 1024

PARKED_CODE = "parked"
"""The error code of jobs that were parked until their retention was over."""

UNREADABLE = "row_unreadable"
"""The code of the reason for which such a job is parked."""

OnConflict = Literal["reject", "return", "replace"]
EnqueueAction = Literal["created", "existing", "replaced", "rejected"]


class JobState(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    RETRYING = "retrying"
    PARKED = "parked"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"

    @property
    def finished(self) -> bool:
        """Whether it is final, unless the job is requeued."""
        return self in _FINISHED


JobStateLike = (
    JobState
    | Literal[
        "pending", "retrying", "parked", "running", "completed", "dead", "cancelled", "superseded",
        "expired",
    ]
)  # fmt: skip


_FINISHED = frozenset(
    {
        JobState.COMPLETED,
        JobState.DEAD,
        JobState.CANCELLED,
        JobState.SUPERSEDED,
        JobState.EXPIRED,
    }
)


# What there are many of is without `gc`: it holds plain values, no cycle can go through it.


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to be enqueued, with nothing left open. `args` is a JSON object, already encoded."""

    task: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    run_at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    on_conflict: OnConflict = "return"
    hold: timedelta | None = None
    partition: str | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout: timedelta | None = None
    expires_at: datetime | None = None
    expires_after: timedelta | None = None
    trace: dict[str, str] | None = None
    flow: bool = False
    """Whether it is a run of a flow."""


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """What became of a job that was given: `created`, or the `existing` one that holds its key."""

    job_id: int
    action: EnqueueAction


class ClaimedJob(msgspec.Struct, gc=False):
    """A job that this worker holds under a token."""

    id: int
    token: int
    task: str
    queue: str
    priority: int
    args: str | None
    """As JSON; None if they are so large that they are read when the job starts."""
    attempt: int
    max_attempts: int
    run_at: datetime
    claimed_at: datetime
    key: str | None = None
    partition: str | None = None
    timeout: timedelta | None = None
    expires_at: datetime | None = None
    trace: str | None = None
    limited: bool = False
    not_before: float = 0.0
    """Claimed ahead of its time: the worker's monotonic time from which on it is due for sure."""
    start_by: float = inf
    """A start after this monotonic time is late, which its schedule has to decide on."""


class AttemptOutcome(StrEnum):
    """How an attempt ended, as its history row says."""

    COMPLETED = "completed"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    LOST = "lost"


class FinishedJob(msgspec.Struct, gc=False):
    """The record of one ended attempt. `again_after` puts the job back into `due`."""

    job: ClaimedJob
    outcome: AttemptOutcome
    started_us: int
    finished_us: int
    again_after: timedelta | None = None
    error_code: str | None = None
    error: str | None = None
    traceback: str | None = None
    result: str | None = None
    facts: str | None = None
    """What the sentence of the error's code needs, as JSON: see `Reason`."""
    completed_before: bool = False
    """The handler completed the job in a transaction of its own: being refused is no loss."""
    recorded: bool = False
    """It did so by `ctx.transaction()`, and that is committed: there is nothing to send."""
    exception: BaseException | None = None
    """What a failed attempt raised, until it is logged. It is not stored."""

    @classmethod
    def because(
        cls, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason, *, at_us: int = 0
    ) -> FinishedJob:
        """One that ended for a reason of ours: its handler did not run, or has no say in it."""
        facts = msgspec.json.encode(reason.facts).decode() if reason.facts else None
        return cls(job, outcome, at_us, at_us, error_code=reason.code, facts=facts)

    @property
    def message(self) -> str | None:
        """The error as people read it."""
        facts = None if self.facts is None else msgspec.json.decode(self.facts)
        return describe_error(self.error_code, facts, self.error)


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a job's history."""

    token: int
    attempt: int
    worker: str | None
    outcome: str
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime
    error_code: str | None
    error: str | None
    facts: dict[str, Any] | None
    traceback: str | None
    result: Any = None


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people see it."""

    id: int
    task: str
    queue: str
    priority: int
    state: JobState
    args: Any
    attempts: int
    max_attempts: int
    run_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    key: str | None
    partition: str | None
    timeout: timedelta | None
    expires_at: datetime | None
    worker: str | None
    claimed_at: datetime | None
    lease_until: datetime | None
    error_code: str | None
    error: str | None
    facts: dict[str, Any] | None
    parked_reason: Reason | None
    progress: Any = None
    history: tuple[AttemptInfo, ...] = ()


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs: every field that is set must match."""

    ids: tuple[int, ...] | None = None
    states: tuple[JobState, ...] = ()
    queue: str | None = None
    task: str | None = None
    but_task: str | None = None
    """Not those of this task."""
    key: str | None = None
    before_id: int | None = None
    limit: int = 50


class Requeued(msgspec.Struct, frozen=True):
    """What became of ended jobs that were to run again."""

    jobs: list[int]
    """Those that wait again."""
    conflicts: dict[int, int]
    """Those that stay as they are, each with the job that holds its key."""
