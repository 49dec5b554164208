"""What people see of jobs, queues and workers, and how they change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.jobs.job import AttemptInfo, JobFilter, JobInfo, JobState, Requeued
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Reason, describe_error, read_reason, write_cancel_reason
from duetime.storage.jobs.audit import (
    Event,
    QueueRow,
    queue_events,
    reprioritise_event,
    requeue_events,
    reschedule_event,
)
from duetime.storage.jobs.find import find_jobs
from duetime.storage.sqlite.dialect import (
    encode_ids,
    from_us,
    maybe_from_us,
    maybe_span,
    maybe_to_us,
    to_us,
)
from duetime.storage.sqlite.hot_path import wait_again
from duetime.storage.sqlite.thread import Transaction
from duetime.storage.store import Dialect, Row, Statement, WorkerInfo

# Read


def get(tx: Transaction, job_id: int) -> JobInfo | None:
    rows = tx.rows("get_job", job=job_id)
    if not rows:
        return None
    history = tuple(_attempt(row) for row in tx.rows("get_history", job=job_id))
    return _job(rows[0], history)


def find(tx: Transaction, which: JobFilter) -> list[JobInfo]:
    def make(name: str, parameters: dict[str, Any]) -> Statement:
        return tx.statement(name), {key: _encoded(value) for key, value in parameters.items()}

    return [_job(row) for row in tx.drive(find_jobs(which, make))]


def _encoded(value: Any) -> Any:
    return _encode(value) if isinstance(value, list) else value


def queues(tx: Transaction, after: str | None, limit: int | None) -> list[QueueInfo]:
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
        )
        for row in tx.rows("queues", now=tx.now, after=after, limit=limit)
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
        )
        for row in tx.rows("workers")
    ]


# Change


def cancel(tx: Transaction, job_id: int, reason: Reason) -> JobState | None:
    state = _state(tx, job_id)
    if tx.value("waits", job=job_id):
        end_waiting(tx, job_id, "cancelled", code=reason.code, error=reason.facts.get("text"))
        return state
    written = write_cancel_reason(reason)
    worker_id = tx.value("cancel_running", job=job_id, reason=written, now=tx.now)
    if worker_id is not None:
        tx.cancelled.append((worker_id, job_id))
    return state


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


def reschedule(
    tx: Transaction, dialect: Dialect, job_id: int, run_at: datetime, *, by: str
) -> JobState | None:
    moment = to_us(run_at)
    before = tx.rows("waiting_place", job=job_id)
    queue = tx.value("reschedule", job=job_id, run_at=moment) or tx.value(
        "reschedule_parked", job=job_id, run_at=moment
    )
    if queue is None:
        return _state(tx, job_id)
    audit(tx, dialect, [reschedule_event(job_id, from_us(before[0][0]), run_at, by=by)])
    tx.wake(queue, moment)
    return JobState.PENDING


def reprioritise(
    tx: Transaction, dialect: Dialect, job_id: int, priority: int, *, by: str
) -> JobState | None:
    before = tx.rows("waiting_place", job=job_id)
    queue = tx.value("reprioritise", job=job_id, priority=priority) or tx.value(
        "reprioritise_parked", job=job_id, priority=priority
    )
    if queue is None:
        return _state(tx, job_id)
    tx.run("keep_priority", job=job_id, priority=priority)
    audit(tx, dialect, [reprioritise_event(job_id, before[0][1], priority, by=by)])
    tx.wake(queue)
    return JobState.PENDING


def requeue(
    tx: Transaction, dialect: Dialect, which: JobFilter, run_at: datetime | None, *, by: str
) -> Requeued:
    states = {job.id: job.state for job in find(tx, which)}
    able = tx.rows("requeuable", jobs=encode_ids(states))
    keyed = {job_id for job_id, _, has_key in able if has_key}
    taken = {row[0] for row in tx.rows("take_keys", jobs=encode_ids(keyed), now=tx.now)}
    left = keyed - taken
    queues = {job_id: queue for job_id, queue, _ in able if job_id not in left}
    jobs = sorted(queues)
    moment = tx.now if run_at is None else to_us(run_at)
    wait_again(tx, [(job_id, moment, 0, None) for job_id in jobs])
    tx.run("unexpire", jobs=encode_ids(jobs))
    audit(tx, dialect, requeue_events({job: states[job] for job in jobs}, run_at, by=by))
    for queue in queues.values():
        tx.wake(queue, moment)
    return Requeued(jobs, dict(tx.rows("key_holders", jobs=encode_ids(left))))


def change_queue(
    tx: Transaction,
    dialect: Dialect,
    queue: str,
    action: str,
    change: Callable[[], None],
    *,
    by: str,
    reason: str | None = None,
) -> None:
    """Change a queue, and write the change to the audit."""
    before = _queue_row(tx, queue)
    change()
    after = _queue_row(tx, queue)
    audit(tx, dialect, queue_events(action, queue, before, after, by=by, reason=reason))


def audit(tx: Transaction, dialect: Dialect, events: Sequence[Event]) -> None:
    """Write to the audit, in this transaction."""
    if events:
        tx.drive(dialect.run("audit_write", events))


def pause_queue(tx: Transaction, queue: str, *, by: str, reason: str) -> None:
    tx.run("pause_queue", queue=queue, now=tx.now, by=by, reason=reason)


def resume_queue(tx: Transaction, queue: str) -> None:
    tx.run("resume_queue", queue=queue)
    tx.run("drop_plain_queues", queue=queue)
    tx.wake(queue)


def limit_queue(tx: Transaction, queue: str, limits: Limits) -> None:
    tx.run(
        "limit_queue",
        queue=queue,
        running=limits.running,
        per_partition=limits.per_partition,
        rate=limits.rate,
        period=maybe_to_us(limits.period),
    )
    tx.run("drop_plain_queues", queue=queue)
    tx.wake(queue)


def _queue_row(tx: Transaction, queue: str) -> QueueRow | None:
    for row in tx.rows("queue_row", queue=queue):
        return QueueRow(maybe_from_us(row[0]), row[1], row[2], _limits(row[3:]))
    return None


def _state(tx: Transaction, job_id: int) -> JobState | None:
    state = tx.value("job_state", job=job_id)
    return None if state is None else JobState(state)


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
    )


def _limits(row: Row) -> Limits:
    return Limits(running=row[0], per_partition=row[1], rate=row[2], period=maybe_span(row[3]))


def _encode(values: Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
