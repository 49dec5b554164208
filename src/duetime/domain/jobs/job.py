"""The values of a job: as it is enqueued, claimed, finished, and shown to people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from math import inf
from typing import Any, Literal

import msgspec

from duetime.domain.jobs.arguments import ArgumentFilter
from duetime.domain.jobs.log_lines import CapturedLog, LogLines
from duetime.domain.reasons import Reason, describe_error

# In SQL too, for tasks that no worker has registered: `_task_options`, `task_default`.
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_MAX_ATTEMPTS = 3
DEFAULT_MAX_ARGS_BYTES = 1024 * 1024

PARKED_CODE = "parked"
"""The error code of jobs that were parked for longer than the retention time."""

UNREADABLE = "row_unreadable"
"""The code of the reason for which such a job is parked."""

OnConflict = Literal["reject", "return", "replace"]
EnqueueAction = Literal["created", "existing", "replaced", "rejected"]


class JobState(StrEnum):
    """The state of a job."""

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
        """Whether the state is final, unless the job is requeued."""
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
    """A job to be enqueued, with all its options. `args` is an encoded JSON object."""

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
    """The answer to an enqueue: the job was `created`, or an `existing` one holds its key."""

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
    """As JSON. None if they are too large for the claim: they are read when the job starts."""
    attempt: int
    max_attempts: int
    run_at: datetime
    claimed_at: datetime
    key: str | None = None
    partition: str | None = None
    timeout: timedelta | None = None
    expires_at: datetime | None = None
    trace: str | None = None
    is_unrecorded: bool = False
    """Whether it is a run of a flow that has recorded nothing yet, nor been sent a signal. False:
    unknown, so it has to be read."""
    limited: bool = False
    not_before: float = 0.0
    """Of a job that was claimed early: the monotonic time at which it is certainly due."""
    start_by: float = inf
    """After this monotonic time a start would be late, and its schedule decides again."""
    lines: LogLines | None = None
    """What its handler has logged. None: nothing yet."""


class AttemptOutcome(StrEnum):
    """The outcome of an attempt, as its history shows it."""

    COMPLETED = "completed"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    LOST = "lost"


class FinishedJob(msgspec.Struct, gc=False):
    """The record of one finished attempt. With `again_after` the job goes back into `due`."""

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
    """The facts for the sentence of the error's code, as JSON: see `Reason`."""
    log: str | None = None
    """What the handler logged, as JSON: see `LogLines`."""
    completed_before: bool = False
    """The handler completed the job in its own transaction, so a refusal is expected."""
    recorded: bool = False
    """It did so by `ctx.transaction()`, which is committed: nothing is left to record."""
    closed: bool = False
    """That transaction has also closed the claim, which held nothing else."""
    exception: BaseException | None = None
    """What a failed attempt raised, until it is logged. It is not stored."""

    @classmethod
    def because(
        cls, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason, *, at_us: int = 0
    ) -> FinishedJob:
        """Return a record with a reason of ours, for an attempt whose handler did not decide it."""
        facts = msgspec.json.encode(reason.facts).decode() if reason.facts else None
        return cls(job, outcome, at_us, at_us, error_code=reason.code, facts=facts)

    @property
    def message(self) -> str | None:
        """The error as people read it."""
        facts = None if self.facts is None else msgspec.json.decode(self.facts)
        return describe_error(self.error_code, facts, self.error)


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt in a job's history."""

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
    log: CapturedLog | None = None
    """What the handler logged."""


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
    replay_of: int | None = None
    """The job of which this one is a replay."""
    history: tuple[AttemptInfo, ...] = ()


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a job finished."""

    task: str
    state: JobState
    result: Any
    error_code: str | None
    error: str | None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Selects jobs: every field that is set must match."""

    ids: tuple[int, ...] | None = None
    states: tuple[JobState, ...] = ()
    queue: str | None = None
    task: str | None = None
    but_tasks: str | None = None
    """Excludes tasks whose names begin so."""
    key: str | None = None
    error_code: str | None = None
    """That of the last attempt."""
    args: tuple[ArgumentFilter, ...] = ()
    created_since: datetime | None = None
    created_before: datetime | None = None
    due_since: datetime | None = None
    """Only jobs that wait are due at a time."""
    due_before: datetime | None = None
    ended_by: datetime | None = None
    """Excludes jobs that finished later."""
    before_id: int | None = None
    limit: int = 50
    examine: int | None = None
    """How many rows to examine at most before the search stops. None: as many as it takes."""


class FoundJobs(list[JobInfo]):
    """Jobs that match a filter, newest first."""

    __slots__ = ("below", "examined")

    def __init__(
        self, jobs: Iterable[JobInfo] = (), *, below: int | None = None, examined: int = 0
    ) -> None:
        super().__init__(jobs)
        self.below = below
        """The search stopped before the page was full: it continues with jobs below this id."""
        self.examined = examined
        """How many rows it has examined."""


class Requeued(msgspec.Struct, frozen=True):
    """The answer to a requeue of finished jobs."""

    jobs: list[int]
    """The jobs that wait again."""
    conflicts: dict[int, int]
    """The jobs that were not requeued, each with the job that holds its key."""
