"""Rows for COPY: how 100,000 jobs go in at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct, pack

import msgspec

from duetime.domain.checks import check_name, check_priority, check_queue
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.retry import check_max_attempts
from duetime.errors import InvalidInput

BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"

_BRACE = ord("{")
_NULL = b"\xff\xff\xff\xff"
_TRUE = b"\0\0\0\1\1"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_pack_id = Struct("!iq").pack
_pack_size = Struct("!i").pack


class CopyRows:
    """Makes the binary rows of `job` and `due`, a piece at a time, while the server reads the last.

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
                job.flow,
            )  # fmt: skip
            if alike != last:
                last = alike
                known = self._formatted(job)
            head, tail, due_head, due_tail = known
            number = _pack_id(8, job_id)
            args = bytes(job.args)
            if args[0] != _BRACE:
                raise InvalidInput(f"The args of task {job.task!r} must be a JSON object.")
            rows.append(b"\0\x0c" + number + head + _pack_size(len(args)) + args + tail)
            due.append(due_head + number + due_tail)
        self.due.append(b"".join(due))
        return b"".join(rows)

    def _formatted(self, job: NewJob) -> tuple[bytes, bytes, bytes, bytes]:
        alike = (
            job.task, job.queue, job.priority, job.run_at, job.delay, job.partition,
            job.max_attempts, job.timeout, job.expires_at, job.expires_after,
            None if job.trace is None else tuple(job.trace.items()), job.flow,
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
    """The bytes before and after a job's arguments, and before and after its id in `due`."""
    check_name(job.task, what="task")
    check_queue(job.queue)
    check_priority(job.priority)
    check_max_attempts(job.max_attempts)
    run_at = job.run_at or moment + (job.delay or timedelta(0))
    expires_at = job.expires_at
    if expires_at is None and job.expires_after is not None:
        expires_at = run_at + job.expires_after
    first_due[job.queue] = min(run_at, first_due.get(job.queue, run_at))
    head = _text(job.task) + _text(job.queue) + _small(job.priority)
    tail = (
        _text(job.partition)
        + _small(job.max_attempts)
        + _interval(job.timeout)
        + _moment(expires_at)
        + _moment(moment)
        + _text(None if job.trace is None else msgspec.json.encode(job.trace).decode())
        + (_TRUE if job.flow else _NULL)
    )
    due_head = b"\0\5" + _text(job.queue) + _small(job.priority) + _moment(run_at)
    return head, tail, due_head, _text(job.partition)


# Binary values, each with its length: cheaper for the server to read than text.


def _text(value: str | None) -> bytes:
    return _NULL if value is None else _sized(value.encode())


def _small(value: int) -> bytes:
    return _sized(pack_small(value))


def _moment(value: datetime | None) -> bytes:
    return _NULL if value is None else _sized(pack_moment(value))


def _interval(value: timedelta | None) -> bytes:
    return _NULL if value is None else _sized(pack_interval(value))


def pack_small(value: int) -> bytes:
    return pack("!h", value)


def pack_moment(value: datetime) -> bytes:
    return pack("!q", (value - _EPOCH) // _MICROSECOND)


def pack_interval(value: timedelta) -> bytes:
    return pack("!qii", value // _MICROSECOND, 0, 0)


def _sized(value: bytes) -> bytes:
    return pack("!i", len(value)) + value
