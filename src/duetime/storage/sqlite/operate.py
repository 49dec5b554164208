"""What people see of jobs, queues and workers, and how they change them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import msgspec

from duetime.domain.jobs.arguments import ArgumentFilter
from duetime.domain.jobs.facets import ErrorGroup, JobFacets
from duetime.domain.jobs.job import AttemptInfo, FoundJobs, JobFilter, JobInfo, JobState
from duetime.domain.jobs.log_lines import read_log
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import describe_error, read_reason
from duetime.storage.jobs.facets import count_jobs, find_errors
from duetime.storage.jobs.find import Make, find_jobs
from duetime.storage.sqlite.dialect import (
    from_us,
    maybe_from_us,
    maybe_span,
    to_us,
)
from duetime.storage.sqlite.thread import Transaction
from duetime.storage.store import Row, Statement, WorkerInfo

# Read


def get(tx: Transaction, job_id: int) -> JobInfo | None:
    rows = tx.rows("get_job", job=job_id)
    if not rows:
        return None
    history = tuple(_attempt(row) for row in tx.rows("get_history", job=job_id))
    return _job(rows[0], history)


def find(tx: Transaction, which: JobFilter) -> FoundJobs:
    rows, below, examined = tx.drive(find_jobs(which, _make(tx, which)))
    return FoundJobs([_job(row) for row in rows], below=below, examined=examined)


def facets(tx: Transaction, which: JobFilter) -> JobFacets:
    found: JobFacets = tx.drive(count_jobs(which, _make(tx, which)))
    return found


def errors(tx: Transaction, which: JobFilter) -> list[ErrorGroup]:
    found: list[ErrorGroup] = tx.drive(find_errors(which, _make(tx, which), from_us))
    return found


def _make(tx: Transaction, which: JobFilter) -> Make:
    def make(name: str, parameters: dict[str, Any]) -> Statement:
        values = {key: _encoded(value) for key, value in parameters.items()}
        return tx.statement(name), values | {"conditions": len(which.args)}

    return make


def _encoded(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_us(value)
    if isinstance(value, tuple):
        return _encode([_condition(one) for one in value]) if value else None
    return _encode(value) if isinstance(value, list) else value


def _condition(wanted: ArgumentFilter) -> dict[str, Any]:
    """A condition on arguments. A number in a path is a place in a list, or the name of a field."""
    parts = [
        [f'."{part}"', f"[{part}]"] if part.isdecimal() else [f'."{part}"'] for part in wanted.path
    ]
    types = "integer real"
    if wanted.value is None or isinstance(wanted.value, bool):
        types = msgspec.json.encode(wanted.value).decode()
    elif isinstance(wanted.value, str):
        types = "text"
    return {
        "paths": ["$" + "".join(path) for path in product(*parts)],
        "types": types,
        "value": wanted.value,
    }


def queues(tx: Transaction, **which: str | int | None) -> list[QueueInfo]:
    return [
        QueueInfo(
            name=row[0],
            pending=row[1],
            due=row[2],
            running=row[3],
            parked=row[4],
            next_run_at=maybe_from_us(row[5]),
            paused_at=maybe_from_us(row[6]),
            paused_by=row[7],
            pause_reason=row[8],
            limits=_limits(row[9:]),
            started=row[13],
            counted_all=bool(row[14]),
        )
        for row in tx.rows("queues", now=tx.now, **which)
    ]


def limited_queues(tx: Transaction) -> dict[str, Limits]:
    return {row[0]: _limits(row[1:]) for row in tx.rows("limited_queues")}


def workers(tx: Transaction) -> list[WorkerInfo]:
    return [
        WorkerInfo(
            id=row[0],
            name=row[1],
            queues=tuple(msgspec.json.decode(row[2])),
            tasks=tuple(msgspec.json.decode(row[3])),
            concurrency=row[4],
            started_at=from_us(row[5]),
            seen_at=from_us(row[6]),
            lease_until=from_us(row[7]),
            running=row[8],
            loop_lag=timedelta(microseconds=row[9]),
        )
        for row in tx.rows("workers")
    ]


def end_waiting(
    tx: Transaction,
    job_id: int,
    outcome: str,
    *,
    code: str | None = None,
    error: str | None = None,
    facts: str | None = None,
) -> None:
    """End a job that waits, in `due` or set aside."""
    said = {"code": code, "error": error, "facts": facts}
    tx.run("end_waiting", job=job_id, outcome=outcome, **said, now=tx.now)
    tx.finished.append(job_id)


def _job(row: Row, history: tuple[AttemptInfo, ...] = ()) -> JobInfo:
    return JobInfo(
        id=row[0],
        task=row[1],
        queue=row[2],
        priority=row[3],
        state=JobState(row[4]),
        args=msgspec.json.decode(row[5]),
        attempts=row[6],
        max_attempts=row[7],
        run_at=maybe_from_us(row[8]),
        created_at=from_us(row[9]),
        finished_at=maybe_from_us(row[10]),
        key=row[11],
        partition=row[12],
        timeout=maybe_span(row[13]),
        expires_at=maybe_from_us(row[14]),
        worker=row[15],
        claimed_at=maybe_from_us(row[16]),
        lease_until=maybe_from_us(row[17]),
        error_code=row[18],
        error=describe_error(row[18], facts := _decode(row[20]), row[19]),
        facts=facts,
        parked_reason=read_reason(row[21]),
        progress=_decode(row[22]),
        replay_of=row[23],
        history=history,
    )


def _attempt(row: Row) -> AttemptInfo:
    return AttemptInfo(
        token=row[0],
        attempt=row[1],
        worker=row[2],
        outcome=row[3],
        claimed_at=maybe_from_us(row[4]),
        started_at=maybe_from_us(row[5]),
        finished_at=from_us(row[6]),
        error_code=row[7],
        error=describe_error(row[7], facts := _decode(row[9]), row[8]),
        facts=facts,
        traceback=row[10],
        result=_decode(row[11]),
        log=read_log(row[12]),
    )


def _limits(row: Row) -> Limits:
    return Limits(running=row[0], per_partition=row[1], rate=row[2], period=maybe_span(row[3]))


def _encode(values: Sequence[Any]) -> str:
    return msgspec.json.encode(values).decode()


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
