"""What a test expects to be enqueued, and the message when it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.duration import format_duration
from duetime.domain.jobs.job import JobInfo
from duetime.domain.jobs.task import TaskDefinition
from duetime.errors import InvalidArguments, InvalidInput

_MAX_LISTED = 20


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A description of jobs: every field that is set must match; of the arguments, those named."""

    task: TaskDefinition
    queue: str | None = None
    priority: int | None = None
    at: datetime | None = None
    key: str | None = None
    args: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        if self.task.any_arguments:
            return
        if unknown := [name for name in self.args if name not in self.task.arguments]:
            raise InvalidInput(
                f"Task {self.task.name!r} has no argument {unknown[0]!r}. Its arguments are: "
                f"{', '.join(self.task.arguments) or 'none'}."
            )

    def __str__(self) -> str:
        given = {
            "queue": self.queue,
            "priority": self.priority,
            "at": None if self.at is None else self.at.isoformat(),
            "key": self.key,
            "args": dict(self.args) or None,
        }
        details = ", ".join(
            f"{name}={value!r}" for name, value in given.items() if value is not None
        )
        return f"task {self.task.name!r}" + (f" with {details}" if details else "")

    def matches(self, job: JobInfo) -> bool:
        return (
            job.task == self.task.name
            and self.queue in (None, job.queue)
            and self.priority in (None, job.priority)
            and self.at in (None, job.run_at)
            and self.key in (None, job.key)
            and self._matches_args(job)
        )

    def _matches_args(self, job: JobInfo) -> bool:
        if not self.args:
            return True
        try:
            actual = self.task.decode(msgspec.json.encode(job.args))
        except InvalidArguments:
            return False
        return all(
            name in actual and _same(actual[name], value) for name, value in self.args.items()
        )


def describe_difference(
    expected: Expected,
    *,
    found: Sequence[JobInfo],
    wanted: str,
    enqueued: Sequence[JobInfo],
    ran: int,
    now: datetime,
) -> str:
    """Return the message of a failed assertion: what was expected, and what there is."""
    lines = [f"Expected {wanted} of {expected} to be enqueued, found {len(found)}."]
    if enqueued:
        lines.append(f"Enqueued at {now.isoformat()}:")
        lines += [f"  {describe(job, now)}" for job in enqueued[:_MAX_LISTED]]
        if len(enqueued) > _MAX_LISTED:
            lines.append(f"  … and {len(enqueued) - _MAX_LISTED} more")
    else:
        lines.append("Nothing is enqueued.")
    if ran:
        times = "once" if ran == 1 else f"{ran} times"
        lines.append(f"The task has already run {times} in this world; see world.ran.")
    return "\n".join(lines)


def describe(job: JobInfo, now: datetime) -> str:
    """Return a waiting job in one line."""
    parts = [f"job {job.id}: {job.task}", f"args={job.args!r}", f"queue={job.queue!r}"]
    if job.key is not None:
        parts.append(f"key={job.key!r}")
    if job.run_at is not None:
        wait = f"in {format_duration(job.run_at - now)}" if job.run_at > now else "due"
        parts.append(f"at={job.run_at.isoformat()} ({wait})")
    if job.attempts:
        parts.append(f"{job.state.value} after attempt {job.attempts}")
    return " ".join(parts)


def _same(actual: Any, expected: Any) -> bool:
    """Equal as the handler sees it, or as JSON has it."""
    if actual == expected:
        return True
    try:
        return msgspec.json.encode(actual, order="sorted") == msgspec.json.encode(
            expected, order="sorted"
        )
    except (TypeError, ValueError):
        return False
