"""Audit events for changes of jobs and queues, for every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.audit import make_event
from duetime.domain.duration import format_duration
from duetime.domain.jobs.job import JobState
from duetime.domain.jobs.queue import Limits
from duetime.domain.reasons import Reason

Event = dict[str, Any]


def cancel_events(job_id: int, state: JobState | None, *, by: str, reason: Reason) -> list[Event]:
    """`state`: the one that the job was in. None or a final one: nothing was changed."""
    if state is None or state.finished:
        return []
    running = state is JobState.RUNNING
    after = {"state": state, "cancel_requested": True} if running else {"state": "cancelled"}
    said = reason.facts.get("text")
    return [_of_job(job_id, "cancel", {"state": state}, after, by=by, reason=said)]


def reschedule_event(
    job_id: int, before: datetime, after: datetime, *, by: str, reason: str | None = None
) -> Event:
    moved = {"run_at": before}, {"run_at": after}
    return _of_job(job_id, "reschedule", *moved, by=by, reason=reason)


def reprioritise_event(job_id: int, before: int, after: int, *, by: str) -> Event:
    return _of_job(job_id, "reprioritise", {"priority": before}, {"priority": after}, by=by)


def requeue_events(
    states: Mapping[int, str], run_at: datetime | None, *, by: str, reason: str | None = None
) -> list[Event]:
    """One for each job that waits again; `states`: those that they were in."""
    after = {"state": "pending"} if run_at is None else {"state": "pending", "run_at": run_at}
    return [
        _of_job(job_id, "requeue", {"state": state}, after, by=by, reason=reason)
        for job_id, state in sorted(states.items())
    ]


def replay_events(job_id: int, replay: int, changed: Sequence[str], *, by: str) -> list[Event]:
    """Of both jobs: which replays which, and which arguments differ. Their values are not in it."""
    after: dict[str, Any] = {"job": replay, "changed": list(changed)}
    return [
        _of_job(job_id, "replay", None, after, by=by),
        _of_job(replay, "replay", None, {"replay_of": job_id}, by=by),
    ]


class QueueRow(msgspec.Struct, frozen=True):
    """What is stored of a queue: its pause and its limits."""

    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    limits: Limits

    def to_json(self) -> dict[str, Any]:
        pause = {} if self.paused_at is None else {
            "paused_at": self.paused_at,
            "paused_by": self.paused_by,
            "pause_reason": self.pause_reason,
        }  # fmt: skip
        limits = {
            name: value
            for name, value in msgspec.structs.asdict(self.limits).items()
            if value is not None
        }
        if self.limits.period is not None:
            limits["period"] = format_duration(self.limits.period)
        return pause | limits


def queue_events(
    action: str,
    queue: str,
    before: QueueRow | None,
    after: QueueRow | None,
    *,
    by: str,
    reason: str | None = None,
) -> list[Event]:
    """What a change of a queue did; nothing if it is as it was."""
    if before == after:
        return []
    return [
        make_event(
            by,
            f"queue.{action}",
            f"queue:{queue}",
            before=before and msgspec.to_builtins(before.to_json()),
            after=after and msgspec.to_builtins(after.to_json()),
            reason=reason or None,
        )
    ]


def _of_job(
    job_id: int, verb: str, before: Any, after: Any, *, by: str, reason: str | None = None
) -> Event:
    return make_event(
        by,
        f"job.{verb}",
        f"job:{job_id}",
        before=msgspec.to_builtins(before),
        after=msgspec.to_builtins(after),
        reason=reason,
    )
