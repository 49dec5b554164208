"""Operations on jobs, queues and workers: list, inspect, change."""

from __future__ import annotations

import asyncio
import contextlib
import re
from datetime import timedelta
from typing import Any

import msgspec

from duetime.domain.jobs.job import AttemptInfo, JobFilter, JobInfo, JobState
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Reason, describe_error
from duetime.errors import JobNotFound
from duetime.storage.jobs.find import find_jobs
from duetime.storage.postgres.connection import translate_errors
from duetime.storage.postgres.dialect import drive
from duetime.storage.postgres.listener import Listener
from duetime.storage.postgres.sessions import Sessions
from duetime.storage.store import Row, WorkerInfo

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
                if (
                    await self._may_have_finished(job_id)
                    and (job := await self._finished_job(job_id)) is not None
                ):
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

    async def _may_have_finished(self, job_id: int) -> bool:
        rows = await self._rows("may_have_finished", job=job_id)
        if not rows:
            raise JobNotFound(job_id)
        return bool(rows[0][0])

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
