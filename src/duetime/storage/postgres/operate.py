"""Operations on jobs, queues and workers: list, inspect, change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from duetime.domain.jobs.arguments import ArgumentFilter
from duetime.domain.jobs.facets import ErrorGroup, JobFacets
from duetime.domain.jobs.job import AttemptInfo, FoundJobs, JobFilter, JobInfo, JobResult, JobState
from duetime.domain.jobs.log_lines import read_log
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Reason, describe_error
from duetime.errors import JobNotFound
from duetime.storage.jobs.facets import count_jobs, find_errors
from duetime.storage.jobs.find import Make, find_jobs
from duetime.storage.postgres.connection import array, text_array, translate_errors
from duetime.storage.postgres.dialect import drive
from duetime.storage.postgres.listener import Listener
from duetime.storage.postgres.sessions import Sessions
from duetime.storage.store import Row, Statement, Statements, WorkerInfo

_JOB_ID = re.compile(r"[0-9]{1,19}")


class Operations(Sessions):
    """Off the hot path: every method may take its time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._results: Listener | None = None
        self._opening = asyncio.Lock()
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
        attempts = tuple(_attempt_info(row) for row in history)
        return _job_info(row, history=attempts)

    async def find(self, which: JobFilter) -> FoundJobs:
        rows, below, examined = await self._read(lambda make: find_jobs(which, make))
        return FoundJobs([_job_info(row) for row in rows], below=below, examined=examined)

    async def facets(self, which: JobFilter) -> JobFacets:
        facets: JobFacets = await self._read(lambda make: count_jobs(which, make))
        return facets

    async def errors(self, which: JobFilter) -> list[ErrorGroup]:
        groups: list[ErrorGroup] = await self._read(
            lambda make: find_errors(which, make, self.dialect.moment)
        )
        return groups

    async def _read(self, read: Callable[[Make], Statements]) -> Any:
        """Run statements that find jobs, in one snapshot."""

        def make(name: str, values: dict[str, Any]) -> Statement:
            return self._sql[name], _with_arrays(values)

        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "begin_snapshot")
            return await drive(connection, read(make))

    async def queues(
        self,
        *,
        only: str | None = None,
        count_to: int | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[QueueInfo]:
        found = await self._rows("queues", only=only, count_to=count_to, after=after, limit=limit)
        return [
            QueueInfo(
                **dict(zip(QueueInfo.__struct_fields__[:9], row[:9], strict=True)),
                limits=_limits(row[9:]),
                started=row[13],
                counted_all=row[14],
            )
            for row in found
        ]

    async def limited_queues(self) -> dict[str, Limits]:
        return {row[0]: _limits(row[1:]) for row in await self._rows("limited_queues")}

    async def workers(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(**dict(zip(WorkerInfo.__struct_fields__, _tuples(row), strict=True)))
            for row in await self._rows("workers")
        ]

    async def change_mark(self) -> Any:
        return (await self._rows("change_mark"))[0][0]

    async def wait_finished(self, job_id: int, seconds: float) -> JobResult | None:
        with self._waits.on(job_id) as wait:
            if seconds:
                await self._waits.until_claimed(job_id, wait, idle=self._has_idle_worker)
            if wait.token is None:
                # A finish may have begun before it could see us: check again soon, then less often.
                if seconds:
                    await self._listen_for_results()
                async with self._reads:
                    if seconds:
                        await self._rows("watch", job=job_id, wait=timedelta(seconds=seconds))
                    if (result := await self._result_of(job_id)) is not None:
                        return result
            try:
                async with asyncio.timeout(seconds):
                    answer = await wait.answer
            except TimeoutError:
                # The worker may have lost the job: next time, read it and watch for its result.
                self._waits.forget(job_id)
                return None
            if answer is not None:
                return answer
            async with self._reads:
                return await self._result_of(job_id)

    @property
    def _has_idle_worker(self) -> bool:
        return any(sleeper.asleep and sleeper.listening for sleeper in self._sleepers)

    async def _listen_for_results(self) -> None:
        async with self._opening:
            if self._results is None and self._notify:
                listener = self._make_listener(
                    [f"{self.schema}.finished"], self._on_finished_notification
                )
                with translate_errors():
                    await listener.open()
                self._results = listener

    async def _result_of(self, job_id: int) -> JobResult | None:
        if self._direct.is_ready:
            rows = await self._at_once("job_result", {"job": job_id})
        else:
            rows = await self._rows("job_result", job=job_id)
        if not rows:
            raise JobNotFound(job_id)
        task, state, code, error, facts, result = rows[0]
        if state is None:
            return None
        return JobResult(
            task=task,
            state=JobState(state),
            result=result,
            error_code=code,
            error=describe_error(code, facts, error),
        )

    def _on_finished_notification(self, channel: str, payload: str) -> None:
        # Each waiter reads the job again. Without a payload we have reconnected.
        if not payload:
            self._waits.announced(None)
        elif _JOB_ID.fullmatch(payload):
            self._waits.announced(int(payload))


def _job_info(row: Row, history: tuple[AttemptInfo, ...] = ()) -> JobInfo:
    values = dict(zip(JobInfo.__struct_fields__, row, strict=False))
    values["state"] = JobState(values["state"])
    if values["parked_reason"] is not None:
        values["parked_reason"] = msgspec.convert(values["parked_reason"], Reason)
    return JobInfo(**_described(values), history=history)


def _attempt_info(row: Row) -> AttemptInfo:
    values = dict(zip(AttemptInfo.__struct_fields__, row, strict=True))
    return AttemptInfo(**_described(values) | {"log": read_log(values["log"])})


def _with_arrays(values: dict[str, Any]) -> dict[str, Any]:
    """Ids as an array. Conditions on arguments as two: of paths, each an array, and of values."""
    wanted: Sequence[ArgumentFilter] = values.get("args") or ()
    ids = values.get("ids")
    return values | {
        "ids": None if ids is None else array(ids),
        "paths": [text_array(one.path) for one in wanted] or None,
        "values": [msgspec.json.encode(one.value).decode() for one in wanted] or None,
    }


def _described(values: dict[str, Any]) -> dict[str, Any]:
    error = describe_error(values["error_code"], values["facts"], values["error"])
    return values | {"error": error}


def _limits(row: Row) -> Limits:
    return Limits(running=row[0], per_partition=row[1], rate=row[2], period=row[3])


def _tuples(row: Row) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)
