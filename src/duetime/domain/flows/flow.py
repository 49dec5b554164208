"""The values of a flow's run: what it has recorded, and what was sent to it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from duetime.domain.checks import STEP_KEYS, UNDO_KEYS

StepKind = Literal[
    "step", "transaction", "sleep", "signal", "child", "job", "map", "now", "random", "uuid",
    "version", "error", "compensation", "failure", "cancel",
]  # fmt: skip


class StepState(StrEnum):
    """Where a step is in its life."""

    PENDING = "pending"
    """Of a graph: steps that it depends on have not finished."""
    RUNNING = "running"
    WAITING = "waiting"
    """A sleep, a signal, a child or a job that has not ended."""
    RETRYING = "retrying"
    """It failed, and is tried again at `until`."""
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    REGISTERED = "registered"
    """A compensation that runs if the flow fails."""


BRANCH_CALLS = 1_000_000
"""Calls in branches are numbered from here, in the order in which they were first made."""


_ENDED = frozenset({StepState.COMPLETED.value, StepState.FAILED.value, StepState.SKIPPED.value})

RUN_ENDED = "run_ended"
"""The reason for which the jobs are cancelled that a run waits for when it ends."""


class StepRecord(msgspec.Struct, frozen=True, gc=False):
    """What a run has recorded of one of its calls, as a replay needs it."""

    seq: int
    kind: str
    name: str
    state: str
    attempt: int
    output: str | None
    error_code: str | None
    error: str | None
    is_due: bool
    """Its `until` has passed."""
    job_id: int | None
    place: str | None = None
    """Of a call in a branch: where it is made, such as `2.1:3`. Its number depends on when. It ends
    in `*` if the branch was not made by `flow.gather`."""

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def is_over(self) -> bool:
        """Whether the call returns or raises when it is replayed."""
        return self.has_ended or (self.kind == "sleep" and self.is_due)

    @property
    def has_raised(self) -> bool:
        """Whether the call raises an error when it is replayed; or returns a default in its
        place."""
        return self.error_code is not None and self.has_ended

    @property
    def was_stopped(self) -> bool:
        """Whether the job of the call was cancelled because the run had ended. The run never
        received that, and if it is retried, the job has to start again."""
        return (
            self.error_code == RUN_ENDED
            and self.state == StepState.FAILED
            and self.job_id is not None
        )


class ArrivedSignal(msgspec.Struct, frozen=True, gc=False):
    """A signal that no wait has taken yet."""

    id: int
    name: str
    data: str | None


class LoadedRun(msgspec.Struct, gc=False):
    """All that a run has recorded, and the signals that it has not taken."""

    steps: dict[int, StepRecord]
    """By their numbers, in the order in which they ended; those that have not come last."""
    signals: list[ArrivedSignal]


class NewRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A row to be written, fenced by the run's token. `wait` makes `until`, by the database's
    clock; `started` and `finished` are microseconds since the claim."""

    run: int
    token: int
    seq: int
    kind: str
    name: str
    state: str
    attempt: int
    place: str | None = None
    output: msgspec.Raw | None = None
    output_text: str | None = None
    code: str | None = None
    error: str | None = None
    wait: int | None = None
    correlation: str | None = None
    job: int | None = None
    started: int | None = None
    finished: int | None = None
    signal: int | None = None
    holder: int | None = None
    """The job whose claim fences the record, if it is not the run's own."""
    batch: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it says no more than that a call completed, and with which output."""
        return self.state == StepState.COMPLETED and not any(
            getattr(self, name) is not None for name in _BEYOND_PLAIN
        )


_PLAIN = [
    "run",
    "token",
    "seq",
    "kind",
    "name",
    "place",
    "state",
    "attempt",
    "output",
    "started",
    "finished",
]
_BEYOND_PLAIN = tuple(name for name in NewRecord.__struct_fields__ if name not in _PLAIN)


class Suspension(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A run that waits, and gives its job back until it is woken."""

    run: int
    token: int
    started: int
    finished: int
    waits: list[int] | None
    """The calls that it waits for. None, of a graph: all that are recorded as waiting."""
    deadline: datetime | None = None
    """When it goes on in any case, such as to time out."""


SuspendAnswer = Literal["suspended", "ready", "lost", "busy"]
"""`ready`: what it waits for is there. `busy`: a transaction that signals it is open."""


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run, as people see it."""

    seq: int
    kind: str
    name: str
    state: StepState
    attempt: int
    output: Any = None
    error_code: str | None = None
    error: str | None = None
    until: datetime | None = None
    correlation: str | None = None
    job_id: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    after: tuple[str, ...] = ()
    """Of a step of a graph: the steps that it waits for."""


def step_key(run_id: int, seq: int) -> str:
    """The key of the job that does a step.

    >>> step_key(42, 3)
    'flow:42:3'
    """
    return f"{STEP_KEYS}{run_id}:{seq}"


def read_step_key(key: str | None) -> tuple[int, int] | None:
    """The run and the number of the step that a job with this key does; None: it does none.

    >>> read_step_key("flow:42:3")
    (42, 3)
    """
    parts = (key or "").split(":")
    if len(parts) != 3 or f"{parts[0]}:" != STEP_KEYS:
        return None
    try:
        return int(parts[1]), int(parts[2])
    except ValueError:
        return None


def undo_key(run_id: int) -> str:
    """The key of the job that runs the compensations of a run."""
    return f"{UNDO_KEYS}{run_id}"


def read_undo_key(key: str | None) -> int | None:
    """The run that a job undoes; None: it undoes none.

    >>> read_undo_key("flow-undo:42")
    42
    """
    if key is None or not key.startswith(UNDO_KEYS):
        return None
    return int(key.removeprefix(UNDO_KEYS))
