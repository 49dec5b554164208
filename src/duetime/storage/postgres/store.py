"""PostgreSQL: the production engine, for any number of machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from struct import pack
from typing import Any, cast

import msgspec

from duetime.domain.flows.flow import NewRecord
from duetime.domain.jobs.job import ClaimedJob, Enqueued, NewJob
from duetime.errors import TransactionConflict
from duetime.storage.postgres.bulk import BEGIN, END, CopyRows
from duetime.storage.postgres.connection import limited_to, translate_errors
from duetime.storage.postgres.dialect import drive, drive_directly, one_statement
from duetime.storage.postgres.hot_path import HotPath
from duetime.storage.postgres.operate import Operations
from duetime.storage.postgres.plain import PlainJobs, read_ids
from duetime.storage.store import MAX_CLAIMED_ARGS, Statements, in_parts

_BULK = 1000
"""From this many jobs on, COPY is faster than one function call."""
_CHUNK = 2000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PostgresStore(HotPath, Operations):
    """The store: enqueues here; `HotPath` serves workers, `Operations` people."""

    placeholder = "%s"
    _computing: ThreadPoolExecutor | None = None
    _copies: bool | None = None
    """Whether our role may write to the tables, once it is known."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._plain_jobs = PlainJobs()
        self._key_turns = asyncio.Semaphore(max(1, self._pool_size // 2))

    async def now(self) -> datetime:
        return cast("datetime", (await self._ask("now"))[0][0])

    async def drive_clock(self, now: datetime | None) -> None:
        async with self._connection() as connection, connection.transaction():
            await self._on(connection, "create_clock")
            await self._on(connection, "set_clock", now=now)
            await self._on(connection, "real_clock" if now is None else "driven_clock")

    async def enqueue(self, jobs: Sequence[NewJob], *, waits: bool = True) -> list[Enqueued]:
        if waits and any(job.key is not None for job in jobs):
            enqueued = await self._wait_for_keys(jobs)
        else:
            enqueued = await self._enqueue(jobs, waits=waits)
        if len(jobs) == 1:
            self._waits.enqueued(enqueued[0].job_id)
        return enqueued

    async def _wait_for_keys(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue jobs whose keys open transactions may hold. Those who wait for such transactions
        occupy at most half of the pool, and calls that need not wait do not queue behind them."""
        if self._key_turns.locked():
            with suppress(TransactionConflict):
                return await self._enqueue(jobs, waits=False)
        async with limited_to(self._call_seconds):
            await self._key_turns.acquire()
        try:
            return await self._enqueue(jobs, waits=True)
        finally:
            self._key_turns.release()

    async def _enqueue(self, jobs: Sequence[NewJob], *, waits: bool) -> list[Enqueued]:
        if all(job.key is None for job in jobs) and await self._may_copy():
            if len(jobs) >= _BULK:
                return await self._copy(jobs)
            if self._prepare and jobs:
                return await self._enqueue_plainly(jobs)
        # One chunk is one statement, and its own transaction.
        statements = self._enqueue_in(jobs, "enqueue" if waits else "enqueue_without_waiting")
        if self._prepare and len(jobs) <= _CHUNK:
            with translate_errors():
                return cast(
                    "list[Enqueued]",
                    await drive_directly(self._calls, statements, seconds=self._call_seconds),
                )
        whole = nullcontext() if len(jobs) <= _CHUNK else None
        async with (
            self._connection() as connection,
            whole or connection.transaction(),
        ):
            return cast("list[Enqueued]", await drive(connection, statements))

    @property
    def hands_over(self) -> bool:
        return self._prepare and bool(self._copies)

    async def enqueue_held(self, job: NewJob, worker_id: int) -> tuple[Enqueued, ClaimedJob | None]:
        _, parameters = self._plain_jobs.parameters([job], notify=self._notify)
        parameters["worker"] = pack("!q", worker_id)
        with translate_errors(), self._waits.claiming():
            # Where the steps are recorded, if it is open: a server process that has just worked is
            # faster than another one that wakes up.
            session = self._direct if self._direct.is_ready else self._calls
            answer = await session.fetch_bytes(
                self._sql["enqueue_held"], parameters, self._call_seconds
            )
            job_id, token, moment = read_ids(answer)
            self._waits.enqueued(job_id)
            claimed = None
            if token:
                claimed = _held(job, job_id, token, _EPOCH + timedelta(microseconds=moment))
                self._waits.claimed([claimed])
        return Enqueued(job_id, "created"), claimed

    async def _enqueue_plainly(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        name, parameters = self._plain_jobs.parameters(jobs, notify=self._notify)
        with translate_errors():
            ids = await self._calls.fetch_bytes(self._sql[name], parameters, self._call_seconds)
        return [Enqueued(job_id, "created") for job_id in read_ids(ids)]

    async def transact(
        self,
        statements: Statements,
        *,
        reads: bool = False,
        snapshot: bool = False,
        single: bool = False,
        computes: bool = False,
    ) -> Any:
        if single and self._prepare and self._direct.is_free:
            return await self._run_directly(statements)
        lone = (reads or single) and not snapshot
        # Each statement has its time-out: a change of many subjects has many of them.
        async with (
            self._lasting_connection() as connection,
            nullcontext() if lone else connection.transaction(),
        ):
            if snapshot:
                await self._on(connection, "begin_snapshot")
            return await drive(
                connection,
                one_statement(statements) if lone else statements,
                seconds=self._call_seconds,
                thread=self._computing_thread() if computes else None,
            )

    @property
    def records_at_once(self) -> bool:
        return self._direct.has_prepared(self._sql["flow_record_one"])

    async def record_step(self, record: NewRecord) -> bool | None:
        if not self._prepare or not self._direct.is_free:
            return None
        with translate_errors():
            rows = await self._direct.write(
                self._sql["flow_record_one"], record_parameters(record), self._call_seconds
            )
        return rows > 0

    async def _run_directly(self, statements: Statements) -> Any:
        with translate_errors():
            return await drive_directly(self._direct, statements, seconds=self._call_seconds)

    def _computing_thread(self) -> ThreadPoolExecutor:
        # Its own: the event loop's threads may all be busy with handlers.
        if self._computing is None:
            self._computing = ThreadPoolExecutor(1, "duetime-compute")
        return self._computing

    async def close(self) -> None:
        await super().close()
        if self._computing is not None:
            self._computing.shutdown(wait=False)
            self._computing = None

    def enqueue_in(self, jobs: Sequence[NewJob]) -> Statements:
        return self._enqueue_in(jobs, "enqueue")

    def _enqueue_in(self, jobs: Sequence[NewJob], name: str) -> Statements:
        # Keys are taken in one order, across chunks too: two such calls cannot deadlock.
        order = sorted(
            range(len(jobs)), key=lambda place: (jobs[place].key or "", jobs[place].task, place)
        )
        answers: list[Enqueued | None] = [None] * len(jobs)
        for places in in_parts(order, _CHUNK):
            body = msgspec.json.encode([jobs[place] for place in places]).decode()
            rows = yield self._sql[name], (body, self._notify)
            for place, row in zip(places, rows, strict=True):
                answers[place] = Enqueued(*row)
        return answers

    async def _may_copy(self) -> bool:
        if self._copies is None:
            self._copies = bool((await self._rows("may_copy"))[0][0])
        return self._copies

    async def _copy(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        async with self._connection() as connection, connection.transaction():
            [(moment, ids)] = await self._on(connection, "reserve_ids", count=len(jobs))
            rows = CopyRows(moment)
            async with connection.cursor().copy(self._sql["copy_job"]) as copy:
                await copy.write(BEGIN)
                for start in range(0, len(jobs), _CHUNK):
                    end = start + _CHUNK
                    await copy.write(rows.add(jobs[start:end], ids[start:end]))
                await copy.write(END)
            async with connection.cursor().copy(self._sql["copy_due"]) as copy:
                await copy.write(BEGIN)
                for chunk in rows.due:
                    await copy.write(chunk)
                await copy.write(END)
            if self._notify:
                for queue, run_at in sorted(rows.first_due.items()):
                    await self._on(connection, "wake", queue=queue, run_at=run_at)
            return [Enqueued(job_id, "created") for job_id in ids]


def _held(job: NewJob, job_id: int, token: int, moment: datetime) -> ClaimedJob:
    """What a claim returns of a job that was made in its transaction."""
    args = bytes(job.args)
    expires_at = job.expires_at
    if expires_at is None and job.expires_after is not None:
        expires_at = moment + job.expires_after
    return ClaimedJob(
        id=job_id,
        token=token,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        args=args.decode() if len(args) <= MAX_CLAIMED_ARGS else None,
        attempt=1,
        max_attempts=job.max_attempts,
        run_at=moment,
        claimed_at=moment,
        partition=job.partition,
        timeout=job.timeout,
        expires_at=expires_at,
        trace=None if job.trace is None else msgspec.json.encode(job.trace).decode(),
        is_unrecorded=job.flow,
    )


def record_parameters(record: NewRecord) -> dict[str, Any]:
    """The parameters of `flow_record_one`."""
    return {
        "run": record.run,
        "seq": record.seq,
        "kind": record.kind,
        "name": record.name,
        "place": record.place,
        "attempt": record.attempt,
        "output": None if record.output is None else bytes(record.output),
        "started": record.started,
        "finished": record.finished,
        "token": record.token,
    }
