"""What people do to jobs: cancel, move, requeue. Statements without I/O, for every backend.

What changes something is in the audit, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from duetime.domain.duration import format_time
from duetime.domain.jobs.job import JobState, Requeued
from duetime.domain.reasons import Reason, write_cancel_reason
from duetime.errors import InvalidInput, StorageError
from duetime.storage.jobs.audit import (
    Event,
    cancel_events,
    reprioritise_event,
    requeue_events,
    reschedule_event,
)
from duetime.storage.store import Dialect, Row, Statement, Statements

REQUEUABLE = (JobState.DEAD, JobState.CANCELLED, JobState.EXPIRED, JobState.SUPERSEDED)
_CANCEL_TRIES = 50
_QUARANTINE = 10
"""The priority of a job that was held by two dead workers."""


class BriefJob(NamedTuple):
    """What is to be known of a job before it is changed."""

    task: str
    key: str | None
    state: JobState
    reminder: int | None
    """Of the job of a reminder: which."""
    is_run: bool
    """It is a run of a flow."""


class JobStatements:
    """Every method is one transaction."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def brief(self, ids: Sequence[int]) -> Generator[Statement, list[Row], dict[int, BriefJob]]:
        """Return what these jobs are, by id. Reads only."""
        rows = yield from self._dialect.run("brief_jobs", list(ids))
        return {
            row[0]: BriefJob(row[1], row[2], JobState(row[3]), row[4], bool(row[5])) for row in rows
        }

    def cancel(self, job_id: int, *, reason: Reason, by: str) -> Statements:
        """Cancel a job that waits, or ask its worker to stop it. Returns the state it was in.

        Either way it does not run again: an attempt that still ends may complete it, no more.
        """
        state = yield from self._cancel(job_id, reason)
        yield from self._audit(cancel_events(job_id, state, by=by, reason=reason))
        return state

    def cancel_many(self, job_ids: Sequence[int], *, reason: Reason) -> Statements:
        """Cancel several. For the engine: it is not in the audit."""
        yield from self._dialect.run("lock_claims_of", list(job_ids))
        for job_id in sorted(job_ids):
            yield from self._cancel(job_id, reason)

    def cancel_all(self, job_ids: Sequence[int], *, reason: Reason, by: str) -> Statements:
        """Cancel several, as `cancel` does each. Returns how many were not finished."""
        found = yield from self.brief(job_ids)
        states = {job: found[job].state for job in job_ids if job in found}
        able = [job for job, state in states.items() if not state.finished]
        said = {"ids": able, "code": reason.code, "text": reason.facts.get("text")}
        cancelled = {row[0] for row in (yield from self._dialect.run("cancel_waiting_many", said))}
        if left := [job for job in able if job not in cancelled]:
            yield from self._dialect.run("lock_claims_of", left)
        for job in able:
            if job in cancelled:
                # It may have left its claim since its state was read.
                is_running = states[job] is JobState.RUNNING
                states[job] = JobState.PENDING if is_running else states[job]
            else:
                states[job] = yield from self._cancel(job, reason)
        events = [
            event for job in able for event in cancel_events(job, states[job], by=by, reason=reason)
        ]
        yield from self._audit(events)
        return len(events)

    def reschedule(
        self, job_id: int, run_at: datetime, *, by: str, reason: str | None = None
    ) -> Statements:
        """Move a job that waits to another time. Returns the state it was in. Raises `InvalidInput`
        if the job would have expired by then."""
        places = yield from self._dialect.run("waiting_place", {"job": job_id})
        if places:
            expires_at = None if places[0][2] is None else self._dialect.moment(places[0][2])
            if expires_at is not None and run_at >= expires_at:
                raise InvalidInput(
                    f"Job {job_id} cannot be moved to {format_time(run_at)}: it expires at "
                    f"{format_time(expires_at)}. Choose an earlier time, or cancel the job and "
                    "enqueue it again with a later expires=."
                )
            yield from self._dialect.run("reschedule", {"job": job_id, "run_at": run_at})
            before = self._dialect.moment(places[0][0])
            yield from self._audit([reschedule_event(job_id, before, run_at, by=by, reason=reason)])
        return (yield from self._state(job_id))

    def reprioritise(self, job_id: int, priority: int, *, by: str) -> Statements:
        """Change the priority of a job that waits. Returns the state it was in."""
        places = yield from self._dialect.run("waiting_place", {"job": job_id})
        if places and places[0][1] < _QUARANTINE:
            yield from self._dialect.run("reprioritise", {"job": job_id, "priority": priority})
            event = reprioritise_event(job_id, places[0][1], priority, by=by)
            yield from self._audit([event])
        return (yield from self._state(job_id))

    def requeue(
        self, ids: Sequence[int], *, run_at: datetime | None, by: str, reason: str | None = None
    ) -> Statements:
        """Give dead, cancelled, expired or superseded jobs a fresh set of attempts. They take
        their keys again; of several with one key the newest does."""
        yield from self._dialect.run("lock_jobs", list(ids))
        found = yield from self.brief(ids)
        able = [job_id for job_id, job in found.items() if job.state in REQUEUABLE]
        if not able:
            return Requeued([], {})
        rows = yield from self._dialect.run("requeue", {"ids": able, "run_at": run_at})
        requeued = sorted(row[0] for row in rows)
        # By a statement of its own: it sees who took a key while we waited for that.
        conflicts: dict[int, int] = {}
        if left := [job_id for job_id in able if job_id not in requeued]:
            conflicts = dict((yield from self._dialect.run("key_holders", left)))
        states = {job_id: found[job_id].state for job_id in requeued}
        yield from self._audit(requeue_events(states, run_at, by=by, reason=reason))
        return Requeued(requeued, conflicts)

    def _cancel(self, job_id: int, reason: Reason) -> Statements:
        waiting = {"job": job_id, "code": reason.code, "text": reason.facts.get("text")}
        running = {"job": job_id, "reason": write_cancel_reason(reason)}
        for _ in range(_CANCEL_TRIES):
            state = yield from self._state(job_id)
            if state is None or state.finished:
                return state
            if (yield from self._dialect.run("cancel_waiting", waiting)):
                return JobState.PENDING if state is JobState.RUNNING else state
            held = yield from self._dialect.run("lock_claims_of", [job_id])
            if held and (yield from self._dialect.run("cancel_running", running)):
                return JobState.RUNNING
            # Between two reads it was claimed, or its attempt finished: it is in another table now.
        raise StorageError(
            f"Job {job_id} changed state during each attempt to cancel it. Nothing was changed. "
            "Try again."
        )

    def _state(self, job_id: int) -> Generator[Statement, list[Row], JobState | None]:
        found = yield from self.brief([job_id])
        return found[job_id].state if job_id in found else None

    def _audit(self, events: Sequence[Event]) -> Generator[Statement, list[Row], Any]:
        if events:
            yield from self._dialect.run("audit_write", events)
