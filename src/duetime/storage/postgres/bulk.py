"""Rows for COPY: how 100,000 jobs go in at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from duetime.domain.job import NewJob, check_name, check_priority
from duetime.domain.retry import check_max_attempts
from duetime.errors import InvalidInput

_BRACE = ord("{")


class CopyRows:
    """Makes the text rows of `job` and `due`, a piece at a time, while the server reads the last.

    `due` collects the rows of `due`; `first_due` the earliest due time of each queue.
    """

    def __init__(self, moment: datetime) -> None:
        self._moment = moment
        self.due: list[bytes] = []
        self.first_due: dict[str, datetime] = {}
        # Jobs of one call mostly differ in their arguments alone: format the rest once.
        self._formats: dict[tuple[object, ...], tuple[bytes, bytes, bytes, bytes]] = {}

    def add(self, jobs: Sequence[NewJob], ids: Sequence[int]) -> bytes:
        """Return the rows of `job` for these."""
        rows: list[bytes] = []
        due: list[bytes] = []
        last: tuple[object, ...] = ()
        known = (b"", b"", b"", b"")
        for job, job_id in zip(jobs, ids, strict=True):
            alike = (
                job.task, job.queue, job.priority, job.run_at, job.delay, job.partition,
                job.max_attempts, job.timeout, job.expires_at, job.expires_after, job.trace,
            )  # fmt: skip
            if alike != last:
                last = alike
                known = self._formatted(job)
            head, tail, due_head, due_tail = known
            number = b"%d" % job_id
            args = bytes(job.args)
            if args[0] != _BRACE:
                raise InvalidInput(f"The args of task {job.task!r} must be a JSON object.")
            if b"\\" in args:
                args = args.replace(b"\\", b"\\\\")
            rows.append(number + head + args + tail)
            due.append(due_head + number + due_tail)
        self.due.append(b"".join(due))
        return b"".join(rows)

    def _formatted(self, job: NewJob) -> tuple[bytes, bytes, bytes, bytes]:
        alike = (
            job.task, job.queue, job.priority, job.run_at, job.delay, job.partition,
            job.max_attempts, job.timeout, job.expires_at, job.expires_after,
            None if job.trace is None else tuple(job.trace.items()),
        )  # fmt: skip
        known = self._formats.get(alike)
        if known is None:
            if len(self._formats) > 10_000:
                self._formats.clear()
            known = self._formats[alike] = _format(job, self._moment, self.first_due)
        return known


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
