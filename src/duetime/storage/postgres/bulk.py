"""Rows for COPY: how 100,000 jobs go in at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from duetime.domain.job import NewJob, check_name, check_priority
from duetime.domain.retry import check_max_attempts
from duetime.errors import InvalidInput


def copy_rows(
    jobs: Sequence[NewJob], ids: Sequence[int], moment: datetime
) -> tuple[bytes, bytes, dict[str, datetime]]:
    """Return the text rows of `job` and of `due`, and the earliest due time of each queue."""
    job_rows: list[bytes] = []
    due_rows: list[bytes] = []
    first_due: dict[str, datetime] = {}
    # Jobs of one call mostly differ in their arguments alone: format the rest once.
    formats: dict[tuple[object, ...], tuple[bytes, bytes, bytes, bytes]] = {}
    for job, job_id in zip(jobs, ids, strict=True):
        alike = (
            job.task, job.queue, job.priority, job.run_at, job.delay, job.partition,
            job.max_attempts, job.timeout, job.expires_at, job.expires_after,
            None if job.trace is None else tuple(job.trace.items()),
        )  # fmt: skip
        known = formats.get(alike)
        if known is None:
            if len(formats) > 10_000:
                formats.clear()
            known = formats[alike] = _format(job, moment, first_due)
        head, tail, due_head, due_tail = known
        number = b"%d" % job_id
        args = bytes(job.args)
        if not args.startswith(b"{"):
            raise InvalidInput(f"The args of task {job.task!r} must be a JSON object.")
        job_rows.append(number + head + args.replace(b"\\", b"\\\\") + tail)
        due_rows.append(due_head + number + due_tail)
    return b"".join(job_rows), b"".join(due_rows), first_due


def _format(
    job: NewJob, moment: datetime, first_due: dict[str, datetime]
) -> tuple[bytes, bytes, bytes, bytes]:
    check_name(job.task, what="task")
    check_name(job.queue, what="queue")
    check_priority(job.priority)
    check_max_attempts(job.max_attempts)
    run_at = job.run_at or moment + (job.delay or timedelta(0))
    expires_at = job.expires_at
    if expires_at is None and job.expires_after is not None:
        expires_at = run_at + job.expires_after
    first_due[job.queue] = min(run_at, first_due.get(job.queue, run_at))
    trace = None if job.trace is None else msgspec.json.encode(job.trace).decode()
    head = _row("", job.task, job.queue, job.priority, "")
    timeout = None if job.timeout is None else f"{job.timeout / timedelta(microseconds=1):.0f} us"
    tail = _row(
        "",
        job.partition,
        job.max_attempts,
        timeout,
        None if expires_at is None else expires_at.isoformat(),
        moment.isoformat(),
        trace,
    )
    due_head = _row(job.queue, job.priority, run_at.isoformat(), "")
    due_tail = _row("", job.partition)
    return head, tail + b"\n", due_head, due_tail + b"\n"


def _row(*values: str | int | None) -> bytes:
    return "\t".join("\\N" if value is None else _escape(str(value)) for value in values).encode()


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
