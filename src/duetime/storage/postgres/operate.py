"""Operations on jobs, queues and workers: list, inspect, change."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.jobs.job import AttemptInfo, JobFilter, JobInfo, JobState, Requeued
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Reason, describe_error, write_cancel_reason
from duetime.errors import JobNotFound, StorageError
from duetime.storage.jobs.audit import (
    Event,
    QueueRow,
    cancel_events,
    queue_events,
    reprioritise_event,
    requeue_events,
    reschedule_event,
)
from duetime.storage.jobs.find import find_jobs
from duetime.storage.postgres.connection import array, translate_errors
from duetime.storage.postgres.dialect import drive
from duetime.storage.postgres.listener import Listener
from duetime.storage.postgres.pool import Connection
from duetime.storage.postgres.sessions import Sessions
from duetime.storage.store import Row, WorkerInfo

_CANCEL_TRIES = 50
_JOB_ID = re.compile(r"[0-9]{1,19}")


class Operations(Sessions):
    """Off the hot path: every method may take its time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._results: Listener | None = None
        self._opening = asyncio.Lock()
        self._watched: dict[int, list[asyncio.Event]] = {}
        # Thousands may be waited for: a worker's exchange never queues behind more than these.
        self._reads = asyncio.Semaphore(max(1, self._pool_size // 2))

    async def close(self) -> None:
        if self._results is not None:
            await self._results.close()
            self._results = None
        await super().close()

    async def get(self, job_id: int) -> JobInfo | None:
        rows = await self._rows("get_job", job=job_id)
        return await self._with_history(rows[0]) if rows else None

    async def _with_history(self, row: Row) -> JobInfo:
        history = await self._rows("get_history", job=row[0])
        attempts = tuple(
            AttemptInfo(**_described(dict(zip(AttemptInfo.__struct_fields__, row, strict=True))))
            for row in history
        )
        return _job_info(row, history=attempts)

    async def find(self, which: JobFilter) -> list[JobInfo]:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "begin_snapshot")
            statements = find_jobs(which, lambda name, values: (self._sql[name], values))
            return [_job_info(row) for row in await drive(connection, statements)]

    async def cancel(self, job_id: int, *, reason: Reason, by: str = "unknown") -> JobState | None:
        async with self._connection() as connection, connection.transaction():
            state = await self._cancel(connection, job_id, reason)
            events = cancel_events(job_id, state, by=by, reason=reason)
            await self._audit(connection, events)
            return state

    async def cancel_many(self, job_ids: Sequence[int], *, reason: Reason) -> None:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "lock_claims_of", jobs=array(job_ids))
            for job_id in sorted(job_ids):
                await self._cancel(connection, job_id, reason)

    async def _cancel(self, connection: Connection, job_id: int, reason: Reason) -> JobState | None:
        for _ in range(_CANCEL_TRIES):
            state = await self._state(connection, job_id)
            said = {"code": reason.code, "text": reason.facts.get("text")}
            if await self._on(connection, "cancel_waiting", job=job_id, **said):
                return JobState.PENDING if state is None or state.finished else state
            held = await self._on(connection, "lock_claims_of", jobs=array([job_id]))
            document = {"job": job_id, "reason": write_cancel_reason(reason)}
            if held and await self._on(connection, "cancel_running", **document):
                return JobState.RUNNING
            state = await self._state(connection, job_id)
            if state is None or state.finished:
                return state
            # Between two reads it was claimed, or its attempt finished: it is in another table now.
        raise StorageError(
            f"Job {job_id} changed state during each attempt to cancel it. Nothing was changed. "
            "Try again."
        )

    async def reschedule(
        self, job_id: int, run_at: datetime, *, by: str = "unknown"
    ) -> JobState | None:
        async with self._connection() as connection, connection.transaction():
            moved = await self._on(connection, "reschedule", job=job_id, run_at=run_at)
            if not moved:
                return await self._state(connection, job_id)
            event = reschedule_event(job_id, moved[0][0].astimezone(UTC), run_at, by=by)
            await self._audit(connection, [event])
            return JobState.PENDING

    async def reprioritise(
        self, job_id: int, priority: int, *, by: str = "unknown"
    ) -> JobState | None:
        async with self._connection() as connection, connection.transaction():
            moved = await self._on(connection, "reprioritise", job=job_id, priority=priority)
            if not moved:
                return await self._state(connection, job_id)
            event = reprioritise_event(job_id, moved[0][0], priority, by=by)
            await self._audit(connection, [event])
            return JobState.PENDING

    async def _audit(self, connection: Connection, events: Sequence[Event]) -> None:
        if events:
            sql, parameters = next(self.dialect.run("audit_write", events))
            await connection.execute(sql, parameters)

    async def _state(self, connection: Connection, job_id: int) -> JobState | None:
        rows = await self._on(connection, "job_state", job=job_id)
        return JobState(rows[0][0]) if rows else None

    async def requeue(
        self, which: JobFilter, *, run_at: datetime | None, by: str = "unknown"
    ) -> Requeued:
        ids = [job.id for job in await self.find(which)]
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "lock_jobs", ids=array(ids))
            rows = await self._on(connection, "requeue", ids=array(ids), run_at=run_at)
            left = [job_id for job_id, is_waiting, _ in rows if not is_waiting]
            # By a statement of its own: it sees who took a key while we waited for that.
            conflicts: dict[int, int] = {}
            if left:
                conflicts = dict(await self._on(connection, "key_holders", ids=array(left)))
            states = {job_id: state for job_id, is_waiting, state in rows if is_waiting}
            await self._audit(connection, requeue_events(states, run_at, by=by))
        return Requeued(sorted(states), conflicts)

    async def pause_queue(self, queue: str, *, by: str, reason: str) -> None:
        async with self._changing_queue(queue, "pause", by, reason) as connection:
            await self._on(connection, "pause_queue", queue=queue, by=by, reason=reason)

    async def resume_queue(self, queue: str, *, by: str = "unknown") -> None:
        async with self._changing_queue(queue, "resume", by) as connection:
            await self._on(connection, "resume_queue", queue=queue)
            await self._on(connection, "drop_plain_queues", queue=queue)

    async def limit_queue(self, queue: str, limits: Limits, *, by: str = "unknown") -> None:
        async with self._changing_queue(queue, "limit", by) as connection:
            await self._on(connection, "limit_queue", queue=queue, **msgspec.structs.asdict(limits))
            await self._on(connection, "drop_plain_queues", queue=queue)

    @asynccontextmanager
    async def _changing_queue(
        self, queue: str, action: str, by: str, reason: str | None = None
    ) -> AsyncIterator[Connection]:
        """A transaction that also writes to the audit what it has changed of the queue."""
        async with self._connection() as connection, connection.transaction():
            before = await self._queue_row(connection, queue)
            yield connection
            after = await self._queue_row(connection, queue)
            events = queue_events(action, queue, before, after, by=by, reason=reason)
            await self._audit(connection, events)

    async def _queue_row(self, connection: Connection, queue: str) -> QueueRow | None:
        for row in await self._on(connection, "queue_row", queue=queue):
            paused_at = None if row[0] is None else row[0].astimezone(UTC)
            return QueueRow(paused_at, row[1], row[2], _limits(row[3:]))
        return None

    async def queues(
        self, *, after: str | None = None, limit: int | None = None
    ) -> list[QueueInfo]:
        return [
            QueueInfo(
                **dict(zip(QueueInfo.__struct_fields__[:9], row[:9], strict=True)),
                limits=_limits(row[9:]),
                started=row[13],
            )
            for row in await self._rows("queues", after=after, limit=limit)
        ]

    async def limited_queues(self) -> dict[str, Limits]:
        return {row[0]: _limits(row[1:]) for row in await self._rows("limited_queues")}

    async def workers(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(**dict(zip(WorkerInfo.__struct_fields__, _tuples(row), strict=True)))
            for row in await self._rows("workers")
        ]

    async def wait_finished(self, job_id: int, seconds: float) -> JobInfo | None:
        async with self._opening:
            if self._results is None and self._notify:
                listener = Listener(
                    self.listen_dsn, [f"{self.schema}.finished"], self._on_finished_notification
                )
                with translate_errors():
                    await listener.open()
                self._results = listener
        event = asyncio.Event()
        self._watched.setdefault(job_id, []).append(event)
        try:
            # A finish may have begun before it could see us: check again soon, then less often.
            async with self._reads:
                if seconds:
                    await self._rows("watch", job=job_id, wait=timedelta(seconds=seconds))
                if (job := await self._finished_job(job_id)) is not None:
                    return job
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
                async with self._reads:
                    return await self._finished_job(job_id)
            return None
        finally:
            self._watched[job_id].remove(event)
            if not self._watched[job_id]:
                del self._watched[job_id]

    async def _finished_job(self, job_id: int) -> JobInfo | None:
        rows = await self._rows("get_job", job=job_id)
        if not rows:
            raise JobNotFound(job_id)
        job = _job_info(rows[0])
        return await self._with_history(rows[0]) if job.state.finished else None

    def _on_finished_notification(self, channel: str, payload: str) -> None:
        # Each waiter reads the job again. Without a payload we have reconnected.
        jobs = list(self._watched)
        if payload:
            jobs = [int(payload)] if _JOB_ID.fullmatch(payload) else []
        for job_id in jobs:
            for event in self._watched.get(job_id, ()):
                event.set()


def _job_info(row: Row, history: tuple[AttemptInfo, ...] = ()) -> JobInfo:
    values = dict(zip(JobInfo.__struct_fields__, row, strict=False))
    values["state"] = JobState(values["state"])
    if values["parked_reason"] is not None:
        values["parked_reason"] = msgspec.convert(values["parked_reason"], Reason)
    return JobInfo(**_described(values), history=history)


def _described(values: dict[str, Any]) -> dict[str, Any]:
    error = describe_error(values["error_code"], values["facts"], values["error"])
    return values | {"error": error}


def _limits(row: Row) -> Limits:
    return Limits(running=row[0], per_partition=row[1], rate=row[2], period=row[3])


def _tuples(row: Row) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)
