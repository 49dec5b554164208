"""A job for people: as a line of a list, and in full."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from duetime.cli.output import compact, echo, exact, one_line, print_facts, relative
from duetime.domain.duration import format_duration
from duetime.domain.jobs.job import AttemptInfo, JobInfo, JobState
from duetime.domain.jobs.log_lines import CapturedLog


def job_row(job: JobInfo, now: datetime) -> tuple[Any, ...]:
    """ID, state, task, queue, tries, when, remarks."""
    return (
        job.id,
        job.state.value,
        job.task,
        job.queue,
        f"{job.attempts}/{job.max_attempts}",
        _when(job, now),
        job.parked_reason or job.error or (f"key {job.key}" if job.key else ""),
    )


def show_job(job: JobInfo, now: datetime) -> None:
    """Print everything that is known of it."""
    echo(f"Job {job.id}: {one_line(job.task)}, {job.state.value}")
    print_facts(
        [
            ("queue", f"{job.queue}, priority {job.priority}"),
            ("attempts", f"{job.attempts} of {job.max_attempts}"),
            ("arguments", compact(job.args)),
            ("key", job.key),
            ("replay of", None if job.replay_of is None else f"job {job.replay_of}"),
            ("partition", job.partition),
            ("created", exact(job.created_at, now)),
            ("due", exact(job.run_at, now) if not job.state.finished else None),
            ("expires", exact(job.expires_at, now)),
            ("time-out", None if job.timeout is None else format_duration(job.timeout)),
            ("worker", job.worker if job.state is JobState.RUNNING else None),
            ("claimed", exact(job.claimed_at, now) if job.state is JobState.RUNNING else None),
            ("lease until", exact(job.lease_until, now)),
            ("progress", None if job.progress is None else compact(job.progress)),
            ("parked", job.parked_reason),
            ("finished", exact(job.finished_at, now) if job.state.finished else None),
        ]
    )
    shown: str | None = None
    for attempt in job.history:
        _show_attempt(attempt, now, shown=shown)
        shown = attempt.traceback


def _show_attempt(attempt: AttemptInfo, now: datetime, *, shown: str | None) -> None:
    waited = attempt.claimed_at is None
    echo(f"\n{'While it waited' if waited else f'Attempt {attempt.attempt}'}: {attempt.outcome}")
    took = None
    if attempt.started_at is not None:
        milliseconds = (attempt.finished_at - attempt.started_at).total_seconds() * 1000
        took = f"{milliseconds:,.1f} ms"
    print_facts(
        [
            ("worker", attempt.worker),
            ("started", exact(attempt.started_at)),
            ("ended", exact(attempt.finished_at, now)),
            ("took", took),
            ("result", None if attempt.result is None else compact(attempt.result)),
            ("error", _error(attempt)),
        ]
    )
    if attempt.log is not None:
        _show_log(attempt.log)
    if attempt.traceback and attempt.traceback == shown:
        echo("    (the same traceback)")
    elif attempt.traceback:
        for line in attempt.traceback.rstrip().splitlines():
            echo(f"    {line}")


def _show_log(log: CapturedLog) -> None:
    if log.dropped:
        echo(f"    ({log.dropped:,} earlier log lines were not kept)")
    for line in log.lines:
        at = line.at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]
        first, *more = line.message.splitlines() or [""]
        echo(f"    {at} {one_line(line.level)} {one_line(line.logger)}: {one_line(first)}")
        for each in more:
            echo(f"        {one_line(each)}")


def _error(attempt: AttemptInfo) -> str | None:
    if attempt.error is None:
        return None
    code = f"{attempt.error_code}: " if attempt.error_code else ""
    return f"{code}{one_line(attempt.error)}"


def _when(job: JobInfo, now: datetime) -> str:
    if job.state.finished:
        return relative(job.finished_at, now)
    if job.state is JobState.RUNNING:
        return f"began {relative(job.claimed_at, now)}"
    if job.state is not JobState.PARKED and job.run_at is not None and job.run_at <= now:
        return f"due {relative(job.run_at, now)}"
    return relative(job.run_at, now)
